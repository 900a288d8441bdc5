"""Makes mutants of a package of ipexctl, and runs the unit tests that belong to it on each.

    .venv/bin/python -m tests.mutants doctor --seed 1 --count 10

A survivor is a change that no test noticed: add a test, or see that it changes nothing. Mutants are made in a copy of
the checkout in a temporary directory, one at a time. The exit code is 0 whatever survives; it is 1 if the tests fail
without any change. It takes minutes and is no part of `tests/run.sh`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from .mutate import KINDS, Mutant, mutants_of

ROOT: Final = Path(__file__).resolve().parents[2]
_ALSO: Final = {
    "cli": ("golden",),
    "doctor": ("golden/test_golden_doctor.py", "ui/test_ui_doctor.py"),
    "export": ("launch", "golden"),
    "hosts": ("golden/test_golden_hosts.py",),
    "jobs": ("golden/test_golden_run.py", "golden/test_golden_why.py", "golden/test_golden_fetch.py"),
    "launch": ("golden/test_golden_launch.py",),
    "node": ("jobs", "sync"),
    "node/run": (),
    "stack": ("golden/test_golden_install.py", "golden/test_golden_versions.py"),
    "trust": ("golden/test_golden_trust.py",),
    "ui": ("golden",),
}
"""Tests of a package beside those in the directory of its name, below tests/unit."""
_LEAST_TIME: Final = 30.0
"""Seconds for the tests of one mutant, which has at least three times what they take without a change."""


class Place(NamedTuple):
    path: Path
    """Below the root."""
    mutant: Mutant


def main() -> int:
    given = _arguments()
    source = ROOT / "ipexctl" / given.room
    files = sorted(source.rglob("*.py")) if source.is_dir() else [source.with_suffix(".py")]
    if not all(file.is_file() for file in files):
        sys.exit(f"no package or module {given.room} below ipexctl")
    chosen = choose(files, given.seed, given.count, given.kind)
    if given.list:
        for number, place in enumerate(chosen, 1):
            _show(f"{number}", place)
        return 0
    tests = paths_of(given.room) + tuple(given.also)
    with tempfile.TemporaryDirectory(prefix="ipexctl-mutants-") as directory:
        copy = copied(Path(directory))
        seconds, noticed = run(copy, tests, 3600)
        if noticed:
            print(f"the tests fail without any change: {noticed}", file=sys.stderr)
            return 1
        print(f"{' '.join(tests)}: {seconds:.0f} s without a change", flush=True)
        survived = 0
        for number, place in enumerate(chosen, 1):
            file = copy / place.path
            before = file.read_text(encoding="utf-8")
            file.write_text(place.mutant.text, encoding="utf-8")
            took, noticed = run(copy, tests, max(_LEAST_TIME, 3 * seconds))
            file.write_text(before, encoding="utf-8")
            survived += not noticed
            _show(f"{number}/{len(chosen)} {'killed' if noticed else 'SURVIVED'} in {took:.0f} s", place, noticed)
    print(f"{len(chosen)} mutants of {given.room}, seed {given.seed}: {survived} survived")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("room", metavar="ROOM", help="package or module below ipexctl: doctor, node/run, hosts/limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--kind", choices=KINDS, help="only such mutants")
    parser.add_argument("--also", action="append", default=[], metavar="PATH", help="more tests, such as tests/process")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    return parser.parse_args()


def choose(files: list[Path], seed: int, count: int, kind: str | None) -> list[Place]:
    """The same mutants for the same seed and code; a package's files count by their number of places."""
    every = [
        Place(file.relative_to(ROOT), mutant)
        for file in files
        for mutant in mutants_of(file.read_text(encoding="utf-8"))
        if kind in (None, mutant.kind)
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


def paths_of(room: str) -> tuple[str, ...]:
    """The nearest directory of tests/unit, and what is listed for the package or the one around it."""
    parts = Path(room).parts
    names = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    unit = ROOT / "tests/unit"
    own = next((name for name in names if (unit / name).is_dir()), None)
    also = next((_ALSO[name] for name in names if name in _ALSO), ())
    return tuple(f"tests/unit/{name}" for name in ((own,) if own else ()) + also) or ("tests/unit",)


def copied(directory: Path) -> Path:
    """The checkout with its changes, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)
    return directory


def run(copy: Path, tests: tuple[str, ...], limit: float) -> tuple[float, str]:
    """The seconds that the tests take, and what noticed the change: empty if nothing did."""
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not lab", *tests]
    # Without bytecode: the same size and second of a change would leave that of the mutant before in force.
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    begun = time.monotonic()
    process = subprocess.Popen(
        argv,
        cwd=copy,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return time.monotonic() - begun, f"no end within {limit:.0f} s"
    seconds = time.monotonic() - begun
    if process.returncode == 0:
        return seconds, ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return seconds, failed[0] if failed else f"pytest ended with exit code {process.returncode}"


def _show(head: str, place: Place, noticed: str = "") -> None:
    mutant = place.mutant
    print(f"{head}: {place.path}:{mutant.line} {mutant.kind}: {mutant.before}  ->  {mutant.after}")
    before = (ROOT / place.path).read_text(encoding="utf-8").splitlines()
    for line in list(difflib.unified_diff(before, mutant.text.splitlines(), n=0, lineterm=""))[3:]:
        print(f"    {line}")
    if noticed:
        print(f"    by {noticed[:150]}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
