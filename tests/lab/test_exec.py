"""`ipexctl exec` on real hosts, called as a user calls it."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from agent_helpers import wait_until
from cli_helpers import IPEXCTL, begin, ipexctl, processes_with
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_record import Lab, LabHost

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("transport")]


@pytest.mark.core
def test_lines_have_a_host_prefix_and_streams_are_separate(lab3: Lab) -> None:
    ran = ipexctl("exec", "-H", lab3.hostfile, "--", "sh", "-c", "hostname; echo oops >&2")
    assert ran.lines == ["node1: node1", "node2: node2", "node3: node3"]
    assert sorted(ran.err.splitlines()) == ["node1: oops", "node2: oops", "node3: oops"]
    assert ran.rc == 0


@pytest.mark.core
def test_arguments_are_passed_literally(lab3: Lab) -> None:
    words = ["it's", "$HOME", "`id`", "a\\b", "wow!", "two  spaces", "*", "", "ünï", "-n", "line\nbreak"]
    ran = ipexctl("exec", "-H", lab3.hostfile, "-l", "node2", "--", "printf", "[%s]", *words)
    assert ran.out == "node2: " + "".join(f"[{w}]" for w in words).replace("\n", "\nnode2: ") + "\n"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("sshd-dead", ".*port 22"),
        ("link-down", ".*port 22"),
        ("changed-host-key", ".*CHANGED"),
    ],
)
def test_unreachable_host_does_not_delay_other_hosts(lab3: Lab, node: LabHost, fault: str, reason: str) -> None:
    break_host(node, fault)
    ran = ipexctl("exec", "-H", lab3.hostfile, "--connect-timeout", "2", "--", "hostname")
    assert ran.lines == ["node2: node2", "node3: node3"]
    assert re.match(f"node1: unreachable: {reason}", ran.err), ran.err
    assert "\n  " in ran.err  # and what to do about it
    assert ran.rc == 3
    assert ran.seconds < 2 + 3
    mend_host(node)
    assert ipexctl("exec", "-H", lab3.hostfile, "--", "true").rc == 0


@pytest.mark.parametrize("fault", ["noisy-rc", "csh-shell", "fish-shell", "slow-rc"])
def test_output_of_login_shells_is_not_shown(lab3: Lab, node: LabHost, fault: str) -> None:
    break_host(node, fault, ("1",) if fault == "slow-rc" else ())
    ran = ipexctl(
        "exec", "-H", lab3.hostfile, "-l", "node1", "--", "sh", "-c", "echo it\\'s mine; echo 'and !' >&2; exit 4"
    )
    assert ran.out == "node1: it's mine\n"
    assert ran.err == "node1: and !\nnode1: failed: exit code 4\n"


@pytest.mark.core
def test_unreachable_hosts_have_reason_and_fix(lab3: Lab, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(
        lab3.hostfile.read_text()
        + "no-such-name.invalid\n"
        + f"stranger address={lab3.hosts[1].address} known_hosts={tmp_path}/none identity={lab3.key}\n"
        + f"nokey address={lab3.hosts[2].address} known_hosts={lab3.known_hosts} identity={tmp_path}/none user=ipex\n"
    )
    ran = ipexctl(
        "exec", "-H", tmp_path / "hosts", "--connect-timeout", "3", "--", "hostname", env={"SSH_AUTH_SOCK": ""}
    )
    assert ran.lines == ["node1: node1", "node2: node2", "node3: node3"]
    assert re.search(r"no-such-name\.invalid: unreachable: .*no-such-name\.invalid", ran.err)
    assert re.search(r"stranger: unreachable: .*SHA256:\S+.*\n.*ssh-keyscan", ran.err)
    assert re.search(r"nokey: unreachable: .*ipex.*\n.*ssh-copy-id ipex@", ran.err)
    assert ran.rc == 3


@pytest.mark.core
def test_timeout_ends_the_command_on_the_hosts(lab3: Lab) -> None:
    ran = ipexctl("exec", "-H", lab3.hostfile, "--timeout", "1", "--shell", "sleep 7701 & sleep 7702")
    assert re.match(r"node\[1-3\]: failed: .*\b1 s\b.*\n", ran.err)
    assert ran.rc == 1
    assert processes_with(lab3, "sleep 770") == []


@pytest.mark.parametrize(("number", "rc"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.core
def test_signals_end_the_command_on_all_hosts(lab3: Lab, number: signal.Signals, rc: int) -> None:
    line = "trap '' TERM HUP; echo ready; set -m; (sleep 7711 &) ; sleep 7712 & sleep 7713"
    process = begin("exec", "-H", lab3.hostfile, "--shell", line)
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(3)) == [f"node{i}: ready\n" for i in (1, 2, 3)]
    wait_until(lambda: len(processes_with(lab3, "sleep 771")) >= 9)  # "ready" comes before them
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == rc
    assert "node[1-3]: failed: stopped" in err
    assert processes_with(lab3, "sleep 771") == []


@pytest.mark.parametrize("is_local", [False, True])
def test_output_received_during_suspend_counts_before_the_timeout(lab3: Lab, is_local: bool) -> None:
    where = ("--hosts", "localhost") if is_local else ("-H", lab3.hostfile, "-l", "node1")
    process = begin("exec", *where, "--timeout", "2", "--shell", "echo ready; sleep 1; echo finished")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(": ready\n")
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert out.endswith(": finished\n")


def test_ctrl_c_during_a_slow_login_shell_leaves_no_process(lab3: Lab, node: LabHost) -> None:
    break_host(node, "slow-rc", ("2",))
    process = begin("exec", "-H", lab3.hostfile, "-l", "node1", "--", "sleep", "7721")
    time.sleep(1.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    time.sleep(2.5)
    assert processes_with(lab3, "sleep 7721") == []


def test_ctrl_c_does_not_wait_for_a_silent_host(lab3: Lab, node: LabHost) -> None:
    break_host(node, "sshd-hang")
    process = begin("exec", "-H", lab3.hostfile, "--connect-timeout", "30", "--", "true")
    time.sleep(1.5)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 3
    assert process.returncode == 130
    assert re.search(r"^node(1|\[1-[23]\]): failed: ", err, re.M)  # on a busy machine the others are not done yet


def test_closed_stdout_ends_the_call_and_the_commands_on_hosts(lab3: Lab) -> None:
    process = begin("exec", "-H", lab3.hostfile, "--", "yes", "marker-7731")
    assert process.stdout is not None
    assert process.stdout.readline().endswith("marker-7731\n")
    process.stdout.close()
    assert process.wait(20) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    wait_until(lambda: not processes_with(lab3, "marker-7731"), 5)


def test_stdin_pipe_is_sent_completely_to_every_host(lab3: Lab) -> None:
    done = subprocess.run(
        [*IPEXCTL, "exec", "-H", str(lab3.hostfile), "--gather", "--stdin", "/dev/stdin", "--", "wc", "-l"],
        input="line\n" * 200_000, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "node[1-3] (3 hosts):\n200000\n"


@pytest.mark.parametrize("transport", ["auto"], indirect=True)
def test_verbose_shows_steps_and_quiet_shows_none(lab3: Lab) -> None:
    ran = ipexctl("exec", "-H", lab3.hostfile, "-l", "node1", "-vv", "--", "true")
    assert re.fullmatch(r"node1: connected \([0-9.]+ s\)\nnode1: true \([0-9.]+ s\)\n  exec true\n", ran.err)
    assert ipexctl("exec", "-H", lab3.hostfile, "-q", "--", "true").err == ""
