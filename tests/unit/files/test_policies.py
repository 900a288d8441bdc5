"""Each row of `policies.py` on real directories, and as the table of docs/sync.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tree_calls import (
    STRANGER,
    TIME,
    Call,
    change,
    exchanged,
    fetched,
    left_over,
    make_account,
    parse,
    pushed,
    sync,
    target_of,
    written,
)

from ipexctl.node.files import policies
from ipexctl.node.files.policies import Action, Policy, State

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[3] / "docs/sync.md"
COLUMNS = {
    "`sync`": policies.TREE,
    "`push`": policies.PATH,
    "`fetch`": policies.DOWNLOAD,
    "`--checkpoint`": policies.CHECKPOINT,
}
STATES: dict[State, str] = {
    "missing": "nothing",
    "equal": "the same content",
    "similar": "the same size, another modification time",
    "written": "an earlier version, unchanged there",
    "changed": "changed there, not in the source",
    "both": "changed there and in the source",
    "unknown": "content that ipexctl did not write",
    "directory": "a directory where the source has a file or link",
    "no directory": "a file or link where the source has a directory",
    "special": "a FIFO, socket or device",
    "stranger": "another account's entry",
    "gone": "unchanged there, deleted in the source",
    "extra": "anything else",
}
ACTIONS: dict[Action | None, str] = {
    None: "",
    "send": "written",
    "keep": "kept",
    "check": "hash decides",
    "replace": "replaced",
    "replace and keep": "replaced; the host's file is kept as `NAME.node-1`",
    "delete": "deleted",
    "newest": "newest wins",
    "set aside": "set aside",
    "refuse": "refused",
    "refuse all": "all refused",
}

KEEPS_TIMES = (policies.DOWNLOAD, policies.CHECKPOINT)


def table() -> str:
    rows = [f"| on the host | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for state, text in STATES.items():
        cells = []
        for policy in COLUMNS.values():
            forced = policies.FORCED_PATH.actions.get(state)
            is_forced = policy is policies.PATH and forced != policy.actions.get(state)
            cells.append(ACTIONS[policy.actions.get(state)] + (f"; `--force`: {ACTIONS[forced]}" if is_forced else ""))
        rows.append(f"| {text} | {' | '.join(cells)} |")
    rows.append(f"| modes | {' | '.join('minus umask' if each.umask else 'exact' for each in COLUMNS.values())} |")
    times = ("the source's" if each in KEEPS_TIMES else "of copying" for each in COLUMNS.values())
    return "\n".join([*rows, f"| times | {' | '.join(times)} |"])


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        page = re.sub(r"\| on the host \|.*?\n\n", lambda _: f"{table()}\n\n", page, count=1, flags=re.DOTALL)
        PAGE.write_text(page)
    assert table() in page, "IPEXCTL_GOLDEN=write"


class Scene(NamedTuple):
    """What the last call wrote, what was changed there since, and what the source has now."""

    sent: str
    there: str
    source: str


SCENES: dict[State, Scene] = {
    "missing": Scene("", "", "f=NEW"),
    "equal": Scene("", "f=NEW", "f=NEW"),
    "similar": Scene("", "f=new", "f=NEW"),
    "written": Scene("f=old", "", "f=NEW"),
    "changed": Scene("f=NEW", "f=host", "f=NEW"),
    "both": Scene("f=old", "f=host", "f=NEW"),
    "unknown": Scene("", "f=host", "f=NEW"),
    "directory": Scene("", "f/x=host", "f=NEW"),
    "no directory": Scene("", "f=host", "f/x=NEW"),
    "special": Scene("f=old", "f|", "f=NEW"),
    "stranger": Scene("", "f=host", "f=NEW"),
    "gone": Scene("f=old", "", ""),
    "extra": Scene("", "f=host", ""),
}
MORE_SCENES: list[tuple[State, Scene]] = [
    ("missing", Scene("f=NEW", "f-", "f=NEW")),
    ("extra", Scene("f=old", "f=host", "")),
]
"""Deleted there since; changed there and deleted in the source."""
OTHER = "z"
"""A file without problems, after the others."""


def seen_action(target: Path, before: str | None, *, is_refused: bool) -> Action:
    """What the call did at f, to tell it from all other actions."""
    now = written(target)
    if is_refused:
        return "refuse" if OTHER in now else "refuse all"
    assert OTHER in now
    if "f.node-1" in now:
        assert (now["f"], now["f.node-1"]) == ("=NEW", "=host")
        return "replace and keep"
    if now.get("f") == before:
        return "keep"
    return "delete" if "f" not in now else "send" if before is None else "replace"


CALLS: list[tuple[str, Policy, Call, dict[str, bool]]] = [
    ("sync", policies.TREE, sync, {}),
    ("push", policies.PATH, pushed, {}),
    ("push --force", policies.FORCED_PATH, pushed, {"force": True}),
    ("fetch", policies.DOWNLOAD, fetched, {}),
    ("checkpoint", policies.CHECKPOINT, exchanged, {}),
]
BY_UNITS = ("newest", "set aside")
"""Decided for several hosts at once: test_checkpoint_units.py."""
CASES = [
    pytest.param(scene, state, policy, call, options, id=f"{name}: {state}")
    for name, policy, call, options in CALLS
    for state, scene in [*SCENES.items(), *(MORE_SCENES if call in (sync, pushed, fetched) else [])]
    if policy.actions.get(state) not in (None, *BY_UNITS)
]


@pytest.mark.parametrize(("scene", "state", "policy", "call", "options"), CASES)
def test_a_call_does_what_the_table_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scene: Scene,
    state: State,
    policy: Policy,
    call: Call,
    options: dict[str, bool],
) -> None:
    make_account(tmp_path, monkeypatch)
    if state == "stranger" and os.geteuid() != 0:
        pytest.skip("two accounts need root")
    expected, target = policy.actions[state], target_of(tmp_path, call)
    if scene.sent or call is sync:  # which makes the home
        call(target, parse(scene.sent))
    change(target, parse(scene.there), STRANGER if state == "stranger" else -1)
    before = written(target)
    said = call(target, parse(f"{scene.source} {OTHER}=other"), **options)
    is_refused = any(re.match("blocked|differing|refused|failed", word) for word in said)
    found = seen_action(target, before.get("f"), is_refused=is_refused)
    assert found == ("keep" if expected == "check" else expected)
    if is_refused:
        assert before.items() <= written(target).items()
    else:
        assert ((target / OTHER).stat().st_mtime_ns == TIME) == (policy in KEEPS_TIMES)
    assert left_over(tmp_path) == []


def copy_of_a_pushed_file(target: Path) -> None:
    subprocess.run(["cp", "-a", target / "f", target / "copy"], check=True)
    os.replace(target / "copy", target / "f")


def changed_in_place_with_its_time_restored(target: Path) -> None:
    before = (target / "f").stat()
    with open(target / "f", "r+") as file:
        file.write("own")
    os.utime(target / "f", ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("do", [copy_of_a_pushed_file, changed_in_place_with_its_time_restored])
def test_a_push_replaces_only_the_file_that_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: Callable[[Path], None]
) -> None:
    make_account(tmp_path, monkeypatch)
    target = target_of(tmp_path, pushed)
    pushed(target, parse("f=old"))
    do(target)
    before = (target / "f").read_text()
    assert "differing f" in pushed(target, parse("f=NEW"))
    assert (target / "f").read_text() == before
    pushed(target, parse("f=NEW"), force=True)
    assert (target / "f").read_text() == "NEW"


def test_a_file_that_is_changed_while_a_push_runs_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_account(tmp_path, monkeypatch)
    target = target_of(tmp_path, pushed)
    pushed(target, parse("f=old"))
    pushed(target, parse("f=NEW"), lambda: changed_in_place_with_its_time_restored(target))
    assert (target / "f").read_text() == "own"
