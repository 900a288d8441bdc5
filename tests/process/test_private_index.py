"""`install` with a private index that does not answer takes its packages from no other index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

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
        argv = ("install", "--hosts", "localhost", "--home", tmp_path / "home", "--dry-run", "--json")
        sources = ("--index-url", served.url, "--extra-index-url", own.url if answers else DEAD)
        done = subprocess.run(
            [sys.executable, "-m", "ipexctl", *argv, *sources, "--stack", "torch-2.13", "--with", "acme"],
            env={**os.environ, "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == (0 if answers else 1), done.stderr
    document = json.loads(done.stdout)
    if answers:
        assert "acme-1.0-" in done.stdout.decode()
        assert "acme-9.9" not in done.stdout.decode()
    else:
        assert DEAD in json.dumps(document)
