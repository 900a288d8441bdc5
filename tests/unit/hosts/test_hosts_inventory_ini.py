"""Ansible's INI inventory, read as it is: groups, ranges, variables and their precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts_helpers import almost_valid, assert_only_user_errors, file_error
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.hosts.inventory_files import read_inventory_ini
from ipexctl.hosts.source import refused_argument
from message_data import missing

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


def read(text: str) -> dict[str, Host]:
    return {host.name: host for host in read_inventory_ini(text, "inv/hosts.ini")}


def test_an_inventory_is_read_in_the_order_of_the_file() -> None:
    assert list(read(CLUSTER)) == [
        "jump",
        "node01.site",
        "node02.site",
        "node03.site",
        "db-a",
        "db-b",
        "db-c",
        "here",
    ]


def test_variable_precedence_is_all_then_parents_then_children_then_host() -> None:
    hosts = read(CLUSTER)
    assert (hosts["jump"].user, hosts["jump"].port, hosts["jump"].address) == ("nobody", 2200, "203.0.113.1")
    assert (hosts["here"].user, hosts["node02.site"].user) == ("root", "worker")
    assert (hosts["db-b"].port, hosts["node02.site"].port) == (2222, 2200)
    assert hosts["node02.site"].identity == Path("inv/keys/cpu")
    assert hosts["node02.site"].vars == {"motto": "say it loud"}


def test_host_has_its_groups_and_their_parents() -> None:
    hosts = read(CLUSTER)
    assert hosts["jump"].groups == ("ungrouped",)
    assert hosts["node01.site"].groups == ("xeon", "big", "cpu")
    assert hosts["here"].groups == ("xeon", "big")


def test_settings_of_a_host_in_two_groups_are_merged() -> None:
    host = read(CLUSTER)["node01.site"]
    assert (host.slots, host.internal) == (4, "10.1.0.1")


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("'a b'", "a b"),
        ('"a # b"', "a # b"),
        ("plain", "plain"),
        ('"say \\"x\\""', 'say "x"'),
        ("{{x}}", "{{x}}"),
        ("a=b", "a=b"),
    ],
)
def test_other_variables_are_kept_as_text_without_their_quotes(value: str, text: str) -> None:
    assert read(f"n x={value} port=8080")["n"].vars == {"x": text, "port": "8080"}


@pytest.mark.parametrize(
    ("args", "proxy"),
    [
        ("-J me@b:2222", "ProxyJump=me@b:2222"),
        ("-Jb -C", "ProxyJump=b"),
        ("-o ProxyJump=b,c", "ProxyJump=b,c"),
        ("-oproxycommand='ssh -W %h:%p b'", "proxycommand=ssh -W %h:%p b"),
        ("-o ProxyJump=none -J b", "ProxyJump=none"),
        ("-C", None),
    ],
)
def test_proxy_in_ssh_arguments_becomes_an_ssh_option(args: str, proxy: str | None) -> None:
    host = read(f'n ansible_ssh_common_args="{args}"')["n"]
    assert host.proxy == proxy
    assert ssh_options(host) == (["-o", proxy] if proxy else [])
    assert not refused_argument(host.vars.get("ansible_ssh_common_args", "").split())


def test_a_local_host_may_inherit_a_proxy() -> None:
    text = "here ansible_connection=local\n[all:vars]\nansible_ssh_common_args=-J bastion\n"
    assert read(text)["here"].address == "localhost"


@pytest.mark.parametrize(
    ("args", "config", "known", "left"),
    [
        ("-F cfg", "inv/cfg", None, None),
        ("-Fcfg -o UserKnownHostsFile=kh", "inv/cfg", "inv/kh", None),
        ("-oUserKnownHostsFile=/etc/kh -v", None, "/etc/kh", "-v"),
        ('-o \\"UserKnownHostsFile kh\\"', None, "inv/kh", None),
        ("-o ProxyJump=bastion -F cfg -o Compression=yes", "inv/cfg", None, "-o Compression=yes"),
        ("-o userknownhostsfile=/dev/null", None, None, "-o userknownhostsfile=/dev/null"),
        ("-F none", "/dev/null", None, None),
        ("-o ControlPath={{b}}", None, None, "-o ControlPath={{b}}"),
        ("-F", None, None, "-F"),
    ],
)
def test_files_in_ssh_arguments_are_read_and_the_rest_is_kept(
    args: str, config: str | None, known: str | None, left: str | None
) -> None:
    host = read(f'n ansible_ssh_common_args="{args}"')["n"]
    assert host.ssh_config == (Path(config) if config else None)
    assert host.known_hosts == (Path(known) if known else None)
    assert host.vars.get("ansible_ssh_common_args") == left


@pytest.mark.parametrize(
    ("text", "line", "column", "what", "fix"),
    [
        ("[a:children]\nb\n[b:children]\nc\n[c:children]\na\n", 6, 1, "b c", ""),
        ("[a:children]\na\n", 2, 1, "", ""),
        ("[a:children]\nall\n", 2, 1, "all", ""),
        ("[nodes]\nn\n[node:vars]\nx=1\n", 3, 2, "node", ""),
        ("[a:children]\nbb\n", 2, 1, "bb", ""),
        ("[a:children]\nb c\n", 2, 3, "", ""),
        ("[a:foo]\n", 1, 4, "[group:vars]", ""),
        ("[a b]\n", 1, 1, "", "[group]"),
        ("[a\n", 1, 1, "", ""),
        ("[a:vars]\nfoo\n", 2, 1, "key=value", ""),
        ("n ansible_port=abc", 1, 16, "", ""),
        ("n\n[all:vars]\nansible_port = abc", 3, 16, "", ""),
        ("n ansible_host='{{ x }}'", 1, 16, "Jinja", "ansible-inventory"),
        ("n ansible_host={{ x }}", 1, 19, "", ""),
        ("n ansible_ssh_common_args='-F {{ x }}'", 1, 27, "Jinja", ""),
        ('n ansible_ssh_common_args="-F \'x"', 1, 27, "", ""),
        ("n ansible_ssh_common_args='-C -o ProxyJump={{b}}'", 1, 27, "Jinja", "ansible-inventory"),
        ("n ansible_ssh_common_args='-voProxyCommand=x'", 1, 27, "ProxyCommand", "-o"),
        ("n ansible_ssh_extra_args='-vJ b'", 1, 26, "-J", "-o"),
        ("n ansible_host=-oX", 1, 16, "-", ""),
        ("n ansible_user=a;b", 1, 17, "';'", ""),
        ("n slots=0", 1, 9, "1", ""),
        ("n slots=4 max_slots=2", 1, 9, "max_slots", ""),
        ("n:4", 1, 3, "", "slots=4"),
        ("n 4", 1, 3, "", "slots=4"),
        ("n =4", 1, 3, "", ""),
        ("n x='y", 1, 5, "", ""),
        ("all:\n  hosts:\n", 1, 1, "", ".yml"),
        ("n[01:100]", 1, 3, "", ""),
        ("-oX", 1, 1, "-", ""),
        ("n\xa0x=1", 1, 2, "NO-BREAK SPACE", ""),
        ("[a]\nn\n[a:vars]\nx=\x07", 4, 3, "U+0007", ""),
    ],
)
def test_invalid_lines_are_refused_with_position_and_fix(
    text: str, line: int, column: int, what: str, fix: str
) -> None:
    error = file_error(read_inventory_ini, text)
    assert (error.line, error.column) == (line, column), error.what
    assert missing(error.what, what) == []
    assert missing(error.fix, fix) == []


def test_deeply_nested_groups_are_refused() -> None:
    text = "".join(f"[g{n}:children]\ng{n + 1}\n" for n in range(200)) + "[g200]\nn\n"
    assert missing(file_error(read_inventory_ini, text).what, "100") == []


sections = st.builds(
    "[{}{}]".format, st.sampled_from(["a", "b", "c", "all", "ungrouped"]), st.sampled_from(["", ":vars", ":children"])
)
lines = st.one_of(
    sections, st.sampled_from(["a", "b", "c", "n1", "n[1:3] slots=2", "x=1", "ansible_port=22"]), almost_valid
)


@given(st.lists(lines, max_size=12).map("\n".join))
def test_nearly_valid_inventory_is_read_or_refused(text: str) -> None:
    assert_only_user_errors(read_inventory_ini, text)
