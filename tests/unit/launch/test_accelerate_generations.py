"""Variables of ranks for each generation of accelerate: equal to those of its own launcher.

The record beside was written by `tests/stack/accelerate_generations.py`, which asks the packages themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.version import Version

from ipexctl.export.accelerate import FIRST_MPIRUN
from ipexctl.launch.accelerate_config import read_accelerate
from ipexctl.launch.accelerate_env import (
    FIRST_DEBUG,
    IPEX,
    PROJECT,
    WITHOUT_IPEX,
    before,
    variables_of,
)

RECORD: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("accelerate_generations.json").read_text())
VERSIONS: Final[list[str]] = RECORD["versions"]
STACKS: Final = ("bare", "ipex")
ELSEWHERE: Final = {
    *("ACCELERATE_USE_CPU", "KMP_AFFINITY", "KMP_BLOCKTIME", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"),
}
"""Ours come from the hosts, with a configuration and without."""
WORKERS: Final = "CCL_WORKER_COUNT"
Ranks = dict[str, str | None]


def theirs(stack: str, name: str) -> dict[str, Ranks | str]:
    """The record has a version where something changed."""
    said, found = RECORD["ranks"][stack][name], {}
    answer: Ranks | str = "no accelerate so old was asked"
    for version in VERSIONS:
        answer = said.get(version, answer)
        found[version] = answer
    return found


def ours(stack: str, name: str, version: str) -> Ranks:
    packages = {PROJECT: version, **({IPEX: "2.8.0"} if stack == "ipex" else {})}
    config = read_accelerate(RECORD["files"][name], name)
    return {each.name: each.value for each in variables_of(config, packages)}


def of_other_generations(stack: str, name: str, version: str) -> Ranks:
    """A word that another generation would have understood, where this one passes it over in silence."""
    if name in ("alone", "by_hand") and before(version, "0.20"):
        return {"IPEX_ENABLED": "true"}
    if name == "oldest" and stack == "ipex" and not before(version, "0.20"):
        return {"ACCELERATE_USE_IPEX": "true"}
    if name == "dynamo_short":
        return {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}
    return {}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", RECORD["files"])
def test_a_file_becomes_the_variables_that_each_accelerate_makes_of_it(stack: str, name: str) -> None:
    made, wanted = {}, {}
    for version, answer in theirs(stack, name).items():
        if isinstance(answer, str):
            continue
        left = ELSEWHERE | {WORKERS}
        wanted[version] = {key: value for key, value in answer.items() if key not in left}
        wanted[version] |= of_other_generations(stack, name, version)
        made[version] = {key: value for key, value in ours(stack, name, version).items() if key not in left}
    assert made == wanted
    assert made


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", RECORD["files"])
def test_workers_of_oneccl_are_as_many_as_there_wherever_accelerate_lets_it_work(stack: str, name: str) -> None:
    """One is what we set, too, where nobody says a number; none, or 0, is how accelerate leaves oneCCL alone."""
    for version, answer in theirs(stack, name).items():
        if not isinstance(answer, str):
            said = ours(stack, name, version).get(WORKERS) or "1"
            assert answer.get(WORKERS) in (said, "0", None), version


@pytest.mark.parametrize("version", VERSIONS)
def test_a_key_is_refused_by_the_generations_we_leave_it_out_for(version: str) -> None:
    refused = {name: isinstance(theirs("bare", name)[version], str) for name in RECORD["files"]}
    assert refused["debug"] == before(version, FIRST_DEBUG)
    assert refused["spread"] == before(version, FIRST_MPIRUN)
    assert refused["alone"] == refused["by_hand"] == (not before(version, WITHOUT_IPEX))
    assert not refused["least"]


def test_some_generations_start_nothing_without_a_number_of_workers_which_an_export_always_has() -> None:
    silent, said = theirs("bare", "spread_unsaid"), theirs("bare", "spread")
    fell = [version for version in VERSIONS if isinstance(silent[version], str) and not isinstance(said[version], str)]
    assert fell == [version for version in VERSIONS if Version("0.28") <= Version(version) < Version("0.32")]
