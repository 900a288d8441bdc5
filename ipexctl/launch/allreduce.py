"""Decides how ranks add up gradients, in which format gradients cross the network, and whether ranks share frozen
parameters. Pure.

Shared memory needs x86-64, because it relies on that order of stores. `auto` leaves ranks that outnumber a host's cores
to the backend, because a waiting rank spins for a moment. Sending fewer bytes between hosts changes the training a
little, so only the user chooses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.context import LaunchContext, NodeLayout
from ipexctl.launch.overrides import requested_variables
from ipexctl.launch.request import Gathered
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import (
    ALLREDUCE,
    AS_THEY_ARE,
    SHARE_WEIGHTS,
    WIRE,
    AllReduceChoice,
    AllReduceReason,
    Backend,
    Choice,
    ChoiceReason,
    Setting,
)

OLDEST_TORCH: Final = (2, 1)
OLDEST_OF_CALLS: Final = (2, 10)
"""The first torch that tells a kernel of Python the reduction; before, only the gradients of DDP are taken."""
CALLS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""Of any size, if all ranks share a host."""
DDP: Final = ("ddp",)
AUTO_CALLS: Final = (*DDP, "all_gather", "reduce_scatter", "broadcast")
"""Which `auto` takes, if they are large: `LEAST_OF_AUTO` in inrank/collectives.py."""
_SUBJECTS: Final[dict[tuple[str, ...], str]] = {
    DDP: "all-reduce of DDP",
    AUTO_CALLS: "all-reduce of DDP, and large all-gathers, reduce-scatters and broadcasts",
    CALLS: "collectives but all-to-all",
}
"""What a plan says of them."""
SHIM: Final = "IPEXCTL_SHIM"
_ARCHITECTURE: Final = "x86_64"
_FEWEST: Final = 2
BYTES: Final[dict[str, float]] = {"fp32": 1.0, "bf16": 0.5, "int8": 0.25}
"""Bytes relative to fp32."""


def choose_allreduce(gathered: Gathered, nodes: Sequence[NodeLayout], backend: Backend) -> AllReduceChoice:
    """Shared memory, or the backend's own all-reduce with the first reason for it."""
    choice = gathered.asked.allreduce
    if choice == "backend":
        return AllReduceChoice("backend", "asked")
    against, hosts = _obstacle(gathered, nodes, backend)
    if against is not None:
        return AllReduceChoice("backend", against, hosts)
    version = torch_version(gathered)
    has_calls = version is not None and version >= OLDEST_OF_CALLS and len(nodes) == 1
    if choice == "shared":
        return AllReduceChoice("shared", "asked", calls=CALLS if has_calls else DDP)
    crowded = tuple(node.name for node in nodes if node.count > node.cores.count)
    if crowded:
        return AllReduceChoice("backend", "more-ranks-than-cores", crowded)
    return AllReduceChoice("shared", "possible", calls=AUTO_CALLS if has_calls else DDP)


def choose_wire(
    gathered: Gathered, nodes: Sequence[NodeLayout], backend: Backend, allreduce: AllReduceChoice
) -> Choice:
    """The user's choice; or fp32, with the reason why no other format is possible, or `default` if one is."""
    wanted = gathered.asked.wire
    if len(nodes) == 1:
        return AS_THEY_ARE if wanted == "fp32" else Choice("fp32", "one-host")
    if gathered.asked.allreduce == "backend":
        return AS_THEY_ARE if wanted == "fp32" else Choice("fp32", "backend-asked")
    against = None if allreduce.mode == "shared" else allreduce.reason
    hosts = allreduce.hosts
    if against == "one-rank-a-host":
        against, hosts = _obstacle(gathered, nodes, backend, fewest=1)
    if against is not None:
        return Choice("fp32", against, hosts)
    return AS_THEY_ARE if wanted == "fp32" else Choice(wanted, "asked")


def choose_share_weights(gathered: Gathered, nodes: Sequence[NodeLayout], backend: Backend) -> Choice:
    """Whether ranks share frozen parameters, or the first reason why they can't."""
    if gathered.asked.share_weights == "off":
        return Choice("off", "asked")
    if sum(node.count for node in nodes) == 1:
        return Choice("off", "one-rank")
    against = _obstacle_of_ranks(gathered, backend)
    return Choice("auto", "default") if against is None else Choice("off", against)


def _obstacle_of_ranks(gathered: Gathered, backend: Backend) -> AllReduceReason | None:
    """Why the hooks of ranks can't exchange anything."""
    if backend == "none":
        return "no-process-group"
    if backend != "gloo":
        return "other-backend"
    if requested_variables(gathered).get(SHIM) == "off":
        return "hooks-off"
    version = torch_version(gathered)
    if version is None:
        return "torch-unknown"
    return "torch-too-old" if version < OLDEST_TORCH else None


def _obstacle(
    gathered: Gathered, nodes: Sequence[NodeLayout], backend: Backend, *, fewest: int = _FEWEST
) -> tuple[AllReduceReason | None, tuple[str, ...]]:
    """Why shared memory can't add up gradients, and on which hosts. Some host must have `fewest` ranks or more."""
    if (against := _obstacle_of_ranks(gathered, backend)) is not None:
        return against, ()
    if max(node.count for node in nodes) < fewest:
        return "one-rank-a-host", ()
    if len({node.count for node in nodes}) > 1:
        return "unequal-hosts", ()
    others = tuple(node.name for node in nodes if (node.facts.system.arch or _ARCHITECTURE) != _ARCHITECTURE)
    return ("other-processor", others) if others else (None, ())


def torch_version(gathered: Gathered) -> tuple[int, int] | None:
    found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", gathered.env.packages.get("torch", ""))
    return (int(found[1]), int(found[2])) if found else None


def settings(context: LaunchContext) -> Iterator[Setting]:
    """The variable that turns the rank's hook on. Rank 0 prints the ranks' decision only if it is `shared`."""
    if context.plan.allreduce.mode == "shared":
        value = "shared" if context.plan.allreduce.reason == "asked" else "auto"
        yield Setting(ALLREDUCE, value, "ranks on one host add gradients up in shared memory (--allreduce)")
    if context.plan.wire.mode != "fp32":
        yield Setting(WIRE, context.plan.wire.mode, f"gradients go between hosts as {context.plan.wire.mode} (--wire)")
    if context.plan.share_weights.mode == "auto":
        reason = "frozen parameters that ranks hold alike are not sent, and are one copy a host (--share-weights)"
        yield Setting(SHARE_WEIGHTS, "auto", reason)


def choice_text(context: LaunchContext) -> str | None:
    if context.world_size == 1 or context.plan.backend != "gloo":
        return None
    if context.plan.wire.mode != "fp32" and context.plan.allreduce.mode == "backend":
        return "all-reduce of DDP: by ipexctl between hosts (--wire); FSDP's and other collectives: gloo"
    found, words, subject = context.plan.allreduce, "gloo", "all-reduce"
    if found.mode == "shared":
        subject = _SUBJECTS[found.calls]
        words = "shared memory" if context.alone else "shared memory on each host, gloo between hosts"
    if found.reason == "asked":
        return f"{subject}: {words}, by --allreduce {found.mode}"
    return f"{subject}: {words}: {_reason_text(context)}"


def wire_text(context: LaunchContext) -> str | None:
    mode = context.plan.wire.mode
    if mode == "fp32":
        return None
    line = f"between hosts: {mode} ({BYTES[mode]:.2f}x the bytes; asked)"
    if mode != "int8":
        return line
    kept = 4 / max(node.count for node in context.nodes)
    return f"{line}; each rank stores its rounding errors: {kept:.3g} bytes for each trained parameter"


def notes(context: LaunchContext) -> Iterator[str]:
    asked = context.gathered.asked
    if asked.allreduce == "shared" and context.plan.allreduce.mode != "shared" and context.world_size > 1:
        yield f"--allreduce shared has no effect: {_reason_text(context)}" + _fix(context.plan.allreduce.reason)
    if asked.wire != context.plan.wire.mode:
        found = context.plan.wire
        reason = _text_of(context, found.reason, found.hosts, "it")
        yield f"--wire {asked.wire} has no effect: {reason}" + _fix(found.reason)


def _reason_text(context: LaunchContext) -> str:
    return _text_of(context, context.plan.allreduce.reason, context.plan.allreduce.hosts, "shared memory")


def _text_of(context: LaunchContext, reason: ChoiceReason, at_fault: Sequence[str], way: str) -> str:
    gathered, hosts, needed = context.gathered, fold(at_fault), "{}.{}".format(*OLDEST_TORCH)
    texts: dict[ChoiceReason, str] = {
        "one-host": "all ranks are on one host",
        "one-rank": "there is only one rank",
        "backend-asked": "--allreduce backend leaves gradients to gloo",
        "possible": "ranks share a host, and each has a core",
        "no-process-group": "there is no process group",
        "other-backend": f"{way} is for gloo alone",
        "one-rank-a-host": "no host has two ranks, so none can share memory with another",
        "unequal-hosts": "the hosts have different numbers of ranks",
        "hooks-off": f"{SHIM}=off keeps the hooks of ipexctl out of the ranks",
        "torch-unknown": f"the torch of the environment is not known, and {way} needs {needed} or newer",
        "torch-too-old": f"torch is {gathered.env.packages.get('torch')}, and {way} needs {needed} or newer",
        "more-ranks-than-cores": f"more ranks than cores on {hosts}; --allreduce shared uses it anyway",
        "other-processor": f"{way} needs x86-64, and {hosts} has another processor",
    }
    return texts[reason]


def _fix(reason: ChoiceReason) -> str:
    fixes: dict[ChoiceReason, str] = {
        "other-backend": "; --backend gloo",
        "hooks-off": f"; leave {SHIM} out",
        "torch-too-old": Fix("; for a newer one: `ipexctl install`"),
    }
    return fixes.get(reason, "")
