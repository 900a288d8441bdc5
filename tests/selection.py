"""Chooses the tests that a call runs: `python tests/selection.py changed [BASE]`, or `ci`, or `units`.

`changed` prints the test files of what differs from BASE (the last commit of main): nearest first, by imports, as many
as fit into `BUDGET`; what it leaves out is named. Pages, golden texts and tables of cases bring their tests.

`ci` prints the files of which a submission runs all tests, beside the core of all others: those of `changed` since
IPEXCTL_TESTS_BASE (else since the last landing) within `CI_BUDGET`, and a share of the rest, about 100 s of it. Which
one is the number of commits: in `TURNS` landings each test of the rest has its turn, and so do the oldest and the
newest Python (`.ci/run`), in place of a share. A long file has its turn in pieces, `FILE:2/3`. `units` prints the unit
tests that the plain call runs in a landing's bare system: those near to the changes within `UNIT_BUDGET`, and a share
of the others.

Real wheels are near to what is in `OF_WHEELS` alone; machines of QEMU, which take hours, are in no share. As a plugin
of pytest, `--whole FILE` takes the list of `ci`: tests that are neither core nor of a file in it are left out.
`--after-plain FILE` leaves out the core, too, but for tests that need a program the plain call may have lacked.

In: git and `durations.json`, the seconds of each file in the last recorded run (`python tests/selection.py record
JUNIT.xml…`). The rule: what is left out is said, and `sh tests/run.sh --all` leaves out
nothing else.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from case_table import reader_of
from import_graph import ROOT, distances, is_test, project_imports

DURATIONS = Path(__file__).with_name("durations.json")
BUDGET = 60.0
"""Seconds of tests, one after the other, for `changed`; two processes run them in half of it, beside the checks."""
CI_BUDGET = 60.0
"""Seconds of tests that a submission's changes bring, four at a time; `units` has the unit tests."""
UNIT_BUDGET = 30.0
NEAR = 2
"""A test that reaches a changed module by more imports than this proves little of it: nearly all tests do."""
UNKNOWN_SECONDS = 30.0
"""Of a test file without a record: it is new."""
UNTESTED = r"^ *((from [a-z_.]+ )?import |@pytest\.mark\.(core|rest)$)"
"""Lines that change nothing that a test could find."""
SHARES = 78
TURNS = 80
"""Of landings: those after the shares belong to the other Pythons, which `.ci/run` finds."""
UNIT_SHARES = 8
MOST_AT_ONCE = 100.0
"""Seconds of one file in a share: more would make one worker work alone."""
TESTS_OF = {"docs/": "tests/unit/docs", "mkdocs.yml": "tests/unit/docs", "tests/unit/golden/": "tests/unit/golden"}
ALWAYS = ("tests/unit/test_measures.py",)
"""Rules for all files of the project."""
WHEELS = "tests/stack/"
OF_WHEELS = (WHEELS, "ipexctl/stack/", "ipexctl/node/env/", "ipexctl/inrank/", "tests/requirements.txt")
"""Where a change brings the tests of real wheels; other changes leave them to their turn."""
REST = ("tests/process/", "tests/lab/", "tests/package/", WHEELS)
"""Where tests are that are not core; those of `tests/unit` all are."""
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""git's name of a tree without files, known in each repository."""
PAUSE_MINUTES = 40
"""Between the last commit of a submission and the first one of the next: about as long as a landing takes."""


class Choice(NamedTuple):
    """Test files of a change."""

    files: tuple[str, ...]
    left_out: tuple[tuple[str, float], ...]
    """Near ones that the budget did not allow, with their seconds."""


def choose(
    changed: Collection[str],
    imports: Mapping[str, frozenset[str]],
    seconds: Mapping[str, float],
    *,
    budget: float = BUDGET,
    takes_changed: bool = True,
) -> Choice:
    """Pure. A changed test file is among them whatever it costs, if `takes_changed`."""
    reached = distances(changed, imports)
    for path in changed:
        for prefix, tests in TESTS_OF.items():
            if path.startswith(prefix):
                reached.update({file: 0 for file in imports if is_test(file) and file.startswith(f"{tests}/")})
        if path.endswith(".txt") and (reader := str(reader_of(Path(path)))) in imports:
            reached[reader] = 0
    near = {file: distance for file, distance in reached.items() if is_test(file) and distance <= NEAR}
    if any(path.endswith(".py") for path in changed):
        near.update({file: 0 for file in ALWAYS if file in imports})
    chosen: list[str] = []
    left_out: list[tuple[str, float]] = []
    total = 0.0
    for file in sorted(near, key=lambda file: (near[file], seconds.get(file, UNKNOWN_SECONDS), file)):
        cost = seconds.get(file, UNKNOWN_SECONDS)
        if (takes_changed and file in changed) or total + cost <= budget:
            chosen.append(file)
            total += cost
        else:
            left_out.append((file, cost))
    return Choice(tuple(chosen), tuple(left_out))


def shares(files: Iterable[str], seconds: Mapping[str, float], count: int = SHARES) -> tuple[tuple[str, ...], ...]:
    """These files in `count` parts that take about as long as one another. Pure."""
    parts: list[list[str]] = [[] for _ in range(count)]
    totals = [0.0] * count
    for file in sorted(files, key=lambda file: (-seconds.get(file, UNKNOWN_SECONDS), file)):
        index = totals.index(min(totals))
        parts[index].append(file)
        totals[index] += seconds.get(file, UNKNOWN_SECONDS)
    return tuple(tuple(sorted(part)) for part in parts)


def pieces_of(files: Iterable[str], seconds: Mapping[str, float], most: float = MOST_AT_ONCE) -> dict[str, float]:
    """Each of these files, or its pieces, with their seconds. Pure."""
    found: dict[str, float] = {}
    for file in files:
        took = seconds.get(file, UNKNOWN_SECONDS)
        count = max(1, math.ceil(took / most))
        names = [file] if count == 1 else [f"{file}:{number}/{count}" for number in range(count)]
        found.update(dict.fromkeys(names, took / count))
    return found


def seconds_of(reports: Iterable[Path]) -> dict[str, float]:
    """Test file → its seconds in these reports of `pytest --junitxml`."""
    totals: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            totals[case.get("classname", "").replace(".", "/") + ".py"] += float(case.get("time", 0))
    return {file: round(total, 1) for file, total in sorted(totals.items()) if (ROOT / file).is_file()}


# The plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", metavar="FILE", help="run core tests, and all tests of the files that FILE lists")
    parser.addoption("--after-plain", metavar="FILE", help="the same, without what tests/run.sh has run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_after_plain = bool(named := config.getoption("--after-plain"))
    if not (named := named or config.getoption("--whole")):
        return
    pieces = dict(line.partition(":")[::2] for line in Path(named).read_text().split())
    count: defaultdict[str, int] = defaultdict(int)

    def is_kept(item: pytest.Item) -> bool:
        path = str(item.path.relative_to(ROOT))
        if is_core(item):
            return not is_after_plain or path.startswith(WHEELS) or item.get_closest_marker("needs") is not None
        count[path] += 1
        piece, _, of = pieces.get(path, "0/0").partition("/")
        return path in pieces and (not of or count[path] % int(of) == int(piece))

    kept = [item for item in items if is_kept(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def is_core(item: pytest.Item) -> bool:
    """Of the files of `REST`, a few tests are core: each command and each program of the agent once."""
    is_of_rest = str(item.path.relative_to(ROOT)).startswith(REST)
    return not is_of_rest or item.get_closest_marker("core") is not None


# The checkout


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Files that differ in more than their imports: a module that has moved is no reason to test its callers.

    A file of tests of which lines were only removed is no reason to run those that are left.
    """
    new = git_lines("ls-files", "--others", "--exclude-standard", root=root)
    counted = git_lines("diff", "--numstat", "-z", "--no-renames", "-I", UNTESTED, base, "--", root=root)
    rows = [entry.split("\t") for line in counted for entry in line.split("\0") if entry]
    return sorted({*(path for added, _, path in rows if added != "0" or not is_test(path)), *new})


def last_of_main() -> str:
    """Where this branch left main; the last commit on main itself."""
    for name in ("main", "origin/main"):
        if found := git_lines("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"):
            return (git_lines("merge-base", "HEAD", found[0]) or found)[0]
    return "HEAD"


def last_landing() -> str:
    """The newest commit before a pause; the first one of all if there was none."""
    commits = [line.split() for line in git_lines("log", "--date-order", "--format=%H %ct", "HEAD")]
    return before_pause([(commit, int(time)) for commit, time in commits])


def before_pause(commits: Sequence[tuple[str, int]]) -> str:
    """Of commits with their times, the newest first. Pure."""
    for (_, later), (commit, time) in itertools.pairwise(commits):
        if later - time > PAUSE_MINUTES * 60:
            return commit
    return commits[-1][0]


def git_lines(*args: str, root: Path = ROOT) -> list[str]:
    return subprocess.run(["git", "-C", root, *args], capture_output=True, text=True, check=False).stdout.splitlines()


def _recorded() -> dict[str, float]:
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    return seconds


def _print_changed(base: str) -> None:
    changed = changed_files(base)
    choice = choose(changed, project_imports(), _recorded())
    print("\n".join(choice.files))
    print(f"{len(changed)} files differ from {base[:10]}: {len(choice.files)} files of tests", file=sys.stderr)
    for file, cost in choice.left_out:
        print(f"left out: {file} ({cost:.0f} s)", file=sys.stderr)
    print("left out: tests that are further away; sh tests/run.sh --all has all", file=sys.stderr)


def check_history() -> int:
    """The number of commits."""
    if git_lines("rev-parse", "--is-shallow-repository") == ["true"]:
        sys.exit(
            "this clone is shallow: the number of commits is no turn in it; to get them all: git fetch --unshallow"
        )
    return int(git_lines("rev-list", "--count", "HEAD")[0])


def base_of_submission() -> str:
    """Return the commit before the submission: IPEXCTL_TESTS_BASE, which a hoster's event names, else the last landing.

    A commit that is not in this clone (of a first push, or of a history that was replaced) means that all has changed.
    """
    if not (named := os.environ.get("IPEXCTL_TESTS_BASE")):
        return last_landing()
    if found := git_lines("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}"):
        return found[0]
    print(f"this clone has no commit {named}: all files count as changed", file=sys.stderr)
    return EMPTY_TREE


def _print_units() -> None:
    turn, seconds, imports = check_history(), _recorded(), project_imports()
    units = [file for file in imports if is_test(file) and file.startswith("tests/unit/")]
    others = dict.fromkeys(imports.keys() - set(units), math.inf)  # no budget takes them
    changed = changed_files(base_of_submission())
    near = choose(changed, imports, {**seconds, **others}, budget=UNIT_BUDGET, takes_changed=False).files
    part = shares(units, seconds, UNIT_SHARES)[turn % UNIT_SHARES]
    print("\n".join(sorted({*part, *near, *(set(units) & set(changed))})))


def _print_ci() -> None:
    turn = check_history() % TURNS
    base, seconds, imports = base_of_submission(), _recorded(), project_imports()
    anyway = dict.fromkeys((file for file in imports if not file.startswith(REST)), 0.0)
    changed = changed_files(base)
    if not any(path.startswith(OF_WHEELS) for path in changed):
        anyway.update({file: math.inf for file in imports if file.startswith(WHEELS)})
    near = choose(changed, imports, {**seconds, **anyway}, budget=CI_BUDGET, takes_changed=False).files
    rest = [file for file in imports if is_test(file) and file.startswith(REST)]
    pieces = pieces_of(rest, seconds)
    part = (*shares(pieces, pieces), (), ())[turn]
    whole = {file for file in near if file.startswith(REST)}
    chosen = whole | {piece for piece in part if piece.partition(":")[0] not in whole}
    print("\n".join(sorted(chosen)))
    left_out = sorted(set(rest) - {each.partition(":")[0] for each in chosen})
    print(f"whole files since {base[:10]}, and turn {turn + 1} of {TURNS} of the rest", file=sys.stderr)
    print(f"left out, but for their core: {' '.join(left_out)}", file=sys.stderr)


def main(args: list[str]) -> int:
    if args[:1] == ["changed"]:
        _print_changed(args[1] if args[1:] else last_of_main())
    elif args == ["ci"]:
        _print_ci()
    elif args == ["units"]:
        _print_units()
    elif args[:1] == ["record"] and args[1:]:
        seconds = {**_recorded(), **seconds_of(map(Path, args[1:]))}
        kept = {file: seconds[file] for file in sorted(seconds) if (ROOT / file).is_file()}
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
