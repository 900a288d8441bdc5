"""`ipexctl play` on real SSH hosts: the order of tasks, failed hosts, and messages."""

from __future__ import annotations

import signal
import socket

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.extras.lab.labs import LabHost, break_host
from lab_helpers import ask
from lab_play_helpers import Site, counts, statuses
from message_data import missing

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.core
def test_failed_host_leaves_the_play_and_others_continue(site: Site) -> None:
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


def test_unreachable_host_is_counted_once_and_sets_the_exit_code(site: Site, node: LabHost) -> None:
    break_host(node, "sshd-dead")
    report = site.report("- exec: test {{ inventory_hostname }} != node2\n- exec: true", "--connect-timeout", "3", rc=3)
    assert counts(report, "node1") == (0, 0, 0, 1, 0)
    assert counts(report, "node2") == (0, 0, 1, 0, 0)
    assert counts(report, "node3") == (2, 2, 0, 0, 0)


def test_facts_are_gathered_only_if_used(site: Site) -> None:
    told = site.report(
        '- debug: {msg: "{{ hostvars[node0].facts.system.kernel_name }} {{ ansible_hostname }} '
        "{{ ansible_facts['user_id'] }}\"}"
    )
    assert told["tasks"][0]["name"] == "gather facts"
    assert told["tasks"][1]["hosts"]["node3"]["result"]["msg"] == f"Linux node3 {site.lab.hosts[0].user}"
    assert site.report("- exec: true")["tasks"][0]["module"] == "exec"
    refused = site.report("- debug: {msg: '{{ facts.cpu.tier }}'}", head="  gather_facts: false\n", rc=1)
    assert "gather_facts: false" in refused["tasks"][0]["hosts"]["node1"]["fix"]


def test_ctrl_c_ends_the_task_on_the_hosts(site: Site) -> None:
    (site.directory / "site.yml").write_text("- hosts: all\n  tasks:\n    - exec: sleep 313\n    - exec: true\n")
    process = site.begin()
    wait_until(lambda: len(processes_with(site.lab, "sleep 313")) >= 3, 30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "node1 :" in out
    assert "Traceback" not in err
    wait_until(lambda: not processes_with(site.lab, "sleep 313"))


@pytest.mark.core
def test_playbook_errors_are_reported_before_connecting(site: Site) -> None:
    ran = site.play("- exec: touch PLACE.touched\n- copy: {contnt: x, dest: /x}", rc=2)
    assert missing(ran.err, "site.yml:4:14 copy contnt content") == []
    assert ran.out == ""
    assert site.on(0, "ls PLACE.touched 2>/dev/null | wc -l").strip() == "0"
    undefined = site.play("- name: x\n  debug: {msg: '{{ thr }}'}", "-e", "the=1", rc=1)
    assert "site.yml:4:24: 'thr' is undefined" in undefined.err
    assert "did you mean 'the'?" in undefined.err


def test_extra_variables_override_others_and_can_be_files(site: Site) -> None:
    (site.directory / "more.yml").write_text("b: from file\nc: '{{ a }}!'\n")
    tasks = "- debug: {msg: '{{ a }}/{{ b }}/{{ c }}'}"
    report = site.report(tasks, "-e", "a=call", "-e", "@more.yml", head="  vars: {a: play, b: play}\n")
    assert report["tasks"][0]["hosts"]["node1"]["result"]["msg"] == "call/from file/call!"


def test_all_tasks_use_one_connection(site: Site) -> None:
    log = "cat /var/log/sshd.log /var/log/auth.log 2>/dev/null | grep -c Accepted || true"
    before = ask(site.lab.hosts[2], log, as_root=True).out.strip() or "0"
    report = site.report("\n".join(["- exec: echo $PPID", *["- exec: echo $PPID"] * 4]))
    assert counts(report, "node3")[0] == 5
    after = ask(site.lab.hosts[2], log, as_root=True).out.strip() or "0"
    if before != "0":
        assert int(after) - int(before) <= 3  # ours, and the two that looked


def test_serial_runs_in_batches_and_stops_after_a_failed_batch(site: Site) -> None:
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


def test_local_tasks_need_the_local_option(site: Site) -> None:
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
