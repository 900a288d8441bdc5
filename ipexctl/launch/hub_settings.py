"""Decide which hub cache ranks read, and whether they may contact the hub. Nothing here reads a file or contacts a
host.

A host that cannot reach the hub is set offline. Otherwise the libraries try each request six times within 23 s, and a
tokenizer makes two requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ipexctl.hub.hugging_face import hf_home
from ipexctl.launch.plan_draft import ChosenValue, NodeLayout, PlanDraft
from ipexctl.launch.run_context import RunContext
from ipexctl.node.common.plan import Setting

CACHES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
"""Variables that choose the cache."""
OFFLINE: Final = "HF_HUB_OFFLINE"
_OFFLINE_SYNONYMS: Final = {
    "TRANSFORMERS_OFFLINE": "transformers before 4.42 reads this name",
    "HF_DATASETS_OFFLINE": "datasets before 2.21 reads this name alone, and newer ones before HF_HUB_OFFLINE",
}
"""Variable with the same meaning as HF_HUB_OFFLINE → why it is set too."""
OFFLINE_NAMES: Final = (OFFLINE, *_OFFLINE_SYNONYMS)
"""Variables that keep the libraries from contacting the hub."""


def settings(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables for the cache of the home, and those that set a host offline.

    A variable that the user or a login sets is left alone.
    """
    context = draft.context
    if _reads_home(context):
        cache_variables, home = frozenset(CACHES), hf_home(context.home)

        def choose(node: NodeLayout) -> ChosenValue | None:
            """Return the cache of the home; None if another one is chosen on the host."""
            if _is_chosen(context, node.name, cache_variables):
                return None
            return home, "models and data of ipexctl push are there; -x HF_HOME=DIR names another cache"

        yield from draft.per_node("HF_HOME", choose)
        yield from draft.per_node("HF_TOKEN_PATH", lambda node: choose(node) and _token(context, node.name))
    if OFFLINE in context.spec.variables:
        return
    for name in OFFLINE_NAMES:
        yield from draft.per_node(name, lambda node, name=name: _offline_choice(context, node.name, name))  # type: ignore[misc]


def notes(draft: PlanDraft) -> Iterator[str]:
    """Warn that the cache of the home lacks models that the account's own cache on the hosts has."""
    hub = draft.context.hub
    hubs = [hub[node.name] for node in draft.nodes if node.name in hub]
    lacking = max((host.others for host in hubs), default=0)
    if lacking and _reads_home(draft.context) and not hubs[0].has_own_cache:
        yield (
            f"HF_HOME is the cache of ipexctl push, which lacks {lacking} of the models and data in "
            "~/.cache/huggingface; to read that one: -x HF_HOME=~/.cache/huggingface"
        )


def _token(context: RunContext, host: str) -> ChosenValue | None:
    """Return the path of the hub's token, which HF_HOME would move; None if the host sets a path."""
    variables = context.facts[host].environment.variables
    if "HF_TOKEN_PATH" in variables:
        return None
    cache = variables.get("XDG_CACHE_HOME") or "~/.cache"
    return f"{cache}/huggingface/token", "HF_HOME would move it: a token of `hf auth login` stays where it is"


def _is_chosen(context: RunContext, host: str, names: frozenset[str]) -> bool:
    """True if the user or a login on the host sets one of these variables. For the cache, a --setup file counts too."""
    hub = context.hub.get(host)
    is_set_up = hub is not None and hub.has_own_cache and names.issuperset(CACHES)
    exported = {export.name for export in context.asked.exports}
    return is_set_up or not names.isdisjoint({*exported, *context.facts[host].environment.variables})


def _reads_home(context: RunContext) -> bool:
    """True if ranks read the home's cache where nothing else chooses one."""
    return any(facts.home is not None and facts.home.has_hub for facts in context.facts.values())


def _offline_choice(context: RunContext, host: str, name: str) -> ChosenValue | None:
    """Return the value that keeps a host offline; None if it is not known that the host cannot reach the hub, or if a
    variable of the user or a login decides.
    """
    hub = context.hub.get(host)
    if hub is None or not hub.problem or _is_chosen(context, host, frozenset({name, OFFLINE})):
        return None
    return "1", f"it does not reach the hub: {hub.problem}" if name == OFFLINE else _OFFLINE_SYNONYMS[name]
