"""Decides which cache of models and data the ranks read, and whether they may ask the hub. Pure.

The user's choice wins: a variable of `-x`, a login or a setup file. Otherwise ranks read the cache in ipexctl's home if
a push filled it, unless only the account's cache has everything that the script names, because `HF_HOME` would hide
that cache. A token stays where `hf auth login` put it. A host that can't reach the hub is set offline: the libraries
try each request six times within 23 s, and a tokenizer makes two. If every host has everything, no host asks, because
one that reaches the hub could get a newer revision. A run is refused only if no host can get what it certainly needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.errors import Refusal
from ipexctl.hosts.nodeset import fold
from ipexctl.hugging_face import HubRepo, load_call, push_line
from ipexctl.launch.hub_names import NO_USE, HubUse, NamedRepo
from ipexctl.node.common.plan import Setting
from ipexctl.text import join_words

if TYPE_CHECKING:
    from ipexctl.launch.context import ChosenValue, LaunchContext, NodeLayout
    from ipexctl.launch.request import Gathered

CACHES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
OFFLINE: Final = "HF_HUB_OFFLINE"
_BROTHERS: Final = {
    "TRANSFORMERS_OFFLINE": "transformers before 4.42 reads this name",
    "HF_DATASETS_OFFLINE": "datasets before 2.21 reads this name alone, and newer ones before HF_HUB_OFFLINE",
}
_TRUE: Final = ("1", "ON", "YES", "TRUE")
OFFLINE_NAMES: Final = (OFFLINE, *_BROTHERS)


@dataclass(frozen=True, slots=True)
class HostHub:
    """Repositories in a host's caches, and whether the host reaches the hub."""

    problem: str = ""
    """Why the host can't reach the hub; empty if it can, or was not asked."""
    has_own_cache: bool = False
    """True if a variable of the account or of the setup file names a cache."""
    in_home: frozenset[HubRepo] = frozenset()
    in_own: frozenset[HubRepo] = frozenset()
    others: int = 0
    """Number of repositories that are only in the account's cache."""
    prepared_in_home: frozenset[HubRepo] = frozenset()
    """Datasets next to the home's cache that `datasets` loads without the hub."""
    prepared_in_own: frozenset[HubRepo] = frozenset()
    """Datasets next to the account's cache."""


@dataclass(frozen=True, slots=True)
class Hub:
    use: HubUse = NO_USE
    hosts: Mapping[str, HostHub] = field(default_factory=dict, hash=False)
    """Empty if the script does not seem to use a hub, so no host was asked."""
    home: str = ""
    """The HF_HOME that `ipexctl push` fills."""


NO_HUB: Final = Hub()


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
    """True if the command line, a login or the setup file sets one of these variables on the host."""
    found = gathered.hub.hosts.get(host)
    is_set_up = found is not None and found.has_own_cache and names.issuperset(CACHES)
    exported = {export.name for export in gathered.spec.exports}
    return is_set_up or not names.isdisjoint({*exported, *gathered.facts[host].environment.variables})


def _reads_home(gathered: Gathered) -> bool:
    """True if ranks read the home's cache on hosts where nothing else chooses a cache."""
    if not any(facts.home is not None and facts.home.has_hub for facts in gathered.facts.values()):
        return False
    named = frozenset(entry.repo for entry in gathered.hub.use.repos)
    hosts = gathered.hub.hosts.values()
    is_in_own = bool(named) and all(named <= found.in_own for found in hosts)
    return not (hosts and is_in_own and any(not named <= found.in_home for found in hosts))


def _has(gathered: Gathered, host: str) -> frozenset[HubRepo]:
    """The named repositories in the cache that the host's ranks read."""
    found = gathered.hub.hosts.get(host, HostHub())
    return found.in_home if _is_home_read(gathered, host) else found.in_own


def _is_home_read(gathered: Gathered, host: str) -> bool:
    return _reads_home(gathered) and not _names(gathered, host, frozenset(CACHES))


def _is_prepared(gathered: Gathered, host: str, repo: HubRepo) -> bool:
    found = gathered.hub.hosts.get(host)
    return found is None or repo in (found.prepared_in_home if _is_home_read(gathered, host) else found.prepared_in_own)


def _offline(gathered: Gathered, hosts: Sequence[str]) -> dict[str, str]:
    if gathered.spec.offline_hub:
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
    if gathered.spec.offline_hub or _decided(gathered):
        option = "--offline-hub" if gathered.spec.offline_hub else f"{OFFLINE}=1"
        return Refusal(
            f"{_named(lost)}: no host has {it}, and {option} keeps the ranks from the hub", push, tuple(hosts)
        )
    problem = gathered.hub.hosts[hosts[0]].problem
    reason = f"{_named(lost)}: no host has {it}, and none reaches the hub ({problem})"
    return Refusal(reason, f"{push}; to start anyway: -x {OFFLINE}=0", tuple(hosts))


def _decided(gathered: Gathered) -> bool | None:
    """True if a variable on the command line keeps the ranks from the hub; None if there is no such variable."""
    values = [export.value for export in gathered.spec.exports if export.name == OFFLINE]
    return values[-1].strip().upper() in _TRUE if values else None


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
            then = "every rank of it downloads" if len(on_hosts) == 1 else "every rank downloads"
            then = f"{then} {'it' if len(entries) == 1 else 'them'} at once"
        push = push_line(entry.repo for entry in entries)
        yield f"{where} {_named(entries)}; {then}; to bring it once to all: {push}"


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
