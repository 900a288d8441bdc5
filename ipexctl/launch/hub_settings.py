"""Finds the hub repositories that a script names; decides which cache ranks read, and if they may ask the hub. Pure.

The script is parsed, never run. `--data out/final` looks like a repository, so one is certain only if a library call
always runs, the script imports a hub library, and no other text of the script begins with that directory. A host that
can't reach the hub is set offline: the libraries try each request six times within 23 s, and a tokenizer makes two. If
every host has everything, no host asks, because one that reaches the hub could get a newer revision.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ipexctl.errors import Refusal, UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.hugging_face import DEFAULT_REVISION, HubRepo, RepoKind, load_call, parse_repo, push_line
from ipexctl.launch.context import ChosenValue, LaunchContext, NodeLayout
from ipexctl.launch.request import Gathered
from ipexctl.node.common.plan import Setting
from ipexctl.script_file import HostHub, HubUse, NamedRepo
from ipexctl.text import join_words

LIBRARIES: Final = frozenset(
    {"datasets", "diffusers", "evaluate", "huggingface_hub", "peft", "sentence_transformers", "transformers", "trl"}
)
_CALLS: Final[Mapping[str, tuple[RepoKind, int, str]]] = {
    "from_pretrained": ("model", 0, "pretrained_model_name_or_path"),
    "pipeline": ("model", 1, "model"),
    "SentenceTransformer": ("model", 0, "model_name_or_path"),
    "snapshot_download": ("model", 0, "repo_id"),
    "hf_hub_download": ("model", 0, "repo_id"),
    "load_dataset": ("dataset", 0, "path"),
    "load_dataset_builder": ("dataset", 0, "path"),
}
"""Function → kind of repository, and the position and name of the argument that names it."""
_LOADS: Final = frozenset({"load_dataset", "load_dataset_builder"})
_OTHER_CACHE: Final = frozenset({"cache_dir", "local_dir"})
_OPTION: Final = re.compile(
    r"--(?:\w+[-_])?(?P<what>model|tokenizer|dataset)(?:[-_](?:name|id|path|name[-_]or[-_]path))?"
)
_WRITTEN: Final = frozenset(
    "out output outputs result results checkpoint checkpoints ckpt ckpts run runs model models save saved tmp temp log "  # noqa: SIM905
    "logs data . ..".split()
)
"""First directories that name a script's own output, not a repository."""


def hub_use_of(tree: ast.Module, name: str) -> HubUse:
    imports = any(module in LIBRARIES for node in ast.walk(tree) for module in imported_modules(node))
    found = _Finder(name, _assigned(tree), imports=imports)
    found.visit_all(tree)
    texts = frozenset(
        _first(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in found.used
    )
    repos = [_certain(entry, imports, texts) for _, entry in sorted(found.repos, key=lambda line: line[0])]
    reached = _reached_options(tree) if any(entry.option for entry in repos) else frozenset[str]()
    repos = [replace(entry, is_certain=entry.is_certain and _reaches(entry.option, reached)) for entry in repos]
    by_directory = {entry.repo for entry in repos if not entry.is_loaded}
    repos = [replace(entry, is_loaded=entry.is_loaded and entry.repo not in by_directory) for entry in repos]
    return HubUse(tuple(repos), imports, texts, found.loads_others)


def with_arguments(use: HubUse, arguments: Sequence[str]) -> HubUse:
    """Add repositories that the arguments name. The default of an option counts only if the option is not given."""
    given, texts, found = set[str](), set(use.texts), list[NamedRepo]()
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=") if argument.startswith("--") else (option, "", argument)
        option = name if argument.startswith("--") and not equals else ""
        if argument.startswith("--"):
            given.add(_plain(name))
        match, repo = _OPTION.fullmatch(name), None
        if match is not None and value and "/" in value:
            repo = _repo("dataset" if match["what"] == "dataset" else "model", value)
        if repo is not None:
            is_loaded = use.loads_others and repo.kind == "dataset"
            found.append(NamedRepo(repo, name, is_certain=True, is_loaded=is_loaded))
        elif not argument.startswith("--") or equals:
            texts.add(_first(value))
    kept = [entry for entry in use.repos if not entry.option or _plain(entry.option) not in given]
    named: dict[HubRepo, NamedRepo] = {}
    for entry in (*kept, *found):
        entry = _certain(entry, use.imports, frozenset(texts))
        if entry.repo not in named or (entry.is_certain and not named[entry.repo].is_certain):
            named[entry.repo] = entry
    return replace(use, repos=tuple(named.values()))


def _reached_options(tree: ast.Module) -> frozenset[str]:
    """Attributes, as of `args`, that reach a call which loads from a hub, also through a variable."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _function(node) in _CALLS]
    words = [
        word
        for call in calls
        for value in (*call.args, *(each.value for each in call.keywords))
        for word in ast.walk(value)
    ]
    names = {word.id for word in words if isinstance(word, ast.Name)}
    values = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id in names for to in node.targets)
    ]
    words += [word for value in values for word in ast.walk(value)]
    return frozenset(word.attr for word in words if isinstance(word, ast.Attribute))


def _reaches(option: str, reached: frozenset[str]) -> bool:
    return not option or _plain(option.lstrip("-")) in reached


def _function(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _plain(option: str) -> str:
    return option.replace("-", "_")


def _first(text: str) -> str:
    return text.removeprefix("./").partition("/")[0]


def _certain(entry: NamedRepo, imports: bool, texts: frozenset[str]) -> NamedRepo:
    first = _first(entry.repo.repo_id)
    return replace(entry, is_certain=entry.is_certain and imports and first not in texts and first not in _WRITTEN)


def imported_modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield node.module.partition(".")[0]


def _assigned(tree: ast.Module) -> Mapping[str, ast.Constant]:
    bound = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    values: dict[str, ast.Constant] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Constant):
            target = node.targets[0]
            if isinstance(target, ast.Name) and bound.count(target.id) == 1:
                values[target.id] = node.value
    return values


def _repo(kind: RepoKind, text: str, revision: str = DEFAULT_REVISION) -> HubRepo | None:
    prefix = "hf-dataset" if kind == "dataset" else "hf"
    try:
        return parse_repo(f"{prefix}:{text}@{revision}") if text.count("/") == 1 and "@" not in text else None
    except UserError:
        return None


class _Finder:
    def __init__(self, name: str, assigned: Mapping[str, ast.Constant], *, imports: bool) -> None:
        self._name, self._assigned, self._imports = name, assigned, imports
        self.repos: list[tuple[int, NamedRepo]] = []
        self.used: set[int] = set()
        self.loads_others = False

    def visit_all(self, tree: ast.Module) -> None:
        """Visit all nodes without recursion, because expressions may be nested deeply."""
        waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
        while waiting:
            node, is_sure = waiting.pop()
            if isinstance(node, ast.Call):
                self._read_call(node, is_sure=is_sure)
            is_sure = is_sure and not _may_be_skipped(node)
            waiting += [(child, is_sure) for child in ast.iter_child_nodes(node)]

    def _read_call(self, call: ast.Call, *, is_sure: bool) -> None:
        name = _function(call)
        if name == "add_argument":
            self._read_option(call)
        if name not in _CALLS or not (self._imports or name == "from_pretrained"):
            return
        kind, at, keyword = _CALLS[name]
        keywords = {entry.arg: entry.value for entry in call.keywords if entry.arg is not None}
        if _OTHER_CACHE & keywords.keys():
            return
        if self._text(keywords.get("repo_type"))[0] == "dataset":
            kind = "dataset"
        value = call.args[at] if len(call.args) > at else keywords.get(keyword)
        text, constant = self._text(value)
        repo = _repo(kind, text, self._text(keywords.get("revision"))[0] or DEFAULT_REVISION)
        if repo is not None:
            self.used.add(id(constant))
            place = f"{self._name}, line {call.lineno}"
            self.repos.append((call.lineno, NamedRepo(repo, place, is_sure, name in _LOADS)))
        self.loads_others |= name in _LOADS and isinstance(value, (ast.Name, ast.Attribute)) and not text

    def _read_option(self, call: ast.Call) -> None:
        options = [text for text in (self._text(word)[0] for word in call.args) if _OPTION.fullmatch(text)]
        default = next((entry.value for entry in call.keywords if entry.arg == "default"), None)
        match = _OPTION.fullmatch(options[0]) if options else None
        text, constant = self._text(default)
        repo = _repo("dataset" if match["what"] == "dataset" else "model", text) if match is not None else None
        if repo is not None:
            self.used.add(id(constant))
            place = f"{self._name}, line {call.lineno}"
            self.repos.append((call.lineno, NamedRepo(repo, place, is_certain=True, option=options[0])))

    def _text(self, node: ast.AST | None) -> tuple[str, ast.Constant | None]:
        constant = self._assigned.get(node.id) if isinstance(node, ast.Name) else node
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            return constant.value, constant
        return "", None


def _may_be_skipped(node: ast.AST) -> bool:
    """True if the code inside may not run. `main` and `if __name__ == "__main__":` count as always run."""
    if isinstance(node, ast.If):
        test = node.test
        return not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__")
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name != "main"
    return isinstance(node, (ast.ClassDef, ast.Lambda, ast.IfExp, ast.BoolOp, ast.Try, ast.While, ast.ExceptHandler))


CACHES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
OFFLINE: Final = "HF_HUB_OFFLINE"
_BROTHERS: Final = {
    "TRANSFORMERS_OFFLINE": "transformers before 4.42 reads this name",
    "HF_DATASETS_OFFLINE": "datasets before 2.21 reads this name alone, and newer ones before HF_HUB_OFFLINE",
}
_TRUE: Final = ("1", "ON", "YES", "TRUE")
OFFLINE_NAMES: Final = (OFFLINE, *_BROTHERS)


def settings(context: LaunchContext) -> Iterator[Setting]:
    gathered = context.gathered
    if _reads_home(gathered):
        own, hub = frozenset(CACHES), gathered.hub

        def choose(node: NodeLayout) -> ChosenValue | None:
            if _names(gathered, node.name, own):
                return None
            return hub.home, "models and data of ipexctl push are there; -x HF_HOME=DIR names another cache"

        yield from context.per_node("HF_HOME", choose)
        yield from context.per_node("HF_TOKEN_PATH", lambda node: choose(node) and _token(gathered, node.name))
    if _decided(gathered) is not None:
        return
    reasons = _offline(gathered, [node.name for node in context.nodes])
    for name in OFFLINE_NAMES:
        yield from context.per_node(
            name,
            lambda node, name=name: _offline_choice(gathered, node.name, name, reasons.get(node.name)),  # type: ignore[misc]
        )


def _token(gathered: Gathered, host: str) -> ChosenValue | None:
    variables = gathered.facts[host].environment.variables
    if "HF_TOKEN_PATH" in variables:
        return None
    cache = variables.get("XDG_CACHE_HOME") or "~/.cache"
    return f"{cache}/huggingface/token", "HF_HOME would move it: a token of `hf auth login` stays where it is"


def _names(gathered: Gathered, host: str, names: frozenset[str]) -> bool:
    found = gathered.hub.hosts.get(host)
    is_set_up = found is not None and found.has_own_cache and names.issuperset(CACHES)
    exported = {export.name for export in gathered.asked.exports}
    return is_set_up or not names.isdisjoint({*exported, *gathered.facts[host].environment.variables})


def _reads_home(gathered: Gathered) -> bool:
    """True if ranks read the home's cache where nothing else chooses one. The account's cache wins if only it has
    everything."""
    if not any(facts.home is not None and facts.home.has_hub for facts in gathered.facts.values()):
        return False
    named = frozenset(entry.repo for entry in gathered.hub.use.repos)
    hosts = gathered.hub.hosts.values()
    is_in_own = bool(named) and all(named <= found.in_own for found in hosts)
    return not (hosts and is_in_own and any(not named <= found.in_home for found in hosts))


def _has(gathered: Gathered, host: str) -> frozenset[HubRepo]:
    found = gathered.hub.hosts.get(host, HostHub())
    return found.in_home if _is_home_read(gathered, host) else found.in_own


def _is_home_read(gathered: Gathered, host: str) -> bool:
    return _reads_home(gathered) and not _names(gathered, host, frozenset(CACHES))


def _is_prepared(gathered: Gathered, host: str, repo: HubRepo) -> bool:
    found = gathered.hub.hosts.get(host)
    return found is None or repo in (found.prepared_in_home if _is_home_read(gathered, host) else found.prepared_in_own)


def _offline(gathered: Gathered, hosts: Sequence[str]) -> dict[str, str]:
    if gathered.asked.offline_hub:
        return dict.fromkeys(hosts, "--offline-hub")
    problems = {host: found.problem for host in hosts if (found := gathered.hub.hosts.get(host)) and found.problem}
    reasons = {host: f"it does not reach the hub: {problem}" for host, problem in problems.items()}
    named = frozenset(entry.repo for entry in gathered.hub.use.repos)
    if problems and named and all(named <= _has(gathered, host) for host in hosts):
        reason = f"all hosts have what the script names, and {fold(problems)} cannot look for a newer revision"
        return {**dict.fromkeys(hosts, reason), **reasons}
    return reasons


def _offline_choice(gathered: Gathered, host: str, name: str, reason: str | None) -> ChosenValue | None:
    if reason is None or _names(gathered, host, frozenset({name, OFFLINE})):
        return None
    return "1", reason if name == OFFLINE else _BROTHERS[name]


# What the user should know


def notes(context: LaunchContext) -> Iterator[str]:
    gathered, hosts = context.gathered, [node.name for node in context.nodes]
    yield from _lacking_notes(gathered, hosts)
    yield from _loading_notes(gathered, hosts)
    hub = gathered.hub
    others = max((hub.hosts[host].others for host in hosts if host in hub.hosts), default=0)
    if others and not hub.use.repos and _reads_home(gathered) and not hub.hosts[hosts[0]].has_own_cache:
        yield (
            f"HF_HOME is the cache of ipexctl push, which lacks {others} of the models and data in "
            "~/.cache/huggingface; to read that one: -x HF_HOME=~/.cache/huggingface"
        )


def refusal(context: LaunchContext) -> Refusal | None:
    """Refuse a run whose ranks would certainly fail: no host has what they need, and none can get it."""
    gathered, hosts = context.gathered, [node.name for node in context.nodes]
    cut_off = _cut_off(gathered, hosts)
    lost = [
        entry
        for entry, lacking in _lacking(gathered, hosts)
        if entry.is_certain and len(lacking) == len(hosts) == len(cut_off)
    ]
    if not lost:
        return None
    it = "it" if len(lost) == 1 else "them"
    push = push_line(entry.repo for entry in lost)
    if gathered.asked.offline_hub or _decided(gathered):
        option = "--offline-hub" if gathered.asked.offline_hub else f"{OFFLINE}=1"
        return Refusal(
            f"{_named(lost)}: no host has {it}, and {option} keeps the ranks from the hub", push, tuple(hosts)
        )
    problem = gathered.hub.hosts[hosts[0]].problem
    reason = f"{_named(lost)}: no host has {it}, and none reaches the hub ({problem})"
    return Refusal(reason, f"{push}; to start anyway: -x {OFFLINE}=0", tuple(hosts))


def _decided(gathered: Gathered) -> bool | None:
    """True if the command line keeps the ranks from the hub; None if it does not say."""
    value = gathered.spec.variables.get(OFFLINE)
    return None if value is None else value.strip().upper() in _TRUE


def _lacking(gathered: Gathered, hosts: Sequence[str]) -> list[tuple[NamedRepo, list[str]]]:
    if not all(host in gathered.hub.hosts for host in hosts):
        return []
    has = {host: _has(gathered, host) for host in hosts}
    found = [(entry, [host for host in hosts if entry.repo not in has[host]]) for entry in gathered.hub.use.repos]
    return [(entry, lacking) for entry, lacking in found if lacking]


def _cut_off(gathered: Gathered, hosts: Sequence[str]) -> list[str]:
    """Hosts that are set offline, unless the user decides that."""
    decided = _decided(gathered)
    if decided is not None:
        return list(hosts) if decided else []
    return list(_offline(gathered, hosts))


def _lacking_notes(gathered: Gathered, hosts: Sequence[str]) -> Iterator[str]:
    lacking = _lacking(gathered, hosts)
    cut_off = frozenset(_cut_off(gathered, hosts))
    for on_hosts in dict.fromkeys(tuple(names) for _, names in lacking):
        entries = [entry for entry, names in lacking if tuple(names) == on_hosts]
        where = "no host has" if len(on_hosts) == len(hosts) else f"{fold(on_hosts)} {_verb(on_hosts)}"
        failing = [name for name in on_hosts if name in cut_off]
        if failing:
            then = "its ranks fail there" if len(failing) == 1 else "their ranks fail"
            then = f"{fold(failing)} cannot get {'it' if len(entries) == 1 else 'them'} from the hub, so {then}"
        else:
            then = "all its ranks download" if len(on_hosts) == 1 else "all ranks download"
            then = f"{then} {'it' if len(entries) == 1 else 'them'} at once"
        push = push_line(entry.repo for entry in entries)
        yield f"{where} {_named(entries)}; {then}; to send it to all hosts once: {push}"


def _loading_notes(gathered: Gathered, hosts: Sequence[str]) -> Iterator[str]:
    """Notes on datasets in the cache that the script's call can't load."""
    cut_off = _cut_off(gathered, hosts)
    for entry in gathered.hub.use.repos:
        failing = [host for host in cut_off if entry.is_loaded and not _is_prepared(gathered, host, entry.repo)]
        if failing:
            yield (
                f'load_dataset("{entry.repo.repo_id}") ({entry.place}) fails on {fold(failing)} without the hub, also '
                f"with its files in the cache; in the script: {load_call(entry.repo)}"
            )


def _verb(hosts: Sequence[str]) -> str:
    return "lacks" if len(hosts) == 1 else "lack"


def _named(entries: Sequence[NamedRepo]) -> str:
    return join_words([f"{entry.repo.repo_id} ({entry.place})" for entry in entries])
