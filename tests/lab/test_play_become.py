"""`ipexctl play`: tasks as another account, secrets, and variables whose names another host may have printed."""

from __future__ import annotations

import shlex

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from lab_helpers import ask
from lab_play_helpers import Site, statuses
from message_data import missing

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


def test_become_without_rights_is_an_error(site: Site) -> None:
    ran = site.play("- exec: id -u\n  become: true", rc=1)
    assert missing(ran.err, "become: root") == []
    report = site.report("- name: root\n  exec: id -u\n  become: true", "--user", "root")
    assert report["tasks"][0]["hosts"]["node1"]["result"]["stdout"] == "0"


SUDO = """\
#!/bin/sh
[ "$1 $2 $3 $4" = "-n -u root --" ] || { echo "sudo: called as $*" >&2; exit 1; }
[ ! -e /tmp/no-sudo ] || { echo "sudo: a password is required" >&2; exit 1; }
shift 4
BY_SUDO=yes exec "$@"
"""
"""It changes no account, but has the arguments of the real one."""


def test_become_uses_sudo_and_keeps_arguments_and_files(site: Site) -> None:
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


PRINT_AND_USE = """\
- name: print
  exec: "mkdir -p PLACE && printf %s {text}"
  register: printed
- name: use
  exec: printf %s "$X"
  environment: "{{{{ {{hostvars['node1'].printed.stdout: 'it is set'}} }}}}"
"""


@pytest.mark.parametrize(
    ("options", "head"), [((), ""), (("--user", "root"), "  become: true\n")], ids=["as-ipex", "as-root"]
)
@pytest.mark.core
def test_variable_names_from_host_output_are_not_executed(options: tuple[str, ...], head: str, site: Site) -> None:
    where = ("-l", "node[1-2]", *options)
    report = site.report(PRINT_AND_USE.format(text="X"), *where, head=head)
    assert statuses(report, "use") == {"node1": "changed", "node2": "changed"}
    assert report["tasks"][1]["hosts"]["node2"]["result"]["stdout"] == "it is set"
    report = site.report(PRINT_AND_USE.format(text="'X=1; touch PLACE/marker #'"), *where, head=head, rc=1)
    assert statuses(report, "print") == {"node1": "changed", "node2": "changed"}
    assert statuses(report, "use") == {"node1": "failed", "node2": "failed"}
    assert "'environment'" in report["tasks"][1]["hosts"]["node2"]["reason"]
    for index in (0, 1):
        assert site.on(index, "ls PLACE") == ""


def test_secrets_are_not_printed(site: Site) -> None:
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


def test_secret_is_not_on_any_command_line(site: Site) -> None:
    (site.directory / "site.yml").write_text(
        "- hosts: all\n  tasks:\n    - exec: sleep 4\n      environment: {TOKEN: \"{{ lookup('env', 'T') }}\"}\n"
    )
    process = site.begin(env={"T": "on-no-argv"})
    wait_until(lambda: processes_with(site.lab, "sleep 4"), 30)
    assert processes_with(site.lab, "on-no-argv") == []
    assert process.wait(30) == 0


def test_root_follows_no_link_of_another_account_above_the_path(site: Site) -> None:
    host = site.lab.hosts[0]
    lay_out = """
        mkdir -p PLACE/victim PLACE/app && cp -p /etc/hostname PLACE/victim/kept
        chown 65534 PLACE/app && ln -s PLACE/victim PLACE/app/conf && chown -h 65534 PLACE/app/conf
    """
    assert ask(host, lay_out.replace("PLACE", site.place), as_root=True).rc == 0
    tasks = {
        "put": "copy: {content: x, dest: PLACE/app/conf/new}",
        "tree": "copy: {src: tree/, dest: PLACE/app/conf}",
        "rendered": "template: {src: conf.j2, dest: PLACE/app/conf/kept}",
        "made": "file: {path: PLACE/app/conf/new, state: directory}",
        "removed": "file: {path: PLACE/app/conf/kept, state: absent}",
    }
    (site.directory / "tree").mkdir()
    (site.directory / "tree" / "file").write_text("1")
    (site.directory / "conf.j2").write_text("x")
    book = "".join(f"- name: {name}\n  {task}\n  ignore_errors: true\n" for name, task in tasks.items())
    where = ("-l", "node1", "--user", "root")
    report = site.report(book, *where, head="  become: true\n")
    for task in report["tasks"]:
        result = task["hosts"]["node1"]["result"]
        assert result["refused_link"]["link"] == f"{site.place}/app/conf", task["name"]
        assert result["refused_link"]["target"] == f"{site.place}/victim", task["name"]
    assert [task["name"] for task in report["tasks"]] == list(tasks)
    assert ask(host, f"ls {site.place}/victim", as_root=True).out == "kept\n"
    site.report("- copy: {content: x, dest: PLACE/app/conf/new, follow: true}", *where, head="  become: true\n")
    assert ask(host, f"ls {site.place}/victim && rm -r {site.place}", as_root=True).out == "kept\nnew\n"
