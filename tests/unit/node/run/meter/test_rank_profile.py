"""The profile that a command leaves in a file, and how the rank wrapper takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipexctl.node.run.connection.messages import read_message
from ipexctl.node.run.meter.rank_meter import RankMeter
from ipexctl.node.run.meter.rank_profile import MAX_FILE, ProfileFile, RankProfile


def test_a_profile_is_read_once_and_again_if_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "spill" / "0003.profile"
    file = ProfileFile(str(path))
    assert file.prepare() == {"IPEXCTL_PROFILE": str(path)}
    assert file.read() is None
    path.write_text('{"note": "no"}')
    assert file.read() == RankProfile(note="no")
    assert file.read() is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"seconds": -1}', '{"seconds": NaN}', '{"operators": 3}', " " * MAX_FILE + "{}"]
)
def test_anything_else_in_the_file_is_no_profile_and_the_reason_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "0003.profile"
    path.write_text(text)
    assert (ProfileFile(str(path)).read() or pytest.fail()).note.startswith("its document is not valid: ")


def test_a_profile_of_an_earlier_start_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "0003.profile"
    path.write_text('{"note": "old"}')
    ProfileFile(str(path)).prepare()
    assert not path.exists()


def test_the_wrapper_sends_it_once(tmp_path: Path) -> None:
    path = tmp_path / "0003.profile"
    meter = RankMeter(is_on=True, profile=str(path))
    assert meter.prepare({})["IPEXCTL_PROFILE"] == str(path)
    meter.start(0.0)
    path.write_text('{"seconds": 0.5, "communication": [0.0]}')
    meter.poll([], 0.1)
    meter.finish(0.2)
    (kind, fields), *_ = meter.take()
    assert kind == "profile"
    assert read_message(json.dumps({"t": kind, **fields}).encode()) == RankProfile(seconds=0.5, communication=(0.0,))
    assert [kind for kind, _ in meter.take()] == []
