"""`ipexctl play`: secrets are used, and nowhere to be seen."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from cli_helpers import IPEXCTL, processes_with

if TYPE_CHECKING:
    from lab_play_helpers import Site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


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
