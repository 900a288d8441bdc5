"""Diagnosis of logins and ports, the findings, and the port probe, run on this machine."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from doctor_rules_helpers import env, healthy
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeSession
from ipexctl.doctor.finding import open_ports
from ipexctl.doctor.network_check import (
    _NetworkCheck,
    check_network,
)
from ipexctl.doctor.port_pairs import (
    ConnectionResult,
    PortDiagnosis,
    PortListener,
    connect_order,
    diagnose,
    is_inside,
    listen_order,
    overflow_findings,
    pairs_to_try,
    parse_listener,
    parse_result,
)
from ipexctl.facts.facts import Facts
from ipexctl.facts.network_facts import Address, Network, Nic
from ipexctl.facts.system_facts import Security
from ipexctl.hosts.host import Host
from ipexctl.node.network import ports
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector, SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import NO_PYTHON, script_command
from ipexctl.remote.outcome import HostError, TimedOut, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.remote.script_dialog import ScriptDialog, results_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.doctor.port_pairs import Pair

OK, REFUSED, SILENT = ConnectionResult("ok"), ConnectionResult("refused"), ConnectionResult("timeout")


def outcome(names: Sequence[str], blocked: Callable[[str, str], bool]) -> dict[Pair, ConnectionResult]:
    return {(a, b): SILENT if blocked(a, b) else OK for a, b in pairs_to_try(names)}


# ── pairs to test ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_up_to_16_hosts_every_pair_is_tested() -> None:
    names = [f"node{n}" for n in range(16)]
    assert len(pairs_to_try(names)) == len(set(pairs_to_try(names))) == 16 * 15


@given(st.integers(17, 300))
def test_above_16_hosts_a_ring_and_a_star_are_tested(count: int) -> None:
    names = [f"node{n}" for n in range(count)]
    pairs = pairs_to_try(names)
    assert len(pairs) == len(set(pairs)) == 2 * (count - 1 + count - 2)
    assert {(names[0], name) for name in names[1:]} <= set(pairs)
    assert {(name, names[0]) for name in names[1:]} <= set(pairs)
    assert all((a, b) in pairs and (b, a) in pairs for a, b in pairwise(names))


@pytest.mark.parametrize("names", [[], ["node1"]])
def test_one_host_has_no_pairs_to_test(names: list[str]) -> None:
    assert pairs_to_try(names) == ()


# ── output of the scripts ────────────────────────────────────────────────────────────────────────────────────────────


def test_listener_reports_are_parsed() -> None:
    ready = Reply(event="ready", port=43211, reason="", missing=[])
    assert parse_listener(ready) == PortListener(43211)
    assert parse_listener(Reply(event="ready", port=None, reason="REASON")) == PortListener(None, "REASON")
    assert parse_listener(Reply(event="failed", reason="REASON", fix="")) == PortListener(None, "REASON")
    for port in (True, 0, 65536, "22", 1e3):
        assert parse_listener(Reply(event="ready", port=port)) == PortListener(None)


def test_connection_results_are_parsed() -> None:
    assert parse_result(Reply(event="result", number=3, kind="ok", text="")) == (3, OK)
    no_route = Reply(event="result", number=0, kind="noroute", text="No route to host")
    assert parse_result(no_route) == (0, ConnectionResult("noroute", "No route to host"))
    assert parse_result(Reply(event="result", number=0, kind="splendid")) is None


@given(st.text())
def test_malformed_events_are_ignored(line: str) -> None:
    for event in ("ready", "result", line):
        reply = Reply(event=event, port=line, number=line)
        listener = parse_listener(reply)
        assert listener is None or listener.port is None
        assert parse_result(reply) is None


def test_connect_order_has_timeout_and_targets() -> None:
    line = connect_order([("10.0.0.2", "ab", PortListener(4000)), ("fd00::3", "cd", PortListener(4001))], 3)
    assert line == b"3.000 10.0.0.2 4000 ab fd00::3 4001 cd\n"


# ── diagnosis ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("hosts", "is_blocked", "diagnosis"),
    [
        ("abcd", lambda a, b: False, PortDiagnosis()),
        ("abcd", lambda a, b: b == "c", PortDiagnosis(closed_in=("c",))),
        ("abcd", lambda a, b: a == "c", PortDiagnosis(closed_out=("c",))),
        ("abcd", lambda a, b: "c" in (a, b), PortDiagnosis(("c",), ("c",))),
        # Of two hosts the one that cannot be reached has the firewall.
        ("ab", lambda a, b: b == "b", PortDiagnosis(closed_in=("b",))),
        ("abc", lambda a, b: a in "ab", PortDiagnosis(closed_out=("a", "b"))),
        ("abc", lambda a, b: True, PortDiagnosis(closed_in=("a", "b", "c"))),
    ],
)
def test_firewall_is_on_the_hosts_common_to_all_blocked_pairs(
    hosts: str, is_blocked: Callable[[str, str], bool], diagnosis: PortDiagnosis
) -> None:
    assert diagnose(outcome(hosts, is_blocked)) == diagnosis


def test_blocked_traffic_between_two_racks_is_reported_as_pairs() -> None:
    found = diagnose(outcome("abcd", lambda a, b: (a in "ab") != (b in "ab")))
    assert not found.closed_in
    assert not found.closed_out
    assert len(found.pairs) == 8


@given(st.dictionaries(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), st.sampled_from([OK, SILENT])))
def test_diagnosis_covers_exactly_the_blocked_pairs(results: dict[Pair, ConnectionResult]) -> None:
    found = diagnose(results)
    for (a, b), result in results.items():
        explained = b in found.closed_in or a in found.closed_out or (a, b) in found.pairs
        assert explained == result.is_blocked


# ── findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def facts_with(address: str, prefix: int, *firewall: str, ports: tuple[int, int] | None = None) -> Facts:
    nic = Nic("eth0", addresses=(Address(address, prefix),))
    return Facts(network=Network(nics=(nic,), port_range=ports), security=Security(firewall=firewall))


INTERNAL = {"a": "10.1.0.1", "b": "10.1.0.2", "c": "10.1.0.3"}


def test_fix_supports_ipv6_and_other_port_ranges() -> None:
    fix = open_ports(["a"], {"a": "fd00::1"}, {"a": facts_with("fd00::1", 64, ports=(10000, 20000))})
    assert "sudo ip6tables -I INPUT -p tcp -s fd00::/64 --dport 10000:20000 -j ACCEPT" in fix


# ── time limits ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_after_the_deadline_are_timeouts() -> None:
    began = time.monotonic()

    def slow() -> int:
        time.sleep(5)
        return 2

    found = results_until({"quick": run_in_background(lambda: 1, ""), "slow": run_in_background(slow, "")}, began + 0.3)
    assert found["quick"] == 1
    assert isinstance(found["slow"], TimedOut)
    assert time.monotonic() - began < 1


def test_events_that_arrive_before_the_deadline_are_received() -> None:
    dialog = ScriptDialog(Cancel())
    dialog.start("a", FakeSession(Host("a", "a")), Command.shell(""), timeout=5)
    assert dialog.receive(time.monotonic() - 0.1) is None
    assert dialog.receive(time.monotonic() + 0.9) == ("a", None)


def test_host_errors_are_returned_and_other_errors_are_raised() -> None:
    def lost() -> int:
        raise Unreachable("gone")

    def bug() -> int:
        raise KeyError("ours")

    found = results_until({"a": run_in_background(lost, "")}, time.monotonic() + 5)
    assert isinstance(found["a"], HostError)
    with pytest.raises(KeyError):
        results_until({"a": run_in_background(bug, "")}, time.monotonic() + 5)


def test_network_check_of_one_host_has_no_findings() -> None:
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=1) as pool:
        report = check_network(pool, [Host("a", "a")], {"a": "10.1.0.1"}, facts={})
    assert report.findings == ()


# ── ports that are open beyond the hosts' own network ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "inside"),
    [("10.1.0.9", True), ("10.1.0.2", True), ("127.0.0.1", True), ("192.0.2.7", False), ("fd00::1", False)],
)
def test_control_machine_is_outside_unless_it_has_an_address_of_the_network(source: str, inside: bool) -> None:
    assert is_inside(source, "10.1.0.2", [facts_with("10.1.0.2", 24)]) == inside
    assert is_inside(source, "10.1.0.2", [])  # a network that is not known


@pytest.mark.parametrize(
    ("torch", "opened", "levels"),
    [
        ("2.13.0+cpu", ("b",), {"a": "info", "b": "warn", "c": "info"}),
        ("2.13.0", (), {"a": "info", "b": "info", "c": "info"}),
        ("2.14.0", ("b",), {}),
        ("unknown", ("b",), {}),
    ],
)
def test_gloo_before_torch_2_14_is_a_finding(torch: str, opened: tuple[str, ...], levels: dict[str, str]) -> None:
    facts = dict.fromkeys(INTERNAL, healthy(software={"envs": (env(torch=torch),)}))
    found = overflow_findings(facts, INTERNAL, opened)
    assert {name: finding.level for finding in found for name in finding.hosts} == levels
    assert {finding.id for finding in found} <= {"stack.gloo_overflow"}
    assert overflow_findings({"a": facts["a"]}, INTERNAL, opened) == ()  # one host: its loopback interface


@pytest.mark.parametrize("source", ["192.0.2.7", "127.0.0.1"])
def test_control_machine_outside_connects_to_listeners(
    probe: Callable[[str], PortProbe], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The listeners are real; only the address by which the control machine reaches them is not."""
    monkeypatch.setattr("ipexctl.doctor.network_check.source_towards", lambda _: source)
    open_, closed, wrong = probe("127.0.0.1"), PortListener(_free_port()), probe("127.0.0.1")
    hosts = [Host(name, name) for name in "abc"]
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=1) as pool:
        facts = {"a": facts_with("127.0.0.1", 8)}
        internal = dict.fromkeys("abc", "127.0.0.1")
        check = _NetworkCheck(pool, hosts, internal, facts, time.monotonic(), 4, Cancel())
        found = check._connect_from_outside(
            {"a": open_.listener, "b": closed, "c": wrong.listener}, {"a": open_.token, "b": "b", "c": "another"}
        )
    assert found == ({"a"} if source == "192.0.2.7" else set())


# ── the port probe ───────────────────────────────────────────────────────────────────────────────────────────────────


class PortProbe:
    """The port probe of one host, started as doctor starts it."""

    def __init__(self, address: str) -> None:
        self.address, self.token = address, secrets.token_hex(8)
        command = script_command("network.ports", python=sys.executable, label="ports")
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command.script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._send(listen_order(address, self.token, 20))
        listener = parse_listener(self._event())
        assert listener is not None
        self.listener = listener

    @property
    def target(self) -> tuple[str, str, PortListener]:
        return self.address, self.token, self.listener

    def _send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def _event(self) -> Reply:
        assert self.process.stdout is not None
        return Reply(json.loads(self.process.stdout.readline()))

    def connect(self, targets: Sequence[tuple[str, str, PortListener]], seconds: float = 2) -> list[str]:
        self._send(connect_order(targets, seconds))
        found: dict[int, str] = {}
        for _ in targets:
            number, result = parse_result(self._event()) or (-1, OK)
            found[number] = result.kind
        return [found[number] for number in range(len(targets))]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=5) == 0


@pytest.fixture
def probe() -> Iterator[Callable[[str], PortProbe]]:
    started: list[PortProbe] = []

    def start(address: str) -> PortProbe:
        started.append(PortProbe(address))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_port_probes_detect_wrong_tokens_and_closed_ports(probe: Callable[[str], PortProbe], address: str) -> None:
    if address == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 here")
    first, second = probe(address), probe(address)
    closed = (address, "x", PortListener(_free_port()))
    targets = [first.target, second.target, (address, "another", first.listener), closed]
    for host in (first, second):
        assert host.connect(targets, 1) == ["ok", "ok", "wrong", "refused"]


def test_greeting_of_a_listener_has_no_token_and_differs_each_time(probe: Callable[[str], PortProbe]) -> None:
    listening = probe("127.0.0.1")
    greetings = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", listening.listener.port or 0), 5) as conn:
            greetings.append(conn.makefile("rb").read())
    assert all(greeting.startswith(b"ipexctl ") for greeting in greetings)
    assert len(set(greetings)) == 2
    assert not [greeting for greeting in greetings if listening.token.encode() in greeting]


@pytest.mark.parametrize(
    "lie", [b"", b"SSH-2.0-x\r\n", b"ipexctl TOKEN\n", b"ipexctl a b\n", b"ipexctl " + b"x" * 9000]
)
def test_listener_without_the_token_is_wrong(probe: Callable[[str], PortProbe], lie: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as liar:

        def answer() -> None:
            with liar.accept()[0] as conn:
                conn.sendall(lie)

        thread = threading.Thread(target=answer)
        thread.start()
        assert probe("127.0.0.1").connect([("127.0.0.1", "x", PortListener(liar.getsockname()[1]))], 2) == ["wrong"]
        thread.join()


def test_packets_behind_a_greeting_that_do_not_arrive_are_told(probe: Callable[[str], PortProbe]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lossy:

        def answer() -> None:
            with lossy.accept()[0] as conn:
                conn.sendall(ports._greeting("x", "0" * 32) + b"\0" * 400)
                conn.recv(1)  # until the other end gives up

        thread = threading.Thread(target=answer)
        thread.start()
        targets = [("127.0.0.1", "x", PortListener(lossy.getsockname()[1]))]
        assert probe("127.0.0.1").connect(targets, 0.5) == ["large-lost"]
        thread.join()


def test_a_listener_that_sends_nothing_is_mute(probe: Callable[[str], PortProbe]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert probe("127.0.0.1").connect([("127.0.0.1", "x", PortListener(mute.getsockname()[1]))], 0.5) == ["mute"]


def test_listener_fails_on_an_address_of_another_machine(probe: Callable[[str], PortProbe]) -> None:
    listener = probe("192.0.2.1").listener
    assert listener.port is None
    assert "assign" in listener.reason


def test_host_without_python_is_reported() -> None:
    command = script_command("network.ports", label="ports")
    done = subprocess.run(
        ["/bin/sh", "-c", command.script.replace("/usr/bin/python3", "")],
        env={"PATH": ""},
        capture_output=True,
        text=True,
    )
    assert parse_listener(Reply(json.loads(done.stdout))) == PortListener(None, NO_PYTHON)
    assert "doctor" not in json.loads(done.stdout)["fix"]  # it would need the hosts of the call


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
