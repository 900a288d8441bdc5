"""The order of precedence of variables, and those of the inventory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.hosts.host import Host
from ipexctl.playbook.engine import batches
from ipexctl.playbook.play_context import Options
from ipexctl.playbook.templater import Filled, Job, Templater
from ipexctl.playbook.variables import send_call_variables, send_play_variables
from playbook_helpers import HOSTS, book, templated

if TYPE_CHECKING:
    from pathlib import Path

PLAY = """\
- hosts: all
  vars: {a: play, b: play, c: play, d: play, e: play}
  vars_files: [more.yml]
  tasks: [{exec: x, vars: {c: task, d: task, e: task}}]
"""


def values_of(tmp_path: Path, vars_: dict[str, str], asked: str, extra: tuple[dict[str, Any], ...] = ()) -> Any:
    (tmp_path / "more.yml").write_text("b: file\nc: file\nd: file\ne: file\n")
    (play,) = book(tmp_path, PLAY).plays
    (task,) = play.tasks
    with Templater() as told:
        host = Host("node1", "10.0.0.1", user="me", vars=vars_)
        context: Any = SimpleNamespace(templater=told, hosts=(host,), known=lambda: (host,))
        context.options, context.cwd = Options(extra=extra), tmp_path
        send_call_variables(context, "/books")
        send_play_variables(context, 0, play)
        told.add("own:node1", {"d": "set", "e": "set"})
        local = [(values, True) for values in task.inherited.vars]
        (found,) = told.fill([Job("node1", {"it": templated(asked)}, local=local)])
    assert isinstance(found, Filled), found
    return found.values["it"]


def test_the_later_of_ansibles_list_wins(tmp_path: Path) -> None:
    weak = dict.fromkeys("abcdez", "inventory")
    said = values_of(tmp_path, weak, "{{ [z, a, b, c, d, e] | join(' ') }}", ({"e": "call"},))
    assert said == "inventory play file task set call"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("1.5", 1.5),
        ("True", True),
        ("0644", "0644"),
        ('["a", "b"]', ["a", "b"]),
        ("['a', 1]", ["a", 1]),
        ("[broken", "[broken"),
        ("{'k': 'v'}", {"k": "v"}),
        ("/data/{{ inventory_hostname }}", "/data/node1"),
        ("{{ ''.__class__ }}", None),
    ],
)
def test_an_inventorys_value_is_what_it_is_to_ansible(tmp_path: Path, text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(AssertionError, match="inventory, z of node1"):
            values_of(tmp_path, {"z": text}, "{{ z }}")
    else:
        assert values_of(tmp_path, {"z": text}, "{{ z }}") == value


@pytest.mark.parametrize(
    ("serial", "sizes"), [((), [3]), ((1,), [1, 1, 1]), ((2,), [2, 1]), ((1, "100%"), [1, 2]), (("30%",), [1, 1, 1])]
)
def test_serial_makes_groups_as_ansible_does(serial: tuple[int | str, ...], sizes: list[int]) -> None:
    assert [len(batch) for batch in batches(HOSTS, serial)] == sizes
