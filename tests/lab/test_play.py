"""`ipexctl play` on real SSH hosts: failed hosts, one connection, files, other accounts, secrets, Ctrl-C."""

from __future__ import annotations

import os
import shlex
import signal

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_record import LabHost
from lab_helpers import ask
from lab_play_helpers import Site, counts, statuses
from message_data import missing

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.core
def test_failed_and_unreachable_hosts_leave_the_play_and_are_in_the_retry_file(site: Site, node: LabHost) -> None:
    break_host(node, "sshd-dead")
    tasks = "- exec: test {{ inventory_hostname }} != node2\n- {name: the others go on, exec: 'true'}\n"
    report = site.report(tasks, "--connect-timeout", "3", rc=3)
    assert statuses(report, "the others go on") == {"node3": "changed"}
    assert [counts(report, f"node{n}") for n in (1, 2, 3)] == [(0, 0, 0, 1, 0), (0, 0, 1, 0, 0), (2, 2, 0, 0, 0)]
    retry = site.directory / "state" / "ipexctl" / "retry" / "site.retry"
    assert retry.read_text() == "node1\nnode2\n"
    assert report["retry_file"] == str(retry)
    mend_host(node)
    again = site.report("- name: once more\n  exec: true", "-l", f"@{retry}")
    assert statuses(again, "once more") == {"node1": "changed", "node2": "changed"}
    assert not retry.exists()


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


FILES = """\
- name: text
  copy: {content: "for {{ inventory_hostname }}\\n", dest: PLACE/a/text, mode: 0640}
- name: file
  copy: {src: here.bin, dest: PLACE/, mode: "0755"}
- name: tree
  copy: {src: tree, dest: PLACE/}
- name: big
  copy: {src: big.bin, dest: PLACE/big.bin}
- name: filled
  template: {src: conf.j2, dest: PLACE/conf}
- name: made
  exec: head -c 17M /dev/zero > PLACE/made
  args: {creates: PLACE/made}
- name: home
  fetch: {src: PLACE/conf, dest: brought}
- name: home, in parts
  fetch: {src: PLACE/made, dest: brought}
- name: home, in parts, by a name of its own
  fetch: {src: PLACE/made, dest: "brought/{{ inventory_hostname }}.pt", flat: true}
- name: answers
  wait_for: {port: 22, seconds: 5}
"""


def test_file_tasks_change_nothing_with_check_and_are_idempotent(site: Site) -> None:
    (site.directory / "here.bin").write_bytes(bytes(range(256)))
    (site.directory / "big.bin").write_bytes(os.urandom(600_000))
    (site.directory / "tree" / "sub").mkdir(parents=True)
    (site.directory / "tree" / "one").write_text("1")
    (site.directory / "tree" / "sub" / "two words").write_text("2")
    (site.directory / "conf.j2").write_text("{% for g in names %}\nname={{ g }}\n{% endfor %}\non={{ node0 }}\n")
    names, brought = "  vars: {names: [a, b]}\n", site.directory / "brought"
    planned = site.play(FILES, "--check", "--diff", head=names)
    assert "+for node1" in planned.out
    assert "+name=a" in planned.out
    assert site.on(0, "ls -A PLACE 2>/dev/null | wc -l").strip() == "0"
    assert not brought.exists()
    first = site.report(FILES, head=names)
    assert counts(first, "node2") == (10, 9, 0, 0, 0)
    assert site.on(1, "cat PLACE/a/text; stat -c %a PLACE/a/text PLACE/here.bin") == "for node2\n640\n755\n"
    assert site.on(2, "cat PLACE/conf PLACE/tree/one 'PLACE/tree/sub/two words'") == "name=a\nname=b\non=node1\n12"
    assert site.on(0, "sha256sum <PLACE/here.bin").split()[0] in site.on(1, "sha256sum <PLACE/here.bin")
    assert int(site.on(0, "wc -c <PLACE/big.bin")) == 600_000
    of_node3 = brought / "node3" / site.place.lstrip("/")
    assert (of_node3 / "conf").read_text() == "name=a\nname=b\non=node1\n"
    assert (of_node3 / "made").stat().st_size == (brought / "node2.pt").stat().st_size == 17 << 20
    second = site.report(FILES, head=names)
    assert {name: row["changed"] for name, row in second["recap"].items()} == {"node1": 0, "node2": 0, "node3": 0}
    assert counts(second)[0] == 10


SUDO = """\
#!/bin/sh
[ "$1 $2 $3 $4" = "-n -u root --" ] || { echo "sudo: called as $*" >&2; exit 1; }
[ ! -e /tmp/no-sudo ] || { echo "sudo: a password is required" >&2; exit 1; }
shift 4
BY_SUDO=yes exec "$@"
"""
"""It changes no account, but has the arguments of the real one."""


def test_become_uses_sudo_and_keeps_arguments_and_files(site: Site) -> None:
    without = site.play("- exec: id -u\n  become: true", rc=1)
    assert missing(without.err, "become root") == []
    host = site.lab.hosts[1]
    put = f"printf %s {shlex.quote(SUDO)} >/usr/local/bin/sudo && chmod 755 /usr/local/bin/sudo"
    assert ask(host, put, as_root=True).rc == 0
    tasks = """\
- name: words
  exec: printf '%s|' "$BY_SUDO" "$TOKEN" 'two  words'; cat
  args: {stdin: "fed"}
  environment: {TOKEN: "a'b"}
- name: file
  copy: {content: "whole\\n", dest: PLACE/by-sudo, mode: 0600}
"""
    try:
        report = site.report(tasks, "-l", "node2", head="  become: true\n")
        assert report["tasks"][0]["hosts"]["node2"]["result"]["stdout"] == "yes|a'b|two  words|fed"
        assert site.on(1, "cat PLACE/by-sudo") == "whole\n"
        site.on(1, "touch /tmp/no-sudo")
        refused = site.play(tasks, "-l", "node2", head="  become: true\n", rc=1)
        assert missing(refused.err, "root password NOPASSWD") == []
    finally:
        ask(host, "rm -f /usr/local/bin/sudo /tmp/no-sudo", as_root=True)


def test_secrets_are_neither_printed_nor_on_a_command_line(site: Site) -> None:
    tasks = """\
- exec: echo "$TOKEN"
  environment: {TOKEN: "{{ lookup('env', 'TOKEN_HERE') }}"}
  register: first
- debug: var=first.stdout
- exec: echo learnt-from-a-command
  no_log: true
  register: second
- debug: {msg: "{{ second.stdout }}"}
- copy: {content: "{{ lookup('env', 'TOKEN_HERE') }}", dest: PLACE/secret, mode: 0600}
- exec: echo failing-with-a-word; exit 1
  no_log: true
  ignore_errors: true
"""
    env = {"TOKEN_HERE": "abc-123-secret"}
    for args in (("-vv", "--diff"), ("--json", "--diff")):
        ran = site.play(tasks, *args, env=env)
        for secret in ("abc-123-secret", "learnt-from-a-command", "failing-with-a-word"):
            assert secret not in ran.out + ran.err, args
    assert site.on(0, "cat PLACE/secret") == "abc-123-secret"
    (site.directory / "site.yml").write_text(
        "- hosts: all\n  tasks:\n    - exec: sleep 4\n      environment: {TOKEN: \"{{ lookup('env', 'T') }}\"}\n"
    )
    process = site.begin(env={"T": "on-no-argv"})
    wait_until(lambda: processes_with(site.lab, "sleep 4"), 30)
    assert processes_with(site.lab, "on-no-argv") == []
    assert process.wait(30) == 0
