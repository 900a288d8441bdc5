"""Every fault: seen from outside while it is in force, and gone once it is mended."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from cli_helpers import CommandResult
from ipexctl.addons.lab.faults import FAULTS, break_host, find_host, mend_host, ssh_argv
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.errors import UserError
from lab_helpers import ask, listens

pytestmark = pytest.mark.lab


def _silent(said: CommandResult) -> bool:
    return said.rc is None


def _says(*parts: str) -> Callable[[CommandResult], bool]:
    return lambda said: said.rc not in (0, None) and all(part in said.out + said.err for part in parts)


def _fine(said: CommandResult) -> bool:
    return said.rc == 0 and said.err == ""


# fault, arguments, command, expected result with the fault, and expected result without it
CASES: list[tuple[str, tuple[str, ...], str, Callable[[CommandResult], bool], Callable[[CommandResult], bool]]] = [
    ("link-down", (), "true", _silent, _fine),
    ("packet-loss", ("100",), "true", _silent, _fine),
    ("sshd-hang", (), "true", _silent, _fine),
    ("sshd-dead", (), "true", _says("Connection refused"), _fine),
    ("changed-host-key", (), "true", _says("Host key verification failed"), _fine),
    ("full-disk", (), "head -c 65536 /dev/zero >~/new.$$", _says("No space left on device"), _fine),
    ("read-only-home", (), "touch ~/new", _says("Read-only file system"), _fine),
    ("noisy-rc", (), "echo x", lambda s: s.out.endswith("!\nx\n") and s.err != "", lambda s: s.out + s.err == "x\n"),
    ("slow-rc", ("2",), "true", lambda s: s.rc == 0 and s.seconds >= 2, lambda s: s.rc == 0 and s.seconds < 2),
    ("csh-shell", (), "echo $shell", lambda s: s.out.endswith("/tcsh\n"), lambda s: s.out == "\n"),
    ("fish-shell", (), "status fish-path", lambda s: s.out.endswith("/fish\n"), _says("command not found")),
    ("no-python", (), "command -v python3 python", lambda s: s.out == "", lambda s: "python3" in s.out),
    ("no-names", (), "getent hosts node2 node1", lambda s: "node2" not in s.out, lambda s: "node2" in s.out),
    (
        "slow-link",
        ("8mbit", "eth0"),
        "head -c 1000000 /dev/urandom | base64",
        lambda s: s.rc == 0 and s.seconds > 1.4,
        lambda s: s.rc == 0 and s.seconds < 1.4,
    ),
]  # fmt: skip
TESTED_SEPARATELY = {"firewall", "clock-skew"}


def test_every_fault_has_a_test() -> None:
    assert {case[0] for case in CASES} | TESTED_SEPARATELY == {fault.name for fault in FAULTS}


@pytest.mark.parametrize(("fault", "args", "question", "broken", "whole"), CASES, ids=[case[0] for case in CASES])
def test_fault_has_an_effect_until_it_is_mended(
    node: LabHost,
    fault: str,
    args: tuple[str, ...],
    question: str,
    broken: Callable[[CommandResult], bool],
    whole: Callable[[CommandResult], bool],
) -> None:
    said = ask(node, question)
    assert whole(said), f"before: {said}"

    after_break = break_host(node, fault, args)
    said = ask(node, question, timeout=3)
    assert broken(said), f"while broken: {said}"
    assert fault in after_break.faults
    assert find_host("node1", node.lab).faults == after_break.faults

    assert mend_host(node, fault).faults == {}
    said = ask(node, question)
    assert whole(said), f"after mending: {said}"


def test_firewall_allows_only_ssh(lab3: Lab, node: LabHost) -> None:
    listener = "import socket,time; s = socket.create_server(('', 7777)); time.sleep(30)"
    ask(node, f'nohup python3 -c "{listener}" >/dev/null 2>&1 & sleep 0.5')
    probe = f"timeout 3 bash -c 'exec 3<>/dev/tcp/{node.address}/7777'"
    assert ask(lab3.hosts[1], probe).rc == 0

    break_host(node, "firewall")
    assert ask(lab3.hosts[1], probe).rc != 0
    assert listens(lab3.hosts[1], node.address)
    assert ask(node, "true").rc == 0, "established and port 22 stay open"

    mend_host(node, "firewall")
    assert ask(lab3.hosts[1], probe).rc == 0


def test_clock_skew_changes_only_the_current_date(node: LabHost) -> None:
    def gathered() -> int:
        mine, theirs = (int(ask(host, "date +%s").out) for host in (other, node))
        return theirs - mine

    other = find_host("node2", node.lab)
    assert abs(gathered()) <= 2
    break_host(node, "clock-skew", ("-3600",))
    assert -3602 <= gathered() <= -3596
    assert ask(node, "date -u -d @0 +%Y").out == "1970\n"
    assert "." in ask(node, "date +%s.%N").out
    mend_host(node, "clock-skew")
    assert abs(gathered()) <= 2


def test_mending_restores_the_home_exactly(node: LabHost) -> None:
    # One file without a newline at its end, one that does not exist.
    ask(node, "printf 'set x = 1' >~/.cshrc; rm -f ~/.zshenv")
    everything = "cd ~ && find . -printf '%p %m %u %y\\n' | sort; cat .cshrc .bashrc .profile | sha256sum"
    before = ask(node, everything).out
    break_host(node, "noisy-rc")
    break_host(node, "slow-rc", ("0.1",))
    mend_host(node)
    assert ask(node, everything).out == before


def test_several_faults_are_mended_together(node: LabHost) -> None:
    for fault in ("noisy-rc", "full-disk", "read-only-home", "sshd-hang"):
        break_host(node, fault)
    assert list(find_host("node1", node.lab).faults) == ["noisy-rc", "full-disk", "read-only-home", "sshd-hang"]
    assert mend_host(node).faults == {}
    assert ask(node, "echo x >~/written && cat ~/written").out == "x\n"


def test_unknown_interface_is_refused(node: LabHost) -> None:
    with pytest.raises(UserError, match="node1 has no eth1"):
        break_host(node, "link-down", ("eth1",))


def test_open_sessions_survive_a_changed_host_key(node: LabHost) -> None:
    session = subprocess.Popen(
        [*ssh_argv(node), "echo in; read line; echo $line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert session.stdout is not None
    assert session.stdout.readline() == "in\n"
    break_host(node, "changed-host-key")
    out, _ = session.communicate("still here\n", timeout=10)
    assert out == "still here\n"
