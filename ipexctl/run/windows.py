"""Read the windows of a run from node0, or from the copy on this machine. A window is what a rank or host did in about
ten seconds.

The windows also tell how much memory the ranks took, which the plan of the next run needs. If windows of a rank come
that the run does not have, the call ends, because only a broken or hostile node0 sends them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from ipexctl.homes.registry import RunRecord, RunRegistry, stem_of
from ipexctl.launch.run_context import EarlierMemory
from ipexctl.node.common.files import RunReference
from ipexctl.node.common.frames import WINDOWS, Frame, FrameError, WindowsFile, decode_windows
from ipexctl.node.common.json_records import decode, parse_json
from ipexctl.node.run.meter import rank_profile
from ipexctl.node.run.meter.rank_profile import RankProfile
from ipexctl.node.run.meter.window_file import (
    HOST_SUFFIX,
    MAX_FILE,
    RANK_SUFFIX,
    SENT,
    HostWindows,
    RankWindows,
    decode_host_windows,
    decode_rank_windows,
)
from ipexctl.remote.session import Session
from ipexctl.run.node0 import call_on_node0

_MAX_RECEIVED: Final = 64 << 20
"""Bytes that node0 may send."""
_MOST_RUNS_SEARCHED: Final = 5
"""A run that nobody followed left no windows here, so a few of a script's newest runs are looked at."""


@dataclass(frozen=True, slots=True)
class RunWindows:
    """All windows of a run. Times are by node0's clock."""

    ranks: Mapping[int, RankWindows] = field(default_factory=dict, hash=False)
    """Rank → its windows."""
    hosts: Mapping[int, HostWindows] = field(default_factory=dict, hash=False)
    """Lowest rank of a host, which wrote them → the windows of the host."""
    profiles: Mapping[int, RankProfile] = field(default_factory=dict, hash=False)
    """Rank → its profile."""


def fetch_windows(session: Session, record: RunRecord) -> RunWindows:
    """Return the windows that node0 has so far; the run may be alive. Raises a HostError."""
    files: list[WindowsFile] = []
    received = 0

    def on_frame(frame: Frame) -> None:
        """Take one file of windows."""
        nonlocal received
        kind, payload = frame
        received += len(payload)
        if kind != WINDOWS or received > _MAX_RECEIVED:
            raise FrameError("a frame that was not requested")
        files.append(check_windows(record.plan.world_size, payload))

    request: RunReference = {"home": record.home, "id": record.id}
    call_on_node0(session, record, "run.meter.window_file", "read", request, on_frame=on_frame)
    return run_windows(files)


def read_copied_windows(directory: Path) -> RunWindows:
    """Return the windows of the local copy; empty if the run was not followed to its end from this machine."""
    return run_windows(_copied_files(directory))


def _copied_files(directory: Path) -> Iterator[WindowsFile]:
    """Yield the files of windows in a local copy. A file that cannot be read is left out."""
    for path in sorted((directory / "ranks").glob("*.*")):
        if path.suffix in SENT and path.stem.isdigit():
            try:
                with path.open("rb") as file:
                    yield WindowsFile(int(path.stem), path.suffix, file.read(MAX_FILE))
            except OSError:
                continue


def run_windows(files: Iterable[WindowsFile]) -> RunWindows:
    """Return the windows of these files. Damaged windows are left out; a damaged profile says that it is."""
    ranks: dict[int, RankWindows] = {}
    hosts: dict[int, HostWindows] = {}
    profiles: dict[int, RankProfile] = {}
    for rank, suffix, data in files:
        if suffix == RANK_SUFFIX and (of_rank := decode_rank_windows(data)) is not None:
            ranks[rank] = of_rank
        elif suffix == HOST_SUFFIX and (of_host := decode_host_windows(data)) is not None:
            hosts[rank] = of_host
        elif suffix == rank_profile.SUFFIX:
            try:
                profiles[rank] = decode(RankProfile, parse_json(data), "a profile")
            except ValueError as error:
                profiles[rank] = RankProfile(note=f"its file is damaged: {error}")
    return RunWindows(ranks, hosts, profiles)


def check_windows(world_size: int, payload: bytes) -> WindowsFile:
    """Return the file in a frame. Raises a FrameError if the run cannot have it."""
    file = decode_windows(payload)
    if file.suffix not in SENT or 0 < world_size <= file.rank or len(file.data) > MAX_FILE:
        raise FrameError(f"windows of rank {file.rank} that this run doesn't have")
    return file


def earlier_memory(project: Path, script: str) -> EarlierMemory | None:
    """Return the most memory that a rank took in the newest run of a script that was followed from this machine; None
    without one.

    `script`: the beginning of `plan.script`. Only runs of the same project count.
    """
    registry = RunRegistry()
    records, _ = registry.read_records(f"{stem_of(script)}-*")
    of_project = (record for record in reversed(records) if record.project == str(project))
    of_script = (record for record in of_project if f"{record.plan.script} ".startswith(f"{script} "))
    for record in islice(of_script, _MOST_RUNS_SEARCHED):
        ranks = read_copied_windows(registry.directory / record.id).ranks.values()
        sizes = [rates.rss for rank in ranks for rates in rank.windows if rates is not None and rates.rss]
        if sizes:
            return EarlierMemory(int(max(sizes)), record.id, max(Counter(record.plan.rank_hosts).values(), default=0))
    return None
