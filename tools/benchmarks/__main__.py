"""Measure ipexctl beside its peers, on a lab made for it (Linux, root).

The one command: python -m tools.benchmarks --markdown docs
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Final

from ipexctl import __version__
from ipexctl.errors import UserError
from ipexctl.text import rough_duration

from . import (
    part_allreduce,
    part_bare_hosts,
    part_commands,
    part_files,
    part_finetune,
    part_fp32_math,
    part_half,
    part_huge_pages,
    part_install,
    part_meter,
    part_scale,
    part_scale_run,
    part_start,
    part_threads,
    part_train,
    part_unchanged,
    part_wire,
    peers,
)
from .harness import Failed, clean_environment, say
from .quiet import await_quiet
from .report import Report, markdown, plain, put_between_markers, put_goals
from .rig import Rig, laboratory, leave_on_signals, scratch


@dataclass(frozen=True, slots=True)
class Part:
    """A measurement with a table of its own."""

    measure: Callable[[Rig], Report]
    hosts: int = 1
    """Hosts of the lab."""
    counts: tuple[int, ...] = ()
    """Numbers of hosts to measure with, unless --hosts names others; empty: the part has its own."""
    runs: int = 5
    has_own_lab: bool = False


PARTS: Final[Mapping[str, Part]] = {
    "exec": Part(part_commands.measure_exec, counts=(1, 8, 32)),
    "doctor": Part(part_commands.measure_doctor, counts=(1, 8, 32)),
    "bare-hosts": Part(part_bare_hosts.measure, hosts=part_bare_hosts.HOSTS, runs=3),
    "allreduce": Part(part_allreduce.measure_sizes),
    "allreduce-steps": Part(part_allreduce.measure_steps, runs=3),
    "allreduce-hosts": Part(part_wire.measure_shared, runs=9),
    "fetch": Part(part_files.measure_fetch),
    **{
        f"finetune-{name}": Part(partial(part_finetune.measure, name), has_own_lab=True) for name in part_finetune.SIZES
    },
    "fp32-math": Part(part_fp32_math.measure_speed, runs=7),
    "fp32-math-accuracy": Part(part_fp32_math.measure_accuracy, runs=1),
    "half": Part(part_half.measure),
    "huge-pages": Part(part_huge_pages.measure, runs=3),
    "install": Part(part_install.measure, hosts=part_install.HOSTS, runs=3),
    "meter": Part(part_meter.measure),
    "play": Part(part_commands.measure_play, counts=(1, 8)),
    "start": Part(part_start.measure, hosts=part_start.HOSTS),
    "sync": Part(part_files.measure_sync, counts=(1, 8)),
    "train-fp32": Part(partial(part_train.measure, part_train.FP32), runs=7),
    "scale": Part(part_scale.measure, counts=(8, 64), runs=3),
    "scale-start": Part(part_scale_run.measure_start, counts=(8, 64), runs=3, has_own_lab=True),
    "train-unchanged": Part(part_unchanged.measure, runs=2),
    "threads": Part(part_threads.measure, runs=7),
    "wire": Part(part_wire.measure_steps, runs=9),
    "wire-accuracy": Part(part_wire.measure_accuracy, runs=1),
}
PEERS: Final = Path("~/.cache/ipexctl/benchmark-peers")


def main() -> int:
    given = _arguments()
    leave_on_signals()
    try:
        _measure(given)
    except (Failed, UserError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=_positive, metavar="N", help="rounds of a part (default: 5, of some 1 to 9)")
    parser.add_argument(
        "--only",
        type=_parts,
        default=list(PARTS),
        metavar="PART,…",
        help=f"{', '.join(PARTS)}; with a name, all that begin with it and -",
    )
    parser.add_argument("--hosts", type=_counts, metavar="N,…", help="for exec, doctor, play, sync and scale")
    parser.add_argument("--steady", type=float, metavar="S", help="seconds of a training a round (default: 4)")
    parser.add_argument(
        "--markdown", type=Path, metavar="PATH", help="put tables between the markers of this page or directory"
    )
    parser.add_argument("--peers", type=Path, default=PEERS, metavar="DIR", help=f"their environment ({PEERS})")
    return parser.parse_args()


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_positive(word) for word in text.split(",")}))


def _parts(text: str) -> list[str]:
    words = text.split(",")
    named = {word: [name for name in PARTS if name == word or name.startswith(f"{word}-")] for word in words}
    if unknown := [word for word, names in named.items() if not names]:
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(unknown)}")
    return [name for name in PARTS if any(name in names for names in named.values())]


def _measure(given: argparse.Namespace) -> None:
    from_pypi = not {"exec", "doctor", "install", "play", "sync"}.isdisjoint(given.only)
    synchronize = not {"install", "sync"}.isdisjoint(given.only)
    found = peers.find(given.peers.expanduser(), install=from_pypi, collections=synchronize)
    if found.missing:
        say(f"left out, not installed here: {', '.join(found.missing)}")
    parts = {name: _with_options(PARTS[name], given) for name in given.only}
    with scratch() as directory, laboratory(max(_hosts_of(part) for part in parts.values())) as lab:
        home = directory / "home"
        home.mkdir()
        env = clean_environment(str(home))
        print(f"{peers.machine()}; {peers.versions(found)}\n", flush=True)
        for name, part in parts.items():
            await_quiet(name)
            begun, clock = _stamp(name, given), time.monotonic()
            report = part.measure(Rig(part.runs, part.counts, found, lab, directory, env, given.steady))
            rounds = f"Medians of {report.medians_of}" if report.medians_of > 1 else "One round"
            stamp = f"{rounds}, {begun}; {peers.processor()}, ipexctl {__version__}."
            print(plain(f"{name}: {stamp}", report), flush=True)
            say(f"{name} took {rough_duration(time.monotonic() - clock)}")
            for page in _pages(given.markdown):
                for marker in (name, f"{name}.{peers.instructions()}"):  # a table of its own for each kind of processor
                    put_between_markers(page, marker, f"{markdown(report)}\n\n{stamp}")
                put_goals(page, name, report.goals)


def _pages(path: Path | None) -> list[Path]:
    return [] if path is None else sorted(path.glob("*.md")) if path.is_dir() else [path]


def _with_options(part: Part, given: argparse.Namespace) -> Part:
    counts = given.hosts if given.hosts and part.counts else part.counts
    return replace(part, counts=counts, runs=given.runs or part.runs)


def _hosts_of(part: Part) -> int:
    return 1 if part.has_own_lab else max(part.counts, default=part.hosts)


def _stamp(name: str, given: argparse.Namespace) -> str:
    """When, under which load, and by which call."""
    call = ["--only", name]
    if given.runs:
        call += ["--runs", str(given.runs)]
    if given.hosts and PARTS[name].counts:
        call += ["--hosts", ",".join(map(str, given.hosts))]
    if name.startswith("train-") and given.steady:
        call += ["--steady", f"{given.steady:g}"]
    return f"{datetime.now(timezone.utc):%Y-%m-%d}, load {os.getloadavg()[0]:.1f}, `{' '.join(call)}`"


if __name__ == "__main__":
    sys.exit(main())
