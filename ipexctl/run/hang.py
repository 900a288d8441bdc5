"""Explain a hang from the stacks of the ranks: which ranks wait for others, and which do not arrive. Pure.

A rank waits if its innermost call is a collective, a rendezvous or a backward pass, in which DDP and FSDP exchange
gradients. The cause is never a rank that waits. The kinds of a hang are:

- `ended`, `elsewhere`, `no-stack`: another rank has exited, is at another place, or gave no stack;
- `mismatch`: all ranks wait, in different calls;
- `same`: all ranks wait in the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.match import bare, shorten_text
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.records import FINAL, KEEPS_TCP_STORE, Silence, SilentRank
from ipexctl.run.ranks import describe_ranks, name_ranks
from ipexctl.run.stack_dump import Dump, Process, RankStacks, StackFrame, StackGroup, place_lines
from ipexctl.text import format_clock, format_count, join_words

HangKind = Literal["ended", "elsewhere", "no-stack", "mismatch", "same"]

_COLLECTIVES: Final = frozenset((
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv", "recv_object_list", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "send_object_list",
    "wait_tensor", "init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group",
    "_new_process_group_helper", "_new_group_with_tag", "_store_based_barrier", "_create_c10d_store", "rendezvous",
    "_env_rendezvous_handler", "_tcp_rendezvous_handler", "_file_rendezvous_handler", "_all_gather_base",
    "_reduce_scatter_base", "all_gather_tensor", "reduce_scatter_single", "_coalescing_manager",
    "_verify_param_shape_across_processes", "_sync_module_states", "_sync_params_and_buffers",
))  # fmt: skip
"""Functions of torch.distributed that return only after other ranks have called them too."""
_DISTRIBUTED: Final = "torch/distributed/"
_BACKWARD: Final = (
    ("_engine_run_backward", "torch/autograd/graph.py"),
    ("backward", "torch/autograd/__init__.py"),
    ("grad", "torch/autograd/__init__.py"),
)
_GRADIENTS: Final = "backward"
_FORWARD: Final = "forward"
_BEFORE_FORWARD: Final = (
    ("_pre_forward", "torch/nn/parallel/distributed.py"),
    ("_sync_buffers", "torch/nn/parallel/distributed.py"),
)
"""In which DDP exchanges the order of its buckets, in the second step, and buffers."""
_PASSAGES: Final = ("torch/_ops.py", "torch/_dynamo/", "torch/_library/")
"""Files of torch that are called between its public function and C++."""
_WAITS_IN: Final = ("futex", "poll", "wait_woken", "inet_", "tcp_", "sk_wait")
"""Parts of names of kernel functions in which a rank waits for one of its threads or for the network."""
_MOST_NAMED: Final = 3
"""Groups of ranks that a sentence names."""


@dataclass(frozen=True, slots=True)
class HangPlace:
    """Ranks at one place. If `function` is empty, `why` says whether they have exited or gave no stack."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    function: str = ""
    """Innermost function outside Python's library; for waiting ranks, the torch function that the script called."""
    file: str = ""
    """File of the innermost frame in the script; or empty. `line` belongs to it."""
    line: int | None = None
    is_caller: bool = False
    why: str = ""

    @property
    def names(self) -> str:
        """Return such as `ranks 0-1 on node1`."""
        return f"{describe_ranks(self.ranks)} on {fold(self.hosts)}"

    @property
    def place(self) -> str:
        """Where the ranks are: `load_batch at train.py:7`, or `all_reduce, called at train.py:9`."""
        line = "" if self.line is None else f":{self.line}"
        return f"{self.function}{', called' if self.is_caller else ''} at {self.file}{line}"


@dataclass(frozen=True, slots=True)
class Hang:
    """Who waits for whom."""

    kind: HangKind
    causes: tuple[HangPlace, ...]
    """Ranks that do not arrive, the smallest groups first; empty for `mismatch` and `same`."""
    waiting: tuple[HangPlace, ...]
    is_sure: bool = True
    """False if ranks only seem to wait: they sleep, and Python shows no function of torch."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that do not arrive; if all wait, those of the last place."""
        return tuple(rank for place in self.causes or self.waiting[-1:] for rank in place.ranks)

    @property
    def sentence(self) -> str:
        """Return who is where, and who waits in which call."""
        verb = "wait" if self.is_sure else "sleep"
        waits = join_words(
            [f"{place.names} {_verb(place, verb)} in {place.place}" for place in self.waiting[:_MOST_NAMED]]
        )
        if self.kind == "mismatch":
            return f"the ranks wait for one another in different calls: {waits}"
        if self.kind == "same":
            return f"all ranks wait in {self.waiting[0].place}, and none is elsewhere"
        more = len(self.causes) - _MOST_NAMED
        absent = [f"{place.names} {self._absence(place)}" for place in self.causes[:_MOST_NAMED]]
        absent += [f"{format_count(more, 'more group')} of ranks"] if more > 0 else []
        return f"{join_words(absent)}, while {waits}"

    def _absence(self, place: HangPlace) -> str:
        """Return where ranks are that do not arrive."""
        if self.kind == "elsewhere":
            return f"{'is' if len(place.ranks) == 1 else 'are'} in {place.place}"
        return place.why.removeprefix("it ") if self.kind == "ended" else f"gave no stack ({place.why})"


def _verb(place: HangPlace, verb: str) -> str:
    """Return the verb for one rank or for several."""
    return f"{verb}s" if len(place.ranks) == 1 else verb


def explain_hang(dump: Dump) -> Hang | None:
    """Return why the ranks hang; None if no rank waits for another, or the stacks do not show it."""
    if len(dump.ranks) < 2:
        return None
    waiting = [group for group in dump.groups if _is_waiting(group)]
    is_sure = bool(waiting)
    if not waiting:
        waiting = _sleeping_majority(dump)
    absent = [group for group in dump.groups if group not in waiting]
    ended = [rank for rank in dump.mute if rank.state in FINAL]
    silent = [rank for rank in dump.mute if rank.state not in FINAL]
    if not waiting:
        return None
    waits = _waiting_places(waiting)
    if ended:
        return Hang("ended", _mute_places(ended), waits, is_sure)
    if absent:
        return Hang("elsewhere", tuple(map(_place, absent)), waits, is_sure)
    if silent:
        return Hang("no-stack", _mute_places(silent), waits, is_sure)
    return Hang("mismatch" if len(waits) > 1 else "same", (), waits)


def _is_waiting(group: StackGroup) -> bool:
    """True if the ranks wait for others."""
    called = _called(group.frames)
    # A backward pass computes in the main thread, which sleeps only while gradients are exchanged.
    may_compute = called in (_GRADIENTS, _FORWARD)
    return bool(called) and not (may_compute and any(process.state != "S" for process in _processes(group)))


def _called(frames: Sequence[StackFrame]) -> str:
    """Return the torch function that the script called: `all_gather_object` for a stack that ends in `all_gather`.

    Empty if the innermost calls outside Python's own library are neither a collective nor a backward pass.
    """
    name = ""
    for frame in frames:
        if frame.is_standard or (frame.is_library and frame.place.startswith(_PASSAGES)):
            continue
        if frame.is_library and frame.key[:2] in _BACKWARD:
            return name or _GRADIENTS
        if frame.is_library and frame.key[:2] in _BEFORE_FORWARD:
            return name or _FORWARD
        if not (frame.is_library and frame.place.startswith(_DISTRIBUTED)):
            break
        function = frame.key[0]
        if function in _COLLECTIVES and (not name or not function.startswith("_")):
            name = function
    return name


def _processes(group: StackGroup) -> list[Process]:
    """Return the main processes of the ranks."""
    return [process for rank in group.ranks if (process := rank.main_process) is not None]


def _sleeping_majority(dump: Dump) -> list[StackGroup]:
    """Return a majority of ranks that sleep at one line of the script, because `Work.wait` has no Python frame; or an
    empty list.
    """
    if dump.mute or len(dump.groups) < 2:
        return []
    *others, largest = dump.groups
    is_majority = 2 * len(largest.ranks) > len(dump.ranks)
    is_own = largest.own is not None and largest.own == largest.inner
    if is_majority and is_own and _is_asleep(largest) and not any(map(_is_asleep, others)):
        return [largest]
    return []


def _is_asleep(group: StackGroup) -> bool:
    """True if the ranks wait for another thread or the network, and not in a sleep of the script."""
    return all(
        process.state == "S" and any(part in process.wchan for part in _WAITS_IN) for process in _processes(group)
    )


def _place(group: StackGroup) -> HangPlace:
    """Return where a group of ranks is that does not wait."""
    frame = group.own or group.inner
    return _of(group.ranks, group.inner.key[0], frame, is_caller=frame != group.inner)


def _of(ranks: Sequence[RankStacks], function: str, frame: StackFrame, *, is_caller: bool) -> HangPlace:
    """Return ranks at a place."""
    rows = sorted(ranks, key=lambda rank: rank.rank)
    numbers, hosts = tuple(row.rank for row in rows), tuple(dict.fromkeys(row.host for row in rows))
    return HangPlace(numbers, hosts, function, frame.place, frame.line, is_caller)


def _waiting_places(groups: Sequence[StackGroup]) -> tuple[HangPlace, ...]:
    """Return one place for each call in the script, even if ranks are at different lines inside torch; the largest
    group first.
    """
    ranks_of: dict[tuple[str, str, int | None], list[RankStacks]] = {}
    frames: dict[tuple[str, str, int | None], StackFrame] = {}
    for group in groups:
        frame = group.own or group.inner
        key = (_called(group.frames), frame.place, frame.line)
        ranks_of.setdefault(key, []).extend(group.ranks)
        frames.setdefault(key, frame)
    places = [
        _of(ranks, key[0] or frames[key].key[0], frames[key], is_caller=bool(key[0]) and not frames[key].is_library)
        for key, ranks in ranks_of.items()
    ]
    return tuple(sorted(places, key=lambda place: (-len(place.ranks), place.ranks)))


def _mute_places(ranks: Sequence[RankStacks]) -> tuple[HangPlace, ...]:
    """Return the ranks without a stack, by the reason."""
    ranks_of: dict[str, list[RankStacks]] = {}
    for rank in ranks:
        ranks_of.setdefault(rank.reason or "no Python frame", []).append(rank)
    return tuple(
        HangPlace(tuple(row.rank for row in rows), tuple(dict.fromkeys(row.host for row in rows)), why=reason)
        for reason, rows in ranks_of.items()
    )


_BUSY: Final = 50.0
"""Percent of a core above which a rank computes or spins."""
_STATES: Final = {
    "R": "runs",
    "S": "waits",
    "D": "waits for a disk or a network filesystem",
    "T": "is stopped by a signal or a debugger",
    "t": "is stopped by a signal or a debugger",
    "Z": "has ended, and its parent has not noticed",
}
"""State of a process in /proc → what a text says."""
_KERNEL_FUNCTIONS: Final = (
    (KEEPS_TCP_STORE, "until no rank uses its rendezvous store any more; its script has ended"),
    ("futex", "for a lock or another thread"),
    ("epoll", "for a socket"),
    ("poll", "for a socket or a file"),
    ("tcp_", "for the network"),
    ("inet_", "for the network"),
    ("sk_wait", "for the network"),
    ("unix_stream", "for another process"),
    ("skb_", "for the network"),
    ("pipe", "for a pipe"),
    ("nanosleep", "in a sleep"),
    ("do_wait", "for a process it started"),
    ("nfs", "for NFS"),
    ("rpc_", "for NFS"),
)
"""Part of the name of a kernel function → what a rank waits for that sleeps in it. The first that fits counts."""
_MAX_GROUPS: Final = 8
_WIDTH: Final = 100
_MAX_SENTENCE: Final = 600


def silence_lines(run: str, silence: Silence) -> list[str]:
    """Return the lines for a run whose ranks print nothing any more."""
    head = Fix(
        f"no rank has printed anything for {_minutes(silence.after)}: `ipexctl why {run} --stacks` shows where each is"
    )
    return [head, *_indented(sentence for _, sentence in describe_silent(silence))]


def describe_silent(silence: Silence) -> list[tuple[list[SilentRank], str]]:
    """Return groups of ranks in the same state with the same last line, each with a sentence about it."""
    groups: dict[str, list[SilentRank]] = {}
    for rank in silence.ranks:
        last = f"last line: {shorten_text(bare(rank.last), _WIDTH)}" if rank.last else "no output yet"
        groups.setdefault(f"{describe_activity(rank)}; {last}", []).append(rank)
    return [(ranks, f"{name_ranks(ranks)}: {state}") for state, ranks in groups.items()]


def dump_lines(run: str, dump: Dump, *, places: bool = True) -> list[str]:
    """Return the lines that show new stacks: who waits for whom, then where each rank is."""
    hang = explain_hang(dump)
    who = [] if hang is None else [shorten_text(hang.sentence, _MAX_SENTENCE)]
    head = Fix(f"the ranks at {format_clock(dump.at)} (`ipexctl why {run}` shows this again):")
    if not places:
        return who
    return [*who, head, *_indented(line[: 2 * _WIDTH] for _, line in place_lines(dump))]


def _indented(groups: Iterable[str]) -> list[str]:
    """Return the first lines, indented, and how many more there are."""
    lines = [f"  {line}" for line in groups]
    more = [f"  and {len(lines) - _MAX_GROUPS} more groups of ranks"] if len(lines) > _MAX_GROUPS else []
    return lines[:_MAX_GROUPS] + more


def describe_activity(rank: SilentRank) -> str:
    """Return what a rank does: `computes, or spins (98 % of a core)`, or `waits for the network`."""
    if rank.cpu is not None and rank.cpu >= _BUSY:
        return f"computes, or spins ({round(rank.cpu, -1):.0f} % of a core)"
    process = rank.process or ("S" if rank.waits_in else "")
    state = _STATES.get(process, "is alive, in an unknown state")
    if process == "S" and rank.waits_in:
        state = next((f"waits {reason}" for part, reason in _KERNEL_FUNCTIONS if part in rank.waits_in), "waits")
    if process in ("S", "D") and rank.waits_in:
        state = f"{state} ({rank.waits_in})"
    return state


def _minutes(seconds: float) -> str:
    """Format seconds, as minutes if they are whole minutes."""
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"
