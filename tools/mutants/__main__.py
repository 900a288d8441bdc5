"""Makes mutants of a package of ipexctl, and runs the unit tests that belong to it on each.

    .venv/bin/python -m tools.mutants doctor --seed 1 --count 10
    .venv/bin/python -m tools.mutants --fixed

In: a package or module below ipexctl, a seed and a number. Out: one line for each mutant, with what noticed it. A
survivor is a change that no test noticed: add a test, or see that it changes nothing. The tests run once without a
change, which finds those that call the function of each mutant; of a mutant only these run, the quickest first. What
counts when a module is imported, such as a constant, has the tests that import the module, and then all of the package;
the tests of `--also` come last. A test that gets what it examines from another one, such as a cached value, may be
missed: run a survivor's tests whole before you believe it.

`--fixed` plays the mutants of `fixed.yaml`, each with the one test named for it: with ROOM those of its files, else all
(about six minutes). Before a test is deleted or moved, play random mutants of the module that it calls; play them again
with the same seed afterwards, and then the fixed ones.

Rule: mutants are made in a copy of the checkout in a temporary directory, one at a time. Random mutants give exit code
0 whatever survives; fixed ones give 1 if one survives or its text is gone; both give 1 if the tests fail without any
change. It takes minutes and is no part of `tests/run.sh`.
"""

from __future__ import annotations

import argparse
import compileall
import difflib
import json
import os
import py_compile
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from import_graph import distances, is_test, project_imports

from .fixed import FixedMutant, read_fixed
from .mutate import KINDS, Mutant, is_in_function, mutants_of

ROOT: Final = Path(__file__).resolve().parents[2]
_REFUSALS: Final = "unit/golden/test_golden_refusals.py"
_ALSO: Final = {
    "api": (_REFUSALS,),
    "commands": ("unit/golden",),
    "doctor": ("unit/golden/test_golden_doctor.py", "unit/ui/test_ui_doctor.py"),
    "addons/lab": (_REFUSALS, "unit/golden/test_golden_ui.py"),
    "addons/play": ("unit/golden/test_golden_play.py", "process/test_play_paths.py"),
    "facts": ("process/test_probe.py",),
    "files": (_REFUSALS, "unit/golden/test_golden_fetch.py"),
    "hosts": ("unit/golden/test_golden_hosts.py", _REFUSALS),
    "run": (
        "unit/golden/test_golden_run.py",
        "unit/golden/test_golden_why.py",
        "unit/golden/test_golden_fetch.py",
        _REFUSALS,
    ),
    "launch": ("unit/golden/test_golden_launch.py",),
    "node": ("unit/run", "unit/sync", "process/test_sync_tree.py"),
    "node/run": (),
    "stack": ("unit/golden/test_golden_install.py", "unit/golden/test_golden_versions.py", "process/test_make_lock.py"),
    "transports": ("unit/golden/test_golden_hosts.py",),
    "sync": (_REFUSALS, "process/test_sync_tree.py", "process/test_sync_leases.py"),
    "ui": ("unit/golden", "process/test_run_live.py"),
}
"""Tests of a package beside those in the directory of its name below tests/unit."""
_LEAST_TIME: Final = 30.0
"""Seconds for the tests of one mutant, which has at least three times what they take without a change."""


class Place(NamedTuple):
    path: Path
    """Below the root."""
    mutant: Mutant


def main() -> int:
    given = _arguments()
    return _play_fixed(given) if given.fixed else _play_random(given)


def _play_fixed(given: argparse.Namespace) -> int:
    mutants = read_fixed(given.room)
    if not mutants:
        sys.exit(f"no fixed mutant in a package or module {given.room} below ipexctl")
    chosen = {number: mutant for number, mutant in enumerate(mutants, 1) if not given.only or number in given.only}
    if given.list:
        for number, mutant in chosen.items():
            print(f"{number}: {_shown(mutant)}")
        return 0
    uncaught = 0
    with tempfile.TemporaryDirectory(prefix="ipexctl-mutants-") as directory:
        copy = copied(Path(directory))
        begun = time.monotonic()
        if noticed := run(copy, tuple(dict.fromkeys(mutant.test for mutant in chosen.values())), 3600):
            print(f"the tests fail without any change: {noticed}", file=sys.stderr)
            return 1
        limit = max(_LEAST_TIME, 3 * (time.monotonic() - begun))
        for number, mutant in chosen.items():
            file = copy / mutant.file
            before = file.read_text(encoding="utf-8") if file.is_file() else ""
            after = mutant.apply(before)
            begun, result = time.monotonic(), "text not found"
            if after is not None:
                file.write_text(after, encoding="utf-8")
                result = "caught" if run(copy, (mutant.test,), limit) else "SURVIVED"
                file.write_text(before, encoding="utf-8")
            uncaught += result != "caught"
            print(f"{number}/{len(mutants)} {result} in {time.monotonic() - begun:.0f} s: {_shown(mutant)}", flush=True)
    print(f"{len(chosen)} fixed mutants: {uncaught} not caught")
    return 1 if uncaught else 0


def _shown(mutant: FixedMutant) -> str:
    before, after = (" ".join(text.split()) for text in (mutant.before, mutant.after))
    return f"{mutant.file}: {before}  ->  {after or '(removed)'}\n    by {mutant.test}"


def _play_random(given: argparse.Namespace) -> int:
    source = ROOT / "ipexctl" / given.room
    files = sorted(source.rglob("*.py")) if source.is_dir() else [source.with_suffix(".py")]
    if not all(file.is_file() for file in files):
        sys.exit(f"no package or module {given.room} below ipexctl")
    places = choose(files, given.seed, given.count, given.kind)
    chosen = {number: place for number, place in enumerate(places, 1) if not given.only or number in given.only}
    if given.list:
        for number, place in chosen.items():
            _show(f"{number}", place)
        return 0
    tests = files_of(paths_of(given.room))
    also = files_of(given.also)
    with tempfile.TemporaryDirectory(prefix="ipexctl-mutants-") as directory:
        copy = copied(Path(directory))
        reached_file = copy / "reached.json"
        reached_file.write_text(json.dumps(_lines_of(chosen, copy)))
        begun = time.monotonic()
        noticed = run(copy, tests, 3600, reached_file) or (also and run(copy, also, 3600)) or ""
        seconds = time.monotonic() - begun
        if noticed:
            print(f"the tests fail without any change: {noticed}", file=sys.stderr)
            return 1
        print(f"{given.room}: {seconds:.0f} s without a change", flush=True)
        reached = json.loads(reached_file.read_text())
        survived = 0
        for number, place in chosen.items():
            file = copy / place.path
            before = file.read_text(encoding="utf-8")
            file.write_text(place.mutant.text, encoding="utf-8")
            begun, noticed = time.monotonic(), ""
            for stage in stages(place, reached.get(f"{file}:{place.mutant.line}"), tests, also):
                if stage and not noticed:
                    noticed = run(copy, stage, max(_LEAST_TIME, 3 * seconds))
            took = time.monotonic() - begun
            file.write_text(before, encoding="utf-8")
            survived += not noticed
            _show(f"{number}/{given.count} {'killed' if noticed else 'SURVIVED'} in {took:.0f} s", place, noticed)
    print(f"{len(chosen)} mutants of {given.room}, seed {given.seed}: {survived} survived")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "room",
        metavar="ROOM",
        nargs="?",
        default="",
        help="package or module below ipexctl: doctor, node/run, hosts/limit",
    )
    parser.add_argument("--fixed", action="store_true", help="play the mutants of fixed.yaml, of ROOM or all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--kind", choices=KINDS, help="only such mutants")
    parser.add_argument("--also", action="append", default=[], metavar="PATH", help="more tests, such as tests/process")
    parser.add_argument("--only", type=int, action="append", default=[], metavar="N", help="only number N of the list")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    given = parser.parse_args()
    if not given.room and not given.fixed:
        parser.error("needs a ROOM or --fixed")
    return given


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
    return tuple(f"tests/{name}" for name in ((f"unit/{own}",) if own else ()) + also) or ("tests/unit",)


def near(path: Path) -> tuple[str, ...]:
    """The files of unit tests that import the module, also through helpers."""
    found = distances([path.as_posix()], project_imports())
    return tuple(sorted(file for file, far in found.items() if not far and is_test(file) and "/unit/" in file))


def files_of(tests: Iterable[str]) -> tuple[str, ...]:
    """The files of tests in these files and directories."""
    paths = [ROOT / test for test in tests]
    files = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    return tuple(str(file.relative_to(ROOT)) for file in files)


def copied(directory: Path) -> Path:
    """The checkout with its changes, without what git ignores; bytecode there is valid for unchanged text alone."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)
    by_content = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(directory / "ipexctl", quiet=2, invalidation_mode=by_content)
    return directory


def _lines_of(chosen: Mapping[int, Place], copy: Path) -> dict[str, list[int]]:
    """The mutants' lines within functions, by file of the copy."""
    found: dict[str, list[int]] = {}
    for path, mutant in chosen.values():
        if is_in_function((ROOT / path).read_text(encoding="utf-8"), mutant.line):
            found.setdefault(str(copy / path), []).append(mutant.line)
    return found


def stages(
    place: Place,
    reached: Sequence[str] | None,
    tests: Iterable[str],
    also: Iterable[str],
) -> tuple[tuple[str, ...], ...]:
    """The tests to try, one after the other, until some notice the change.

    `reached` are those that call its function. For a change outside functions, which counts when a module is imported,
    it is None: then come the files that import the module, then the others.
    """
    close = near(place.path)
    rest = tuple(sorted(also, key=lambda file: place.path.stem not in file))
    if reached is not None:
        return tuple(reached), rest
    return close, tuple(file for file in tests if file not in close), rest


def run(copy: Path, tests: tuple[str, ...], limit: float, reached_file: Path | None = None) -> str:
    """What noticed the change: empty if nothing did. With the file, writes there which tests reach which lines."""
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not lab", *tests]
    # No bytecode of a mutant: the same size and second of a change would leave it in force for the next.
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    if reached_file is not None:
        argv += ["-p", "mutants.reached"]
        env |= {"PYTHONDONTWRITEBYTECODE": "", "IPEXCTL_TESTS_REACHED": str(reached_file)}
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
        return f"no end within {limit:.0f} s"
    if process.returncode == 0:
        return ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"pytest ended with exit code {process.returncode}"


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
