"""Measure ipexctl beside its peers, on a lab made for it (Linux, root).

The one command: python -m tests.benchmarks --markdown docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError

from . import (
    part_doctor,
    part_exec,
    part_fetch,
    part_install,
    part_lines,
    part_play,
    part_start,
    part_startup,
    part_step,
    part_stream,
    part_sync,
    part_train,
    part_volume,
    peers,
)
from .harness import Failed, clean_environment, say
from .report import markdown, plain, put_between_markers
from .rig import Rig, laboratory, leave_on_signals, scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .report import Report

PARTS: Final[Mapping[str, Callable[[Rig], Report]]] = {
    "exec": part_exec.measure,
    "doctor": part_doctor.measure,
    "fetch": part_fetch.measure,
    "install": part_install.measure,
    "lines": part_lines.measure,
    "play": part_play.measure,
    "startup": part_startup.measure,
    "start": part_start.measure,
    "step": part_step.measure,
    "stream": part_stream.measure,
    "sync": part_sync.measure,
    "train": part_train.measure,
    "volume": part_volume.measure,
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
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=_positive, default=5, metavar="N", help="medians of how many (default 5)")
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="PART,…", help=", ".join(PARTS))
    parser.add_argument("--hosts", type=_counts, default=(1, 8, 32), metavar="N,…", help="for exec (default 1,8,32)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the tables between this file's markers")
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
    if unknown := set(words) - set(PARTS):
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(sorted(unknown))}")
    return [name for name in PARTS if name in words]


def _measure(given: argparse.Namespace) -> None:
    from_pypi = not {"exec", "doctor", "install", "play", "sync"}.isdisjoint(given.only)
    synchronize = not {"install", "sync"}.isdisjoint(given.only)
    found = peers.find(given.peers.expanduser(), install=from_pypi, collections=synchronize)
    if found.missing:
        say(f"left out, not installed here: {', '.join(found.missing)}")
    wanted = max(_hosts_for(part, given.hosts) for part in given.only)
    about = f"{peers.machine()}; {peers.versions(found)}"
    with scratch() as directory, laboratory(wanted) as lab:
        home = directory / "home"
        home.mkdir()
        rig = Rig(given.runs, given.hosts, found, lab, directory, clean_environment(str(home)))
        print(about + "\n", flush=True)
        for part in given.only:
            begun = _stamp(part, given.runs)
            report = PARTS[part](rig)
            stamp = f"medians of {report.medians_of}, {begun}"
            print(plain(f"{part}: {stamp}", report), flush=True)
            if given.markdown:
                text = f"{markdown(report)}\n\n{stamp[0].upper()}{stamp[1:]}.\n\n{about}."
                put_between_markers(given.markdown, part, text)


def _hosts_for(part: str, counts: tuple[int, ...]) -> int:
    fixed = {
        "install": part_install.HOSTS,
        "lines": part_lines.HOSTS,
        "play": part_play.HOSTS,
        "start": part_start.HOSTS,
        "sync": part_sync.HOSTS,
    }
    return max(counts) if part in ("exec", "doctor") else fixed.get(part, 1)


def _stamp(part: str, runs: int) -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    call = f"python -m tests.benchmarks --only {part} --runs {runs}"
    return f"{now}, load {os.getloadavg()[0]:.1f} at the start, `{call}`"


if __name__ == "__main__":
    sys.exit(main())
