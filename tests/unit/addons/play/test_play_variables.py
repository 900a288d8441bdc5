"""The precedence of variables, values of the inventory, group_vars/ and host_vars/."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from case_table import case_table
from ipexctl.addons.play.engine import batches
from ipexctl.addons.play.keywords import ANSIBLE_FACTS
from ipexctl.addons.play.templates import Templates
from ipexctl.addons.play.variables import Options, Variables, ansible_facts, read_vars_dirs
from ipexctl.errors import FileError, UserError
from ipexctl.facts.facts import Facts, parse
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host
from playbook_helpers import HOSTS, book, play_of, run_playbook, templated
from recorded_probes import recorded

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
    host = Host("node1", "10.0.0.1", user="me", vars=vars_)
    variables = Variables(Templates(), [host], Options(extra=extra), {})
    variables.begin_play(play)
    variables.own["node1"] |= {"d": "set", "e": "set"}
    return variables.scope("node1", task.inherited.vars).fill(templated(asked))


def test_variable_precedence_is_the_order_of_ansible(tmp_path: Path) -> None:
    weak = dict.fromkeys("abcdez", "inventory")
    said = values_of(tmp_path, weak, "{{ [z, a, b, c, d, e] | join(' ') }}", ({"e": "call"},))
    assert said == "inventory play file task set call"


@case_table
def test_inventory_values_have_the_types_of_ansible(tmp_path: Path, text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(FileError, match="inventory, z of node1"):
            values_of(tmp_path, {"z": text}, "{{ z }}")
    else:
        assert values_of(tmp_path, {"z": text}, "{{ z }}") == value


@pytest.mark.parametrize(
    ("serial", "sizes"), [((), [3]), ((1,), [1, 1, 1]), ((2,), [2, 1]), ((1, "100%"), [1, 2]), (("30%",), [1, 1, 1])]
)
def test_serial_makes_the_same_batches_as_ansible(serial: tuple[int | str, ...], sizes: list[int]) -> None:
    assert [len(batch) for batch in batches([host.name for host in HOSTS], serial)] == sizes


NODE1 = Host("node1", "10.0.0.1", groups=("xeon", "fast"))


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def test_vars_files_are_read_by_group_and_host_with_the_playbooks_last(tmp_path: Path) -> None:
    files = {
        "inv/group_vars/all.yml": "a: inv",
        "book/group_vars/all": "a: book",
        "inv/group_vars/fast.yaml": "b: 1",
        "inv/group_vars/slow.yml": "b: 2",
        "book/host_vars/node1.yml": "c: 3",
    }
    write(tmp_path, files)
    dirs = read_vars_dirs([tmp_path / "inv", tmp_path / "book"], [NODE1])
    assert dirs == {
        "group_vars/all": [{"a": "inv"}, {"a": "book"}],
        "group_vars/xeon": [],
        "group_vars/fast": [{"b": 1}],
        "host_vars/node1": [{"c": 3}],
    }
    assert read_vars_dirs([tmp_path / "inv", tmp_path / "inv"], [NODE1])["group_vars/all"] == [{"a": "inv"}]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["group_vars", "host_vars"])
def test_fifos_as_vars_files_are_refused_without_blocking(kind: str, tmp_path: Path) -> None:
    (tmp_path / kind).mkdir()
    name = "all.yml" if kind == "group_vars" else "node1.yml"
    os.mkfifo(tmp_path / kind / name)
    with pytest.raises(UserError) as caught:
        read_vars_dirs([tmp_path], [NODE1])
    assert name in caught.value.message


def test_vars_files_override_inventory_groups_and_not_inventory_hosts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "hosts.ini": "[xeon]\nnode1 b=line c=line\n[xeon:vars]\na=group\nb=group\nz=group\n",
            "group_vars/all.yml": "a: all\nb: all\ng: '{{ inventory_hostname }}'",
            "group_vars/xeon.yml": "a: xeon",
            "host_vars/node1.yml": "c: host\np: host",
        },
    )
    hosts = read_hosts_file(tmp_path / "hosts.ini")
    dirs = read_vars_dirs([tmp_path], hosts)
    text = play_of('- debug: {msg: "{{ [a, b, c, g, p, z] }}"}\n', "  vars: {p: play}\n")
    report, _ = run_playbook(tmp_path, text, limited=hosts, every=hosts, vars_dirs=dirs)
    said: Any = report.tasks[0].hosts["node1"].data["msg"]
    assert said == ["xeon", "line", "host", "node1", "play", "group"]


def test_names_of_ansible_have_the_values_of_the_facts() -> None:
    named = ansible_facts(parse(recorded("container-cgroup2-cpuset")), "node1")
    assert named == {
        "hostname": "train-0",
        "nodename": "train-0",
        "fqdn": "train-0.train.default.svc.cluster.local",
        "distribution": "Ubuntu",
        "distribution_version": "24.04",
        "os_family": "Debian",
        "kernel": "6.8.0-45-generic",
        "architecture": "x86_64",
        "processor_vcpus": 224,
        "memtotal_mb": 1031250,
        "user_id": "me",
        "user_dir": "/home/me",
    }
    assert tuple(named) == ANSIBLE_FACTS
    unknown = ansible_facts(Facts(), "node1.lan")
    assert [unknown[name] for name in ("hostname", "nodename", "fqdn")] == ["node1", "node1.lan", "node1.lan"]
