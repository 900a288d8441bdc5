"""Commands inside an allocation of a real Slurm whose compute nodes have no sshd: over srun, and nobody is left."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_helpers import wait_until
from cli_helpers import CommandResult
from install_helpers import PYTHON
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.lab_system import in_host
from lab_helpers import ask, listens
from message_data import missing
from slurm_helpers import NEEDS_SLURM
from tiny_wheels import write_stack

LAB = LabSpec(hosts=3, slurm=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(120), NEEDS_SLURM]
SLEEP = "sleep 987654"
PYTHON_HERE = sys.executable


def in_job(lab: Lab, words: str, *, timeout: float = 60) -> CommandResult:
    """A line of ipexctl in an allocation of both nodes."""
    return ask(lab.hosts[0], f"salloc --quiet -N2 sh -c {shlex.quote(words)}", timeout=timeout)


def left(lab: Lab) -> list[str]:
    """Processes of the account on the compute nodes."""
    return [
        line
        for host in lab.hosts[1:]
        for line in in_host(host, "ps -u ipex -o args= || :").splitlines()
        if line.strip()
    ]


def test_compute_nodes_run_jobs_and_have_no_sshd(lab: Lab) -> None:
    said = ask(lab.hosts[0], "srun -N2 -n2 hostname", timeout=30)
    assert sorted(said.out.split()) == ["node2", "node3"], said.err
    assert not listens(lab.hosts[0], "node2")
    assert ask(lab.hosts[0], "cat /etc/munge/munge.key").rc != 0, "only Slurm may prove who calls"


def test_exec_goes_over_srun_and_says_so(lab: Lab) -> None:
    ran = in_job(lab, "ipexctl exec --json -- sh -c 'hostname; nproc; echo err >&2; exit 4'")
    assert ran.rc == 1, ran.err
    hosts = json.loads(ran.out)["hosts"]
    assert [(host["stdout"].split()[0], host["stderr"], host["rc"]) for host in hosts] == [
        ("node2", "err\n", 4),
        ("node3", "err\n", 4),
    ]
    assert missing(ran.err, "srun Slurm --transport ssh") == []
    assert in_job(lab, "ipexctl exec -q --transport ssh -- true").rc == 3
    refused = ask(lab.hosts[0], "ipexctl exec --transport srun --hosts node2 -- true")
    assert (refused.rc, missing(refused.err, "--transport srun salloc")) == (2, [])


def test_doctor_and_sync_work_without_ssh(lab: Lab) -> None:
    ran = in_job(lab, "ipexctl doctor -q --json")
    report = json.loads(ran.out)
    assert [host["name"] for host in report["hosts"] if host["status"] != "unreachable"] == ["node2", "node3"], ran.err
    assert all(host["facts"]["cpu"]["allowed"] for host in report["hosts"])
    ask(lab.hosts[0], "mkdir -p project && cd project && touch pyproject.toml && head -c 20000000 /dev/urandom > data")
    ran = in_job(
        lab,
        "cd project && ipexctl sync -q --allow-big && ipexctl exec -q --gather --shell 'md5sum .ipexctl/code/*/data'",
    )
    assert ran.rc == 0, ran.err + ran.out
    (digest,) = {line.split()[0] for line in ran.out.splitlines() if "data" in line and len(line.split()[0]) == 32}
    assert ask(lab.hosts[0], "md5sum project/data").out.split()[0] == digest


def test_install_works_without_ssh(lab: Lab, tmp_path: Path) -> None:
    write_stack(tmp_path, python=PYTHON)
    packed = subprocess.run(["tar", "-C", tmp_path, "-cf", "-", "."], stdout=subprocess.PIPE, check=True).stdout
    unpack = "mkdir -p wheels && tar -C wheels -xf -"
    subprocess.run(ssh_argv(lab.hosts[0], [unpack]), input=packed, check=True, timeout=30)
    ran = in_job(lab, "ipexctl install -q --offline --wheelhouse wheels --torch 2.8.0 --json", timeout=90)
    assert ran.rc == 0, ran.err + ran.out
    report = json.loads(ran.out)
    assert [(host["name"], host["status"]) for host in report["hosts"]] == [("node2", "changed"), ("node3", "changed")]


RANK_SCRIPT = """\
import os, socket, sys, time
print(socket.gethostname(), os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], flush=True)
if sys.argv[1] == "badly" and os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(float(sys.argv[2]))
"""
RUN = "cd project && ipexctl run --python /usr/bin/python3"


def test_a_run_over_srun_survives_its_call_and_a_failed_rank_is_blamed(lab: Lab) -> None:
    ask(
        lab.hosts[0], f"mkdir -p project && cd project && touch pyproject.toml && echo {shlex.quote(RANK_SCRIPT)} >s.py"
    )
    words = f"{RUN} -q s.py badly 30; echo rc $?; ipexctl run --detach -q"
    words += " --python /usr/bin/python3 -n 3 --oversubscribe s.py well 4; ipexctl attach last; echo rc $?"
    words += "; squeue -h -s"
    ran = in_job(lab, words)
    assert missing(ran.err, "rank 1 node3 exit code 7") == []
    first, _, second = ran.out.partition("rc 7\n")
    # Rank 0 may be ended before it prints its line.
    assert {"[1] node3 1 0 2"} <= set(first.splitlines()) <= {"[0] node2 0 0 2", "[1] node3 1 0 2"}
    lines = second.splitlines()
    assert lines[0].startswith("s-")
    assert sorted(lines[1:4]) == ["[0] node2 0 0 3", "[1] node2 1 1 3", "[2] node3 2 0 3"]
    assert lines[4] == "rc 0"
    assert not any(".ipexctl" in line for line in left(lab))


PLAYBOOK = """\
- hosts: all
  tasks:
    - doctor: {network: false}
    - run: {script: s.py, argv: [well, "0"], python: /usr/bin/python3}
    - run: {script: s.py, argv: [well, "4"], python: /usr/bin/python3, detach: true}
"""


def test_a_playbook_goes_over_srun_and_a_detached_run_outlives_its_play(lab: Lab) -> None:
    ask(lab.hosts[0], f"cd project && echo {shlex.quote(PLAYBOOK)} >site.yml")
    words = "cd project && ipexctl play site.yml && ipexctl ps -n 1 --json && ipexctl wait last"
    ran = in_job(lab, words)
    assert ran.rc == 0, ran.err + ran.out
    recap, _, listed = ran.out.partition('{\n  "schema": "ipexctl.ps/1"')
    assert missing(recap, "node2 ok=3 failed=0 node3") == []
    assert '"state": "running"' in listed, "wait has waited for it"
    assert not any(".ipexctl" in line for line in left(lab))


def test_a_cancelled_job_is_said_to_have_stopped_the_run(lab: Lab) -> None:
    words = f"{RUN} -q s.py well 60 >printed & until grep -q . project/printed; do sleep 0.1; done"
    words += "; scancel $SLURM_JOB_ID; wait $!; echo rc $?; ipexctl why last"
    ran = in_job(lab, words)
    assert "rc 143" in ran.out, ran.err
    assert missing(ran.err, "stopped Slurm scancel") == []
    wait_until(lambda: left(lab) == [], 25, lambda: str(left(lab)))


@pytest.mark.parametrize("how", ["interrupt", "kill", "scancel"])
def test_an_ended_call_leaves_nobody_on_the_nodes(lab: Lab, how: str) -> None:
    words = f"ipexctl exec --shell \"trap '' TERM; {SLEEP}; {SLEEP}\""
    line = f"salloc --quiet -N2 sh -c {shlex.quote(words)}"
    login = subprocess.Popen([*ssh_argv(lab.hosts[0]), line], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_until(lambda: sum(SLEEP in process for process in left(lab)) >= 2, 30, lambda: str(left(lab)))
    (call,) = in_host(lab.hosts[0], "pgrep -u ipex -f '^/opt/ipexctl/bin/python -m ipexctl exec'").split()
    if how == "scancel":
        ask(lab.hosts[0], "scancel -u ipex")
    else:
        in_host(lab.hosts[0], f"kill -{'INT' if how == 'interrupt' else 'KILL'} {call}")
    started = time.monotonic()
    wait_until(lambda: left(lab) == [], 25, lambda: str(left(lab)))
    assert time.monotonic() - started < 20
    code = login.wait(20)
    if how == "interrupt":
        assert code == 128 + signal.SIGINT
    wait_until(lambda: ask(lab.hosts[0], "squeue -h").out == "", 20)


_CAPTURE = """\
import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"begun")
    while True:
        file.write(packets.recv(1 << 16))
"""


def test_who_reads_packets_sees_no_secret_and_no_key(lab: Lab, tmp_path: Path) -> None:
    """All packets of the lab's switch: the nodes' sshd is dead, so all of the run crosses by srun and its port."""
    secrets = ("s3cret-of-the-call-8842", "s3cret-of-a-file-7731")
    script = "import os; print('lengths', len(os.environ['OF_CALL']), len(os.environ['OF_FILE']))"
    ask(lab.hosts[0], f"mkdir -p hidden && cd hidden && touch pyproject.toml && echo {shlex.quote(script)} > t.py")
    ask(lab.hosts[0], f"cd hidden && umask 077 && echo OF_FILE={secrets[1]} > vars.env")
    captured = tmp_path / "packets"
    argv = ["ip", "netns", "exec", lab.switch, PYTHON_HERE, "-c", _CAPTURE, str(captured)]
    capture = subprocess.Popen(argv)
    try:
        wait_until(lambda: captured.exists() and captured.stat().st_size)
        words = "ipexctl run --plain --python /usr/bin/python3 --backend none -x OF_CALL --env-file vars.env t.py"
        ran = in_job(lab, f"cd hidden && OF_CALL={secrets[0]} {words}", timeout=100)
        said = in_job(lab, f"OF_CALL={secrets[0]} ipexctl exec -q -- sh -c 'echo ${{#OF_CALL}}'")
    finally:
        capture.kill()
        capture.wait()
    assert ran.rc == 0, ran.err
    assert sorted(ran.out.splitlines()) == [f"[{rank}] lengths 23 21" for rank in range(2)]
    assert said.out.count("23") == 2, "commands have the environment of the call"
    seen = captured.read_bytes()
    assert b"srun_step" in seen or b"SLURM" in seen, "srun's own streams are among the packets"
    assert [text for text in (*secrets, '"token"', '"fingerprint"') if text.encode() in seen] == []
