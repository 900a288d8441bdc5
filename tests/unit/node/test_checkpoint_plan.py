"""The newest complete copy of each checkpoint file wins, by what changed since the last exchange and by its time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipexctl.node.files.checkpoint_plan import (
    HostCopies,
    Known,
    is_temporary,
    plan_exchange,
    read_host_copies,
)
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.run.checkpoint_exchange import describe_exchange

OLD, NEW = "a" * 64, "b" * 64


def copy_of(sha256: str, at: int = 1, name: str = "last.pt") -> ManifestEntry:
    return ManifestEntry(name, "f", 0o644, 1000, sha256, at)


def host(*copies: ManifestEntry, incomplete: tuple[str, ...] = (), own: str = "", brought: str = "") -> HostCopies:
    """`own`, `brought`: hash of last.pt after the last exchange, if this host wrote it or if it was copied here."""
    known = {"last.pt": Known(own or brought, bool(brought))} if own or brought else {}
    return HostCopies({copy.path: copy for copy in copies}, dict.fromkeys(incomplete, "it is empty"), known)


def moves(reports: dict[str, HostCopies]) -> set[tuple[str, str, str]]:
    transfers = plan_exchange(reports).transfers
    return {(each.source, each.target, copy.content[0]) for each in transfers for copy in each.copies}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({"node1": host(copy_of(NEW)), "node2": host()}, {("node1", "node2", "b")}),
        ({"node1": host(copy_of(OLD, 1)), "node2": host(copy_of(NEW, 2))}, {("node2", "node1", "b")}),
        ({"node1": host(copy_of(NEW, 1)), "node2": host(copy_of(NEW, 9))}, set()),
        ({"node1": host(), "node2": host()}, set()),
        # The clock of node2 is ahead, and its copy is the one that node1 wrote before.
        (
            {"node1": host(copy_of(NEW, 1), own=OLD), "node2": host(copy_of(OLD, 9), brought=OLD)},
            {("node1", "node2", "b")},
        ),
        # Rank 0 was killed while it wrote; the copy of before is complete.
        (
            {"node1": host(incomplete=("last.pt",), own=OLD), "node2": host(copy_of(OLD), brought=OLD)},
            {("node2", "node1", "a")},
        ),
        # Node1 has a new disk.
        ({"node1": host(), "node2": host(copy_of(OLD), brought=OLD)}, {("node2", "node1", "a")}),
        # The copy that an exchange had put there was deleted.
        ({"node1": host(copy_of(OLD), own=OLD), "node2": host(brought=OLD)}, {("node1", "node2", "a")}),
    ],
)
def test_newest_complete_copy_is_sent_to_every_host_that_lacks_it(
    reports: dict[str, HostCopies], expected: set[Any]
) -> None:
    assert moves(reports) == expected
    assert plan_exchange(reports).removals == {}


def test_files_deleted_by_their_writer_are_removed_only_from_exchanged_copies() -> None:
    reports = {
        "node1": host(own=OLD),
        "node2": host(copy_of(OLD), brought=OLD),
        "node3": host(copy_of(OLD), own=OLD),
    }
    plan = plan_exchange(reports)
    assert (plan.transfers, plan.removals) == ((), {"node2": ("last.pt",)})
    changed = {**reports, "node2": host(copy_of(NEW), brought=OLD)}
    assert plan_exchange(changed).removals == {}
    assert moves(changed) == {("node2", "node1", "b"), ("node2", "node3", "b")}


def test_a_file_belongs_to_its_writer_until_another_host_changes_it() -> None:
    first = plan_exchange({"node1": host(copy_of(OLD)), "node2": host()}).known
    assert [first[name]["last.pt"].is_brought for name in ("node1", "node2")] == [False, True]
    again = {name: HostCopies({"last.pt": copy_of(OLD)}, {}, known) for name, known in first.items()}
    assert plan_exchange(again).known == first
    other = {"node1": again["node1"], "node2": again["node2"]._replace(copies={"last.pt": copy_of(NEW)})}
    second = plan_exchange(other).known
    assert [second[name]["last.pt"].is_brought for name in ("node1", "node2")] == [True, False]


def test_files_written_on_different_hosts_are_exchanged_both_ways() -> None:
    reports = {"node1": host(copy_of(OLD, name="ck/0.pt")), "node2": host(copy_of(NEW, name="ck/1.pt"))}
    assert moves(reports) == {("node1", "node2", "a"), ("node2", "node1", "b")}
    lines = describe_exchange("out/ck", reports, plan_exchange(reports))
    assert [("out/ck/0.pt" in line, "node2" in line) for line in lines] == [(True, True), (False, True)]


def test_a_restart_names_a_path_where_no_host_has_a_file() -> None:
    reports = {"node1": host(), "node2": host()}
    (line,) = describe_exchange("out/ck", reports, plan_exchange(reports), is_restart=True)
    assert ("out/ck" in line, "--checkpoint" in line) == (True, True)
    assert describe_exchange("out/ck", reports, plan_exchange(reports)) == []
    reports["node2"] = host(copy_of(NEW))
    assert "no host" not in "".join(describe_exchange("ck", reports, plan_exchange(reports), is_restart=True))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("last.pt.tmp last.pt.tmp.123 tmp-checkpoint-500 tmpabc1 .tmp-1 last.pt.part last.pt~ .nfs001", True),
        ("last.pt .metadata template.json checkpoint-500 __0_0.distcp temp-0.7", False),
    ],
)
def test_files_that_are_being_written_are_known_by_their_names(names: str, expected: bool) -> None:
    assert {name: is_temporary(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


@pytest.mark.parametrize(
    "changed",
    [
        {"copies": [["../last.pt", 1, 1, 0o644, OLD]]},
        {"copies": [["ck/../../x", 1, 1, 0o644, OLD]]},
        {"copies": [["/etc/passwd", 1, 1, 0o644, OLD]]},
        {"copies": [["other/x", 1, 1, 0o644, OLD]]},
        {"copies": [["ck//x", 1, 1, 0o644, OLD]]},
        {"copies": [["ck/x\0", 1, 1, 0o644, OLD]]},
        {"copies": [["ck/x", -1, 1, 0o644, OLD]]},
        {"copies": [["ck/x", True, 1, 0o644, OLD]]},
        {"copies": [["ck/x", 1, 1, 0o644, "A" * 64]]},
        {"copies": [["ck/x", 1, 1]]},
        {"copies": {}},
        {"copies": [["ck/x", 1, 1, 0o644, OLD]] * 10_001},
        {"known": {"../x": [OLD, True]}},
        {"known": {"ck/x": [1, True]}},
        {"incomplete": {"../x": "it is empty"}},
        {"incomplete": []},
        {"named_parts": []},
        {"named_parts": {"ck/x": "y"}},
        {"named_parts": {"../x": ["y"]}},
        {"named_parts": {"ck/x": ["../y"]}},
        {"named_parts": {"ck/x": ["a/y"]}},
        {"named_parts": {"ck/x": [".."]}},
        {"named_parts": {"ck/x": [1]}},
        {"named_parts": {"ck/x": ["y"] * 10_001}},
    ],
)
def test_reports_with_outside_paths_or_invalid_values_are_refused(changed: dict[str, Any]) -> None:
    whole = HostCopies(
        {"ck/x": copy_of(OLD, name="ck/x")},
        {"ck/y": "it is empty"},
        {"ck/x": Known(OLD, True)},
        frozenset({"ck/x"}),
        {"ck/x": frozenset({"y"})},
    )
    document = json.loads(json.dumps(whole.to_json()))
    assert read_host_copies(document, "ck") == whole
    with pytest.raises(ValueError, match=r"\w"):
        read_host_copies({**document, **changed}, "ck")
