"""What every way of installing does first: looking at the hosts; and what is said of a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.facts.gather import gather
from ipexctl.stack.env.preflight import gigabytes
from ipexctl.stack.lock.indexes import TORCH_CPU
from ipexctl.stack.progress import Notice, Timed
from ipexctl.stack.report import InstallResult, StackSummary

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host
    from ipexctl.stack.install_context import InstallContext
    from ipexctl.stack.lock.lock import Lock
    from ipexctl.stack.lock.pipeline import LockedStack
    from ipexctl.stack.resolve.plan import StackPlan


def inspect_hosts(context: InstallContext) -> None:
    """The facts of all hosts; one that has none is through."""
    if not context.hosts:
        return
    wishes = context.wishes

    def on_step(host: Host, step: str, seconds: float) -> None:
        context.watch(Timed(host.name, step, seconds))

    for answer in gather(context.hosts, context.pool, home=wishes.home, timeout=wishes.timeout, on_step=on_step):
        facts = answer.facts
        if facts is not None and answer.status == "ok" and facts.home is not None:
            context.facts[answer.host.name] = facts
            continue
        status = "failed" if answer.status == "ok" else answer.status
        reason = answer.reason or "it did not say where our directory would be"
        context.done[answer.host.name] = InstallResult(answer.host, status, reason, answer.fix, seconds=answer.seconds)


def summary_of(plan: StackPlan, lock: Lock) -> StackSummary:
    return StackSummary(
        name=plan.row.name,
        torch=plan.torch,
        ipex=plan.ipex,
        oneccl=plan.oneccl,
        mpi=lock.packages.get("impi-rt") or (plan.row.bundled_mpi if plan.oneccl else None),
        python=plan.python,
        backend=plan.backend,
        why=plan.why,
        retired=plan.row.retired,
    )


def announce_sizes(context: InstallContext, decided: LockedStack, *, by: str) -> None:
    """Before a byte moves: how many, by which way, and whether most of them are for nothing."""
    lock = decided.lock
    unknown = " and more, for some sizes nobody says" if any(wheel.size is None for wheel in lock.wheels) else ""
    context.watch(Notice(f"{len(lock.wheels)} wheels, {gigabytes(lock.size)}{unknown}; {by}"))
    if lock.is_cuda:
        cuda = sum(wheel.size or 0 for wheel in lock.wheels if wheel.name.startswith(("nvidia-", "triton")))
        text = (
            f"of torch {decided.plan.torch} only the CUDA build can be had: {gigabytes(lock.size)}, of which "
            f"{gigabytes(cuda)} no CPU will ever use; the CPU wheels are at {TORCH_CPU}"
        )
        context.notes.append(text)
        context.watch(Notice(text, warning=True))
