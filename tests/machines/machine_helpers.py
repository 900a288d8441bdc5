"""Machines of tests: booted for a file, and calls of ipexctl about them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import CommandResult, ipexctl
from machines.machine import Machine, boot, remove
from printed_lines import PRINTED

TRAINING = Path(__file__).with_name("placed_training.py")
PROJECT = ("--cwd", TRAINING.parent)
"""Without it, the whole repository is copied."""
SLOW = 900
"""Seconds for a call: without KVM, a rank takes a minute to import torch."""


@contextmanager
def booted(kind: str, words: str = "") -> Iterator[Machine]:
    if not os.environ.get("IPEXCTL_TESTS_MACHINES"):
        pytest.skip("boots a machine, for sh tests/run.sh --machines")
    PRINTED.off = "each call takes half a minute in emulation"
    machine = boot(kind, f"test-{kind}", words)
    try:
        yield machine
    finally:
        remove([machine])


def call(machine: Machine, command: str, *words: object) -> CommandResult:
    return ipexctl(*command.split(), *machine.options(), *words, timeout=SLOW)


def doctor(machine: Machine) -> dict[str, Any]:
    """The report on its only host."""
    said = call(machine, "doctor --json --no-network")
    report: dict[str, Any] = json.loads(said.out)["hosts"][0]
    return report


def findings_of(report: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: f"{finding['message']} | {finding['fix']}" for finding in report["findings"]}


def plan_of(machine: Machine, *words: object) -> list[tuple[str, str]]:
    """Cores and memory nodes of each rank, as a dry run says."""
    said = call(machine, "run --dry-run --json", *words, *PROJECT, TRAINING)
    assert said.rc == 0, said.err
    ranks = [rank for host in json.loads(said.out)["hosts"] for rank in host["ranks"]]
    return [(as_list(rank["cores"]), as_list(rank["memory"])) for rank in ranks]


def cause_of(said: CommandResult) -> dict[str, Any]:
    """What `why` says of a run that failed."""
    (run,) = re.findall(r"run (\S+) failed", said.err)
    cause: dict[str, Any] = json.loads(ipexctl("why", run, "--json", timeout=SLOW).out)["cause"]
    return cause


def as_list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def expand(text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def train(machine: Machine, *words: object, held: int = 64) -> tuple[CommandResult, list[dict[str, Any]]]:
    """What each rank of the training said of itself, in the order of their numbers. `held`: MiB beside the model."""
    said = call(machine, "run", *words, *PROJECT, TRAINING, held)
    found = [json.loads(line) for line in re.findall(r"^\[\d+\] (\{.*\})$", said.out, re.MULTILINE)]
    return said, sorted(found, key=lambda each: int(each["rank"]))
