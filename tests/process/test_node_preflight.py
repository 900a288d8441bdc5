"""The checks of the nodes of a run before it starts: connections from node0, and the imports of its script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from env_helpers import said, start
from ipexctl.remote.command import Command, login_line
from ipexctl.remote.node_call import script_text

SSH = """#!/bin/sh
case $2 in
broken) printf '\036nonce\n' >&2; exit 3 ;;
refused) echo noise; echo 'ssh: connect to host refused port 22: Connection refused' >&2; exit 255 ;;
esac
echo "a login shell's greeting"
exec sh -c "$3"
"""


def check(tmp_path: Path, **addresses: str) -> dict[str, Any]:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o700)
    request = {
        "address": "127.0.0.1",
        "python": sys.executable,
        "ssh": [str(ssh)],
        "probe": login_line(Command.argv(sys.executable, "-I", "-S", "-c", script_text("network.ports")), "nonce"),
        "nodes": [{"ssh_name": word, "address": address} for word, address in addresses.items()],
        "seconds": 5,
        "record": str(tmp_path / "record"),
    }
    return said(start("network.connectivity", "try", request))


@pytest.mark.core
def test_open_connections_are_ok(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("of an earlier check")
    result = check(tmp_path, node2="127.0.0.1", nat="192.0.2.1")
    ok = {"kind": "ok", "text": ""}
    assert result["nodes"] == {"node2": ok, "nat": ok}
    assert result["began"] > 0
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize(("word", "end"), [("refused", "Connection refused"), ("broken", "exit code 3")])
def test_failed_login_has_the_last_line_or_exit_code_of_ssh(tmp_path: Path, word: str, end: str) -> None:
    node = check(tmp_path, **{word: "127.0.0.1"})["nodes"][word]
    assert (node["kind"], node["text"].isprintable()) == ("login", True)
    assert node["text"].endswith(end)


def asked(kind: str, *modules: str, source: str = "", **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", script_text("network.imports"), kind, *modules],
        input=source.encode("utf-8", "surrogateescape"),
        env={**os.environ, **environ},
        capture_output=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_missing_modules_are_found_without_importing(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text("raise SystemExit('it was run')")
    modules = ("os", "sys", "__main__", "pytest", "added", "no_such_module")
    ours = asked("own", *modules, PYTHONPATH=str(tmp_path))
    assert ours == {"event": "done", "missing": ["added", "no_such_module"], "fault": None}
    assert asked("other", *modules, PYTHONPATH=str(tmp_path))["missing"] == ["no_such_module"]
    assert asked("own", "os", "sys") == {"event": "done", "missing": [], "fault": None}


def test_syntax_errors_are_reported_with_their_line() -> None:
    assert asked("own", source="raise SystemExit('it was run')")["fault"] is None
    fault = asked("own", source="x = 1\nif x\n    pass\n")["fault"]
    assert (fault["kind"], fault["line"]) == ("SyntaxError", 2)
    assert fault["python"] == "{}.{}".format(*sys.version_info[:2])
    assert asked("own", source="def f():\npass\n")["fault"]["kind"] == "IndentationError"
    assert asked("own", source="x = 'a\0b'")["fault"]["kind"] == "SyntaxError"
    assert asked("own", source="name = '\udce9'  # latin-1, and it doesn't say so")["fault"] is not None
