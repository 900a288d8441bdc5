"""Reading playbooks: the accepted syntax, and errors with their position."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hosts_helpers import PIECES as HOST_PIECES
from ipexctl.errors import UserError
from ipexctl.extras.play.model import Block
from ipexctl.extras.play.playbook_file import Templated, find_playbook, shipped
from ipexctl.extras.play.prepare import load_playbook
from ipexctl.extras.play.read import read_playbook
from ipexctl.extras.play.templater import Templater
from playbook_helpers import book, play_of, tasks_in

if TYPE_CHECKING:
    from pathlib import Path


def test_common_ansible_syntax_is_parsed(tmp_path: Path) -> None:
    text = """\
---
- name: site
  hosts: xeon:!node2
  become: no
  vars:
    port: 22
  tasks:
    - name: guarded
      ansible.builtin.command: make all
      args:
        chdir: /src
        creates: /src/out
      register: made
      until: made.rc == 0
      retries: 5
      delay: 2
      tags: [build, slow]
      notify: [restart]
    - copy: src={{ a }} dest=/x mode=0644
    - shell: |
        echo one
        echo two
      when:
        - port > 20
        - made is changed
      with_items: [1, 2]
      loop_control: {label: "{{ item }}"}
  handlers:
    - name: restart
      debug: msg=done
"""
    (play,) = book(tmp_path, text).plays
    first, copy, shell = play.tasks
    assert first.spec.name == "command"
    assert {name: arg.value for name, arg in first.args.items()} == {
        "cmd": "make all",
        "chdir": "/src",
        "creates": "/src/out",
    }
    assert (first.retries, first.delay, first.tags) == (5, 2.0, frozenset({"build", "slow"}))
    assert isinstance(copy.args["src"].value, Templated)
    assert copy.args["mode"].value == "0644"
    assert shell.args["cmd"].value == "echo one\necho two\n"
    assert [each.text for each in shell.inherited.when] == ["port > 20", "made is changed"]
    assert shell.loop is not None
    assert shell.loop.items == [1, 2]


def test_tasks_inherit_keywords_of_their_block(tmp_path: Path) -> None:
    text = play_of(
        "- block:\n    - exec: one\n      when: b\n      tags: x\n  rescue:\n    - exec: two\n"
        "  when: a\n  tags: y\n  become: true"
    )
    (block,) = book(tmp_path, text).plays[0].steps
    assert isinstance(block, Block)
    one, two = tasks_in(tmp_path, text)
    assert [each.text for each in one.inherited.when] == ["a", "b"]
    assert (one.tags, two.tags) == (frozenset({"x", "y"}), frozenset({"y"}))
    assert two.inherited.become


def test_included_tasks_inherit_keywords_and_find_files_in_their_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f.txt").write_text("x")
    (tmp_path / "sub" / "tasks.yml").write_text("- copy: {src: f.txt, dest: /x}\n")
    (task,) = tasks_in(tmp_path, play_of("- include_tasks: sub/tasks.yml\n  when: a\n  tags: t"))
    assert [each.text for each in task.inherited.when] == ["a"]
    assert task.tags == {"t"}


def test_a_thousand_tasks_are_read_in_less_than_3_seconds(tmp_path: Path) -> None:
    text = play_of("\n".join(f"- name: task {n}\n  exec: echo {{{{ x }}}} {n}\n  when: x != {n}" for n in range(1000)))
    began = time.process_time()
    assert len(tasks_in(tmp_path, text)) == 1000
    assert time.process_time() - began < 3


PIECES = (
    *HOST_PIECES,
    *("hosts: all", "tasks:", "exec: ", "block:", "rescue:", "when: ", "loop: ", "args:", "copy:", "src=x dest=y"),
    *("include_tasks: site.yml", "import_playbook: site.yml", "notify: x", "{{ a }}", "{{", "}}", "{% for %}", "|\n"),
    *(">", "yes", "null", "0o17", "1e999", "9" * 400, ".nan", "22:22", "2026-01-01", "a: b: c"),
    *("!!int ''", "!!int _", "!!float ''", "!!bool maybe"),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from(PIECES), max_size=30))
@example(["- hosts: all\n  vars: {a: !!int '', b: !!float '', c: !!bool maybe}\n"])
def test_any_text_is_read_or_refused_with_its_position(tmp_path: Path, parts: list[str]) -> None:
    path = tmp_path / "site.yml"
    path.write_bytes("".join(parts).encode("utf-8", "surrogatepass"))
    try:
        _, errors = read_playbook(path, "site.yml")
    except UserError as error:
        assert error.message.startswith("site.yml:")
    else:
        assert all(error.message.startswith("site.yml:") and error.line >= 1 for error in errors)


def test_every_bundled_playbook_is_valid(tmp_path: Path) -> None:
    names = shipped()
    assert set(names) >= {"bootstrap", "train", "preflight", "upgrade-stack", "tune-xeon", "migrate-off-ipex"}
    with Templater() as templater:
        for name in names:
            assert load_playbook(name, tmp_path, templater).plays


def test_inaccessible_playbook_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    with pytest.raises(UserError) as caught:
        find_playbook("~nosuch/site.yml", tmp_path)
    assert "'~nosuch/site.yml'" in caught.value.message


def test_a_bundled_playbook_is_imported_by_its_name_with_variables(tmp_path: Path) -> None:
    imported = book(tmp_path, "- import_playbook: bootstrap\n  vars: {stack: torch-2.13}\n")
    alone = read_playbook(shipped()["bootstrap"], "bootstrap.yml")[0]
    assert [play.name for play in imported.plays] == [play.name for play in alone.plays]
    assert {play.vars["stack"] for play in imported.plays} == {"torch-2.13"}
    (tmp_path / "bootstrap").write_text("- hosts: all\n  name: own\n  vars: {stack: x, kept: y}\n  tasks: []\n")
    own = book(tmp_path, "- import_playbook: bootstrap\n  vars: {stack: torch-2.13}\n")
    assert [(play.name, dict(play.vars)) for play in own.plays] == [("own", {"stack": "torch-2.13", "kept": "y"})]
