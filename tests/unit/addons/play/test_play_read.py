"""Reading playbooks: the accepted syntax, and errors with their position, and the hosts and tasks that are selected."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from case_table import case_table
from hosts_helpers import PIECES as HOST_PIECES
from ipexctl.addons.play.playbook import Block, TemplateText, find_playbook, find_shipped_playbooks
from ipexctl.addons.play.prepare import TaskSelection, hosts_of, load_playbook, select_tasks, unknown_tags
from ipexctl.addons.play.read import read_playbook
from ipexctl.addons.play.templates import Templates
from ipexctl.commands.app import app
from ipexctl.errors import FileError, UserError
from playbook_helpers import HOSTS, POSITION, book, play_of, tasks_in

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
    assert isinstance(copy.args["src"].value, TemplateText)
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
    names = find_shipped_playbooks()
    assert set(names) >= {"bootstrap", "train", "preflight", "upgrade-stack", "tune-xeon", "migrate-off-ipex"}
    for name in names:
        assert load_playbook(name, tmp_path, Templates()).plays


def test_inaccessible_playbook_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    with pytest.raises(UserError) as caught:
        find_playbook("~nosuch/site.yml", tmp_path)
    assert "'~nosuch/site.yml'" in caught.value.message


def test_a_bundled_playbook_is_imported_by_its_name_with_variables(tmp_path: Path) -> None:
    imported = book(tmp_path, "- import_playbook: bootstrap\n  vars: {stack: torch-2.13}\n")
    alone = read_playbook(find_shipped_playbooks()["bootstrap"], "bootstrap.yml")[0]
    assert [play.name for play in imported.plays] == [play.name for play in alone.plays]
    assert {play.vars["stack"] for play in imported.plays} == {"torch-2.13"}
    (tmp_path / "bootstrap").write_text("- hosts: all\n  name: own\n  vars: {stack: x, kept: y}\n  tasks: []\n")
    own = book(tmp_path, "- import_playbook: bootstrap\n  vars: {stack: torch-2.13}\n")
    assert [(play.name, dict(play.vars)) for play in own.plays] == [("own", {"stack": "torch-2.13", "kept": "y"})]


TASKS = """\
- {name: plain, exec: a}
- {name: fast, exec: a, tags: fast}
- {name: both, exec: a, tags: 'fast,slow'}
- {name: always, exec: a, tags: always}
- {name: never, exec: a, tags: [never, clean]}"""


@case_table
def test_host_patterns_select_the_same_hosts_as_ansible(pattern: str, names: str) -> None:
    assert [host.name for host in hosts_of(pattern, POSITION, HOSTS)] == names.split()


@case_table
def test_tags_select_the_same_tasks_as_ansible(tmp_path: Path, tags: str, skip: str, names: str) -> None:
    playbook = book(tmp_path, play_of(TASKS))
    wanted = select_tasks(playbook, TaskSelection(frozenset(tags.split()), frozenset(skip.split())))
    assert [task.called for task in playbook.plays[0].tasks if id(task) in wanted] == names.split()


def test_start_at_skips_earlier_tasks(tmp_path: Path) -> None:
    playbook = book(tmp_path, play_of(TASKS))
    for name in ("both", "bo*"):
        wanted = select_tasks(playbook, TaskSelection(start_at=name))
        assert [task.called for task in playbook.plays[0].tasks if id(task) in wanted] == ["both", "always"]


def test_unknown_tags_are_reported_with_a_suggestion(tmp_path: Path) -> None:
    playbook = book(tmp_path, play_of(TASKS))
    assert unknown_tags(playbook, TaskSelection(frozenset({"fats", "all"}))) == [("fats", "did you mean 'fast'?")]


def test_list_tasks_and_syntax_check_need_no_hosts(tmp_path: Path) -> None:
    text = play_of(TASKS).replace("hosts: all", "hosts: gpu")
    (tmp_path / "site.yml").write_text(text)
    for args in (("--list-tasks",), ("--syntax-check",)):
        ran = CliRunner().invoke(app, ["play", str(tmp_path / "site.yml"), *args])
        assert ran.exit_code == 0, ran.output
    with pytest.raises(FileError):
        hosts_of("gpu", POSITION, HOSTS)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("mpi: nosuch", "--mpi nosuch is not a known MPI"),
        ("checkpoint: ..", "names no file or directory of checkpoints"),
        ("setup: relative.sh", "is not an absolute path"),
        ("{wire: bf16, allreduce: backend}", "--wire bf16 is not possible with --allreduce backend"),
    ],
)
def test_what_run_would_refuse_on_any_hosts_is_refused_before_the_first_task(
    tmp_path: Path, option: str, words: str
) -> None:
    options = option.strip("{}").split(", ")
    lines = ["- hosts: all", "  tasks:", "    - run:", "        script: train.py", *(f"        {o}" for o in options)]
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yml").write_text("\n".join(lines) + "\n")
    ran = CliRunner().invoke(app, ["play", str(tmp_path / "site.yml"), "--syntax-check"])
    assert isinstance(ran.exception, FileError)
    assert words in str(ran.exception)
    assert "site.yml:3" in str(ran.exception)
