"""Variables of ranks for each generation of accelerate: equal to those of its own launcher.

The record beside was written by `tests/stack/accelerate_generations.py`, which asks the packages themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.version import Version

from ipexctl.hub.hugging_face import WITHOUT_IPEX
from ipexctl.launch.accelerate_config import read_accelerate
from ipexctl.launch.accelerate_env import (
    FIRST_DEBUG,
    IPEX,
    PROJECT,
    before,
    variables_of,
)

FIRST_MPIRUN: Final = "0.28"
RECORD: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("accelerate_generations.json").read_text())
VERSIONS: Final[list[str]] = RECORD["versions"]
STACKS: Final = ("bare", "ipex")
SET_FROM_HOSTS: Final = {
    *("ACCELERATE_USE_CPU", "KMP_AFFINITY", "KMP_BLOCKTIME", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"),
}
"""ipexctl sets these from the hosts, with and without a configuration."""
WORKERS: Final = "CCL_WORKER_COUNT"
Ranks = dict[str, str | None]


def theirs(stack: str, name: str) -> dict[str, Ranks | str]:
    """The record lists only the versions where something changed."""
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
    """Variables for keys that this version ignores silently and another generation understands."""
    if name in ("alone", "by_hand") and before(version, "0.20"):
        return {"IPEX_ENABLED": "true"}
    if name == "oldest" and stack == "ipex" and not before(version, "0.20"):
        return {"ACCELERATE_USE_IPEX": "true"}
    if name == "dynamo_short":
        return {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}
    return {}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", RECORD["files"])
def test_variables_equal_those_of_each_accelerate_version(stack: str, name: str) -> None:
    made, wanted = {}, {}
    for version, answer in theirs(stack, name).items():
        if isinstance(answer, str):
            continue
        left = SET_FROM_HOSTS | {WORKERS}
        wanted[version] = {key: value for key, value in answer.items() if key not in left}
        wanted[version] |= of_other_generations(stack, name, version)
        made[version] = {key: value for key, value in ours(stack, name, version).items() if key not in left}
    assert made == wanted
    assert made


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", RECORD["files"])
def test_oneccl_worker_count_equals_that_of_accelerate(stack: str, name: str) -> None:
    """The default of ipexctl is 1, too; none or 0 means that accelerate does not use oneCCL."""
    for version, answer in theirs(stack, name).items():
        if not isinstance(answer, str):
            said = ours(stack, name, version).get(WORKERS) or "1"
            assert answer.get(WORKERS) in (said, "0", None), version


@pytest.mark.parametrize("version", VERSIONS)
def test_omitted_keys_are_those_that_accelerate_refuses(version: str) -> None:
    refused = {name: isinstance(theirs("bare", name)[version], str) for name in RECORD["files"]}
    assert refused["debug"] == before(version, FIRST_DEBUG)
    assert refused["spread"] == before(version, FIRST_MPIRUN)
    assert refused["alone"] == refused["by_hand"] == (not before(version, WITHOUT_IPEX))
    assert not refused["least"]


def test_accelerate_0_28_to_0_31_require_a_worker_count() -> None:
    silent, said = theirs("bare", "spread_unsaid"), theirs("bare", "spread")
    fell = [version for version in VERSIONS if isinstance(silent[version], str) and not isinstance(said[version], str)]
    assert fell == [version for version in VERSIONS if Version("0.28") <= Version(version) < Version("0.32")]
