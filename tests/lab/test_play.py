"""`ipexctl play` on real SSH hosts: what tasks do, that twice is once, who leaves a play, and what is said of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cli_helpers import IPEXCTL, ipexctl, processes_with
from ipexctl.lab import break_host
from lab_helpers import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_helpers import Ran
    from ipexctl.lab import Lab, LabHost

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class Site:
    """A directory of playbooks, and hosts to play them on."""

    lab: Lab
    directory: Path
    place: str
    """A directory of this test's own on every host."""

    def play(self, tasks: str, *args: object, head: str = "", rc: int | None = 0, **more: Any) -> Ran:
        lines = "".join(f"    {line}\n" for line in tasks.replace("PLACE", self.place).splitlines())
        (self.directory / "site.yml").write_text(f"- hosts: all\n{head}  tasks:\n{lines}")
        return self.call("site.yml", *args, rc=rc, **more)

    def call(self, *args: object, rc: int | None = 0, env: dict[str, str] | None = None, timeout: float = 90) -> Ran:
        where = ("-H", self.lab.hostfile)
        ran = ipexctl("play", *args, *where, cwd=self.directory, env={**self.env, **(env or {})}, timeout=timeout)
        assert rc is None or ran.rc == rc, f"{ran.rc}\n{ran.out}\n{ran.err}"
        return ran

    def report(self, tasks: str, *args: object, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.play(tasks, "--json", *args, **more).out)
        assert found["schema"] == "ipexctl.play/1"
        return found

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.directory / "state")}

    def on(self, index: int, command: str) -> str:
        said = ask(self.lab.hosts[index], command.replace("PLACE", self.place))
        assert said.rc == 0, said.err
        return said.out


@pytest.fixture
def site(lab3: Lab, tmp_path: Path) -> Iterator[Site]:
    found = Site(lab3, tmp_path, f"/home/{lab3.hosts[0].user}/play-{tmp_path.name}")
    yield found
    for index in range(3):
        found.on(index, "chmod -R u+w PLACE 2>/dev/null; rm -rf PLACE")


def counts(report: dict[str, Any], host: str = "node1") -> tuple[int, int, int, int, int]:
    row = report["recap"][host]
    return row["ok"], row["changed"], row["failed"], row["unreachable"], row["skipped"]


def statuses(report: dict[str, Any], task: str) -> dict[str, str]:
    (found,) = [each for each in report["tasks"] if each["name"] == task]
    return {name: host["status"] for name, host in found["hosts"].items()}


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
  exec: echo made > PLACE/made
  args: {creates: PLACE/made}
- name: home
  fetch: {src: PLACE/conf, dest: brought}
- name: answers
  wait_for: {port: 22, seconds: 5}
- name: there
  wait_for: {path: PLACE/made, seconds: 5}
"""


def lay_out(site: Site) -> None:
    (site.directory / "here.bin").write_bytes(bytes(range(256)))
    (site.directory / "big.bin").write_bytes(os.urandom(600_000))
    (site.directory / "tree" / "sub").mkdir(parents=True)
    (site.directory / "tree" / "one").write_text("1")
    (site.directory / "tree" / "sub" / "two words").write_text("2")
    (site.directory / "conf.j2").write_text("{% for g in names %}\nname={{ g }}\n{% endfor %}\non={{ node0 }}\n")


NAMES = "  vars: {names: [a, b]}\n"


def test_files_are_put_where_they_belong_and_a_second_time_nothing_changes(site: Site) -> None:
    lay_out(site)
    first = site.report(FILES, head=NAMES)
    assert counts(first, "node2") == (9, 7, 0, 0, 0)
    assert site.on(1, "cat PLACE/a/text; stat -c %a PLACE/a/text PLACE/here.bin") == "for node2\n640\n755\n"
    assert site.on(2, "cat PLACE/conf PLACE/tree/one 'PLACE/tree/sub/two words'") == "name=a\nname=b\non=node1\n12"
    assert site.on(0, "sha256sum <PLACE/here.bin").split()[0] in site.on(1, "sha256sum <PLACE/here.bin")
    assert int(site.on(0, "wc -c <PLACE/big.bin")) == 600_000
    brought = site.directory / "brought" / "node3" / site.place.lstrip("/") / "conf"
    assert brought.read_text() == "name=a\nname=b\non=node1\n"
    second = site.report(FILES, head=NAMES)
    assert {name: row["changed"] for name, row in second["recap"].items()} == {"node1": 0, "node2": 0, "node3": 0}
    assert counts(second)[0] == 9


def test_check_changes_nothing_anywhere_and_diff_shows_what_would(site: Site) -> None:
    lay_out(site)
    ran = site.play(FILES.split("- name: there")[0], "--check", "--diff", head=NAMES)
    assert "+for node1" in ran.out
    assert "+name=a" in ran.out
    assert site.on(0, "ls -A PLACE 2>/dev/null | wc -l").strip() == "0"
    assert not (site.directory / "brought").exists()
    site.play('- copy: {content: "one\\ntwo\\n", dest: PLACE/x}')
    changed = site.play('- copy: {content: "one\\n2\\n", dest: PLACE/x, backup: true}', "--diff")
    assert "-two\n+2\n" in changed.out
    assert site.on(0, "cat PLACE/x.*.bak") == "one\ntwo\n"


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
        "command": "$HOME | cat",
        "shell": "/tmp",
        "fed": "from here",
        "elsewhere": "/usr",
    }


def test_secrets_are_nowhere(site: Site) -> None:
    tasks = """\
- exec: echo "$TOKEN"; sleep 1
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


def test_a_secret_is_on_nobodys_command_line(site: Site) -> None:
    (site.directory / "site.yml").write_text(
        "- hosts: all\n  tasks:\n    - exec: sleep 4\n      environment: {TOKEN: \"{{ lookup('env', 'T') }}\"}\n"
    )
    argv = [*IPEXCTL, "play", "site.yml", "-H", str(site.lab.hostfile)]
    process = subprocess.Popen(
        argv, cwd=site.directory, env={**os.environ, **site.env, "T": "on-no-argv"}, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 30
    while not processes_with(site.lab, "sleep 4"):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert processes_with(site.lab, "on-no-argv") == []
    assert process.wait(30) == 0


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


def test_what_is_wrong_is_said_before_any_host_is_touched(site: Site) -> None:
    ran = site.play("- exec: touch PLACE.touched\n- copy: {contnt: x, dest: /x}", rc=2)
    assert "site.yml:4:14: copy has no option 'contnt'" in ran.err
    assert "did you mean 'content'?" in ran.err
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


def test_become_says_what_is_missing(site: Site) -> None:
    ran = site.play("- exec: id -u\n  become: true", rc=1)
    assert "become: it can't be root there" in ran.err
    report = site.report("- name: root\n  exec: id -u\n  become: true", "--user", "root")
    assert report["tasks"][0]["hosts"]["node1"]["result"]["stdout"] == "0"


SUDO = """\
#!/bin/sh
[ "$1 $2 $3 $4" = "-n -u root --" ] || { echo "sudo: called as $*" >&2; exit 1; }
[ ! -e /tmp/no-sudo ] || { echo "sudo: a password is required" >&2; exit 1; }
shift 4
BY_SUDO=yes exec "$@"
"""
"""It lets nobody become anybody, but is called as the real one is."""


def test_become_goes_by_sudo_and_files_and_words_arrive_whole(site: Site) -> None:
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
        assert "it can't be root there: a password is required" in refused.err
        assert "NOPASSWD" in refused.err
    finally:
        ask(host, "rm -f /usr/local/bin/sudo /tmp/no-sudo", as_root=True)


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


def test_tune_sets_and_puts_back(site: Site) -> None:
    was = site.on(0, "cat /proc/sys/net/core/somaxconn").strip()
    tune = "- name: set\n  tune: {sysctl: {net.core.somaxconn: 4321}%s}\n  become: true"
    root = ("--user", "root")
    checked = site.play(tune % "", *root, "--check", "--diff")
    assert f"- net.core.somaxconn = {was}\n+ net.core.somaxconn = 4321" in checked.out
    assert statuses(site.report(tune % "", *root), "set")["node1"] == "changed"
    assert statuses(site.report(tune % "", *root), "set")["node1"] == "ok"
    assert site.on(0, "cat /proc/sys/net/core/somaxconn").strip() == "4321"
    assert statuses(site.report(tune % ", state: absent", *root), "set")["node1"] == "changed"
    assert site.on(0, "cat /proc/sys/net/core/somaxconn").strip() == was
    assert statuses(site.report(tune % ", state: absent", *root), "set")["node1"] == "ok"
