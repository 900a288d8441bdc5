"""What the doctor makes of logins and ports: which pairs, which story, which words; and the scripts, run here."""

from __future__ import annotations

import ast
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeSession
from ipexctl.doctor import ports
from ipexctl.doctor.logins import log_in, login_findings, read_login, unseen, why_not, without_answer
from ipexctl.doctor.network_check import check_network
from ipexctl.doctor.ports import (
    Diagnosis,
    PortListener,
    Result,
    diagnose,
    orders,
    pairs_to_try,
    read_ready,
    read_result,
)
from ipexctl.doctor.scripts import Concurrent, script, text_of
from ipexctl.facts.facts import Facts
from ipexctl.facts.network import Address, Network, Nic
from ipexctl.facts.system import Security
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import HostError, TimedOut, Unreachable
from ipexctl.remote.session_pool import SessionPool
from ipexctl.trust.login_errors import LoginAttempt, LoginDiagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.doctor.ports import Pair
    from ipexctl.trust.host_state import HostState

OK, REFUSED, SILENT = Result("ok"), Result("refused"), Result("timeout")


def outcome(names: Sequence[str], blocked: Callable[[str, str], bool]) -> dict[Pair, Result]:
    return {(a, b): SILENT if blocked(a, b) else OK for a, b in pairs_to_try(names)}


# ── which pairs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_up_to_sixteen_everybody_tries_everybody() -> None:
    names = [f"node{n}" for n in range(16)]
    assert len(pairs_to_try(names)) == len(set(pairs_to_try(names))) == 16 * 15


@given(st.integers(17, 300))
def test_above_sixteen_a_ring_and_a_star_in_both_directions(count: int) -> None:
    names = [f"node{n}" for n in range(count)]
    pairs = pairs_to_try(names)
    assert len(pairs) == len(set(pairs)) == 2 * (count - 1 + count - 2)
    assert {(names[0], name) for name in names[1:]} <= set(pairs)
    assert {(name, names[0]) for name in names[1:]} <= set(pairs)
    assert all((a, b) in pairs and (b, a) in pairs for a, b in pairwise(names))


@pytest.mark.parametrize("names", [[], ["node1"]])
def test_one_host_has_nobody_to_try(names: list[str]) -> None:
    assert pairs_to_try(names) == ()


# ── what scripts say ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_station_that_listens_and_one_that_cant() -> None:
    assert read_ready("ready 43211 0 1 python3") == PortListener(43211, False, True, "python3")
    assert read_ready("ready 23571 1 1 openbsd") == PortListener(23571, True, True, "openbsd")
    told = read_ready("ready - 1 0 sh REASON, in words")
    assert told == PortListener(None, True, False, "sh", "REASON, in words")


def test_results() -> None:
    assert read_result("result 3 ok") == (3, OK)
    assert read_result("result 0 noroute No route to host") == (0, Result("noroute", "No route to host"))
    assert read_result("result 0 splendid") is None


@given(st.text())
def test_no_line_is_too_strange_to_be_passed_over(line: str) -> None:
    for text in (line, f"ready {line}", f"result {line}", f"result 1 ok {line}", f"1 255 {line}"):
        station, result, login = read_ready(text), read_result(text), read_login(text, 3)
        assert station is None or station.port is None or 0 <= station.port <= 99999
        assert result is None or result[0] >= 0
        assert login is None or login[0] < 3


@given(st.integers(0, 2), st.integers(0, 255), st.text())
def test_a_login_comes_back_as_it_was_said(number: int, code: int, said: str) -> None:
    told = said.encode("utf-8", "replace")
    assert read_login(f"{number} {code} {told.hex()}", 3) == (number, LoginAttempt(code, told.decode(errors="replace")))


def test_orders_name_each_target_then_the_time() -> None:
    text = orders([("10.0.0.2", "ab", PortListener(4000)), ("fd00::3", "cd", PortListener(4001, gaps=True))], 3)
    assert text == "to 0 10.0.0.2 4000 ab 0\nto 1 fd00::3 4001 cd 1\ngo 3.0\n"


# ── which story ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_well_is_no_story() -> None:
    assert diagnose(outcome("abcd", lambda a, b: False)) == Diagnosis()


def test_whom_nobody_reaches_has_a_firewall() -> None:
    assert diagnose(outcome("abcd", lambda a, b: b == "c")) == Diagnosis(closed_in=("c",))


def test_who_reaches_nobody_cant_get_out() -> None:
    assert diagnose(outcome("abcd", lambda a, b: a == "c")) == Diagnosis(closed_out=("c",))


def test_both_at_once() -> None:
    assert diagnose(outcome("abcd", lambda a, b: "c" in (a, b))) == Diagnosis(("c",), ("c",))


def test_of_two_hosts_the_one_that_isnt_reached_is_to_blame() -> None:
    assert diagnose(outcome("ab", lambda a, b: b == "b")) == Diagnosis(closed_in=("b",))


def test_two_that_cant_get_out_dont_make_the_third_a_culprit() -> None:
    assert diagnose(outcome("abc", lambda a, b: a in "ab")) == Diagnosis(closed_out=("a", "b"))


def test_two_racks_with_a_wall_between_are_ways_not_hosts() -> None:
    found = diagnose(outcome("abcd", lambda a, b: (a in "ab") != (b in "ab")))
    assert not found.closed_in
    assert not found.closed_out
    assert len(found.ways) == 8


def test_everything_closed_is_everybodys_firewall() -> None:
    assert diagnose(outcome("abc", lambda a, b: True)) == Diagnosis(closed_in=("a", "b", "c"))


@given(st.dictionaries(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), st.sampled_from([OK, SILENT])))
def test_a_story_explains_every_blocked_way_and_blames_no_open_one(results: dict[Pair, Result]) -> None:
    found = diagnose(results)
    for (a, b), result in results.items():
        explained = b in found.closed_in or a in found.closed_out or (a, b) in found.ways
        assert explained == result.blocked or (not result.blocked and not explained)


# ── which words ──────────────────────────────────────────────────────────────────────────────────────────────────────


def facts_with(address: str, prefix: int, *firewall: str, ports: tuple[int, int] | None = None) -> Facts:
    nic = Nic("eth0", addresses=(Address(address, prefix),))
    return Facts(network=Network(nics=(nic,), port_range=ports), security=Security(firewall=firewall))


INTERNAL = {"a": "10.1.0.1", "b": "10.1.0.2", "c": "10.1.0.3"}


def test_a_firewall_is_told_in_its_own_words() -> None:
    results = outcome("abc", lambda a, b: b == "b")
    for kind, words in {
        "ufw": "sudo ufw allow proto tcp from 10.1.0.0/24 to any port 32768:60999",
        "firewalld": "rule family=ipv4 source address=10.1.0.0/24 port port=32768-60999 protocol=tcp accept",
        "iptables": "sudo iptables -I INPUT -p tcp -s 10.1.0.0/24 --dport 32768:60999 -j ACCEPT",
    }.items():
        facts = {"b": facts_with("10.1.0.2", 24, kind)}
        (found,) = ports.findings(results, {}, (), INTERNAL, facts)
        assert (found.id, found.level, found.hosts) == ("network.port_closed", "fail", ("b",))
        assert words in found.fix
        assert "I_MPI_PORT_RANGE" in found.fix


def test_ipv6_and_a_kernel_with_other_ports() -> None:
    fix = ports.open_ports(["a"], {"a": "fd00::1"}, {"a": facts_with("fd00::1", 64, ports=(10000, 20000))})
    assert "sudo ip6tables -I INPUT -p tcp -s fd00::/64 --dport 10000:20000 -j ACCEPT" in fix


def test_a_host_that_ssh_doesnt_reach_either_is_on_another_network() -> None:
    (found,) = ports.findings(outcome("abc", lambda a, b: b == "b"), {}, {"b"}, INTERNAL, {})
    assert (found.id, found.hosts) == ("network.unreachable", ("b",))
    assert "10.1.0.2" in found.message
    assert "--iface" in found.fix


def test_somebody_else_at_the_address() -> None:
    results = outcome("abc", lambda a, b: False) | {("a", "b"): Result("wrong", "'SSH-2.0'")}
    (found,) = ports.findings(results, {}, (), INTERNAL, {})
    assert (found.id, found.level, found.hosts) == ("network.wrong_host", "fail", ("b",))


def test_what_wasnt_tested_is_said_and_is_no_failure() -> None:
    (found,) = ports.findings({}, {"a": "REASON", "c": "REASON"}, (), INTERNAL, {})
    assert "REASON" in found.message
    assert (found.id, found.level, found.hosts) == ("network.port_untested", "info", ("a", "c"))
    (mute,) = ports.findings({("a", "b"): Result("mute")}, {}, (), INTERNAL, {})
    assert (mute.level, mute.hosts) == ("info", ("b",))
    (unable,) = ports.findings({("a", "b"): Result("error", "Too many open files")}, {}, (), INTERNAL, {})
    assert (unable.level, unable.hosts) == ("info", ("a",))


def test_logins_make_one_finding_whatever_the_reasons() -> None:
    assert login_findings({}) == ()
    (one,) = login_findings(
        {"a": LoginDiagnosis("no key", "ipexctl trust"), "b": LoginDiagnosis("no key", "ipexctl trust")}
    )
    assert (one.id, one.level, one.hosts, one.fix) == ("network.login", "fail", ("a", "b"), "ipexctl trust")
    (two,) = login_findings(
        {f"n{i}": LoginDiagnosis("no key" if i % 2 else "no route", f"fix {i % 2}") for i in range(4)}
    )
    assert re.findall(r"n\[[0-9,]+\]|no route|no key", two.message) == ["n[0,2]", "no route", "n[1,3]", "no key"]
    assert two.fix == "fix 0; fix 1"


def a_host(**changes: object) -> HostState:
    return replace(unseen(Host("x", "x")), **changes)  # type: ignore[arg-type]


def fix(login: LoginAttempt, node0: HostState | None, there: HostState | None = None) -> str:
    why = why_not("b", login, node0, there, "10.1.0.2")
    return "" if why is None else why.fix


def test_before_trust_has_been_there_it_is_what_is_missing() -> None:
    for said in ("Host key verification failed.", "x@b: Permission denied (publickey)."):
        assert "ipexctl trust" in fix(LoginAttempt(255, said), a_host())
    assert fix(LoginAttempt(255, "ssh: connect to host b port 22: Connection refused"), a_host()) == ""


def test_after_trust_the_difference_is_told() -> None:
    config = "Host b\n  HostName b\n\nHost *\n  BatchMode yes\n"
    node0 = a_host(config=config, key="ssh-ed25519 AAAAkey")
    denied = LoginAttempt(255, "Permission denied (publickey).")
    assert "ipexctl trust" in fix(denied, node0, a_host(keys=b"ssh-rsa other\n"))
    assert fix(denied, node0, a_host(keys=b"ssh-ed25519 AAAAkey ipexctl\n")) == ""
    assert "ipexctl trust" in fix(denied, a_host(config=config.replace("Host b\n", "Host c\n")))


def test_silence_of_the_network_is_told_from_a_slow_login() -> None:
    assert without_answer(LoginAttempt(255, "ssh: connect to host 10.1.0.2 port 22: Connection timed out"))
    assert without_answer(LoginAttempt(255, "ssh: connect to host b port 22: No route to host"))
    assert not without_answer(LoginAttempt(255, "ssh: connect to host b port 22: Connection refused"))
    assert not without_answer(LoginAttempt(124, ""))
    assert "sshd" in fix(LoginAttempt(124, ""), None)


# ── within its time ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_is_late_is_left_to_itself() -> None:
    began = time.monotonic()

    def slow() -> int:
        time.sleep(5)
        return 2

    together = Concurrent({"quick": lambda: 1, "slow": slow})
    found = together.results(began + 0.3)
    assert found["quick"] == 1
    assert isinstance(found["slow"], TimedOut)
    assert time.monotonic() - began < 1


def test_a_hosts_error_is_a_value_and_ours_is_raised() -> None:
    def lost() -> int:
        raise Unreachable("gone")

    def bug() -> int:
        raise KeyError("ours")

    found = Concurrent({"a": lost}).results(time.monotonic() + 5)
    assert isinstance(found["a"], HostError)
    with pytest.raises(KeyError):
        Concurrent({"a": bug}).results(time.monotonic() + 5)


def test_one_host_alone_is_not_looked_at() -> None:
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=1) as pool:
        report = check_network(pool, [Host("a", "a")], {"a": "10.1.0.1"}, facts={}, home="~")
    assert report.findings == ()


def test_logins_cut_short_are_those_heard_of() -> None:
    session = FakeSession(Host("a", "a"), stdout=b"noise\n1 0 6f6b\n2 255 ")
    found = log_in(session, {"b": "b", "c": "c", "d": "d"}, None, seconds=5, cancel=Cancel())
    assert found == {"b": LoginAttempt(124, ""), "c": LoginAttempt(0, "ok"), "d": LoginAttempt(255, "")}


# ── the scripts ──────────────────────────────────────────────────────────────────────────────────────────────────────

SHIPPED = sorted((Path(ports.__file__).parent / "scripts").glob("*.py"))
SH_NEEDS = ("awk", "cat", "cut", "grep", "sleep", "sh", "timeout", "tr")


@pytest.mark.parametrize("file", [file for file in SHIPPED if file.name != "__init__.py"], ids=lambda file: file.name)
def test_python_for_hosts_is_that_of_3_8_and_imports_nothing_of_ours(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in modules if name.startswith("ipexctl")]


class Host_:  # noqa: N801
    """A machine with these programs and no others: the script, started as a host would."""

    def __init__(self, address: str, tools: Sequence[str], directory: Path) -> None:
        directory.mkdir()
        for tool in tools:
            found = shutil.which(tool, path="/usr/bin:/bin")
            if found is None:
                pytest.skip(f"no {tool} on this machine")
            (directory / tool).symlink_to(os.path.realpath(found) if tool == "python3" else found)
        self.address, self.token = address, secrets.token_hex(8)
        command = script(
            "ports.sh", text_of("ports.py"), text_of("ports.pl"), address, self.token, "20", label="a test"
        )
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command.script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={"PATH": str(directory)},
            start_new_session=True,
        )
        station = read_ready(self._line())
        assert station is not None
        self.station = station

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tries(self, targets: Sequence[tuple[str, str, PortListener]], seconds: float = 2) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(orders(targets, seconds))
        found: dict[int, str] = {}
        for _ in targets:
            number, result = read_result(self._line()) or (-1, OK)
            found[number] = result.kind
        return [found[number] for number in range(len(targets))]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=5) == 0


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str, Sequence[str]], Host_]]:
    made: list[Host_] = []

    def with_tools(address: str, tools: Sequence[str]) -> Host_:
        made.append(Host_(address, tools, tmp_path / str(len(made))))
        return made[-1]

    yield with_tools
    for host in made:
        host.end()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_python_and_perl_speak_alike(make: Callable[[str, Sequence[str]], Host_], address: str) -> None:
    if address == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 here")
    hosts = [make(address, ["python3"]), make(address, ["perl"])]
    assert [host.station.tool for host in hosts] == ["python3", "perl"]
    free = PortListener(_free_port())
    targets = [(address, host.token, host.station) for host in hosts]
    targets += [(address, "another", hosts[0].station), (address, "x", free), (address, "x", replace(free, gaps=True))]
    for host in hosts:
        assert host.tries(targets, 1) == ["ok", "ok", "wrong", "refused", "refused"]


def test_a_shell_alone_can_connect_and_says_why_it_doesnt_listen(
    make: Callable[[str, Sequence[str]], Host_],
) -> None:
    other, poor = make("127.0.0.1", ["python3"]), make("127.0.0.1", [*SH_NEEDS, "bash"])
    assert poor.station.port is None
    assert poor.station.connects
    assert {"python3", "perl"} <= set(re.findall(r"\w+", poor.station.why))
    targets = [("127.0.0.1", other.token, other.station), ("127.0.0.1", "another", other.station)]
    assert poor.tries([*targets, ("127.0.0.1", "x", PortListener(_free_port()))]) == ["ok", "wrong", "refused"]


def test_with_nothing_at_all_it_neither_listens_nor_connects(make: Callable[[str, Sequence[str]], Host_]) -> None:
    poor = make("127.0.0.1", SH_NEEDS)
    assert (poor.station.port, poor.station.connects) == (None, False)


def test_whom_nobody_answers_is_a_timeout_and_who_says_nothing_is_mute(
    make: Callable[[str, Sequence[str]], Host_],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = PortListener(mute.getsockname()[1])
        for tool in ("python3", "perl"):
            assert make("127.0.0.1", [tool]).tries([("127.0.0.1", "x", port)], 0.5) == ["mute"]


def test_an_address_that_isnt_the_hosts_own_is_why_it_doesnt_listen(
    make: Callable[[str, Sequence[str]], Host_],
) -> None:
    for tool in ("python3", "perl"):
        station = make("192.0.2.1", [tool]).station
        assert station.port is None
        assert "assign" in station.why


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
