"""Describe the end of a run, or that the user left it, with the next command to type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ipexctl.doctor.product_speeds import product_speeds
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.job_words import LIMIT_NEAR, describe_run_end
from ipexctl.node.common.lever_records import Lever, measured, measured_sentence
from ipexctl.node.common.records import (
    NetworkCost,
    RankStatus,
    RunStatus,
    Throughput,
    TrainingProgress,
    describe_apart,
    describe_mismatches,
    describe_successes,
)
from ipexctl.node.run.meter.network_watch import ADVISED, FEWEST_BYTES
from ipexctl.run.ranks import describe_ranks
from ipexctl.sync.path_notes import PathNotes
from ipexctl.text import format_count, rough_duration

_CODES_OF_IPEXCTL: Final = (2, 3)
"""Exit codes of ipexctl itself: 2 for a wrong call, 3 for an unreachable host."""


def end_lines(status: RunStatus, exit_code: int) -> list[str]:
    """Return the lines for the end of a run: one sentence and what was measured; after a failure also the first failed
    rank, lost output and the next command.
    """
    lines = _end_sentences(status, exit_code)
    cost = network_text(status.network)
    idle = _once_a_project(status.id, amx_text(status.amx_idle, measured(status.levers)))
    levers = measured_sentence(status.levers) if any(lever.is_worth_it for lever in status.levers) else ""
    acted = "; ".join(lever.sentence for lever in status.levers if lever.asked)
    speed = (
        throughput_text(status.throughput),
        short_group(status),
        cost,
        acted,
        levers,
        idle,
        *describe_mismatches(status.ranks),
    )
    figures = (*status.training_notes, *speed, *describe_successes(status.ranks))
    lines[1:1] = ["  " + text for text in figures if text]
    if status.fetch_line:
        lines.append(f"  newest checkpoint on {status.node0 or 'node0'}: {status.fetch_line}")
    elif status.lost_checkpoint:
        lines.append(f"  {status.lost_checkpoint}")
    if (lost := status.output_lost) is not None:
        size, ranks, host = (
            format_count(lost.bytes, "byte"),
            describe_ranks(lost.ranks),
            lost.host or "node0",
        )
        lines.append(f"  {size} of the output of {ranks} are not in the record: the disk of {host} was full")
    return lines


def _end_sentences(status: RunStatus, exit_code: int) -> list[str]:
    """Return how the run ended and, after a failure, where to look."""
    subject = f"run {status.id}"
    size = f"{format_count(status.world_size, 'rank')} on {format_count(status.nodes, 'node')}"
    if status.has_moved:
        sizes = [f"{attempt.world_size} on {len(attempt.hosts)}" for attempt in status.all_attempts if attempt.hosts]
        if sizes[0] != sizes[-1]:
            size += f" at last, {sizes[0]} at first"
        elif others := [size_between for size_between in dict.fromkeys(sizes) if size_between != sizes[0]]:
            size += f", {' and '.join(others)} in between"
    took = f" after {duration(status.took)}" if status.took is not None else ""
    if status.state == "ok":
        attempts = f" in {format_count(status.attempt + 1, 'attempt')}" if status.attempt else ""
        near = f"; {describe_run_end(LIMIT_NEAR)}" if status.job_end == LIMIT_NEAR else ""
        return [f"{subject} succeeded{took}{attempts}{status.but_nan}: {size}{near}"]
    if status.state == "stopped":
        of_job = describe_run_end(status.job_end)
        by = f", as {of_job}" if of_job else ""
        if not of_job and status.stopped is not None:
            by = f", by {status.stopped.who or 'ipexctl stop, or SIGTERM'}"
        return [f"{subject} was stopped{took}{by}: {size}"]
    if status.state == "lost":
        why = f"node0 could not record its end: {status.unrecorded}" if status.unrecorded else ""
        return [
            f"{subject} is lost{took}: {why or 'its supervisor on node0 died before it recorded the end'}",
            Fix(f"  output until then: `ipexctl logs {status.id}`"),
        ]
    first, attempts = (
        status.first_failure,
        f" in {format_count(status.attempt + 1, 'attempt')}" if status.attempt else "",
    )
    reason = f": {status.reason}" if status.reason else f" with exit code {exit_code}: {size}"
    if first is None or first.rank is None:
        hint = Fix(f"  its output: `ipexctl logs {status.id}`")
    else:
        hint = Fix(f"  output of that rank: `ipexctl logs {status.id} -r {first.rank}`")
    lines = [f"{subject} failed{took}{attempts}{reason}", hint]
    if first is not None and first.exit_code in _CODES_OF_IPEXCTL and exit_code == first.exit_code:
        lines.insert(1, f"  {exit_code} is the exit code of the rank, not of ipexctl (--summary FILE tells them apart)")
    return lines


def moved_text(status: RunStatus) -> str:
    """Return ` on node[1-2,4], without node3` if attempts had different hosts, else an empty text."""
    if not status.has_moved:
        return ""
    gone = [host for attempt in status.attempts for host in attempt.hosts if host not in status.hosts]
    missing = f", without {fold(dict.fromkeys(gone))}" if gone else ""
    return f" on {fold(status.hosts)}{missing}"


def throughput_text(throughput: Throughput | None) -> str:
    """Return `3.2 steps/s, 410 samples/s by DataLoader, 4 % waiting for data`; empty if nothing was measured."""
    if throughput is None:
        return ""
    parts = [] if throughput.steps_per_s is None else [f"{_rate(throughput.steps_per_s)} steps/s"]
    if throughput.samples_per_s is not None:
        parts.append(f"{_rate(throughput.samples_per_s)} samples/s by DataLoader")
    if throughput.tokens_per_s is not None:
        parts.append(f"{_rate(throughput.tokens_per_s)} tokens/s")
    if throughput.data_wait is not None:
        parts.append(f"{throughput.data_wait:.0%} waiting for data".replace("%", " %"))
    return ", ".join(parts)


def short_group(status: RunStatus | None) -> str:
    """Return that the ranks do not train together, and the command that says more; empty if they do, or it is not
    known.
    """
    if status is None or not describe_apart(status.group):
        return ""
    return Fix(f"its ranks do not train together: `ipexctl why {status.id}`")


def network_text(network: NetworkCost | None) -> str:
    """Return the network's share of a step, and what would reduce it; empty if it is small or unknown."""
    if network is None or network.share < ADVISED:
        return ""
    advice, over = network.advice, f" over {network.iface}" if network.iface else ""
    size, rate = network.bytes_per_step / 1e6, 8 * network.rate / 1e9
    if network.bytes_per_step < FEWEST_BYTES:
        share = f"{100 * network.share:.0f} % of a step"
        return f"ranks wait {share}: for one another, or asleep in the script; only {size:.3g} MB go{over}"
    text = f"between hosts take {100 * network.share:.0f} % of a step: {size:.3g} MB{over} at {rate:.2g} Gbit/s"
    if advice is None:
        return f"transfers {text}"
    faster = f"with --wire {advice.wire} a step would be about {advice.speedup:.1f}x as fast"
    return f"gradients {text}; {faster}"


def slow_text(status: RunStatus | None) -> str:
    """Return which rank of a live run is slow, and the command that says more; empty if none is."""
    if status is None or status.slow is None or status.state != "running":
        return ""
    slow = status.slow
    text = f"rank {slow.rank} on {slow.host} is slow, by {slow.percent:.0f} % of a step"
    return Fix(f"{text}: `ipexctl why {status.id}`")


def throughput_forms(throughput: Throughput | None) -> tuple[str, ...]:
    """Return ever shorter forms of the throughput, the longest first; empty if nothing was measured."""
    if throughput is None:
        return ()
    steps = "" if throughput.steps_per_s is None else f"{_rate(throughput.steps_per_s)} steps/s"
    short = short_throughput(throughput)
    forms = (throughput_text(throughput), ", ".join(dict.fromkeys(filter(None, (steps, short)))), short, steps)
    return tuple(filter(None, dict.fromkeys(forms)))


def progress_text(status: RunStatus) -> str:
    """Return `step 40 of 300, loss 0.69, 0:52 left`; empty if nothing is known."""
    progress, parts = status.progress or TrainingProgress(), []
    if progress.epoch is not None and progress.epochs:  # the step may be counted in each epoch
        parts = [f"epoch {progress.epoch:g} of {progress.epochs:g}"]
    if progress.step is not None:
        parts += [f"step {progress.step:,}" + (f" of {progress.steps:,}" if progress.steps else "")]
    parts += [f"loss {progress.loss:.4g}"] if progress.loss is not None else []
    parts += [f"{duration(status.eta)} left"] if status.eta is not None else []
    return ", ".join([*parts, *filter(None, (still_text(status), unheard_text(status)))])


def still_text(status: RunStatus, more: float = 0.0) -> str:
    """Return that the numbers do not move; empty if they do. `more`: seconds since the status."""
    progress = status.progress
    if progress is None or progress.age is None or not progress.is_still:
        return ""
    return f"not moved for {rough_duration(progress.age + more)}"


def unheard_text(status: RunStatus, more: float = 0.0) -> str:
    """Return which hosts of a live run are not heard of; empty if all are. `more`: seconds since the status."""
    hosts, age = status.unheard
    return f"{fold(hosts)} not heard of for {rough_duration(age + more)}" if hosts and not status.is_over else ""


def short_throughput(throughput: Throughput | None) -> str:
    """Return `52000 tokens/s` of a language model, else `410 samples/s`, or `3.2 steps/s` if samples are unknown; or
    empty.
    """
    if throughput is None:
        return ""
    if throughput.tokens_per_s is not None:
        return f"{_rate(throughput.tokens_per_s)} tokens/s"
    if throughput.samples_per_s is not None:
        return f"{_rate(throughput.samples_per_s)} samples/s"
    return "" if throughput.steps_per_s is None else f"{_rate(throughput.steps_per_s)} steps/s"


def _rate(value: float) -> str:
    """Format a rate with three digits."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def left_lines(run: str, node0: str, unseen: float | None, whose: str = "") -> tuple[str, str]:
    """Return where the run goes on, and how to stop it.

    `unseen`: seconds since node0 last reported the run; 0 while it does, None if it never did. `whose`: who began the
    run, if others did.
    """
    if unseen is None:
        seen = f"{node0} has not answered, so it is not known whether run {run} continues"
    elif unseen:
        seen = f"{node0} does not answer; run {run} was last seen {rough_duration(unseen)} ago"
    else:
        seen = f"run {run} continues"
    stop = Fix("  {whose}; to see what stopping it takes: `ipexctl stop {run}`", whose=whose, run=run)
    return (
        Fix(f"detached; {seen}: `ipexctl attach {run}`"),
        stop if whose else Fix(f"  to stop it: `ipexctl stop {run}`"),
    )


def format_state_counts(ranks: list[RankStatus]) -> str:
    """Return `14 running, 2 failed`: the worst state comes last."""
    order = ("starting", "running", "ok", "stopped", "unknown", "lost", "failed")
    counts = {state: sum(rank.state == state for rank in ranks) for state in order}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def duration(seconds: float) -> str:
    """Format seconds as `0:07`, `12:34`, `1:02:03` or `3 d 04:05`."""
    total = max(0, int(seconds))
    days, hours, minutes, remainder = total // 86400, total // 3600 % 24, total // 60 % 60, total % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


_SAID: Final = PathNotes("amx")
"""What was said about AMX in each project."""
_WORTH: Final = 1.1
"""Least speedup worth advising."""


def _once_a_project(run: str, text: str) -> str:
    """Return the text; empty if it was the last that runs of this project have shown, or if the run has no project."""
    if not text:
        return ""
    record = RunRegistry().get(run)
    if record is None:
        return text
    project = record.project
    if not project or _SAID.text_of(project) == text:
        return ""
    _SAID.add([project], text)
    return text


def amx_text(hosts: Mapping[str, str], levers: Sequence[Lever]) -> str:
    """Return that AMX is idle while the script multiplies in fp32, and what bf16 would bring.

    `hosts`: those with AMX, whose ranks multiply in fp32 → their `HostPlan.hardware`. Empty without such a host, if
    their measured gain is small, or if a profile has measured what bf16 would bring to this script.
    """
    if not hosts or levers:
        return ""
    measured = product_speeds()
    known = {host: measured[hardware] for host, hardware in hosts.items() if hardware in measured}
    text = f"the script multiplies in fp32; AMX is idle on {fold(hosts)}"
    advice = "--fast lets it multiply in bf16, and a run with --profile measures what that would bring"
    if not known:
        return f"{text}: {advice}"
    host, speeds = max(known.items(), key=lambda entry: entry[1].core_rounded / entry[1].core_fp32)
    if speeds.core_rounded < _WORTH * speeds.core_fp32:
        return ""
    fp32, rounded = (f"{value / 1e9:.3g}" for value in speeds)
    measured_there = f"one core of {host} by doctor --smoke: {fp32} GFLOP/s, with bf16 inputs {rounded}"
    return f"{text}; {measured_there}; {advice}"
