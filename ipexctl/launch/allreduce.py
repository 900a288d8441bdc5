"""Choose how ranks add up gradients, in which format gradients cross the network, and whether ranks share frozen
parameters.

Three rows of `rank_rules.py`. Nothing here reads a file or contacts a host. Shared memory needs x86-64, because it
relies on that order of stores. `auto` leaves ranks that outnumber a host's cores to the backend, because a waiting rank
spins for a moment. Sending fewer bytes between hosts changes the training a little, so only the user chooses it.
"""

from __future__ import annotations

import re
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.plan_draft import PlanDraft
from ipexctl.launch.run_context import RunContext
from ipexctl.node.common.rank_options import ALLREDUCE, SHARE_WEIGHTS, WIRE, Choice, ChoiceReason

Version = tuple[int, int]
OLDEST_TORCH: Final[Version] = (2, 1)
"""With an older torch, the hooks of ranks exchange nothing."""
OLDEST_OF_CALLS: Final = (2, 10)
"""The first torch that tells a kernel in Python which reduction is asked for. With an older one, ranks take over only
the gradients of DDP."""
CALLS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""Collectives in shared memory, of any size, if all ranks share a host."""
DDP: Final = ("ddp",)
AUTO_CALLS: Final = (*DDP, "all_gather", "reduce_scatter", "broadcast")
"""Collectives that `auto` takes if they are large: see `LEAST_OF_AUTO` in inrank/collectives.py."""
_SUBJECTS: Final[dict[tuple[str, ...], str]] = {
    DDP: "all-reduce of DDP",
    AUTO_CALLS: "all-reduce of DDP, and large all-gathers, reduce-scatters and broadcasts",
    CALLS: "collectives but all-to-all",
}
"""What a plan says about these collectives."""
HOOKS_SWITCH: Final = "IPEXCTL_HOOKS"
_ARCHITECTURE: Final = "x86_64"
_FEWEST_RANKS: Final = 2
"""The fewest ranks on a host that can share memory."""
BYTES: Final[dict[str, float]] = {"fp32": 1.0, "bf16": 0.5, "int8": 0.25}
"""Format → bytes of a gradient, compared with fp32."""


def choose_allreduce(draft: PlanDraft) -> Choice:
    """Return shared memory, or the backend's own all-reduce with the first reason that speaks against shared memory."""
    choice = draft.context.asked.allreduce
    if choice == "backend":
        return ALLREDUCE.off
    if draft.world_size == 1:
        return Choice("backend", "one-rank")
    against, hosts = _obstacle(draft)
    if against is not None:
        return Choice("backend", against, hosts)
    version = torch_version(draft.context)
    has_calls = version is not None and version >= OLDEST_OF_CALLS and draft.alone
    if choice == "shared":
        return Choice("shared", "asked", calls=CALLS if has_calls else DDP)
    crowded = tuple(node.name for node in draft.nodes if node.count > node.cores.count)
    if crowded:
        return Choice("backend", "more-ranks-than-cores", crowded)
    return Choice("shared", "possible", calls=AUTO_CALLS if has_calls else DDP)


def choose_wire(draft: PlanDraft) -> Choice:
    """Return the format that the user chose; or fp32, with the reason why no other format is possible.

    If the user did not ask for another format, the reason may be `default` instead.
    """
    asked, adding = draft.context.asked, draft.plan.choice(ALLREDUCE)
    if draft.alone or asked.allreduce == "backend":
        return WIRE.off if asked.wire == "fp32" else Choice("fp32", "one-host" if draft.alone else "backend-asked")
    against, hosts = (None, ()) if adding.mode == "shared" else (adding.reason, adding.hosts)
    if against == "one-rank-a-host":
        against, hosts = _obstacle(draft, fewest=1)
    if against is not None:
        return Choice("fp32", against, hosts)
    return WIRE.off if asked.wire == "fp32" else Choice(asked.wire, "asked")


def choose_share_weights(draft: PlanDraft) -> Choice:
    """Return whether ranks share frozen parameters; if they cannot, with the first reason."""
    if draft.context.asked.share_weights == "off":
        return SHARE_WEIGHTS.off
    against = _obstacle_of_exchange(draft)
    return Choice("auto", "default") if against is None else Choice("off", against)


def obstacle_of_hooks(draft: PlanDraft, oldest: Version) -> ChoiceReason | None:
    """Return why the hooks cannot act in ranks; None if they can. A torch of unknown version counts as new enough."""
    if draft.wanted.get(HOOKS_SWITCH) == "off":
        return "hooks-off"
    version = torch_version(draft.context)
    return "torch-too-old" if version is not None and version < oldest else None


def _obstacle_of_exchange(draft: PlanDraft) -> ChoiceReason | None:
    """Return why the hooks of ranks cannot exchange anything; None if they can."""
    backend = draft.plan.backend
    if backend != "gloo":
        return "no-process-group" if backend == "none" else "other-backend"
    against = obstacle_of_hooks(draft, OLDEST_TORCH)
    return "torch-unknown" if against is None and torch_version(draft.context) is None else against


def _obstacle(draft: PlanDraft, *, fewest: int = _FEWEST_RANKS) -> tuple[ChoiceReason | None, tuple[str, ...]]:
    """Return why shared memory cannot add up gradients, and the hosts that are the reason; (None, ()) if it can.

    `fewest`: ranks that at least one host must have.
    """
    nodes = draft.nodes
    if (against := _obstacle_of_exchange(draft)) is not None:
        return against, ()
    if max(node.count for node in nodes) < fewest:
        return "one-rank-a-host", ()
    if len({node.count for node in nodes}) > 1:
        return "unequal-hosts", ()
    others = tuple(node.name for node in nodes if (node.facts.system.arch or _ARCHITECTURE) != _ARCHITECTURE)
    return ("other-processor", others) if others else (None, ())


def torch_version(context: RunContext) -> tuple[int, int] | None:
    """Return the minor version of torch, as (2, 8); None if there is no torch, or its version cannot be parsed."""
    version = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", context.env.packages.get("torch", ""))
    return (int(version[1]), int(version[2])) if version else None


def choice_text(draft: PlanDraft) -> str | None:
    """Return how collectives are computed and why, for the plan; None with one rank, or another backend than gloo."""
    adding, wire = draft.plan.choice(ALLREDUCE), draft.plan.choice(WIRE)
    if draft.world_size == 1 or draft.plan.backend != "gloo":
        return None
    if wire.mode != "fp32" and adding.mode == "backend":
        return "all-reduce of DDP: by ipexctl between hosts (--wire); FSDP's and other collectives: gloo"
    way, subject = "gloo", "all-reduce"
    if adding.mode == "shared":
        subject = _SUBJECTS[adding.calls]
        way = "shared memory" if draft.alone else "shared memory on each host, gloo between hosts"
    if adding.reason == "asked":
        return f"{subject}: {way}, by --allreduce {adding.mode}"
    return f"{subject}: {way}: {reason_text(draft, adding, 'shared memory', OLDEST_TORCH)}"


def wire_text(draft: PlanDraft) -> str | None:
    """Return the format between hosts, for the plan; None for fp32."""
    mode = draft.plan.choice(WIRE).mode
    if mode == "fp32":
        return None
    line = f"between hosts: {mode} ({BYTES[mode]:.2f}x the bytes; asked)"
    if mode != "int8":
        return line
    kept = 4 / max(node.count for node in draft.nodes)
    return f"{line}; each rank stores its rounding errors: {kept:.3g} bytes for each trained parameter"


def reason_text(draft: PlanDraft, choice: Choice, way: str, oldest: Version) -> str:
    """Format the reason of a choice. `way`: what is not possible; `oldest`: the version of torch that it needs."""
    hosts, torch, needed = fold(choice.hosts), draft.context.env.packages.get("torch"), "{}.{}".format(*oldest)
    texts: dict[ChoiceReason, str] = {
        "one-host": "all ranks are on one host",
        "backend-asked": "--allreduce backend leaves gradients to gloo",
        "possible": "ranks share a host, and each has a core",
        "no-process-group": "there is no process group",
        "other-backend": f"{way} is for gloo alone",
        "one-rank-a-host": "no host has two ranks, so none can share memory with another",
        "unequal-hosts": "the hosts have different numbers of ranks",
        "hooks-off": f"{HOOKS_SWITCH}=off keeps the hooks of ipexctl out of the ranks",
        "torch-unknown": f"the torch of the environment is not known, and {way} needs {needed} or newer",
        "torch-too-old": f"torch is {torch}, and {way} needs {needed} or newer",
        "more-ranks-than-cores": f"more ranks than cores on {hosts}; --allreduce shared uses it anyway",
        "other-processor": f"{way} needs x86-64, and {hosts} has another processor",
    }
    return texts[choice.reason]
