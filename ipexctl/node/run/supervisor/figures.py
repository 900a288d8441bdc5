"""CPU, memory and windows of ranks and hosts, for the status and window files.

Nothing is decided here. `loop.py` ends a run because of its `nan`, if the user asked for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

from ipexctl.node.common.lever_records import Lever, asked_levers, with_speedups
from ipexctl.node.common.rank_options import ALLREDUCE
from ipexctl.node.common.records import (
    FINAL,
    GradientExchange,
    NanLoss,
    RankStatus,
    RunStatus,
    TrainingGroup,
    TrainingProgress,
    describe_apart,
)
from ipexctl.node.common.training import ALONE, RankTraining, WrongTraining, find_wrong
from ipexctl.node.run.connection.messages import Beat, Message, Mismatch
from ipexctl.node.run.meter.host_notes import HostNotes
from ipexctl.node.run.meter.network_watch import NetworkWatch
from ipexctl.node.run.meter.rank_profile import RankProfile, main_profile
from ipexctl.node.run.meter.rates import waiting_of
from ipexctl.node.run.meter.slow_watch import SlowWatch
from ipexctl.node.run.meter.step_windows import RankThroughput, StepWindow, run_throughput
from ipexctl.node.run.record.printed import Movement, PrintedFigures

if TYPE_CHECKING:
    from ipexctl.node.common.plan import Plan
    from ipexctl.node.run.decisions.supervisor_state import Moment, RankState
    from ipexctl.node.run.record.recorder import OutputFile, WindowFiles

MAX_MISMATCHES = 64
MOST_READ = 16
"""Ranks whose output is read for a loss, the lowest ones."""
UNHEARD = 9.0
"""Seconds without a message of a rank, which sends one every four, until views say so."""


class _FiguresOfRank:
    """Figures of one rank in this attempt; `throughput` includes earlier attempts."""

    def __init__(self, throughput: RankThroughput) -> None:
        self.beat: Beat | None = None
        self.beat_at = 0.0
        self.mismatch: tuple[str, ...] = ()
        self.throughput = throughput


class RunFigures:
    def __init__(self, hosts: Mapping[int, str], plan: Plan) -> None:
        self._plan = plan
        self._throughput: dict[int, RankThroughput] = {}
        self._profiles: dict[int, RankProfile] = {}
        self.begin_attempt(hosts)

    def begin_attempt(self, hosts: Mapping[int, str]) -> None:
        """Forget what was measured in the attempt before. `hosts`: rank → host.

        Profiles stay, and throughput goes on as long as the ranks have the same numbers.
        """
        self._hosts = hosts
        waiting = self._waiting = waiting_of(
            self._plan.backend, self._plan.choice(ALLREDUCE).mode, len(set(hosts.values()))
        )
        self._mismatches: set[tuple[str, str]] = set()
        self._fp32_hosts: set[str] = set()
        self._stepped: set[int] = set()
        self.stepped_at = 0.0
        self._groups: dict[int, int] = {}
        self._unused: set[int] = set()
        self._apart: set[int] = set()
        self._nan: dict[int, int] = {}
        self._training: dict[int, RankTraining] = {}
        self._printed, self._movement = PrintedFigures(), Movement()
        self._judged: bool | None = None
        """Whether the run had succeeded when `_wrong` was found; None if there is more to judge."""
        self._wrong: tuple[WrongTraining, ...] = ()
        self._asked: tuple[Lever, ...] = ()
        self._is_measured = False
        """True once a rank has waited in shared memory. Until then, ranks may have refused that and wait under gloo."""
        is_shared = self._plan.uses(ALLREDUCE)
        self._slow = SlowWatch(hosts, waiting)
        can_advise = self._plan.may_send_less
        self._network = NetworkWatch(hosts, waiting, is_wire_possible=can_advise, shared=is_shared)
        if self._throughput.keys() != hosts.keys():  # samples of other ranks can't be added
            self._throughput = {rank: RankThroughput() for rank in hosts}
        self._ranks = {rank: _FiguresOfRank(throughput) for rank, throughput in self._throughput.items()}
        for throughput in self._throughput.values():
            throughput.begin_attempt()

    def of(self, rank: int) -> _FiguresOfRank:
        """Return the figures of a rank of this attempt."""
        return self._ranks[rank]

    def add(self, rank: int, message: Message, files: WindowFiles, now: Moment) -> bool:
        """Take the figures from a message. Return False for a message without figures, and for a difference from the
        plan that is known already, or one too many."""
        figures = self._ranks[rank]
        if isinstance(message, Beat):
            figures.beat, figures.beat_at = message, now.clock
        elif isinstance(message, Mismatch):
            said = self._hosts[rank], message.text
            if said in self._mismatches or len(figures.mismatch) >= MAX_MISMATCHES:
                return False
            self._mismatches.add(said)
            figures.mismatch = (*figures.mismatch, message.text)
        elif isinstance(message, StepWindow):
            if message.is_possible:
                self._add_window(rank, message, files, now)
        elif isinstance(message, HostNotes):
            if message.is_possible:
                window, host = message, self._hosts[rank]
                self._network.add_host(host, window.number, window.rates, window.seconds, window.iface)
                files.of_host.add(window.number, window.rates, now.clock, now.epoch)
        elif isinstance(message, RankProfile):
            self._profiles[rank] = message
            files.write_profile(message)
        elif isinstance(message, RankTraining):
            self._training[rank] = message
            self._judged = None
        else:
            return False
        return True

    def _add_window(self, rank: int, window: StepWindow, files: WindowFiles, now: Moment) -> None:
        self._is_measured = self._is_measured or bool(window.reduce_wait)
        rates = window.rates("sleeps" if self._waiting == "shared" and not self._is_measured else self._waiting)
        if window.is_fp32:
            self._fp32_hosts.add(self._hosts[rank])
        if window.steps:
            self._stepped.add(rank)
            self.stepped_at = now.clock
        if window.group:
            self._groups[rank] = window.group
        if window.is_unused:
            self._unused.add(rank)
        (self._apart.add if window.is_apart else self._apart.discard)(rank)
        self._nan[rank] = window.nan_since
        self._ranks[rank].throughput.add(window)
        files.of_rank.add(window.number, rates, now.clock, now.epoch)
        of_window = rates._replace(steps_per_s=window.steps / window.seconds)  # includes pauses, as bytes do
        self._slow.add(rank, window.number, of_window, window.seconds)
        self._network.add(rank, window.number, of_window, window.seconds, window.gradients)

    @property
    def group(self) -> TrainingGroup | None:
        """None also if only one rank trains without the others: they may work for it in another way."""
        planned, seen = len(self._hosts), min(self._groups.values(), default=0)
        if any(wrong.kind == "small-groups" for wrong in self._wrong):
            seen = 1
        if self._plan.backend == "none" or not seen or (seen < planned and len(self._stepped) < 2):
            return None
        return TrainingGroup(planned, min(seen, planned))

    @property
    def exchange(self) -> GradientExchange | None:
        """None unless all ranks train, in one group, and none exchanges anything with the others, also after its last
        step: parameters may be averaged at the end."""
        if any(rank.steps and not rank.trains_alone for rank in self._training.values()):
            return None
        is_one_group = self.group is not None and self.group.planned > 1 and not describe_apart(self.group)
        return GradientExchange(seen=False) if is_one_group and self._apart == self._hosts.keys() else None

    def _judge(self, *, has_succeeded: bool) -> None:
        if self._judged == has_succeeded:
            return
        notes = [rank.levers for _, rank in sorted(self._training.items())]
        self._judged, self._asked = has_succeeded, asked_levers(self._plan, notes)
        if self._plan.backend != "none":
            found = find_wrong(self._training, len(self._hosts), is_over=has_succeeded)
            self._wrong = found

    @property
    def nan(self) -> NanLoss | None:
        """The rank whose loss is nan for the longest."""
        since = [(step, rank) for rank, step in self._nan.items() if step]
        first = min(since, default=(0, -1))
        before = self._training[first[1]].progress.loss if first[1] in self._training else None
        return NanLoss(*first, before) if since else None

    @property
    def is_untrained(self) -> bool:
        """True if every rank has ended without the training step that its script suggests."""
        return not self._stepped and self._unused == self._hosts.keys()

    def read_printed(self, sinks: Mapping[int, Mapping[str, OutputFile]]) -> None:
        """Read the new output of the lowest ranks for loss, step and speed. `sinks`: rank → stream → file.

        The files give only their newest lines, so a loss in the middle of much output may be missed.
        """
        for rank in sorted(sinks)[:MOST_READ]:
            for sink in sinks[rank].values() if rank <= (self._printed.loss_from or rank) else ():
                for line, is_bar in sink.new_lines():
                    self._printed.read_line(rank, line, unfinished=is_bar)

    def progress(self, now: float, *, is_over: bool) -> TrainingProgress | None:
        """Return step, loss and speed as the script prints them, completed by what was measured; None if nothing of
        these is known.

        With `is_over`, the progress has no age, because nothing moves any more.
        """
        rank, training = next(
            ((rank, training) for rank, training in sorted(self._training.items()) if training.progress.step),
            (-1, RankTraining()),
        )
        own_progress, printed = training.progress, self._printed
        age, usual = self._movement.see(printed.step[0] if printed.step else None, printed.loss, now)
        beat = self._ranks[rank].beat if rank in self._ranks else None
        stepping = beat.figures.stepping if beat is not None else None
        made, measured = max(own_progress.step, stepping.steps if stepping is not None else 0), None
        if made:
            steps = own_progress.planned if own_progress.planned >= own_progress.before + made else None
            loss = None if self.nan is not None else own_progress.loss
            left = None if steps is None else steps - own_progress.before - made
            measured = TrainingProgress(own_progress.before + made, steps, loss, left)
        if stepping is not None and stepping.steps:
            age, usual = stepping.since + now - self._ranks[rank].beat_at, stepping.usual
        progress = printed.over(measured)
        return progress and progress._replace(age=None if is_over else round(age, 1), usual=usual)

    def rank_status(self, peer: RankState, sinks: Mapping[str, OutputFile], silence: float = 0.0) -> RankStatus:
        """Return the rank's status with its figures. `silence`: seconds since the rank was heard."""
        figures, out, err = self._ranks[peer.rank], sinks["out"], sinks["err"]
        now = peer.status.figures if figures.beat is None else figures.beat.figures
        now = now.after_exit() if peer.status.state in FINAL else now
        unheard = round(silence, 1) if peer.status.state == "running" and silence > UNHEARD else None
        return peer.status._replace(
            figures=now._replace(out_lines=out.lines, err_lines=err.lines, lost=out.lost + err.lost, unheard=unheard),
            throughput=figures.throughput.now(is_over=peer.exit is not None or peer.is_done),
            mismatch=figures.mismatch,
        )

    def run_status(self, status: RunStatus, ranks: Sequence[RankStatus], now: float) -> RunStatus:
        """Return the run's status with the statuses of its ranks and all figures of the run. `now`: the monotonic
        clock.

        While a rank is unheard or the step stands still, throughput, speed and time left are left out, because they
        would describe the past.
        """
        self._judge(has_succeeded=all(rank.state == "ok" for rank in ranks))
        group = self.group
        tokens = [training.tokens_per_sample for training in self._training.values()]
        throughput = run_throughput([rank.throughput for rank in ranks], group, tokens)
        progress = self.progress(now, is_over=status.state in FINAL)
        if any(rank.figures.unheard for rank in ranks) or (progress is not None and progress.is_still):
            throughput, progress = None, progress and progress._replace(left=None, speed="")
        wrong, exchange = self._wrong, self.exchange
        if any(problem.kind in ALONE for problem in wrong):
            exchange = GradientExchange(seen=False)
        elif exchange is not None:
            wrong = (WrongTraining.seen("no-exchange", self._hosts, "no collective since the first step"), *wrong)
        profile = main_profile(self._profiles.values())
        return status._replace(
            ranks=tuple(ranks),
            throughput=throughput,
            progress=progress,
            group=group,
            nan=self.nan,
            exchange=exchange,
            wrong=wrong,
            slow=self._slow.slow,
            network=self._network.network,
            levers=with_speedups(self._asked, profile.speedups if profile is not None else {}),
            amx_idle={host: hardware for host, hardware in self._plan.amx_hosts.items() if host in self._fp32_hosts},
        )
