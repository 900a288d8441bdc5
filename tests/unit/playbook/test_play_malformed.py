"""A host's malformed answer to a module's script is the failure of its task."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.playbook.modules.copy import RUNNERS as COPY
from ipexctl.playbook.modules.file import RUNNERS as FILE
from ipexctl.playbook.modules.wait_for import RUNNERS as WAIT_FOR
from ipexctl.playbook.result import Result
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Ended, Stream

RUNNERS: dict[str, Any] = {**FILE, **WAIT_FOR, **COPY}
ARGS: dict[str, dict[str, Any]] = {
    "stat": {"path": "/x", "follow": False, "get_checksum": True},
    "file": {"path": "/x", "state": None, "src": None, "mode": None},
    "wait_for": {"state": "started", "port": 22, "path": None, "host": None, "seconds": 1, "delay": 0},
}
STATUS = b"81a4|5|644|1795244924|ipex|ipex\n\n"


def run(module: str, output: bytes) -> Result:
    """Run a module on a host that prints this, whatever it is sent."""

    def answer(command: object, sink: Callable[[Stream, bytes], None], **_: object) -> Ended:
        del command
        sink("stdout", output)
        return Ended(0)

    spec = SimpleNamespace(name=module)
    call = SimpleNamespace(
        args=ARGS[module],
        check=False,
        diff=False,
        become=None,
        environment={},
        timeout=None,
        task=SimpleNamespace(spec=spec),
    )
    result: Result = RUNNERS[module](SimpleNamespace(cancel=Cancel()), call, SimpleNamespace(run=answer))
    return result


def test_a_whole_status_is_read() -> None:
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
def test_a_malformed_answer_is_the_failure_of_its_host(module: str, output: bytes) -> None:
    with pytest.raises(HostError):
        run(module, output)
