"""`--profile` with the real torch: losses stay the same to the last bit, and each step's parts add up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from training_lab import Training

from agent_helpers import wait_until
from cli_helpers import CommandResult

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("profile_script.py")


def train(training: Training, *words: object) -> CommandResult:
    (training.project / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    return training.call("run", "--tag", "profile", *words, timeout=400)


def losses(ran: CommandResult) -> set[str]:
    return {line.partition("losses ")[2] for line in ran.out.splitlines() if "losses" in line}


TWO = ("-n", 2, "--ppn", 1)


@pytest.mark.parametrize(("way", "options"), [("plain", TWO), ("workers", ("-n", 1)), ("fsdp1", TWO), ("fsdp2", TWO)])
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
    assert {"--fp32-math bf16", "--fused-optimizer"} <= {each["option"] for each in profile["levers"]}
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


def start_live(training: Training, way: str, *options: object) -> None:
    """Start a run of 480 steps, which takes 20 seconds, and wait for its first ones."""
    started = train(training, *options, "--detach", SCRIPT.name, way, 40)
    assert started.rc == 0, started.err
    wait_until(lambda: "it trains" in training.follow("logs", "last").out, 60)


def test_a_live_run_is_profiled_twice_and_its_losses_stay_the_same(training: Training, tmp_path: Path) -> None:
    without = train(training, *TWO, SCRIPT.name, "plain", 40)
    start_live(training, "live", *TWO)
    first_steps = []
    for _ in range(2):
        asked = training.follow("why", "last", "--profile", "--json")
        assert asked.rc == 0, asked.err + asked.out
        profile = json.loads(asked.out)["profile"]
        for rank in profile["ranks"]:
            assert sum(rank["parts"].values()) == pytest.approx(rank["step"], rel=0.05)
        assert [len(profile["ranks"]), profile["steps"]] == [2, 2]
        first_steps.append(profile["first_step"])
    assert 20 < first_steps[0] < first_steps[1]
    assert training.follow("fetch", "last:profile/", tmp_path).rc == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.json.gz", "rank-1.json.gz"]
    assert training.follow("wait", "last").rc == 0
    logs = training.follow("logs", "last")
    assert losses(logs) == losses(without)
    assert "ipexctl" not in logs.out + logs.err
    over = training.follow("why", "last", "--profile")
    assert over.rc == 1
    assert "has ended: no steps to profile" in over.err


def test_a_live_script_with_a_profiler_keeps_it(training: Training) -> None:
    start_live(training, "own-live", "-n", 1)
    asked = training.follow("why", "last", "--profile", "--json")
    assert asked.rc == 1
    reason = "the script has a profiler of its own, which it keeps"
    assert [each["reason"] for each in json.loads(asked.out)["unprofiled"]] == [reason]
    assert f"no profile of rank 0 on {training.lab.hosts[0].address}: {reason}" in asked.err
    assert training.follow("wait", "last").rc == 0
    assert "its own profile: True" in training.follow("logs", "last").out
