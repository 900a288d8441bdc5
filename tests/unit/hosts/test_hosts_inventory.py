"""Ansible's inventories, INI and YAML, read as they are: groups, ranges, variables and their precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_table import case_table
from hosts_helpers import almost_valid, assert_only_user_errors
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.hosts.inventory_files import read_inventory_ini, read_inventory_yaml
from ipexctl.hosts.source import refused_argument

CLUSTER = """\
; written for Ansible
jump ansible_host=203.0.113.1   # before any group

[cpu]
node[01:03].site slots=4
db-[a:c]:2222
[big]
node01.site internal=10.1.0.1
here ansible_connection=local

[xeon:children]
cpu
big   # both

[xeon:vars]
ansible_user = "root"  # quoted
motto=say it loud
[cpu:vars]
ansible_user=worker
ansible_ssh_private_key_file=keys/cpu
[all:vars]
ansible_user=nobody
ansible_port=2200
"""


YAML = """\
---
all:
  vars: {ansible_user: nobody, ansible_port: 2200, ntp: [a, b: c]}
  hosts:
    jump: {ansible_host: 203.0.113.1}
  children:
    xeon:
      vars: &defaults
        ansible_user: root
        motto: say it loud
      children:
        cpu:
          hosts:
            node[01:03].site: {slots: 4, rack: 7}
            db-[a:c]: {ansible_port: 2222}
          vars: {ansible_user: worker, ansible_ssh_private_key_file: keys/cpu}
        big:
          hosts:
            node01.site: {internal: 10.1.0.1}
            here: {ansible_connection: local, ansible_host: ~, on: yes, secret: !vault x}
gpu:
  hosts:
    far: {ansible_ssh_common_args: -F cfg -o UserKnownHostsFile=kh}
  vars:
    <<: *defaults
    ansible_user: gpu
"""
FORMS = (CLUSTER, YAML)


def read(text: str) -> dict[str, Host]:
    """The hosts of an inventory; YAML begins with `---` or `{`."""
    reader = read_inventory_yaml if text.startswith(("---", "{")) else read_inventory_ini
    return {host.name: host for host in reader(text, "inv/hosts")}


@pytest.mark.parametrize("text", FORMS, ids=("ini", "yaml"))
def test_an_inventory_has_its_hosts_in_order_with_groups_and_variables_by_precedence(text: str) -> None:
    """all, then parents, then children, then the host; settings of a host in two groups are merged."""
    hosts = read(text)
    assert list(hosts)[:8] == [
        *("jump", "node01.site", "node02.site", "node03.site", "db-a", "db-b", "db-c", "here"),
    ]
    assert (hosts["jump"].user, hosts["jump"].port, hosts["jump"].address) == ("nobody", 2200, "203.0.113.1")
    assert (hosts["here"].user, hosts["here"].address, hosts["node02.site"].user) == ("root", "localhost", "worker")
    assert (hosts["db-b"].port, hosts["node02.site"].port) == (2222, 2200)
    assert hosts["node02.site"].identity == Path("inv/keys/cpu")
    assert hosts["node02.site"].vars["motto"] == "say it loud"
    assert hosts["jump"].groups == ("ungrouped",)
    assert hosts["node01.site"].groups == ("xeon", "big", "cpu")
    assert hosts["here"].groups == ("xeon", "big")
    assert (hosts["node01.site"].slots, hosts["node01.site"].internal) == (4, "10.1.0.1")


def test_anchors_tags_lists_and_paths_of_yaml_are_read() -> None:
    hosts = read(YAML)
    assert (hosts["far"].user, hosts["far"].vars["motto"]) == ("gpu", "say it loud")
    assert (hosts["far"].ssh_config, hosts["far"].known_hosts) == (Path("inv/cfg"), Path("inv/kh"))
    assert (hosts["node01.site"].vars["rack"], hosts["here"].vars["on"]) == ("7", "yes")


def test_groups_of_equal_depth_are_ordered_by_priority_then_name() -> None:
    text = "[a]\nn\n[b]\nn\n[a:vars]\nansible_user=a\nx=a\n[b:vars]\nansible_user=b\nx=b\n"
    assert read(text)["n"].user == "b"
    assert read(text + "[a:vars]\nansible_group_priority=10\n")["n"].user == "a"


def test_depth_of_a_group_is_its_longest_path() -> None:
    text = "[deep]\nn\n[zzz]\nn\n[mid:children]\ndeep\n[top:children]\nmid\nzzz\n[deep:vars]\nansible_user=deep\n"
    assert read(text + "[zzz:vars]\nansible_user=zzz\n")["n"].user == "deep"


def test_a_group_may_be_used_before_it_is_declared() -> None:
    hosts = read("[top:vars]\nansible_user=u\n[top:children]\nlow\n[low]\nn\n")
    assert (hosts["n"].user, hosts["n"].groups) == ("u", ("top", "low"))


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("n ansible_ssh_host=a ansible_ssh_user=u ansible_ssh_port=23", Host("n", "a", "u", 23, groups=("ungrouped",))),
        ("n ansible_ssh_host=old ansible_host=new", Host("n", "new", groups=("ungrouped",))),
        ("n ansible_connection=local", Host("n", "localhost", groups=("ungrouped",))),
        ("n ansible_connection=local ansible_host=a!b", Host("n", "localhost", groups=("ungrouped",))),
        ("n ansible_host=", Host("n", "n", groups=("ungrouped",))),
        ("[fe80::2]:2222", Host("fe80::2", "fe80::2", port=2222, groups=("ungrouped",))),
        ("n:2222 ansible_port=23", Host("n", "n", port=23, groups=("ungrouped",))),
        ("me@n", Host("n", "n", "me", groups=("ungrouped",))),
        ("n slots=2 max_slots=4", Host("n", "n", slots=2, max_slots=4, groups=("ungrouped",))),
        ("n ansible_host = a", Host("n", "a", groups=("ungrouped",))),
        ("n#ansible_host=a", Host("n", "n", groups=("ungrouped",))),
        ("n ansible_user=DOM\\\\me", Host("n", "n", "DOM\\me", groups=("ungrouped",))),
    ],
)
def test_ansible_connection_variables_are_read(line: str, host: Host) -> None:
    assert read(line) == {host.name: host}


@case_table
def test_other_variables_are_kept_as_text_without_their_quotes(value: str, text: str) -> None:
    assert read(f"n x={value} port=8080")["n"].vars == {"x": text, "port": "8080"}


@case_table
def test_proxy_in_ssh_arguments_becomes_an_ssh_option(args: str, proxy: str | None) -> None:
    host = read(f'n ansible_ssh_common_args="{args}"')["n"]
    assert host.proxy == proxy
    assert ssh_options(host) == (["-o", proxy] if proxy else [])
    assert not refused_argument(host.vars.get("ansible_ssh_common_args", "").split())


def test_a_local_host_may_inherit_a_proxy() -> None:
    text = "here ansible_connection=local\n[all:vars]\nansible_ssh_common_args=-J bastion\n"
    assert read(text)["here"].address == "localhost"


@case_table
def test_files_in_ssh_arguments_are_read_and_the_rest_is_kept(
    args: str, config: str | None, known: str | None, left: str | None
) -> None:
    host = read(f'n ansible_ssh_common_args="{args}"')["n"]
    assert host.ssh_config == (Path(config) if config else None)
    assert host.known_hosts == (Path(known) if known else None)
    assert host.vars.get("ansible_ssh_common_args") == left


sections = st.builds(
    "[{}{}]".format, st.sampled_from(["a", "b", "c", "all", "ungrouped"]), st.sampled_from(["", ":vars", ":children"])
)
lines = st.one_of(
    sections, st.sampled_from(["a", "b", "c", "n1", "n[1:3] slots=2", "x=1", "ansible_port=22"]), almost_valid
)


@given(st.lists(lines, max_size=12).map("\n".join))
def test_nearly_valid_inventory_is_read_or_refused(text: str) -> None:
    assert_only_user_errors(read_inventory_ini, text)


def test_json_inventory_is_read() -> None:
    assert read('{"all": {"hosts": {"n": {"ansible_port": 2222}}}}')["n"].port == 2222


@pytest.mark.parametrize("text", ["", "# nothing", "---\n", "all:", "all: {hosts: }"])
def test_empty_yaml_inventory_has_no_hosts(text: str) -> None:
    assert read_inventory_yaml(text, "inv/hosts.yml") == ()


def test_python_object_tags_are_not_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"---\nall: {{hosts: {{n: {{x: !!python/object/apply:os.mkdir ['{made}']}}}}}}"
    assert read(text)["n"].vars == {"x": f'["{made}"]'}
    assert not made.exists()


words = st.sampled_from(
    ["all", "a", "b", "n1", "n[1:3]", "hosts", "children", "vars", "slots", "ansible_port", "<<", "4", "x y"]
)
trees = st.recursive(
    words | st.none() | almost_valid,
    lambda inner: st.dictionaries(words, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=12,
)


@given(st.dictionaries(words, trees, max_size=3))
def test_nearly_valid_yaml_is_read_or_refused(tree: dict[str, object]) -> None:
    import yaml

    assert_only_user_errors(read_inventory_yaml, yaml.safe_dump(tree, sort_keys=False))
