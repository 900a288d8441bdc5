"""`ipexctl play`: tasks as another account."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from lab_helpers import ask
from message_data import missing

if TYPE_CHECKING:
    from lab_play_helpers import Site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


def test_become_says_what_is_missing(site: Site) -> None:
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
        assert missing(refused.err, "root password NOPASSWD") == []
    finally:
        ask(host, "rm -f /usr/local/bin/sudo /tmp/no-sudo", as_root=True)
