"""The measurements of doctor: parsing them, hosts that are slower than the others, missing values."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_helpers import agent_argv
from fakes import FakeSession
from ipexctl.doctor.port_pairs import parse_listener
from ipexctl.doctor.smoke import (
    PEERS,
    Figure,
    HostSmoke,
    LinkSmoke,
    _Smoke,
    behind,
    measure_links,
    parse_figure,
    parse_link,
    smoke_findings,
)
from ipexctl.facts.cpu import Cpu
from ipexctl.facts.facts import Facts
from ipexctl.hosts.host import Host
from ipexctl.node.network.speed import emit_product
from ipexctl.remote.node_call import AgentPlace, agent_command, agent_zip
from ipexctl.remote.reply import Reply

FAST = Figure(100e9, "with torch")


def facts(model: str = "Xeon 8480+", cores: int = 56) -> Facts:
    return Facts(cpu=Cpu(model_name=model, cores=cores))


def cluster(speeds: dict[str, float], how: str = "with torch") -> list[HostSmoke]:
    return [HostSmoke(name, {"fp32": Figure(speed, how)}) for name, speed in speeds.items()]


def test_figures_and_links_are_read() -> None:
    memory = Reply(event="figure", kind="memory", value=12e9, how="by 4 processes")
    assert parse_figure(memory) == ("memory", Figure(12e9, "by 4 processes"))
    assert parse_figure(Reply(event="figure", kind="fp32", value=0, how="with torch")) is None
    link = {"round_trip": 45.5e-6, "bits": 9.4e9}
    assert parse_link(Reply(event="result", number=1, **link), ["a", "b"]) == LinkSmoke("b", 45.5e-6, 9.4e9)
    assert parse_link(Reply(event="result", number=0, reason="refused"), ["a", "b"]) == LinkSmoke("a", reason="refused")
    assert parse_link(Reply(event="result", number=2, **link), ["a", "b"]) is None


def test_products_with_bf16_inputs_are_remembered_beside_those_in_fp32() -> None:
    event = Reply(event="figure", kind="rounded", value=900e9, how="with torch")
    assert parse_figure(event) == ("rounded", rounded := Figure(900e9, "with torch"))
    assert HostSmoke("a", {"fp32": FAST, "rounded": rounded}).speeds == (100e9, 900e9)
    assert HostSmoke("a", {"fp32": FAST}).speeds is HostSmoke("a", {"rounded": rounded}).speeds is None


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists, max_leaves=3))
def test_malformed_events_are_ignored(value: Any) -> None:
    events: list[dict[str, Any]] = [
        {"event": value},
        {"event": "figure", "kind": "memory", "value": value},
        {"event": "figure", "kind": value, "value": 1},
        {"event": "result", "number": value},
        {"event": "result", "number": 0, "bits": value, "round_trip": 1, "reason": value},
    ]
    for fields in events:
        figure, link = parse_figure(Reply(fields)), parse_link(Reply(fields), ["a"])
        assert figure is None or figure[1].value > 0
        assert link is None or link.name == "a"


@pytest.mark.parametrize(
    ("speeds", "models"),
    [
        ({"a": 100e9, "b": 98e9, "c": 81e9, "d": 103e9}, "xxxx"),
        ({"a": 100e9, "b": 98e9, "c": 50e9}, "xxx"),
        ({"a": 100e9, "b": 98e9, "c": 50e9, "d": 103e9}, "xxyx"),
    ],
    ids=["not by much", "too few peers", "another model"],
)
def test_no_warning_for_small_differences_or_few_peers(speeds: dict[str, float], models: str) -> None:
    known = {name: facts(model) for name, model in zip(speeds, models, strict=True)}
    assert [f.id for f in smoke_findings(cluster(speeds), (), known)] == ["smoke.measured"]


def test_figures_measured_in_different_ways_are_not_compared() -> None:
    hosts = [*cluster({"a": 100e9, "b": 98e9, "c": 99e9}), *cluster({"d": 20e9}, "with numpy")]
    assert [f.id for f in smoke_findings(hosts, (), dict.fromkeys("abcd", facts()))] == ["smoke.measured"]


@given(st.dictionaries(st.text(max_size=3), st.floats(0.001, 1e12), max_size=9))
def test_behind_lists_hosts_below_the_median_of_the_others(values: dict[str, float]) -> None:
    slow = behind(values, 0.8)
    assert not slow or len(values) > PEERS
    for name, share in slow.items():
        assert share < 0.8
        assert values[name] < median(value for peer, value in values.items() if peer != name)


class HostDialog:
    """Events of hosts by the second at which they come; the clock is that of the dialog."""

    def __init__(self, clock: Clock, *events: tuple[float, str, Reply | None]) -> None:
        self.running: set[str] = set()
        self._clock, self._events = clock, list(events)

    def start(self, name: str, *_: object, **__: object) -> None:
        self.running.add(name)

    def receive(self, until: float) -> tuple[str, Reply | None] | None:
        if not self.running or not self._events or self._events[0][0] > until:
            self._clock.now = max(self._clock.now, until) if self.running else self._clock.now
            return None
        self._clock.now, name, event = self._events.pop(0)
        self.running -= {name} if event is None else set()
        return name, event


class Clock:
    now = 0.0


def test_only_a_host_that_imports_torch_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ipexctl.doctor.smoke.time.monotonic", lambda: clock.now)
    loading, figure = Reply(event="loading"), Reply(event="figure", kind="fp32", value=1e9, how="with torch")
    dialog: Any = HostDialog(clock, (1.0, "a", loading), (9.0, "a", figure), (9.5, "a", None))
    hosts = [Host(name, name) for name in "ab"]
    smoke = _Smoke(hosts, {}, {}, dict.fromkeys("ab", FakeSession(hosts[0])))
    found = smoke.measure_hosts(dialog, 3.0, {})
    assert [(list(host.figures), host.missing) for host in found] == [
        (["fp32"], ()),
        ([], ("the measurement took too long",)),
    ]
    assert clock.now == 9.5


STUB_OF_NUMPY = """
float32 = None


class full:
    def __init__(self, *_, **__): pass
    def __matmul__(self, _): pass
"""


def agent(action: str, **request: object) -> subprocess.Popen[str]:
    argv = agent_argv(sys.executable, "network.speed", action)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps({"lifetime": 20, **request}) + "\n")
    process.stdin.flush()
    return process


def test_memory_bandwidth_of_this_machine_is_measured() -> None:
    with agent("host", cores=1, seconds=3) as process:
        output, _ = process.communicate(timeout=30)
    read = [figure for line in output.splitlines() if (figure := parse_figure(Reply(json.loads(line))))]
    assert read[0][0] == "memory"
    assert 1e8 < read[0][1].value < 1e13


def test_matrix_multiplication_uses_a_library_of_the_environment(tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (packages,) = env.glob("lib/*/site-packages")
    (packages / "numpy.py").write_text(STUB_OF_NUMPY)
    command = agent_command("network.speed", "host", AgentPlace(str(env / "bin" / "python")))
    request = json.dumps({"lifetime": 20, "cores": 1, "seconds": 3}).encode() + b"\n"
    content = agent_zip("network") + request
    done = subprocess.run(["sh", "-c", command.script], input=content, capture_output=True, timeout=60, check=True)
    read = dict(figure for line in done.stdout.splitlines() if (figure := parse_figure(Reply(json.loads(line)))))
    assert (read["fp32"].value > 0, read["fp32"].method) == (True, "with numpy on one core")


class Matrix:
    """Its product takes 2 ns of processor time for each of its numbers, and other programs make it wait as long as
    `waits` times that."""

    now = used = 0.0

    def __init__(self, size: int, waits: float) -> None:
        self.size, self.waits = size, waits

    def __matmul__(self, _: Matrix) -> None:
        Matrix.used += self.size**2 * 2e-9
        Matrix.now += self.size**2 * 2e-9 * (1 + self.waits)


@pytest.mark.parametrize(("waits", "is_loaded", "is_busy"), [(0, False, False), (0, True, True), (9, False, True)])
def test_products_are_as_fast_beside_other_programs_and_marked(
    waits: float, is_loaded: bool, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr("ipexctl.node.network.speed.time.monotonic", lambda: Matrix.now)
    monkeypatch.setattr("ipexctl.node.network.speed.time.process_time", lambda: Matrix.used)
    monkeypatch.setattr(
        "ipexctl.node.network.speed.emit", lambda event, **fields: said.append({"event": event} | fields)
    )
    emit_product("fp32", "torch", lambda size: Matrix(size, waits), Matrix.now + 9, is_loaded)
    kind, figure = parse_figure(Reply(said[0])) or pytest.fail("no figure")
    assert tuple(figure) == (pytest.approx(2 * 2048 / 2e-9), "with torch on one core", is_busy)
    fast = HostSmoke("a", {kind: figure, "rounded": figure})
    assert fast.speeds == (None if is_busy else (figure.value, figure.value))
    (finding,) = smoke_findings([fast], (), {})
    assert ("a had other work meanwhile" in finding.message) == is_busy


class Node0:
    """The dialog with an agent of this machine, as the one with node0."""

    running = frozenset({"node0"})

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def send(self, _: str, data: bytes) -> None:
        self._input.write(data.decode())
        self._input.flush()

    def receive(self, _: float) -> tuple[str, Reply]:
        return "node0", Reply(json.loads(self._output.readline()))


def test_link_is_measured_over_loopback_and_wrong_tokens_are_refused() -> None:
    """Connections that send nothing do not keep the server waiting."""
    with (
        agent("serve", address="127.0.0.1", token="token") as server,
        agent("connect") as client,
        contextlib.ExitStack() as strangers,
    ):
        assert server.stdout is not None
        listener = parse_listener(Reply(json.loads(server.stdout.readline())))
        assert listener is not None
        for _ in range(3):
            strangers.enter_context(socket.create_connection(("127.0.0.1", listener.port or 0), 5))
        dialog: Any = Node0(client)
        targets = {"a": ("127.0.0.1", "wrong", listener), "b": ("127.0.0.1", "token", listener)}
        found = measure_links(dialog, "node0", targets, time.monotonic() + 5)
        assert found["a"].reason
        assert (found["b"].bits or 0) > 1e7
        for process in (server, client):
            process.communicate("", timeout=5)
            assert process.returncode == 0
