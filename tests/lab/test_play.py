"""`ipexctl play` on real SSH hosts: the order of tasks, who leaves a play, and what is said of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import pytest

from cli_helpers import IPEXCTL, processes_with
from ipexctl.lab import LabHost, break_host
from lab_helpers import ask
from lab_play_helpers import Site, counts, statuses
from message_data import missing

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.core
def test_a_failure_takes_that_host_out_and_no_other(site: Site) -> None:
    report = site.report(
        """\
- name: one fails
  exec: test {{ inventory_hostname }} != node2
- name: the others go on
  exec: true
""",
        rc=1,
    )
    assert statuses(report, "the others go on") == {"node1": "changed", "node3": "changed"}
    assert counts(report, "node2") == (0, 0, 1, 0, 0)
    retry = site.directory / "state" / "ipexctl" / "retry" / "site.retry"
    assert retry.read_text() == "node2\n"
    assert report["retry_file"] == str(retry)
    again = site.report("- name: once more\n  exec: true", "-l", f"@{retry}")
    assert statuses(again, "once more") == {"node2": "changed"}
    assert not retry.exists()


def test_a_host_that_cant_be_reached_is_said_once_and_wins_over_failures(site: Site, node: LabHost) -> None:
    break_host(node, "sshd-dead")
    report = site.report("- exec: test {{ inventory_hostname }} != node2\n- exec: true", "--connect-timeout", "3", rc=3)
    assert counts(report, "node1") == (0, 0, 0, 1, 0)
    assert counts(report, "node2") == (0, 0, 1, 0, 0)
    assert counts(report, "node3") == (2, 2, 0, 0, 0)


def test_facts_are_there_where_something_uses_them(site: Site) -> None:
    told = site.report(
        '- debug: {msg: "{{ hostvars[node0].facts.system.kernel_name }} {{ ansible_hostname }} '
        "{{ ansible_facts['user_id'] }}\"}"
    )
    assert told["tasks"][0]["name"] == "gather facts"
    assert told["tasks"][1]["hosts"]["node3"]["result"]["msg"] == f"Linux node3 {site.lab.hosts[0].user}"
    assert site.report("- exec: true")["tasks"][0]["module"] == "exec"
    refused = site.report("- debug: {msg: '{{ facts.cpu.tier }}'}", head="  gather_facts: false\n", rc=1)
    assert "gather_facts: false" in refused["tasks"][0]["hosts"]["node1"]["fix"]


def test_ctrl_c_ends_what_runs_on_the_hosts(site: Site) -> None:
    (site.directory / "site.yml").write_text("- hosts: all\n  tasks:\n    - exec: sleep 313\n    - exec: true\n")
    argv = [*IPEXCTL, "play", "site.yml", "-H", str(site.lab.hostfile)]
    process = subprocess.Popen(
        argv,
        cwd=site.directory,
        env={**os.environ, **site.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until = time.monotonic() + 30
    while len(processes_with(site.lab, "sleep 313")) < 3:
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert b"node1 :" in out
    assert b"Traceback" not in err
    while processes_with(site.lab, "sleep 313"):
        assert time.monotonic() < until + 20
        time.sleep(0.1)


@pytest.mark.core
def test_what_is_wrong_is_said_before_any_host_is_touched(site: Site) -> None:
    ran = site.play("- exec: touch PLACE.touched\n- copy: {contnt: x, dest: /x}", rc=2)
    assert missing(ran.err, "site.yml:4:14 copy contnt content") == []
    assert ran.out == ""
    assert site.on(0, "ls PLACE.touched 2>/dev/null | wc -l").strip() == "0"
    undefined = site.play("- name: x\n  debug: {msg: '{{ thr }}'}", "-e", "the=1", rc=1)
    assert "site.yml:4:24: 'thr' is undefined" in undefined.err
    assert "did you mean 'the'?" in undefined.err


def test_extra_variables_win_and_files_of_them_are_read(site: Site) -> None:
    (site.directory / "more.yml").write_text("b: from file\nc: '{{ a }}!'\n")
    tasks = "- debug: {msg: '{{ a }}/{{ b }}/{{ c }}'}"
    report = site.report(tasks, "-e", "a=call", "-e", "@more.yml", head="  vars: {a: play, b: play}\n")
    assert report["tasks"][0]["hosts"]["node1"]["result"]["msg"] == "call/from file/call!"


def test_one_connection_serves_all_tasks(site: Site) -> None:
    log = "cat /var/log/sshd.log /var/log/auth.log 2>/dev/null | grep -c Accepted || true"
    before = ask(site.lab.hosts[2], log, as_root=True).out.strip() or "0"
    report = site.report("\n".join(["- exec: echo $PPID", *["- exec: echo $PPID"] * 4]))
    assert counts(report, "node3")[0] == 5
    after = ask(site.lab.hosts[2], log, as_root=True).out.strip() or "0"
    if before != "0":
        assert int(after) - int(before) <= 3  # ours, and the two that looked


def test_serial_takes_some_hosts_after_the_other_and_ends_where_all_of_them_failed(site: Site) -> None:
    tasks = """\
- name: turn
  exec: test {{ inventory_hostname }} != node2
  notify: told
- meta: flush_handlers
- name: after
  debug: {msg: "{{ ansible_play_batch | join }}"}
"""
    head = "  serial: 1\n  handlers: [{name: told, debug: {msg: told}}]\n"
    ran = site.play(tasks, head=head, rc=1)
    assert "PLAY [all]: node1 (1 of 3, serial)" in ran.out
    assert ran.out.index("told") < ran.out.index("TASK [after]")
    assert "node3 : ok=0 changed=0 failed=0" in ran.out


def test_nothing_runs_on_this_machine_unless_the_call_says_so(site: Site) -> None:
    mark = site.directory / "ran-here"
    tasks = f"- name: here\n  command: touch {mark}\n  delegate_to: localhost\n  run_once: true\n"
    refused = site.play(tasks, rc=2)
    assert missing(refused.err, "delegate_to localhost") == []
    assert "--local" in refused.err
    hidden = site.play(tasks.replace("localhost", "\"{{ 'local' ~ 'host' }}\""), rc=1)
    assert "--local" in hidden.err
    assert not mark.exists()
    site.play(tasks, "--local")
    assert mark.exists()
    named = site.report("- name: n\n  command: hostname\n  delegate_to: localhost", "--local")
    assert named["tasks"][0]["hosts"]["node2"]["result"]["stdout"] == socket.gethostname()
