"""`install` with a private index that does not answer takes its packages from no other index."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from cli_helpers import ipexctl
from simple_index import SimpleIndex
from tiny_wheels import write_stack, write_wheel

if TYPE_CHECKING:
    from pathlib import Path

DEAD = "http://127.0.0.1:9/simple"


@pytest.mark.parametrize("answers", [True, False])
def test_a_private_index_that_does_not_answer_is_an_error(answers: bool, tmp_path: Path) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    write_wheel(private, "acme", "1.0")
    public.mkdir()
    write_stack(public, torch="2.13.0", ipex=None, python=f"cp3{sys.version_info.minor}")
    write_wheel(public, "acme", "9.9")
    with SimpleIndex(private) as own, SimpleIndex(public) as served:
        args = ("--hosts", "localhost", "--home", tmp_path / "home", "--dry-run", "--json", "--stack", "torch-2.13")
        sources = ("--index-url", served.url, "--extra-index-url", own.url if answers else DEAD)
        env = {"PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        ran = ipexctl("install", *args, *sources, "--with", "acme", env=env)
    assert ran.rc == (0 if answers else 1), ran.err
    text = json.dumps(json.loads(ran.out))
    assert [part in text for part in ("acme-1.0-", "acme-9.9", DEAD)] == [answers, False, not answers]
