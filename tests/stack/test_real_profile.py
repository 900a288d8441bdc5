"""`run --profile` with the real torch: losses stay the same to the last bit, and each step's parts add up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from training_lab import Training

from cli_helpers import CommandResult

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("profile_script.py")


def train(training: Training, *words: object) -> CommandResult:
    (training.project / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    return training.call("run", "--tag", "profile", *words, timeout=400)


def losses(ran: CommandResult) -> set[str]:
    return {line.partition("losses ")[2] for line in ran.out.splitlines() if "losses" in line}


@pytest.mark.parametrize(("way", "options"), [("plain", ("-n", 2, "--ppn", 1)), ("workers", ("-n", 1))])
def test_losses_stay_the_same_and_parts_add_up(
    training: Training, tmp_path: Path, way: str, options: tuple[object, ...]
) -> None:
    without = train(training, *options, SCRIPT.name, way)
    ran = train(training, *options, "--profile", SCRIPT.name, way)
    assert ran.rc == without.rc == 0, ran.err + ran.out
    assert losses(ran) == losses(without)
    profile = json.loads(training.follow("why", "last", "--json").out)["profile"]
    assert len(profile["ranks"]) == options[1]
    for rank in profile["ranks"]:
        assert sum(rank["parts"].values()) == pytest.approx(rank["step"], rel=0.05)
    assert profile["steps"] == 2
    assert 0 < profile["share"] < 1
    assert profile["operators"][0]["seconds"] > 0
    fetched = training.follow("fetch", "last:profile/", tmp_path)
    assert fetched.rc == 0, fetched.err
    text = gzip.decompress((tmp_path / "rank-0.json.gz").read_bytes()).decode()
    assert any(event.get("name") == "aten::addmm" for event in json.loads(text)["traceEvents"])
    assert "/home/" not in text


def test_a_script_with_a_profiler_keeps_it_and_the_reason_is_said_once(training: Training) -> None:
    ran = train(training, "-n", 1, "--profile", SCRIPT.name, "own")
    assert ran.rc == 0, ran.err + ran.out
    assert "its own profile: True" in ran.out
    said = [line for line in ran.err.splitlines() if "--profile is off" in line]
    assert said == ["[0] ipexctl: --profile is off: the script has a profiler of its own, which it keeps"]
    assert "no profile of rank 0: the script has a profiler of its own" in training.follow("why", "last").out


def test_a_script_that_ends_while_it_is_profiled_has_its_own_exit_code(training: Training) -> None:
    ran = train(training, "-n", 1, "--profile", SCRIPT.name, "ended")
    assert ran.rc == 3, ran.err + ran.out
