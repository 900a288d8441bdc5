"""The texts of playbooks: errors with their position, and messages during a play."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from golden_file import Case, golden_diff, refusal, refused

import test_play_templates as templates
from case_table import literals_of
from ipexctl.addons.play.modules.host_script import ScriptResult
from ipexctl.addons.play.modules.tune import SYMLINK_FIX
from ipexctl.addons.play.options import BadOption, Option, convert_value, fill_environment
from ipexctl.addons.play.playbook import find_playbook
from ipexctl.addons.play.prepare import TaskSelection, hosts_of, select_tasks
from ipexctl.addons.play.templates import Templates
from ipexctl.addons.play.variables import read_vars_dirs
from playbook_helpers import HOSTS, POSITION, book, play_of, run_playbook
from playbook_helpers import refusal as playbook_error
from test_play_read import TASKS as TASKS_WITH_TAGS
from test_play_refusals import check as check_in_home
from test_play_variables import NODE1, write

TASKS = literals_of(__file__, "tasks")
PLAYBOOKS = (
    *literals_of(__file__, "playbooks"),
    "- " * 200 + "x\n",
    "- hosts: all\n  vars:\n    a: &a '" + "z" * 40_000 + "'\n    b: [" + "*a," * 30_000 + "]\n",
    "- hosts: all\n  vars:\n    a: &a '{{ x }}" + "z" * 40_000 + "'\n    b: [" + "*a," * 30_000 + "]\n",
)
TEMPLATES = literals_of(__file__, "templates")
HOME_TASKS = literals_of(__file__, "home_tasks")
VALUES: tuple[tuple[Any, Any], ...] = (
    ("mode", "u=rw"),
    ("mode", "999"),
    ("bool", "perhaps"),
    ("int", True),
    ("int", "1e3"),
    ("float", "nan"),
    ("list", {"a": 1}),
    ("str", None),
    ("str", "a\0b"),
    ("path", ""),
    ("command", []),
    ("command", " "),
    ("dict", "a"),
)
ENVIRONMENTS: tuple[Any, ...] = (
    {"X=1; touch marker #": "v"},
    {"": "v"},
    {1: "v"},
    {"A\n": "v"},
    {"A": "a\0b"},
    {True: {"é": 1}, "é": "v"},
    "A=1",
    None,
)
VARS_FILES = {
    "group_vars/all.yml": "$ANSIBLE_VAULT;1.1;AES256\n3031\n",
    "group_vars/all/one.yml": "a: 1",
    "host_vars/node1.yml": "- a list\n",
}


def mistakes(base: Path) -> Iterator[Case]:
    """The errors of playbooks; the helper sees that each position is inside the file."""
    for name in ("data", "sub", "plays"):
        (base / name).mkdir()
    for name, size in {"model.bin": (256 << 20) + 1, "data/one": 200 << 20, "data/two": 200 << 20}.items():
        with (base / name).open("wb") as file:
            file.truncate(size)
    os.mkfifo(base / "pipe")
    (base / "link").symlink_to("nowhere")
    copies = [f"- copy: {{src: {name}, dest: /x}}" for name in ("model.bin", "data", "data/", "pipe", "link")]
    for task in (*TASKS, *copies, "- template: {src: nosuch.j2, dest: x}"):
        yield refused(repr(task), playbook_error(base, play_of(f"{task}\n")), base)
    for number in range(1, 61):
        (base / f"{number}.yml").write_text(f"- import_playbook: {number + 1}.yml\n")
        (base / f"many{number}.yml").write_text(
            f"- import_playbook: many{number + 1}.yml\n" * 2 if number < 12 else "[]\n"
        )
        (base / f"tasks{number}.yml").write_text(
            f"- include_tasks: tasks{number + 1}.yml\n" * 2 if number < 12 else "[]\n"
        )
    files = {
        "other.yml": "- import_playbook: site.yml\n",
        "one.yml": "- exec: a\n- include_tasks: two.yml\n",
        "two.yml": "- include_tasks: one.yml\n",
        "sub/tasks.yml": "- exec: a\n- exec: b\n  whn: c\n",
    }
    for name, text in files.items():
        (base / name).write_text(text)
    named = {
        "playbooks import each other": "- import_playbook: other.yml\n",
        "tasks include each other": play_of("- import_tasks: one.yml"),
        "a mistake in an included file": play_of("- include_tasks: sub/tasks.yml\n  when: a"),
        "60 playbooks deep": "- import_playbook: 1.yml\n",
        "too many playbooks": "- import_playbook: many1.yml\n",
        "too many files of tasks": play_of("- include_tasks: tasks1.yml"),
        "when of a playbook": "- import_playbook: bootstrap\n  when: false\n",
    }
    yield from (refusal(repr(text[:80]), book, base, text, at=base) for text in PLAYBOOKS)
    yield from (refused(name, playbook_error(base, text), base) for name, text in named.items())


def of_calls(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """What is wrong with a name, a file of variables, an option, or a task in a home directory."""
    (base / "plays").mkdir(parents=True)
    for name in ("site.yml", "plays/site.yaml"):
        (base / name).write_text(play_of(TASKS_WITH_TAGS))
    for word in ("bootstrp", "site.yaml", "plays/site.yml", "~nosuch/site.yml"):
        yield refusal(f"play {word}", find_playbook, word, base, at=base)
    yield refusal("hosts", hosts_of, "xeno", POSITION, HOSTS)
    playbook = book(base, play_of(TASKS_WITH_TAGS))
    yield refusal("--start-at", select_tasks, playbook, TaskSelection(start_at="bth"))
    for number, (name, text) in enumerate(VARS_FILES.items()):
        write(base / str(number), {name: text})
        yield refusal(f"variables in {name}", read_vars_dirs, [base / str(number)], [NODE1], at=base)
    options = [(f"{kind} {value!r}", partial(convert_value, Option(kind), value)) for kind, value in VALUES]
    layers = [(f"environment {layer!r}", partial(fill_environment, [{"A": "a"}, layer])) for layer in ENVIRONMENTS]
    for name, call in (*options, *layers):
        with pytest.raises(BadOption) as caught:
            call()
        yield Case(name, caught.value.message, caught.value.fix)
    home = base / "home"
    write(home, {"proj/two words.py": ""})
    monkeypatch.setenv("HOME", str(home))
    for task in HOME_TASKS:
        (home / "site.yml").write_text(play_of(task))
        yield refusal(f"in the home: {task!r}", check_in_home, home, "site.yml", at=base)


def of_templates() -> list[Case]:
    return [refused(f"template {text}", templates.wrong(Templates(), text)) for text in TEMPLATES]


def while_playing(tmp_path: Path) -> list[Case]:
    node2 = "when: inventory_hostname == 'node2'"
    texts = {
        "any_errors_fatal": play_of(f"- {{fail: , {node2}}}\n", "  any_errors_fatal: true\n"),
        "until": play_of("- {name: poll, debug: , register: r, until: r is failed, retries: 2, delay: 0}\n"),
        "fewer hosts": play_of(f"- {{name: broken, fail: , {node2}}}\n- run: {{cmd: hostname}}\n"),
        "options that differ": play_of("""- run: {cmd: x, ppn: "{{ 2 if inventory_hostname == 'node3' else 1 }}"}\n"""),
        "a text among numbers": play_of("- vars: {n: '3'}\n  assert: {that: 5.0 >= n}\n"),
    }
    cases = []
    for name, text in texts.items():
        report, events = run_playbook(tmp_path, text)
        cases += [Case(name, text) for text in events.notices]
        for task in report.tasks:
            cases += [Case(name, each.reason, each.fix) for each in task.hosts.values() if each.reason]
    return cases


def of_refused_links() -> list[Case]:
    cases = []
    for target in ("/etc/cron.d", "../x\n\x1b[2J"):
        completed = ScriptResult(95, b"", f"\x1elink\x1ealice\x1e/tmp/app/conf\x1e{target}".encode())
        for name, result in (("copy", completed.failure()), ("tune", completed.failure(symlink_fix=SYMLINK_FIX))):
            cases.append(Case(f"{name} below a link to {target!r}", result.reason, result.fix))
    return cases


def test_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (
        diff := golden_diff(
            "play",
            [
                *mistakes(tmp_path),
                *of_templates(),
                *while_playing(tmp_path),
                *of_refused_links(),
                *of_calls(tmp_path / "calls", monkeypatch),
            ],
        )
    ), diff
