"""`ipexctl play`: words that playbooks for Ansible have besides, each doing what it does there."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from lab_play_helpers import counts, statuses
from message_data import missing

if TYPE_CHECKING:
    from lab_play_helpers import Site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

PATHS = """\
- name: made
  file: {path: PLACE/d, state: directory, mode: "0700"}
- name: link
  file: {path: PLACE/l, src: d, state: link}
- name: looked
  stat: path=PLACE/l
  register: link
- name: nothing
  stat: {path: PLACE/none}
  register: nothing
- name: gone
  file: path=PLACE/none state=absent
- name: answers
  ping:
- name: rest
  pause: seconds=0.1
- assert:
    that:
      - link.stat.exists and link.stat.islnk and link.stat.lnk_target == 'd'
      - not nothing.stat.exists
"""


def test_paths_are_made_and_looked_at_once(site: Site) -> None:
    checked = site.report(PATHS.split("- name: looked")[0], "--check")
    assert statuses(checked, "made")["node1"] == "changed"
    assert site.on(0, "ls -d PLACE 2>/dev/null | wc -l").strip() == "0"
    first = site.report(PATHS)
    assert counts(first) == (8, 2, 0, 0, 0)
    assert counts(first, "node2") == (7, 2, 0, 0, 0)
    assert site.on(1, "stat -c %a PLACE/d") == "700\n"
    assert counts(site.report(PATHS))[1] == 0
    refused = site.report("- file: {path: PLACE/d, src: x, state: link}\n- file: {path: /, state: absent}", rc=1)
    assert missing(refused["tasks"][0]["hosts"]["node1"]["reason"], "directory") == []
    assert statuses(site.report("- name: away\n  file: path=PLACE/d state=absent"), "away")["node3"] == "changed"
    kept = site.report("- name: all\n  file: {path: '~', state: absent}", rc=1)
    assert statuses(kept, "all")["node1"] == "failed"


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


def test_variables_of_files_and_facts_have_ansibles_names(site: Site) -> None:
    (site.directory / "more.yml").write_text("a: one\nb: '{{ a }} and two'\n")
    report = site.report(
        """\
- include_vars: more.yml
- name: said
  debug: msg="{{ b }} {{ ansible_hostname }} {{ ansible_facts['user_id'] }}"
- debug: var=hostvars['node2'].b
"""
    )
    assert report["tasks"][2]["hosts"]["node3"]["result"]["msg"] == f"one and two node3 {site.lab.hosts[0].user}"


def test_a_rescue_knows_what_failed(site: Site) -> None:
    report = site.report(
        """\
- block:
    - name: breaks
      command: "false"
  rescue:
    - name: said
      debug: msg="{{ ansible_failed_task.name }} {{ ansible_failed_result.rc }}"
- name: ignored
  command: "false"
  ignore_errors: true
  register: it
- assert: {that: it is failed and it is changed}
"""
    )
    assert report["tasks"][1]["hosts"]["node1"]["result"]["msg"] == "breaks 1"
    assert report["recap"]["node1"] == {**report["recap"]["node1"], "ok": 3, "changed": 1, "rescued": 1, "ignored": 1}


def test_a_command_has_the_hosts_home_and_variables_and_no_shell(site: Site) -> None:
    report = site.report(
        """\
- name: it
  command: printf '%s|' ~/x $HOME/y ${GREETING}z '$NOTHING' '*' a;b "two  words" ''
  environment: {GREETING: "a  b"}
"""
    )
    home = f"/home/{site.lab.hosts[0].user}"
    said = report["tasks"][0]["hosts"]["node1"]["result"]["stdout"]
    assert said == f"{home}/x|{home}/y|a  bz|$NOTHING|*|a;b|two  words||"
