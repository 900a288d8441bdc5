"""A chosen MASTER_PORT is tried on this node before mpirun starts."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

import pytest
from run_helpers import Run

from ipexctl.node.common.sockets import free_port
from ipexctl.node.run.master_port import bind_problem, listening_process
from message_data import missing

pytest_plugins = ["run_fixtures"]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_port_with_a_listener_is_refused_with_its_process(make: Callable[..., Run], address: str) -> None:
    port = free_port("127.0.0.1")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        run = make("print('started')", go={"master": {"addr": "127.0.0.1", "port": port}})
        run.start()
        assert run.started["event"] == "failed"
        assert missing(run.started["reason"], f"{port} {os.getpid()}") == []
        assert "--master-port" in run.started["fix"]
        assert run.wait()["state"] == "failed"
        assert run.output(0) == b""
    run = make(
        "import os\nprint(os.environ['MASTER_PORT'])", go={"master": {"addr": "127.0.0.1", "port": port}}
    ).start()
    assert (run.wait()["state"], run.output(0)) == ("ok", f"{port}\n".encode())


@pytest.mark.core
def test_port_whose_connections_are_being_closed_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as client:
            server, _ = listener.accept()
            server.close()  # this side is in TIME_WAIT then
            client.recv(1)
        assert bind_problem(port)
        assert str(os.getpid()) in listening_process(port)
    assert bind_problem(port) is None
    assert listening_process(port) == ""
