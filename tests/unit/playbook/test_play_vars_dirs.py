"""group_vars/ and host_vars/: read beside the inventory and the playbook, at Ansible's place among the variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.errors import UserError
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host
from ipexctl.playbook.variables import read_vars_dirs
from playbook_helpers import play_of, played

if TYPE_CHECKING:
    from pathlib import Path

NODE1 = Host("node1", "10.0.0.1", groups=("xeon", "fast"))


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def test_files_are_found_by_group_and_host_the_playbooks_over_the_inventorys(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"group_vars/all.yml": "$ANSIBLE_VAULT;1.1;AES256\n3031\n"}, "all.yml is a vault"),
        ({"group_vars/all/one.yml": "a: 1"}, "all is a directory"),
        ({"host_vars/node1.yml": "- a list\n"}, "node1.yml:1"),
    ],
)
def test_what_cant_be_read_is_refused_by_name(tmp_path: Path, files: dict[str, str], what: str) -> None:
    write(tmp_path, files)
    with pytest.raises(UserError) as caught:
        read_vars_dirs([tmp_path], [NODE1])
    assert what in caught.value.message


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["group_vars", "host_vars"])
def test_variables_in_a_pipe_are_refused_at_once(kind: str, tmp_path: Path) -> None:
    (tmp_path / kind).mkdir()
    name = "all.yml" if kind == "group_vars" else "node1.yml"
    os.mkfifo(tmp_path / kind / name)
    with pytest.raises(UserError) as caught:
        read_vars_dirs([tmp_path], [NODE1])
    assert name in caught.value.message


def test_they_stand_between_the_inventorys_groups_and_its_hosts(tmp_path: Path) -> None:
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
    report, _ = played(tmp_path, text, limited=hosts, every=hosts, vars_dirs=dirs)
    said: Any = report.tasks[0].hosts["node1"].data["msg"]
    assert said == ["xeon", "line", "host", "node1", "play", "group"]
