"""The keywords of a play, a block and a task, and replacements for Ansible keywords that are not supported."""

from __future__ import annotations

from typing import Final

from ipexctl.playbook.positions import did_you_mean

INHERITED: Final = frozenset(
    [
        "when",
        "tags",
        "vars",
        "environment",
        "become",
        "become_user",
        "no_log",
        "ignore_errors",
        "delegate_to",
        "run_once",
        "check_mode",
        "diff",
        "timeout",
    ]
)
PLAY: Final = frozenset(
    [
        "name",
        "hosts",
        "vars",
        "vars_files",
        "tasks",
        "pre_tasks",
        "post_tasks",
        "handlers",
        "gather_facts",
        "any_errors_fatal",
        "serial",
        "strategy",
        "import_playbook",
    ]
) | (INHERITED - {"when", "delegate_to", "run_once"})
BLOCK: Final = frozenset(["name", "block", "rescue", "always", "any_errors_fatal"]) | INHERITED
TASK: Final = (
    frozenset(
        [
            "name",
            "loop",
            "with_items",
            "loop_control",
            "register",
            "until",
            "retries",
            "delay",
            "changed_when",
            "failed_when",
            "notify",
            "listen",
            "args",
        ]
    )
    | INHERITED
)
INCLUDES: Final = frozenset({"include_tasks", "import_tasks"})
INCLUDE: Final = frozenset({"name", "args"}) | INHERITED | INCLUDES

UNSUPPORTED: Final = {
    "roles": "put the role's tasks in a file: include_tasks: FILE",
    "serial": "it belongs to the play",
    "async": "a run that goes on by itself: the module run with detach: true",
    "poll": "a run that goes on by itself: the module run with detach: true",
    "connection": "hosts are reached by ssh; delegate_to: localhost, with --local, is this machine",
    "remote_user": "--user NAME, or user= in the hostfile",
    "become_method": "become is sudo here",
    "become_flags": "become is sudo -n here",
    "local_action": "the module itself, and below it delegate_to: localhost; --local lets that be",
    "gather_subset": "facts are one probe, always whole",
    "max_fail_percentage": "any_errors_fatal: true ends the play at the first failure",
    "throttle": "-f N for the whole call, or serial: N on the play",
    "collections": "take it out: modules have no collections here",
    "module_defaults": "say it with each task",
    "vars_prompt": "-e NAME=VALUE, or {{ lookup('env', 'NAME') }}",
    "ignore_unreachable": "a host that can't be reached leaves the play, the others go on",
    "any_errors_fatal": "it belongs to the play",
    "delegate_facts": "hostvars: {{ hostvars.NAME.VARIABLE }} sees those of every host",
    "with_subelements": "loop: over things | map(attribute='parts') | flatten",
    "with_indexed_items": "loop, and loop_control: {index_var: n}",
    "with_list": "loop",
    "with_flattened": 'loop: "{{ lists | flatten }}"',
    "with_lines": "a command with register, then loop: over its stdout_lines",
    "with_dict": 'loop: "{{ mapping | dict2items }}"',
    "with_fileglob": "name the files in a loop",
    "with_sequence": 'loop: "{{ range(1, 5) }}"',
    "with_together": 'loop: "{{ one | zip(other) }}"',
    "with_nested": 'loop: "{{ one | product(other) }}"',
    "first_found": "name the file",
    "port": "--port, or port= in the hostfile",
    "force_handlers": "a task under always: runs whatever happened",
    "debugger": "--step asks before each task",
    "order": "hosts are taken in the order of the hostfile",
}


_OWNED: Final = "files are the login account's, with become: true root's; then command: chown {}, with become: true"
NOT_OPTIONS: Final = {
    "owner": _OWNED.format("NAME FILE"),
    "group": _OWNED.format(":NAME FILE"),
    "directory_mode": "file: {path: DIR, state: directory, mode: MODE}, before it",
    "recurse": "command: chmod -R MODE DIR",
    "remote_src": "command: cp FROM TO, with args: {creates: TO}",
    "validate": "a command after it that looks at the file",
    "force": "take it out: what differs is replaced",
    "executable": "a list: [bash, -c, LINE]",
    "warn": "take it out: nothing is warned of",
    "content_encoding": "take it out",
}
"""Options of Ansible's modules that the modules of the same name here do not have."""


def advice(keyword: str, known: frozenset[str] | set[str]) -> str:
    """Advice for an unknown keyword."""
    if keyword in UNSUPPORTED:
        return UNSUPPORTED[keyword]
    if keyword.startswith("with_"):
        return "loop: does what with_… did"
    return did_you_mean(keyword, sorted(known), f"there are: {', '.join(sorted(known))}" if len(known) < 30 else "")
