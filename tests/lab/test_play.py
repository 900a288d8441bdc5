"""`ipexctl play` on real SSH hosts: the order of tasks, who leaves a play, and what is said of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from cli_helpers import IPEXCTL, processes_with
from ipexctl.lab import break_host
from lab_helpers import ask
from lab_play_helpers import counts, statuses
from message_data import missing

if TYPE_CHECKING:
    from ipexctl.lab import LabHost
    from lab_play_helpers import Site

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


@pytest.mark.core
def test_rescue_helps_those_that_failed_and_always_runs_for_all(site: Site) -> None:
    report = site.report(
        """\
- block:
    - name: try
      exec: test {{ inventory_hostname }} = node1
    - name: well
      exec: true
  rescue:
    - name: help
      exec: true
  always:
    - name: ever
      exec: true
- name: after
  exec: true
"""
    )
    assert statuses(report, "well") == {"node1": "changed"}
    assert statuses(report, "help") == {"node2": "changed", "node3": "changed"}
    assert set(statuses(report, "ever")) == set(statuses(report, "after")) == {"node1", "node2", "node3"}
    assert report["recap"]["node2"] == {**report["recap"]["node2"], "failed": 0, "rescued": 1}


def test_what_was_registered_steers_what_follows(site: Site) -> None:
    report = site.report(
        """\
- name: asked
  exec: echo one; echo two >&2; exit 4
  register: said
  failed_when: said.rc not in [0, 4]
  changed_when: "'three' in said.stdout"
- assert:
    that:
      - said.rc == 4
      - said.stdout == 'one'
      - said.stderr_lines == ['two']
      - said is not changed
- set_fact: {count: "{{ 40 + 2 }}"}
- name: looped
  exec: echo {{ item }} {{ count }} {{ n }}
  loop: [a, b]
  loop_control: {index_var: n}
  register: turns
  when: item != 'a' or inventory_hostname == node0
- assert:
    that: turns.results | selectattr('skipped', 'undefined') | map(attribute='stdout') | last == 'b 42 1'
- name: tried
  exec: echo x >> PLACE.n; wc -l < PLACE.n; rm -f PLACE.n.none
  register: tries
  until: tries.stdout | int >= 3
  retries: 4
  delay: 0.1
- assert: {that: tries.attempts == 3}
- name: once
  exec: hostname
  run_once: true
  register: who
- assert: {that: who.stdout == 'node1'}
- name: elsewhere
  exec: hostname
  delegate_to: node0
  register: where
- assert: {that: where.stdout == 'node1'}
- exec: rm -f PLACE.n
""",
        rc=None,
    )
    assert report["exit_code"] == 0, report
    assert statuses(report, "asked")["node1"] == "ok"
    assert statuses(report, "once") == {"node1": "changed"}


def test_facts_are_there_where_something_uses_them(site: Site) -> None:
    told = site.report("- debug: {msg: '{{ facts.cpu.tier }} {{ hostvars[node0].facts.system.kernel_name }}'}")
    assert told["tasks"][0]["name"] == "gather facts"
    assert "Linux" in told["tasks"][1]["hosts"]["node3"]["result"]["msg"]
    assert site.report("- exec: true")["tasks"][0]["module"] == "exec"
    refused = site.report("- debug: {msg: '{{ facts.cpu.tier }}'}", head="  gather_facts: false\n", rc=1)
    assert "gather_facts: false" in refused["tasks"][0]["hosts"]["node1"]["fix"]


def test_a_list_is_an_argv_and_a_string_is_a_line_for_sh(site: Site) -> None:
    report = site.report(
        """\
- name: argv
  exec: [echo, "$HOME", "a  b", "*"]
- name: line
  exec: echo "$HOME" | tr a-z A-Z
- name: command
  command: echo $HOME | cat
- name: shell
  shell: cd /tmp && pwd
- name: fed
  exec: {cmd: cat, stdin: "from here\\n"}
- name: elsewhere
  exec: pwd
  args: {chdir: /usr}
"""
    )
    said = {task["name"]: task["hosts"]["node1"]["result"]["stdout"] for task in report["tasks"]}
    home = f"/home/{site.lab.hosts[0].user}"
    assert said == {
        "argv": "$HOME a  b *",
        "line": home.upper(),
        "command": f"{home} | cat",
        "shell": "/tmp",
        "fed": "from here",
        "elsewhere": "/usr",
    }


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


def test_handlers_run_once_at_the_end_where_something_changed(site: Site) -> None:
    handlers = f"  handlers:\n    - name: told\n      exec: echo x >> {site.place}.told\n"
    tasks = "- exec: 'true'\n  changed_when: inventory_hostname == 'node1'\n  notify: told\n" * 2
    site.play(tasks + "- exec: rm -f PLACE.told", head=handlers)
    assert site.on(0, "wc -l <PLACE.told").strip() == "1"
    assert site.on(1, "ls PLACE.told 2>/dev/null | wc -l").strip() == "0"
    site.on(0, "rm -f PLACE.told")


def test_one_connection_serves_all_tasks(site: Site) -> None:
    log = "cat /var/log/sshd.log /var/log/auth.log 2>/dev/null | grep -c Accepted || true"
    before = ask(site.lab.hosts[2], log, as_root=True).out.strip() or "0"
    report = site.report("\n".join(["- exec: echo $PPID", *["- exec: echo $PPID"] * 4]))
    assert counts(report, "node3")[0] == 5
    after = ask(site.lab.hosts[2], log, as_root=True).out.strip() or "0"
    if before != "0":
        assert int(after) - int(before) <= 3  # ours, and the two that looked
