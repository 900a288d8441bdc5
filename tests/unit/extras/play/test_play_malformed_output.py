"""Malformed output of a module's script makes the task fail on that host."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import FakeSession
from ipexctl.extras.play.result import Result
from ipexctl.remote.outcome import HostError
from playbook_helpers import HOST, run_module

ARGS: dict[str, dict[str, Any]] = {"stat": {"path": "/x"}, "file": {"path": "/x"}, "wait_for": {"port": 22}}
STATUS = b"81a4|5|644|1795244924|ipex|ipex\n\n"


def run(module: str, output: bytes) -> Result:
    """Run a module on a host that always prints `output`."""
    return run_module(module, FakeSession(HOST, stdout=output), **ARGS[module])


def test_complete_stat_output_is_parsed() -> None:
    stat = run("stat", STATUS).data["stat"]
    assert (stat["size"], stat["mode"], stat["isreg"], stat["mtime"]) == (5, "0644", True, 1795244924)


@pytest.mark.parametrize(
    ("module", "output"),
    [
        *(("stat", line) for line in (b"", b"0\n", b"\n", b"|||||\n", STATUS.replace(b"5", b"five"))),
        *(("stat", line) for line in (STATUS.replace(b"81a4", b"file"), STATUS.replace(b"5", b"9" * 5000))),
        ("stat", STATUS.rstrip(b"\n")),
        *(("file", text) for text in (b"", b"changed", b"changed\nfile\n")),
        *(("wait_for", text) for text in (b"yes", b"yes soon", b"yes -1", b"yes " + b"9" * 5000, "yes ².".encode())),
    ],
)
def test_malformed_module_output_raises_a_host_error(module: str, output: bytes) -> None:
    with pytest.raises(HostError):
        run(module, output)
