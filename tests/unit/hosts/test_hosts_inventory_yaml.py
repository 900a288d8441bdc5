"""Ansible's YAML inventory, and harmful YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts_helpers import almost_valid, assert_only_user_errors, file_error
from ipexctl.hosts.host import Host
from ipexctl.hosts.inventory_files import read_inventory_yaml
from message_data import missing

CLUSTER = """\
---
all:
  vars: {ansible_user: nobody, ntp: [a, b: c]}
  hosts:
    jump: {ansible_host: 203.0.113.1}
  children:
    xeon:
      vars: &defaults
        ansible_user: root
        ansible_ssh_private_key_file: keys/xeon
      children:
        cpu:
          hosts:
            node[01:02]: {slots: 4, rack: 7}
            node03:
              ansible_user: me
              ansible_ssh_common_args: -F cfg -o UserKnownHostsFile=kh
gpu:
  hosts:
    node01:
    here: {ansible_connection: local, ansible_host: ~, on: yes, secret: !vault x}
  vars:
    <<: *defaults
    ansible_user: gpu
"""


def read(text: str) -> dict[str, Host]:
    return {host.name: host for host in read_inventory_yaml(text, "inv/hosts.yml")}


def test_paths_are_relative_to_the_inventory() -> None:
    host = read(CLUSTER)["node03"]
    assert (host.identity, host.ssh_config, host.known_hosts) == (
        Path("inv/keys/xeon"),
        Path("inv/cfg"),
        Path("inv/kh"),
    )


def test_json_inventory_is_read() -> None:
    assert read('{"all": {"hosts": {"n": {"ansible_port": 2222}}}}')["n"].port == 2222


@pytest.mark.parametrize("text", ["", "# nothing", "---\n", "all:", "all: {hosts: }"])
def test_empty_inventory_has_no_hosts(text: str) -> None:
    assert read(text) == {}


BOMB = "b0: &b0 {hosts: {x: }}\n" + "".join(
    f"b{n}: &b{n} {{children: {{" + ", ".join(f"c{n}{m}: *b{n - 1}" for m in range(9)) + "}}\n" for n in range(1, 9)
)
TEXT_BOMB = f"all:\n  hosts: {{n: }}\n  vars:\n    a: &a {'x' * 100_000}\n    b: [{', '.join(['*a'] * 5000)}]\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "what", "fix"),
    [
        ("- node1", 1, 1, "", ""),
        ("node1", 1, 1, "node1", ""),
        ("a:\n  host: {n: }", 2, 3, "host", "hosts"),
        ("a:\n  n1: {}", 2, 3, "n1", ""),
        ("a:\n  hosts: [n]", 2, 10, "", "`node1:`"),
        ("a:\n  hosts: n", 2, 10, "", ""),
        ("a: {children: [b]}", 1, 15, "", "`gpu:`"),
        ("a: {vars: [b]}", 1, 11, "", ""),
        ("a: n", 1, 4, "a", ""),
        ("a: {hosts: {n: 4}}", 1, 16, "n", ""),
        ("a:\n  hosts:\n    n:\n    n:", 4, 5, "n", ""),
        ("a:\na:", 2, 1, "a", ""),
        ("a b:", 1, 1, "", ""),
        ("? [a]\n: b", 1, 3, "", ""),
        ("a: {hosts: {n: {ansible_host: [a]}}}", 1, 31, "", ""),
        ("a: {hosts: {n: {ansible_host: '{{ x }}'}}}", 1, 31, "Jinja", ""),
        ("a: {hosts: {n: {ansible_user: !vault x}}}", 1, 31, "!vault", ""),
        ("a: {hosts: {n: {ansible_port: x}}}", 1, 31, "", ""),
        ("a: {hosts: {n: {slots: 0}}}", 1, 24, "1", ""),
        ("a: {hosts: {-oX: }}", 1, 13, "-", ""),
        ("a: {hosts: {'n;x': }}", 1, 14, "';'", ""),
        ("a: {children: {b: {children: {a: }}}}", 1, 31, "b", ""),
        ("a: {children: {all: }}", 1, 16, "all", ""),
        ("a: &a {children: {b: *a}}", 1, 18, "", ""),
        ("a: &a {<<: *a}", 1, 4, "", ""),
        ("all: {hosts: {n: }, vars: {x: &x [*x]}}", 1, 31, "", ""),
        (BOMB, 1, 17, "", ""),
        (TEXT_BOMB, 5, 8, "", ""),
        ("[" * 10_000, 1, 81, "100", ""),
        ("a: *x", 1, 4, "", ""),
        ("a: b: c", 1, 5, "", ""),
        ("a:\n\thosts:", 2, 1, "YAML", ""),
        ("a:\n---\nb:", 2, 1, "", ""),
        ("a: \x07", 1, 4, "U+0007", ""),
        ("a:\n\ud800", 2, 1, "", ""),
        ('{"_meta": {"hostvars": {}}}', 1, 2, "", "ansible-inventory"),
    ],
)
def test_invalid_inventories_are_refused_with_position_and_fix(
    text: str, line: int, column: int, what: str, fix: str
) -> None:
    error = file_error(read_inventory_yaml, text)
    assert missing(error.what, what) == []
    assert (error.line, error.column) == (line, column)
    assert missing(error.fix, fix) == []


def test_python_object_tags_are_not_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"all: {{hosts: {{n: {{x: !!python/object/apply:os.mkdir ['{made}']}}}}}}"
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
def test_nearly_valid_inventory_is_read_or_refused(tree: dict[str, object]) -> None:
    import yaml

    assert_only_user_errors(read_inventory_yaml, yaml.safe_dump(tree, sort_keys=False))
