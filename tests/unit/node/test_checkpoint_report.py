"""The report of a host before an exchange: which files are temporary, and what a message may say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipexctl.node.files.checkpoint_report import HostCopies, Known, is_temporary, read_host_copies
from ipexctl.node.files.manifest import ManifestEntry

SHA = "a" * 64


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
        {"copies": [["../last.pt", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck/../../x", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["/etc/passwd", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["other/x", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck//x", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck/x\0", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck/x", "f", 0o644, -1, SHA, 1]]},
        {"copies": [["ck/x", "f", 0o644, True, SHA, 1]]},
        {"copies": [["ck/x", "f", 0o644, 1, "A" * 64, 1]]},
        {"copies": [["ck/x", 1, 1]]},
        {"copies": {}},
        {"copies": [["ck/x", "f", 0o644, 1, SHA, 1]] * 10_001},
        {"known": {"../x": [SHA, True, 1]}},
        {"known": {"ck/x": [1, True, 1]}},
        {"known": {"ck/x": [SHA, True, -1]}},
        {"half": {"../x": "it is half-written"}},
        {"left": []},
        {"written": ["../x"]},
        {"number": "1"},
        {"written": [], "known": {}},
        {"named_parts": []},
        {"named_parts": {"ck/x": "y"}},
        {"named_parts": {"../x": ["y"]}},
        {"named_parts": {"ck/x": ["../y"]}},
        {"named_parts": {"ck/x": ["a/y"]}},
        {"named_parts": {"ck/x": [".."]}},
        {"named_parts": {"ck/x": [1]}},
        {"named_parts": {"ck/x": ["y"] * 10_001}},
        {"others": [{}] * 101},
    ],
)
def test_reports_with_outside_paths_or_invalid_values_are_refused(changed: dict[str, Any]) -> None:
    copies = {"ck/x": ManifestEntry("ck/x", "f", 0o644, 1000, SHA, 1)}
    report = HostCopies(
        copies,
        {"ck/y": "it is half-written"},
        {"ck/z": "it is empty"},
        {"ck/x": Known(SHA, True, 3)},
        frozenset({"ck/x"}),
        3,
        {"ck/x": frozenset({"y"})},
        others=(HostCopies(copies, written=frozenset(copies), place="project.gen2"),),
    )
    document = json.loads(json.dumps(report.to_json()))
    assert read_host_copies(document, "ck") == report
    with pytest.raises(ValueError, match=r"\w"):
        read_host_copies({**document, **changed}, "ck")
