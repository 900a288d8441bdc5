"""Reading playbooks: the accepted syntax, and errors with their position."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hosts_helpers import PIECES as HOST_PIECES
from ipexctl.errors import FileError, UserError
from ipexctl.extras.play.model import Block
from ipexctl.extras.play.playbook_file import Templated, find_playbook, shipped
from ipexctl.extras.play.prepare import load_playbook
from ipexctl.extras.play.read import read_playbook
from ipexctl.extras.play.templater import Templater
from message_data import missing
from playbook_helpers import at, book, play_of, refusal, tasks_in

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


@pytest.mark.parametrize(
    ("task", "line", "caret", "said", "fix"),
    [
        ("- exce: true", 3, "exce", "exce", "exec"),
        ("- apt: {name: vim}", 3, "apt", "apt", ""),
        ("- exec: a\n  whn: b", 4, "whn", "whn", "when"),
        ("- exec: a\n  async: 5", 4, "async", "async", ""),
        ("- install: {offlin: yes}", 3, "offlin", "offlin", "offline"),
        ("- install: {offline: maybe}", 3, "maybe", "offline maybe", ""),
        ("- wait_for: {port: ssh}", 3, "ssh", "port", ""),
        ("- wait_for: {port: 99999}", 3, "wait_for", "99999", ""),
        ("- copy: {content: x}", 3, "copy", "dest", ""),
        ("- copy: {dest: /x}", 3, "copy", "", ""),
        ("- copy: {content: x, dest: /x, mode: rw}", 3, "rw", "", ""),
        ("- run: {module: a, ppn: 0}", 3, "0", "ppn 0 1", ""),
        ("- run: {module: a, env: ../x}", 3, "../x", "env", "64"),
        ("- install: {env: a/b}", 3, "a/b", "env", "64"),
        ('- env: {name: "a\\nb", state: absent}', 3, '"a', "name", "64"),
        ("- env: {from: .., state: named}", 3, "..,", "from", "64"),
        ("- run: {module: a, backend: nccl}", 3, "nccl", "backend nccl", "ccl"),
        ("- doctor: {require: avx512bf16}", 3, "avx512bf16", "require", "avx512_bf16"),
        ("- exec: a\n  copy: {content: x, dest: y}", 4, "copy", "", ""),
        ("- name: nothing", 3, "name", "", ""),
        ("- exec: make creates=/x", 3, "make", "", "/x}"),
        ("- exec: echo {{ a", 3, "echo", "Jinja:", ""),
        ("- exec: a\n  when: a ==", 4, "a ==", "Jinja:", ""),
        ("- exec: a\n  when: '{{ a }} == 1'", 4, "{{ a", "", ""),
        ("- debug: {msg: '{{ a | uppper }}'}", 3, "uppper", "uppper", "upper"),
        ("- debug: {msg: '{% include \"x\" %}'}", 3, "'{%", "", ""),
        ("- exec: a\n  notify: nobody", 4, "nobody", "nobody", ""),
        ("- exec: a\n  register: facts", 4, "facts", "", ""),
        ("- exec: a\n  retries: '{{ n }}'", 4, "'{{", "", ""),
        ("- include_tasks: gone.yml", 3, "gone.yml", "", ""),
        ("- template: {src: gone.j2, dest: /x}", 3, "gone.j2", "gone.j2", ""),
        ("- exec: a\n  loop: 5", 4, "5", "loop", ""),
        ("- debug: {msg: !vault x}", 3, "!vault", "", "lookup('env'"),
        ("- doctor:\n  become: true", 4, "become", "", ""),
        ("- block: []\n  loop: [1]", 4, "loop", "loop", ""),
        ("- [a, b]", 3, "[a", "", ""),
        ("- exec: a\n  exec: b", 4, "exec", "exec", ""),
    ],
)
def test_errors_have_the_position_of_the_mistake(
    tmp_path: Path, task: str, line: int, caret: str, said: str, fix: str
) -> None:
    error = refusal(tmp_path, play_of(task))
    found_line, rest = at(error)
    assert missing(error.message, said) == []
    assert (found_line, rest[: len(caret)]) == (line, caret)
    assert missing(error.fix, fix) == []


@pytest.mark.parametrize(
    "text",
    [
        "hosts: all\ntasks: []\n",
        "- tasks: []\n",
        "- hosts: all\n  roles: [web]\n",
        "- hosts: all\n  exec: true\n",
        "- hosts: all\n  strategy: free\n",
        "- hosts: all\n  vars: {facts: 1}\n",
        "- hosts: all\n  tasks:\n\t- exec: true\n",
        "- hosts: all\n  tasks: [\n",
        "- hosts: all\n  hosts: none\n",
        "- hosts: all\n  tasks: &t\n    - block: *t\n",
        "- hosts: all\n  vars_files: gone.yml\n",
        "- " * 200 + "x\n",
        "- hosts: all\n  vars: {a: \x00}\n",
    ],
)
def test_invalid_files_are_errors_with_their_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "site.yml").write_text(text)
    with pytest.raises(FileError) as caught:
        book(tmp_path, text)
    assert caught.value.message.startswith("site.yml:")


def test_circular_includes_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "one.yml").write_text("- exec: a\n- include_tasks: two.yml\n")
    (tmp_path / "two.yml").write_text("- include_tasks: one.yml\n")
    error = refusal(tmp_path, play_of("- import_tasks: one.yml"))
    assert "one.yml > two.yml > one.yml" in error.message
    assert error.path == "two.yml"


def test_errors_in_an_included_file_name_that_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tasks.yml").write_text("- exec: a\n- exec: b\n  whn: c\n")
    error = refusal(tmp_path, play_of("- include_tasks: sub/tasks.yml\n  when: a"))
    assert error.message.startswith("sub/tasks.yml:3:3: ")
    assert missing(error.message, "whn") == []


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


@pytest.mark.parametrize(
    "text",
    [
        "- hosts: all\n  vars:\n    a: &a '" + "z" * 40_000 + "'\n    b: [" + "*a," * 30_000 + "]\n",
        "- hosts: all\n  vars:\n    a: &a '{{ x }}" + "z" * 40_000 + "'\n    b: [" + "*a," * 30_000 + "]\n",
    ],
)
def test_yaml_aliases_are_limited_by_their_expanded_size(tmp_path: Path, text: str) -> None:
    error = refusal(tmp_path, text)
    assert "aliases" in error.message
    assert error.line >= 3


@pytest.mark.parametrize(
    ("first", "more", "last"),
    [
        ("- import_playbook: 1.yml\n", "- import_playbook: {}.yml\n", "[]\n"),
        ("- hosts: all\n  tasks: [include_tasks: 1.yml]\n", "- include_tasks: {}.yml\n", "[]\n"),
    ],
)
def test_number_of_included_files_is_limited(tmp_path: Path, first: str, more: str, last: str) -> None:
    for number in range(1, 13):
        (tmp_path / f"{number}.yml").write_text(2 * more.format(number + 1) if number < 12 else last)
    assert missing(refusal(tmp_path, first).message, "1,000 files") == []


def test_depth_of_imported_playbooks_is_limited(tmp_path: Path) -> None:
    for number in range(1, 61):
        (tmp_path / f"{number}.yml").write_text(f"- import_playbook: {number + 1}.yml\n")
    assert missing(refusal(tmp_path, "- import_playbook: 1.yml\n").message, "deep") == []


def test_every_bundled_playbook_is_valid(tmp_path: Path) -> None:
    names = shipped()
    assert set(names) >= {"bootstrap", "train", "preflight", "upgrade-stack", "tune-xeon", "migrate-off-ipex"}
    with Templater() as templater:
        for name in names:
            assert load_playbook(name, tmp_path, templater).plays


def test_unknown_playbook_name_suggests_a_bundled_one(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_playbook("bootstrp", tmp_path)
    assert "did you mean 'bootstrap'?" in caught.value.fix


@pytest.mark.parametrize(("there", "typed"), [("site.yml", "site.yaml"), ("plays/site.yaml", "plays/site.yml")])
def test_missing_playbook_suggests_the_file_with_the_other_yaml_suffix(tmp_path: Path, there: str, typed: str) -> None:
    (tmp_path / "plays").mkdir()
    (tmp_path / there).write_text("- hosts: all\n")
    with pytest.raises(UserError) as caught:
        find_playbook(typed, tmp_path)
    assert f"did you mean '{there}'?" in caught.value.fix


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
    error = refusal(tmp_path, "- import_playbook: bootstrap\n  when: false\n")
    assert "when" in error.message
