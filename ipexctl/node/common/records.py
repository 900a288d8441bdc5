"""The record of a run, `status.json`, shared by the nodes and the control machine.

Programs read fields, such as a failure's `kind` and `Detail`; the sentences (`reason`, `mismatch`) are for people.
Decoding a record of any version never fails. The records are named tuples, because importing dataclasses takes 10 ms.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Literal, Mapping, NamedTuple, cast

from ipexctl.node.common.job import Master
from ipexctl.node.common.json_records import (
    Computed,
    FieldDecoder,
    check_type,
    decode,
    decode_valid,
    encode,
    parse_json,
)
from ipexctl.node.common.lever_records import Lever  # noqa: TC001  # `decode` looks it up
from ipexctl.node.common.processes import ProcessIdentity
from ipexctl.node.common.training import WrongTraining  # noqa: TC001  # `decode` looks it up

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

State = Literal["starting", "running", "ok", "failed", "stopped", "lost", "unknown"]
STATES: frozenset[str] = frozenset(("starting", "running", "ok", "failed", "stopped", "lost", "unknown"))
FINAL: frozenset[str] = frozenset(("ok", "failed", "stopped", "lost"))
SCHEMA = "ipexctl.status/1"
RESTART_MARK = "[ipexctl: restart "
"""Start of the line in a rank's output that separates two attempts."""
KEEPS_TCP_STORE = "ipexctl-store"
"""Name of rank 0's process once its script has ended and only its store is needed; as in `inrank/tcp_store.py`."""


class Detail(NamedTuple):
    """A failure as one ipexctl program reports it to another; more exact than a failure's `kind`.

    By the supervisor:  wrapper-killed, silent, cut-off, gave-up, unreadable (of lost ranks); not-begun {seconds};
                        no-starter {place}; unreachable {place, why}; mpirun-not-started, rank-not-started {why};
                        mpirun-signalled {how or part}; mpirun-ended, wrapper-signalled, wrapper-ended {how}
                        repeated {what, place}
    By a rank wrapper:  no-directory, no-command, no-interpreter, setup-failed {place, file, what}; wrong-mpi;
                        no-way-back {place, why}; port-taken {port, holder}
    By a verification:  wrong-mpi, wrong-result {what}
    """

    kind: str
    fields: Mapping[str, str] = {}
    """What the sentence needs: names, numbers, error texts of other programs."""


OF_GPUS = ("gpu-ended", "gpu-only", "gpu-asked")
"""Evidence that is a detail, too: a script ended for want of a GPU; needs what GPUs alone have; or asked for one."""
DETAIL_MARK = "@ipexctl-detail "
"""Prefix of a line on stderr with a Detail as JSON, for programs that have no other way to report it."""


def split_details(lines: Iterable[str]) -> tuple[list[str], tuple[Detail, ...]]:
    """Split a log into lines for people and the details in the other lines."""
    rest, details = [], []
    for line in lines:
        before, mark, document = line.partition(DETAIL_MARK)
        if not mark:
            rest.append(line)
            continue
        with contextlib.suppress(ValueError):
            details.append(decode(Detail, parse_json(document), "a detail"))
        if before.strip():
            rest.append(before)
    return rest, tuple(details)


class OutOfMemory(NamedTuple):
    by: str
    """Where the kill was found: cgroup, kernel log, vmstat."""
    limit: int | None = None
    """Memory limit in bytes; None unless the cgroup reached it."""
    memory: int | None = None
    """Highest measured memory use of the rank, in bytes."""


class Proof(NamedTuple):
    """A measurement of this run: what makes a cause certain, or impossible (`known_errors/table.yaml`)."""

    kind: str
    """`oom-counted`, `oom-elsewhere`, `oom-none`, `oom-unread`, `guard`, `memory-low`, `memory-free`, `disk-full`;
    `daemon`: a process that the command left behind; `exception`: printed last by one that succeeded; else its source:
    line, stack, report, signal, exit, plan."""
    text: str
    """What was measured, as a sentence can have it."""
    host: str = ""
    at: float | None = None
    """By node0's clock; None if unknown."""


def describe_mismatches(ranks: Iterable[RankStatus]) -> tuple[str, ...]:
    """Return sentences that say where cores and memory of ranks differ from the plan; of more than four, the first
    three and how many more there are."""
    texts = [f"rank {row.rank} on {row.host}: {text}" for row in ranks for text in row.mismatch]
    return (*texts[:3], f"{len(texts) - 3} more differences from the plan") if len(texts) > 4 else tuple(texts)


def describe_successes(ranks: Iterable[RankStatus]) -> Iterator[str]:
    """Yield sentences about processes that scripts left behind when they ended, and about exceptions that they printed
    last."""
    seen = [(row, proof) for row in ranks for proof in row.evidence]
    if left := [(row, proof.text) for row, proof in seen if proof.kind == "daemon"]:
        (row, name), more = left[0], f" and {len(left) - 1} more" if len(left) > 1 else ""
        what = f"rank {row.rank} on {row.host} left {name}{more} behind, ended with the run"
        yield f"{what}; start what must go on outside the run"
    for row, proof in [(row, proof) for row, proof in seen if proof.kind == "exception"][:1]:
        yield f"rank {row.rank} printed {proof.text} last, and exited with code 0"


class FullDisk(NamedTuple):
    path: str
    free: int
    """Bytes."""
    size: int
    lacks_files: bool = False
    """True if the disk has free bytes but no free inodes."""


class Throughput(NamedTuple):
    """Measured by the step meter over the last minute; once ranks have ended, over all attempts with the same ranks."""

    steps_per_s: float | None = None
    samples_per_s: float | None = None
    data_wait: float | None = None
    """Share of the time that ranks waited for data, 0 to 1."""
    source: str = ""
    """Where samples were counted: dataloader; steps if samples are unknown."""
    tokens_per_s: float | None = None
    """Of batches with `input_ids`, without padding."""


class TrainingGroup(NamedTuple):
    planned: int
    """Ranks of the attempt."""
    seen: int
    """Ranks in the smallest process group of a rank after 20 steps of its optimizer, or its last; 1 without a group."""


def describe_apart(group: TrainingGroup | None) -> str:
    """Say that ranks do not train together, and the fix. Empty if all train together, or if that is unknown."""
    if group is None or group.seen >= group.planned:
        return ""
    group_text = "no process group with others" if group.seen == 1 else f"a process group of {group.seen} ranks"
    apart = f"its {group.planned} ranks do not train together: a rank is in {group_text}"
    together = "wrap the model in DistributedDataParallel after torch.distributed.init_process_group()"
    return f"{apart}; fix: {together}, or start independent copies with --backend none"


class Untrained(NamedTuple):
    """A run that succeeded without a training step, although its script has a backward."""

    rank: int | None = None
    line: str = ""
    """The last line of the rank that names GPUs; without one, `rank` is None."""

    @property
    def sentence(self) -> str:
        """That no rank trained, and what may be the cause."""
        cause = f"; rank {self.rank} printed: {self.line}" if self.line else ": optimizer.step() was never called"
        return f"no rank took a training step{cause}"


class NanLoss(NamedTuple):
    step: int
    """The first step since which the rank's loss is not a number."""
    rank: int
    before: Computed | None = None
    """Its last loss that was a number."""

    @property
    def sentence(self) -> str:
        """Whose loss is no number, and since when."""
        before = "" if self.before is None else f", {self.before:.4g} before"
        return f"the loss of rank {self.rank} is nan or inf since step {self.step}{before}"


class GradientExchange(NamedTuple):
    seen: bool
    """False if no rank has called a collective since its first step."""


class SlowRank(NamedTuple):
    rank: int
    host: str
    percent: float
    """How much more time of its own the rank needs than the others, in percent of a step."""


class WireAdvice(NamedTuple):
    wire: str
    speedup: float
    """With `--wire`, the run would make this many times as many steps in the same time."""


class NetworkCost(NamedTuple):
    share: float
    bytes_per_step: float
    """Bytes that each host sends."""
    rate: float
    iface: str = ""
    """Network interface of the run's connections; empty if they may use any but the loopback."""
    advice: WireAdvice | None = None


class Stepping(NamedTuple):
    """Optimizer steps of a rank's process."""

    steps: int = 0
    usual: float = 0.0
    """Seconds of a usual step; 0 before two steps."""
    since: float = 0.0
    """Seconds since the last step."""


class RankFigures(NamedTuple):
    """A rank's numbers, from its wrapper through the supervisor to `ps`, events and the live view. None: unknown."""

    cpu: float | None = None
    """Percent of one core, as in top: 800 is eight cores."""
    rss: int | None = None
    """Bytes."""
    process: str | None = None
    """Kernel state of the rank's main process: R, S, D …"""
    waits_in: str | None = None
    """Kernel function in which the main process sleeps, or KEEPS_TCP_STORE."""
    out_lines: int | None = None
    """Counted by the supervisor, like the next two."""
    err_lines: int | None = None
    lost: int = 0
    """Bytes of output lost because a disk was full."""
    stepping: Stepping | None = None
    """None if no optimizer has stepped."""
    unheard: float | None = None
    """Seconds since the supervisor heard of the rank, if that is long."""

    def after_exit(self) -> RankFigures:
        """Return the figures of a rank whose processes are gone: it uses neither CPU nor memory."""
        return self._replace(cpu=0.0, rss=0)


class RankStatus(NamedTuple):
    rank: int
    host: str
    state: State = "starting"
    pid: int | None = None
    figures: RankFigures = RankFigures()
    exit_code: int | None = None
    signal: int | None = None
    oom: OutOfMemory | None = None
    wrapper: int | None = None
    """Pid of the rank wrapper."""
    mismatch: tuple[str, ...] = ()
    """Sentences that say where cores and memory differ from the plan; each once per host."""
    problem: Detail | None = None
    disk: FullDisk | None = None
    evidence: tuple[Proof, ...] = ()
    """What its wrapper measured when the command ended; empty in older records."""
    ended_at: float | None = None
    """When its script ended, as its own Python said, else its command; by node0's clock, None before."""
    throughput: Throughput | None = None
    port: int | None = None
    """What `{port}` in the command stands for; None if the command has none."""
    restarts: int = 0
    """How often the copy was started again, with --keep-going."""

    def to_json(self) -> Json:
        """Return the rank as in status.json."""
        fields = self._asdict()  # `encode` takes three times as long, and a run may have thousands of ranks
        figures = fields.pop("figures")._asdict()
        lines = {"out": figures.pop("out_lines"), "err": figures.pop("err_lines")}
        records = {
            "oom": self.oom and self.oom._asdict(),
            "problem": self.problem and self.problem._asdict(),
            "disk": self.disk and self.disk._asdict(),
            "evidence": [proof._asdict() for proof in self.evidence],
            "throughput": self.throughput and self.throughput._asdict(),
        }
        return {**fields, **figures, **records, "lines": lines}


class Failure(NamedTuple):
    rank: int | None
    """The rank that caused the failure, or the first of several; None if no rank did, as when the launcher exited."""
    host: str | None
    exit_code: int | None = None
    signal: int | None = None
    at: float | None = None
    kind: str = ""
    ranks: tuple[int, ...] = ()
    """All ranks that failed this way, such as the ranks of a lost node, or the ranks that never started."""
    oom: OutOfMemory | None = None
    detail: Detail | None = None


class SilentRank(NamedTuple):
    rank: int
    host: str
    last: str | None = None
    cpu: float | None = None
    process: str | None = None
    waits_in: str | None = None
    stream: str | None = None


class Silence(NamedTuple):
    since: float
    after: float
    """Seconds without output until it is reported."""
    ranks: tuple[SilentRank, ...] = ()
    dump: str = ""
    """Id of the stack dump that was taken when the silence was reported."""
    on_hang: str = ""
    """report, dump, stop; empty in older records."""


class Attempt(NamedTuple):
    attempt: int
    reason: str = ""
    first_failure: Failure | None = None
    ended: float | None = None
    hosts: tuple[str, ...] = ()
    """Empty in older records."""
    world_size: int = 0


class StopRecord(NamedTuple):
    """Who stopped a run, and when."""

    by: str | None = None
    """Account on the machine `host`; both None if neither is known, as after a SIGTERM to the supervisor."""
    host: str | None = None
    at: float | None = None

    @property
    def who(self) -> str:
        """As in `ann@desk`; empty if it is not known who stopped the run."""
        return f"{self.by}@{self.host}" if self.by else ""


class LauncherStatus(NamedTuple):
    pid: int | None = None
    exit_code: int | None = None
    tail: tuple[str, ...] = ()


class LostOutput(NamedTuple):
    bytes: int
    host: str
    ranks: tuple[int, ...]


LEAST_STILL, STILL = 5.0, 60.0
"""Seconds after which a number is still that usually moves faster, and one that has moved only once."""


class TrainingProgress(NamedTuple):
    """Of the first rank that trains: as the script prints it, else as it was measured."""

    step: int | None = None
    """Steps so far, also those before a checkpoint from which the script resumed."""
    steps: int | None = None
    """Steps that the script will have made; None if neither its output nor its code says so."""
    loss: Computed | None = None
    left: int | None = None
    """Optimizer steps until the end; None if unknown, or if nothing moves."""
    age: float | None = None
    """Seconds since the last step, or without one since another step or loss was printed; None after the end."""
    usual: float = 0.0
    """Seconds of a usual step; 0 if unknown."""
    epoch: float | None = None
    epochs: float | None = None
    speed: str = ""
    """As printed, like the epoch: `9.8 it/s`."""

    @property
    def is_still(self) -> bool:
        """True if nothing moved for three usual steps."""
        return self.age is not None and self.age > max(3 * self.usual or STILL, LEAST_STILL)


def has_gone_on(run: RunStatus, resumed: RunStatus) -> bool:
    """True if a run has a checkpoint of its own, and made more steps than the run that it resumed. Pure."""
    now, before = (status.progress.step if status.progress is not None else None for status in (run, resumed))
    return bool(run.checkpoint) and now is not None and before is not None and now > before


class LaterWrite(NamedTuple):
    """The last change of a file that a run had written, by others than this run."""

    run: str
    """Empty if no run's record has the file as it is, or two runs at the same time have it."""
    at: float
    """mtime of the file, in seconds since the epoch."""

    @property
    def whose(self) -> str:
        """Who wrote the file, as a clause."""
        return f"run {self.run} wrote it" if self.run else "it is not as any run left it, or two at once wrote it"

    @property
    def sentence(self) -> str:
        """Who wrote the file, and when."""
        when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(self.at))
        return f"{self.whose} at {when}" if self.run else f"{self.whose} (last written {when})"


class RunStatus(NamedTuple):
    id: str
    state: State
    script: str = ""
    env: str = ""
    """Name of the environment, or the path of the user's Python."""
    nodes: int = 1
    """Hosts with ranks."""
    world_size: int = 0
    started: float | None = None
    """Seconds since 1970 by node0's clock, as are all times here."""
    ended: float | None = None
    exit_code: int | None = None
    """None until the run has ended."""
    ranks: tuple[RankStatus, ...] = ()
    first_failure: Failure | None = None
    """Of the last attempt; `attempts` has those before."""
    reason: str = ""
    """Why the run ended, or why it can never be known; empty while it goes on, and after a success."""
    stopped: StopRecord | None = None
    """None unless the run was stopped."""
    attempt: int = 0
    """Restarts so far."""
    restarts: int = 0
    """Most restarts that the call allows."""
    silent: Silence | None = None
    """The silence that was reported and goes on; or None."""
    supervisor: ProcessIdentity = ProcessIdentity(0)
    """Pid 0 until the supervisor has begun."""
    node0: str = ""
    mpirun: LauncherStatus = LauncherStatus()
    master: Master = Master("")
    attempts: tuple[Attempt, ...] = ()
    """Those before this one."""
    unwritten_events: int | None = None
    """Number of events not written yet because the disk is full; None if that never happened."""
    unrecorded: str = ""
    """Why node0 can't write the record of a lost run, and so did not write its end; empty if it can."""
    unstored_output: int | None = None
    """While the disk is full: the supervisor's file descriptor of the output in memory (`unstored_output.py`)."""

    throughput: Throughput | None = None
    """All ranks together; None if nothing was measured."""
    progress: TrainingProgress | None = None
    """None until a step or a loss is known."""
    group: TrainingGroup | None = None
    """None before 20 steps, with --backend none, or if the ranks' group is unknown."""
    untrained: Untrained | None = None
    """Set once a run has succeeded without a step."""
    nan: NanLoss | None = None
    """None unless the last loss of a rank is no number."""
    exchange: GradientExchange | None = None
    """None unless ranks of one group exchanged nothing."""
    wrong: tuple[WrongTraining, ...] = ()
    slow: SlowRank | None = None
    """Set only while the run is running. `ipexctl why` finds more slow ranks, and the causes."""
    network: NetworkCost | None = None
    """None on one host, or if unknown."""
    levers: tuple[Lever, ...] = ()
    """The options that were asked for, and those that --profile measured."""
    amx_idle: Mapping[str, str] = {}
    """Host with AMX on which the script multiplies in fp32 → its `HostPlan.hardware`."""
    job_end: str = ""
    """Why the queue stopped the run, such as TIMEOUT; `job_words.py` lists the words."""
    has_checkpoint: bool = False
    """True once node0 had a file at the PATH of --checkpoint; always false if hosts exchange no checkpoints."""
    raised: str = ""
    """Type and first line of the exception that ended the rank of the first failure; empty if unknown."""
    checkpoint: str = ""
    """The newest checkpoint that node0 has of this run, once it has ended; relative to the ranks' working directory, or
    absolute."""
    overwritten: LaterWrite | None = None
    """What `checkpoint` is now, where node0 has looked; None while it is this run's, or a copy of it is kept."""
    hosts: tuple[str, ...] = ()
    """Hosts of this attempt in rank order; empty in older records."""
    elapsed: float | None = None
    """Seconds of the run until this status, by a clock that does not jump; None in older records."""

    @property
    def eta(self) -> float | None:
        """Seconds until the last step, at the measured speed; None if unknown."""
        progress, speed = self.progress, self.throughput.steps_per_s if self.throughput is not None else None
        if self.state != "running" or progress is None or progress.left is None or not speed:
            return None
        return progress.left / speed

    @property
    def unheard(self) -> tuple[tuple[str, ...], float]:
        """Hosts of which node0 has not heard for some time, and since how many seconds."""
        silences = [(rank.host, rank.figures.unheard) for rank in self.ranks if rank.figures.unheard is not None]
        return tuple(dict.fromkeys(host for host, _ in silences)), max(
            (seconds for _, seconds in silences), default=0.0
        )

    @property
    def took(self) -> float | None:
        """Seconds of a run that has ended, else those until this status; None if unknown."""
        if self.elapsed is not None or self.started is None or self.ended is None:
            return self.elapsed
        return max(0.0, self.ended - self.started)

    @property
    def cause(self) -> str:
        """What ended a run that neither succeeded nor was stopped."""
        parts = (self.reason, self.raised if self.raised not in self.reason else "")
        return "" if self.state in ("ok", "stopped") else ": ".join(filter(None, parts))

    @property
    def fetch_line(self) -> str:
        """The command that fetches its newest checkpoint; empty without one, or if it is another run's by now."""
        if not self.checkpoint or self.overwritten is not None:
            return ""
        return shlex.join(("ipexctl", "fetch", f"{self.id}:{self.checkpoint}", "out/"))

    @property
    def lost_checkpoint(self) -> str:
        """What became of its newest checkpoint, if a later run wrote there."""
        if self.overwritten is None:
            return ""
        return f"{self.checkpoint} on {self.node0 or 'node0'} is no longer of this run: {self.overwritten.sentence}"

    @property
    def but_nan(self) -> str:
        """For the sentence that says that the run succeeded."""
        return f", but {self.nan.sentence}" if self.nan is not None and self.state == "ok" else ""

    @property
    def training_notes(self) -> tuple[str, ...]:
        """What else is wrong with the training itself."""
        problems = (self.untrained, None if self.but_nan else self.nan, *self.wrong)
        of_gpu = (f"its script found no GPU ({self.lacks_gpu})",) if self.lacks_gpu else ()
        return (*(problem.sentence for problem in problems if problem is not None), *of_gpu)

    @property
    def lacks_gpu(self) -> str:
        """Where the script of a run that succeeded ended, or trained nothing, because it found no GPU; or empty."""
        kinds = () if self.state != "ok" else ("gpu-ended",) if self.untrained is None else ("gpu-ended", "gpu-asked")
        return next((proof.text for row in self.ranks for proof in row.evidence if proof.kind in kinds), "")

    @property
    def all_attempts(self) -> tuple[Attempt, ...]:
        """All attempts, this one last."""
        last = Attempt(self.attempt, self.reason, self.first_failure, self.ended, self.hosts, self.world_size)
        return (*self.attempts, last)

    @property
    def has_moved(self) -> bool:
        """True if attempts had different hosts, as far as these are known."""
        return len({attempt.hosts for attempt in self.all_attempts if attempt.hosts}) > 1

    @property
    def output_lost(self) -> LostOutput | None:
        """How much output a full disk lost, and of which ranks; None if none was lost."""
        gaps = [rank for rank in self.ranks if rank.figures.lost]
        if not gaps:
            return None
        return LostOutput(sum(rank.figures.lost for rank in gaps), self.node0, tuple(rank.rank for rank in gaps))

    @property
    def is_over(self) -> bool:
        """True once the run has ended, or counts as lost."""
        return self.state in FINAL

    @property
    def code(self) -> int:
        """The failed rank's exit code, or 1 if no rank failed; 0 for a run that continues or succeeded."""
        code = 0 if self.state in ("ok", "starting", "running") else self.exit_code or 1
        return code if 0 <= code < 256 else 1

    def to_json(self) -> Json:
        """Return the status as in status.json, which `read_status` reads."""
        document: Json = {"schema": SCHEMA, **encode(self._replace(ranks=()))}
        document["supervisor"]["host"] = document.pop("node0")
        document["ranks"] = [rank.to_json() for rank in self.ranks]
        if self.unwritten_events is None:
            del document["unwritten_events"]
        return document


def read_status(document: object) -> RunStatus:
    """Decode a status of any version. It never fails: what is missing or damaged gets its default."""
    record = as_dict(document)
    nodes, supervisor = record.get("nodes"), as_dict(record.get("supervisor"))
    nodes = len(nodes) if isinstance(nodes, list) else nodes
    status = decode_valid(RunStatus, {**record, "nodes": nodes, "node0": supervisor.get("host")})
    return status._replace(nodes=status.nodes or 1, world_size=status.world_size or len(status.ranks))


def _state(value: object, _field: str) -> State:
    """Return the state, or `unknown` for a word of a newer version."""
    return cast("State", value) if isinstance(value, str) and value in STATES else "unknown"


def _rank(value: object, field: str) -> RankStatus:
    entry = check_type(dict, value, field)
    return decode_valid(RankStatus, {**entry, "figures": entry})


def _figures(value: object, field: str) -> RankFigures:
    entry = check_type(dict, value, field)
    lines = as_dict(entry.get("lines"))
    return decode_valid(RankFigures, {**entry, "out_lines": lines.get("out"), "err_lines": lines.get("err")})


def _silence(value: object, _field: str) -> Silence | None:
    silence = decode_valid(Silence, value)
    return silence if silence.since else None


FIELD_DECODERS: dict[str, FieldDecoder] = {
    "State": _state,
    "RankFigures": _figures,
    "RankStatus": _rank,
    "Silence | None": _silence,
}


def as_dict(value: object) -> Json:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_lines(value: object) -> tuple[str, ...]:
    """Return the items of a list as texts; empty if the value is no list."""
    return tuple(str(line) for line in as_list(value))


def as_number(value: object) -> float | None:
    """Return the value as a finite number, or None: Python's JSON allows NaN and Infinity."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
    return None
