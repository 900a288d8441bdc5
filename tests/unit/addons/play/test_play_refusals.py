"""Mistakes in playbooks and projects: refused before any host is changed, all of them in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from case_table import case_table
from ipexctl.addons.play import template_limits
from ipexctl.addons.play.modules.local_files import source_path
from ipexctl.addons.play.play_command import _extra_variables, _split_pairs
from ipexctl.addons.play.prepare import TaskSelection, check_facts, check_projects, load_playbook, prepare
from ipexctl.addons.play.templates import Templates
from ipexctl.commands.app import app
from ipexctl.errors import MAX_ERRORS, FileError, raise_all
from playbook_helpers import HOSTS, at, book, play_of, refusal, tasks_in

if TYPE_CHECKING:
    from pathlib import Path


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    text = play_of("""\
- exce: one
- block:
    - debug: msg=ok
      whn: true
- copy: {src: nowhere, dst: x}
- exec: fine
""") + play_of("- exec: x\n  notify: nobody\n  tag: y\n")
    error = refusal(tmp_path, text)
    assert [each.line for each in (error, *error.more)] == [3, 6, 7, 13]
    assert [each.column for each in (error, *error.more)] == [7, 11, 28, 7]


def test_errors_of_plays_tasks_templates_and_files_are_reported_at_once(tmp_path: Path) -> None:
    error = refusal(
        tmp_path,
        """\
- hosts: all
  role: web
  gather_facts: maybe
  vars: {facts: 1}
  vars_files: [gone.yml, gone-too.yml]
  tasks:
    - copy: {src: nowhere, dest: /x}
    - wait_for: {port: ssh, state: gone}
      retries: many
      tag: x
    - debug: {msg: "{{ a b }}"}
    - debug: {msg: "{{ x | nosuch }}"}
    - {exec: x, notify: nobody}
  handlers: [{name: h, template: {src: gone.j2, dest: /x}}]
""",
    )
    assert [each.line for each in (error, *error.more)] == [2, 3, 4, 5, 5, 7, 8, 8, 9, 10, 11, 12, 13, 14]
    assert all(each.fix for each in (error, *error.more) if each.line in (2, 4, 5, 7, 10, 13))


def test_unknown_hosts_of_plays_and_tasks_are_reported_at_once(tmp_path: Path) -> None:
    text = play_of("- {exec: x, delegate_to: node9}\n- {doctor: , delegate_to: node1}\n")
    more = play_of("- {exec: x, delegate_to: localhost}\n")
    playbook = book(tmp_path, text.replace("all", "node7") + text.replace("all", "gpu") + more)
    for local, lines in ((False, [1, 3, 4, 5, 7, 8, 11]), (True, [1, 3, 4, 5, 7, 8])):
        _, errors = prepare(playbook, TaskSelection(), HOSTS, HOSTS, local=local)
        assert [error.line for error in errors] == lines


def test_number_of_reported_errors_is_limited(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, play_of("- exce: x\n" * 70)).more) == MAX_ERRORS - 1


def test_creates_as_an_argument_of_the_command_is_accepted(tmp_path: Path) -> None:
    assert book(tmp_path, play_of("- shell: dd creates=x | tee y\n"))


def test_all_that_a_playbook_reads_has_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "TEMPLATE_RENDERED", 0.3)
    (tmp_path / "many.j2").write_text("{% for a in [1] %}{% endfor %}" * 20_000)
    playbook = tmp_path / "many.yml"
    playbook.write_text(play_of("- template: {src: many.j2, dest: x}\n"))
    found = CliRunner().invoke(app, ["play", str(playbook), "--syntax-check"])
    assert str(found.exception) == f"{playbook}: reading it took longer than 0.3 s"


@case_table
def test_unknown_ansible_facts_are_refused_with_their_position(
    tmp_path: Path, task: str, given: tuple[str, ...], fix: str
) -> None:
    playbook = book(tmp_path, play_of(f"- {task}\n"))
    errors = check_facts(playbook, Templates(), given)
    assert len(errors) == bool(fix)
    for error in errors:
        assert fix in error.fix
        assert at(error)[1].startswith("ansible_")


def test_source_files_are_searched_in_the_same_places_as_ansible(tmp_path: Path) -> None:
    for name in ("templates/app.j2", "files/app.bin", "app.bin", "plain.j2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert source_path("template", tmp_path, "app.j2") == tmp_path / "templates/app.j2"
    assert source_path("copy", tmp_path, "app.bin") == tmp_path / "files/app.bin"
    assert source_path("template", tmp_path, "plain.j2") == tmp_path / "plain.j2"
    assert source_path("copy", tmp_path, f"{tmp_path}/app.bin") == tmp_path / "app.bin"
    text = "- template: {src: app.j2, dest: x}\n- copy: {src: app.bin, dest: x}\n"
    assert book(tmp_path, play_of(text)).plays


@case_table
def test_one_extra_vars_option_may_set_several_variables(word: str, values: dict[str, str]) -> None:
    assert _split_pairs(word) == values


def test_extra_variables_are_also_read_from_files_and_json(tmp_path: Path) -> None:
    (tmp_path / "more.yml").write_text("b: from file\n")
    found = _extra_variables(["a=1", "@more.yml", '{"c": [1]}'], tmp_path, Templates())
    assert found == [{"a": "1"}, {"b": "from file"}, {"c": [1]}]


def test_copy_of_a_file_of_256_mb_is_accepted_when_read(tmp_path: Path) -> None:
    with (tmp_path / "fits").open("wb") as file:
        file.truncate(256 << 20)
    assert len(tasks_in(tmp_path, play_of("- copy: {src: fits, dest: /x}"))) == 1


def test_lookup_of_a_variable_of_the_environment_is_accepted_when_read(tmp_path: Path) -> None:
    for kind in ("'env'", "'ansible.builtin.env'", "kind"):
        assert tasks_in(tmp_path, play_of(f"- debug: {{msg: \"{{{{ lookup({kind}, 'A') }}}}\"}}"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/two words.py").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def check(directory: Path, word: str, *, cwd: Path | None = None, tags: frozenset[str] = frozenset()) -> None:
    raise_all(errors_of(directory, word, cwd or directory, tags))


def errors_of(directory: Path, word: str, cwd: Path, tags: frozenset[str] = frozenset()) -> list[FileError]:
    ready, _ = prepare(load_playbook(word, directory, Templates()), TaskSelection(tags), HOSTS, HOSTS)
    return list(check_projects(ready, cwd))


@case_table
def test_projects_below_home_and_unknown_paths_are_not_refused(home: Path, tasks: str) -> None:
    (home / "site.yml").write_text(play_of(tasks))
    assert errors_of(home, "site.yml", home) == []


def test_bundled_train_playbook_is_refused_in_a_home_directory(home: Path) -> None:
    with pytest.raises(FileError):
        check(home, "train")
    check(home / "proj", "train")


@pytest.mark.parametrize("task", ["sync:", "run: a.py"])
def test_play_command_refuses_a_home_directory_before_it_connects(
    home: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "site.yml").write_text(play_of(f"- exec: hostname\n- {task}"))
    monkeypatch.chdir(home)
    ran = CliRunner().invoke(app, ["play", "site.yml", "--hosts", "10.0.0.1"])
    assert isinstance(ran.exception, FileError)
    assert (ran.exception.line, ran.output) == (4, "")
