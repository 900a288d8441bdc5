"""The hosts of a play, and its selected tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ipexctl.commands.app import app
from ipexctl.errors import FileError
from ipexctl.extras.play.prepare import TaskSelection, hosts_of, select_tasks, unknown_tags
from playbook_helpers import HOSTS, POSITION, book, play_of

TASKS = """\
- {name: plain, exec: a}
- {name: fast, exec: a, tags: fast}
- {name: both, exec: a, tags: 'fast,slow'}
- {name: always, exec: a, tags: always}
- {name: never, exec: a, tags: [never, clean]}"""


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("all", "node1 node2 node3"),
        ("*", "node1 node2 node3"),
        ("node0", "node1"),
        ("xeon", "node1 node2"),
        ("xeon:old", "node1 node2 node3"),
        ("xeon,old", "node1 node2 node3"),
        ("all:!old", "node1 node2"),
        ("all:&old", "node3"),
        ("node[2-3]", "node2 node3"),
        ("!node1", "node2 node3"),
    ],
)
def test_host_patterns_select_the_same_hosts_as_ansible(pattern: str, names: str) -> None:
    assert [host.name for host in hosts_of(pattern, POSITION, HOSTS)] == names.split()


@pytest.mark.parametrize(
    ("tags", "skip", "names"),
    [
        ("", "", "plain fast both always"),
        ("fast", "", "fast both always"),
        ("fast", "slow", "fast always"),
        ("", "always", "plain fast both"),
        ("clean", "", "always never"),
        ("untagged", "", "plain always"),
        ("tagged", "", "fast both always"),
        ("all", "fast", "plain always"),
    ],
)
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
        ("metric: 'speed'", "it needs one group, in parentheses"),
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
