"""Finds the hub repositories that a script names in its code or arguments. Pure.

The script is parsed, never run. It may name a repository in a library call (`from_pretrained("org/model")`,
`load_dataset("org/name")`), in a name that is assigned once, in the default of an option, or after an option
(`--model_name_or_path org/model`). A directory such as `out/final` looks the same, so a repository is certain only if
the call always runs, the script imports a hub library, and no other text of the script begins with that directory.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ipexctl.errors import UserError
from ipexctl.hugging_face import DEFAULT_REVISION, HubRepo, RepoKind, parse_repo

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


@dataclass(frozen=True, slots=True)
class NamedRepo:
    repo: HubRepo
    place: str
    is_certain: bool = False
    """True if the ranks fail without it."""
    is_loaded: bool = False
    """True for `load_dataset`, which asks the hub even if all files are in the cache."""
    option: str = ""
    """Option of the script whose default names the repository; empty if it is named elsewhere."""


@dataclass(frozen=True, slots=True)
class HubUse:
    repos: tuple[NamedRepo, ...] = ()
    imports: bool = False
    """True if the script imports a library that downloads models or data from a hub."""
    texts: frozenset[str] = field(default=frozenset(), hash=False)
    """First directories of the script's other texts."""
    loads_others: bool = False
    """True if it calls `load_dataset` with a value that is not in the code, such as one of its arguments."""

    @property
    def is_any(self) -> bool:
        return self.imports or bool(self.repos)

    def without(self, repos: frozenset[HubRepo]) -> HubUse:
        return replace(self, repos=tuple(entry for entry in self.repos if entry.repo not in repos))


NO_USE: Final = HubUse()


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
    """Names that are assigned exactly once, to a text."""
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
    """Walks the syntax tree, keeping track of whether a line always runs."""

    def __init__(self, name: str, assigned: Mapping[str, ast.Constant], *, imports: bool) -> None:
        self._name, self._assigned, self._imports = name, assigned, imports
        self.repos: list[tuple[int, NamedRepo]] = []
        """Line number and repository."""
        self.used: set[int] = set()
        """`id()` of each text node that names a repository."""
        self.loads_others = False

    def visit_all(self, tree: ast.Module) -> None:
        """Not recursive, because expressions may be nested deeply."""
        waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
        while waiting:
            node, is_sure = waiting.pop()
            if isinstance(node, ast.Call):
                self._look_at(node, is_sure=is_sure)
            is_sure = is_sure and not _may_be_skipped(node)
            waiting += [(child, is_sure) for child in ast.iter_child_nodes(node)]

    def _look_at(self, call: ast.Call, *, is_sure: bool) -> None:
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name == "add_argument":
            self._look_at_option(call)
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

    def _look_at_option(self, call: ast.Call) -> None:
        """Add the default of an option such as `--model_name`."""
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
