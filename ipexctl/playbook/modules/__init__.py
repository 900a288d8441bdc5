"""The modules of playbooks: their declarations; implementations are imported on first use (`registry`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.playbook.modules.specs import SPECS

if TYPE_CHECKING:
    from ipexctl.playbook.options import Spec

MODULES: Final = {
    **{spec.name: spec for spec in SPECS},
    "shell": next(spec for spec in SPECS if spec.name == "exec"),
}
"""Declarations by every name that a task may use."""

NOT_MODULES: Final = {
    "pip": "install: {with: [PACKAGE]} puts it into the environment of all hosts",
    "apt": "exec with become: true; the stack itself comes by install",
    "yum": "exec with become: true; the stack itself comes by install",
    "dnf": "exec with become: true; the stack itself comes by install",
    "package": "exec with become: true; the stack itself comes by install",
    "synchronize": "sync brings a project to the hosts",
    "script": "sync brings the project, exec runs it",
    "raw": "exec needs nothing but sh on the host",
    "setup": "facts are gathered where something uses them: {{ facts.cpu.tier }}",
    "gather_facts": "facts are gathered where something uses them: {{ facts.cpu.tier }}",
    "lineinfile": "template, or exec with sed",
    "blockinfile": "template, or exec with sed",
    "service": "exec with become: true",
    "systemd": "exec with become: true",
    "sysctl": "tune, with become: true",
    "include_role": "put the role's tasks in a file: include_tasks: FILE",
    "import_role": "put the role's tasks in a file: include_tasks: FILE",
    "include": "include_tasks: FILE",
    "get_url": "exec: curl -fsSLo FILE URL, with args: {creates: FILE}",
    "unarchive": "exec: tar -xf FILE, with args: {creates: DIR}",
    "git": "sync brings the project from here",
    "wait_for_connection": 'wait_for: {port: 22, host: "{{ ansible_host }}"}, with delegate_to: node0',
    "user": "exec with become: true",
    "mount": "exec with become: true",
    "group": "exec with become: true",
    "replace": "template, or exec with sed",
    "tempfile": "exec: mktemp, with register",
    "slurp": "fetch brings it here; exec: cat FILE, with register and changed_when: false",
    "find": "exec: find DIR -name PATTERN, with register and changed_when: false",
    "cron": "exec: crontab -",
    "uri": "exec: curl -fsS URL, with register and changed_when: false",
    "mpi": "run",
}


def module(name: str) -> Spec:
    return MODULES[name]
