"""Decides which hub cache ranks read, and if they may ask the hub. Pure.

A host that can't reach the hub is set offline: the libraries try each request six times within 23 s, and a tokenizer
makes two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ipexctl.hub.hugging_face import hf_home
from ipexctl.launch.launch_context import ChosenValue, LaunchContext, NodeLayout
from ipexctl.launch.request import Gathered
from ipexctl.node.common.plan import Setting

CACHES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
OFFLINE: Final = "HF_HUB_OFFLINE"
_BROTHERS: Final = {
    "TRANSFORMERS_OFFLINE": "transformers before 4.42 reads this name",
    "HF_DATASETS_OFFLINE": "datasets before 2.21 reads this name alone, and newer ones before HF_HUB_OFFLINE",
}
OFFLINE_NAMES: Final = (OFFLINE, *_BROTHERS)


def settings(context: LaunchContext) -> Iterator[Setting]:
    gathered = context.gathered
    if _reads_home(gathered):
        own, home = frozenset(CACHES), hf_home(gathered.home)

        def choose(node: NodeLayout) -> ChosenValue | None:
            if _names(gathered, node.name, own):
                return None
            return home, "models and data of ipexctl push are there; -x HF_HOME=DIR names another cache"

        yield from context.per_node("HF_HOME", choose)
        yield from context.per_node("HF_TOKEN_PATH", lambda node: choose(node) and _token(gathered, node.name))
    if OFFLINE in gathered.spec.variables:
        return
    for name in OFFLINE_NAMES:
        yield from context.per_node(name, lambda node, name=name: _offline_choice(gathered, node.name, name))  # type: ignore[misc]


def notes(context: LaunchContext) -> Iterator[str]:
    hub = context.gathered.hub
    known = [hub[node.name] for node in context.nodes if node.name in hub]
    others = max((host.others for host in known), default=0)
    if others and _reads_home(context.gathered) and not known[0].has_own_cache:
        yield (
            f"HF_HOME is the cache of ipexctl push, which lacks {others} of the models and data in "
            "~/.cache/huggingface; to read that one: -x HF_HOME=~/.cache/huggingface"
        )


def _token(gathered: Gathered, host: str) -> ChosenValue | None:
    variables = gathered.facts[host].environment.variables
    if "HF_TOKEN_PATH" in variables:
        return None
    cache = variables.get("XDG_CACHE_HOME") or "~/.cache"
    return f"{cache}/huggingface/token", "HF_HOME would move it: a token of `hf auth login` stays where it is"


def _names(gathered: Gathered, host: str, names: frozenset[str]) -> bool:
    found = gathered.hub.get(host)
    is_set_up = found is not None and found.has_own_cache and names.issuperset(CACHES)
    exported = {export.name for export in gathered.asked.exports}
    return is_set_up or not names.isdisjoint({*exported, *gathered.facts[host].environment.variables})


def _reads_home(gathered: Gathered) -> bool:
    """True if ranks read the home's cache where nothing else chooses one."""
    return any(facts.home is not None and facts.home.has_hub for facts in gathered.facts.values())


def _offline_choice(gathered: Gathered, host: str, name: str) -> ChosenValue | None:
    found = gathered.hub.get(host)
    if found is None or not found.problem or _names(gathered, host, frozenset({name, OFFLINE})):
        return None
    return "1", f"it does not reach the hub: {found.problem}" if name == OFFLINE else _BROTHERS[name]
