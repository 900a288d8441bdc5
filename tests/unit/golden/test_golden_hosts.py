"""The texts of hostfiles, inventories, node sets, limits and allocations that can't be read.

A row is what is read; the golden text has the message, the column and the fix.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from golden_file import Case, golden_diff, refusal
from test_transport_choice import IN_JOB, NODES, OUTSIDE
from test_transport_choice import found as program_found

from hosts_helpers import BOMB, TEXT_BOMB
from ipexctl.file_reader import HOSTS as FILE_OF_HOSTS
from ipexctl.hosts.allocation import allocated_hosts, read_tasks
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.hostfile import read_host_list, read_hostfile
from ipexctl.hosts.inventory_files import read_inventory_ini, read_inventory_yaml
from ipexctl.hosts.nodeset import MAX_HOSTS, expand, expand_ranges
from ipexctl.hosts.select import HostRequest, limit_hosts, select_hosts
from ipexctl.transports import choose_transport
from test_hosts_select import HOSTS, SLURM

FILES = (
    b"",
    b" \n\r\n",
    b"# only\n# comments\n",
    b"\x7fELF\x00\x01",
    "n1\n".encode("utf-16"),
    b"#!/bin/sh\necho '{}'\n",
    b"#" * (FILE_OF_HOSTS.limit + 1),
    b"n1\nJ\xfcrgen\n",
    b"\xff",
    b"\xef\xbb\xbfab\xe9",
    b"\xc3\xa9\xe9",
)
PATHS = ("missing", ".", "file/below", "x" * 300, "a\0b")
CONFLICTING = (
    "y@a",
    "a port=23",
    "a address=b2",
    "a internal=10.0.0.2",
    "a identity=k2",
    "a known_hosts=h",
    "a ssh_config=c",
)
HOSTFILES = (
    *(
        f"x@a port=22 address=b1 internal=10.0.0.1 identity=k1 known_hosts=g ssh_config=d\n\n  {second}"
        for second in CONFLICTING
    ),
    "a\na user=x\na user=y",
    "a\n\na\nx@a\na\na user=y",
    "a port=22\nx@a\na user=y",
    "a slots=4 max_slots=4\nb\na slots=4 max_slots=4",
    "b\na slots=2 max_slots=2\na\nb",
    "\n".join(f"h{n}x[1-100]" for n in range(11)),
)
HOST_LISTS = ("", " , ", "node1 node2", "a,node[1-", "./hosts/all", "a,-oX", "x@a,y@a", "a:0")
HOSTFILE_LINES = (
    "node1,node2",
    "node1, node2",
    "n[1-2],m",
    "node1 node2",
    "node1 4",
    "node1 slots=four",
    "node1 slots=\N{ARABIC-INDIC DIGIT THREE}",
    "node1 slots=-1",
    "node1 slots=0",
    "node1:0",
    "node1:x",
    "node1:",
    "node1:9999999999",
    "node1 slots=",
    "node1 =4",
    "node1 slots=2 slots=2",
    "node1:4 slots=2",
    "node1 slots=4 max_slots=2",
    "node1 slotz=4",
    "node1 Slots=4",
    "node1 ifhn=ib0",
    "node1 qwertz=4",
    "node1 port=70000",
    "node1 user=-x",
    "me@node1 user=you",
    "node[1-",
    "\tnode[1-",
    "me@node[1-",
    "node[1-999999999]",
    "node[1:4]",
    "ssh://me@node1:2222",
    "ssh://node1",
    "me@",
    "@node1",
    "-oProxyCommand=x",
    "me@-oProxyCommand",
    "-x@node1",
    "node1 address=-oX",
    "node1 internal=-oX",
    "no$de",
    "n;reboot",
    "n`id`",
    "n[1-2];x",
    "me;x@node1",
    "no\x07de",
    "no\x1b[31mde",
    "node1\xa0slots=4",
    "node\u200b1",
    "nöde",
    "10.0.0.256",
    "10.0.0.01",
    "10.0.0",
    "12",
    "fe80:::2",
    "node1:4:5",
    "fe80::2%",
    "[fe80::2]2",
    "[fe80::2]:",
    "[fe80:::2]:1",
    "n[1-4] internal=10.0.0.1",
    "n address=a[1-2]",
    "n identity='x",
    "n identity=~nobody-here/x",
    "10.0.0.1 node1 node1.site",
    "Host node1",
    "[gpu]",
    "all:",
    "x" * 254,
)
INI = (
    "[a:children]\nb\n[b:children]\nc\n[c:children]\na\n",
    "[a:children]\na\n",
    "[a:children]\nall\n",
    "[nodes]\nn\n[node:vars]\nx=1\n",
    "[a:children]\nbb\n",
    "[a:children]\nb c\n",
    "[a:foo]\n",
    "[a b]\n",
    "[a\n",
    "[a:vars]\nfoo\n",
    "n ansible_port=abc",
    "n\n[all:vars]\nansible_port = abc",
    "n ansible_host='{{ x }}'",
    "n ansible_host={{ x }}",
    "n ansible_ssh_common_args='-F {{ x }}'",
    'n ansible_ssh_common_args="-F \'x"',
    "n ansible_ssh_common_args='-C -o ProxyJump={{b}}'",
    "n ansible_ssh_common_args='-voProxyCommand=x'",
    "n ansible_ssh_extra_args='-vJ b'",
    "n ansible_host=-oX",
    "n ansible_user=a;b",
    "n slots=0",
    "n slots=4 max_slots=2",
    "n:4",
    "n 4",
    "n =4",
    "n x='y",
    "all:\n  hosts:\n",
    "n[01:100]",
    "-oX",
    "n\xa0x=1",
    "[a]\nn\n[a:vars]\nx=\x07",
    "".join(f"[g{n}:children]\ng{n + 1}\n" for n in range(200)) + "[g200]\nn\n",
)
YAML = (
    "- node1",
    "node1",
    "a:\n  host: {n: }",
    "a:\n  n1: {}",
    "a:\n  hosts: [n]",
    "a:\n  hosts: n",
    "a: {children: [b]}",
    "a: {vars: [b]}",
    "a: n",
    "a: {hosts: {n: 4}}",
    "a:\n  hosts:\n    n:\n    n:",
    "a:\na:",
    "a b:",
    "? [a]\n: b",
    "a: {hosts: {n: {ansible_host: [a]}}}",
    "a: {hosts: {n: {ansible_host: '{{ x }}'}}}",
    "a: {hosts: {n: {ansible_user: !vault x}}}",
    "a: {hosts: {n: {ansible_port: x}}}",
    "a: {hosts: {n: {slots: 0}}}",
    "a: {hosts: {-oX: }}",
    "a: {hosts: {'n;x': }}",
    "a: {children: {b: {children: {a: }}}}",
    "a: {children: {all: }}",
    "a: &a {children: {b: *a}}",
    "a: &a {<<: *a}",
    "all: {hosts: {n: }, vars: {x: &x [*x]}}",
    BOMB,
    TEXT_BOMB,
    "[" * 10_000,
    "a: *x",
    "a: b: c",
    "a:\n\thosts:",
    "a:\n---\nb:",
    "a: \x07",
    "a:\n\ud800",
    '{"_meta": {"hostvars": {}}}',
)
NODE_SETS = (
    "node[1-",
    "a,node[1-",
    "node1]",
    "a[b[1]]",
    "node[]",
    "node[1,,2]",
    "node[1-]",
    "node[a-c]",
    "node[1,4-2]",
    "node[1-4/0]",
    "node[01-100]",
    "node[1-010]",
    "node[010-20]",
    f"node[0-{MAX_HOSTS * 2}/2]",
    "node[1-999999999/9]",
    "node[1:4]",
    "node[1..4]",
    "node[1-\N{ARABIC-INDIC DIGIT THREE}]",
    "node[1-999999999]",
    "a[1-1000]b[1-1000]",
    "a[1-99999],b[1-99999]",
    f"node[1-{'9' * 5000}]",
    f"n[0-{MAX_HOSTS}]",
)
RANGES = (
    "n[a:3]",
    "n[:c]",
    "n[c:a]",
    "n[01:100]",
    "n[1:2:0]",
    "n[a:c:0]",
    "n[1:]",
    "n[é:f]",
    "n[1:2:3:4]",
)
SOURCES: tuple[tuple[HostRequest, dict[str, str]], ...] = (
    (HostRequest(hostfile=Path("gone")), {}),
    (HostRequest(), {"IPEXCTL_HOSTFILE": "gone"}),
    (HostRequest(), {"PBS_NODEFILE": "/gone"}),
    (HostRequest(hosts=""), {}),
    (HostRequest(hosts="a", limit="b"), {}),
    (HostRequest(hosts="a", user="-x"), {}),
    (HostRequest(hosts="a", port=0), {}),
    (HostRequest(hosts="a", port=65536), {}),
    (HostRequest(hostfile=Path("given")), {}),
    (HostRequest(), {"SLURM_JOB_NODELIST": "n[1-"}),
    (HostRequest(), {"SLURM_NODELIST": "-x"}),
    (HostRequest(), {"SLURM_JOB_NODELIST": ","}),
    (HostRequest(), {**SLURM, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2(x"}),
    (HostRequest(), {**SLURM, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2(x3)"}),
    (HostRequest(), {**SLURM, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2(x999999)"}),
)
LIMITS = (
    "",
    " ,",
    "!",
    "nod1",
    "smal",
    "!node3",
    "zzz",
    "zz*",
    "node[1-4]",
    "node[1-",
    "node[1-999999999]",
    "!all",
    "big,!big",
)
SRUN: tuple[tuple[Any, Any, bool], ...] = (
    (NODES, {}, True),
    (NODES, IN_JOB, False),
    ((*NODES, OUTSIDE), IN_JOB, True),
    (None, IN_JOB, True),
)
TASKS = ("", "0", "x", "2(x0)", "2(3)", "2(x3", "-1", "2,,1", "1(x999999)")
OF_STEP = {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_NODELIST": "n[1-2]"}


def short(text: object) -> str:
    return repr(text)[:80]


def files(tmp_path: Path) -> list[Case]:
    path = tmp_path / "hosts"
    (tmp_path / "file").write_text("n1\n")
    cases = []
    for data in FILES:
        path.write_bytes(data)
        cases.append(refusal(f"file {short(data)}", read_hosts_file, path, at=tmp_path))
    return [
        *cases,
        *(refusal(f"file {short(name)}", read_hosts_file, tmp_path / name, at=tmp_path) for name in PATHS),
        *(
            refusal(f"hostfile {short(line)}", read_hostfile, f"node0\n{line}\nnode9\n", "FILE")
            for line in HOSTFILE_LINES
        ),
        *(refusal(f"hostfile {short(text)}", read_hostfile, text, "FILE") for text in HOSTFILES),
        *(refusal(f"inventory {short(text)}", read_inventory_ini, text, "FILE") for text in INI),
        *(refusal(f"yaml {short(text)}", read_inventory_yaml, text, "FILE") for text in YAML),
    ]


def words() -> list[Case]:
    return [
        *(refusal(f"--hosts {short(spec)}", read_host_list, spec) for spec in HOST_LISTS),
        *(refusal(f"--limit {short(spec)}", limit_hosts, HOSTS, spec) for spec in LIMITS),
        *(refusal(f"node set {short(text)}", expand, text) for text in NODE_SETS),
        *(refusal(f"range {short(text)}", expand_ranges, text) for text in RANGES),
        *(refusal(f"tasks {short(text)}", read_tasks, text) for text in TASKS),
    ]


def sources(tmp_path: Path) -> list[Case]:
    def chosen(request: Any, environ: dict[str, str]) -> object:
        return select_hosts(request, environ=environ, cwd=tmp_path)

    for name, text in {"empty": "", "blank": "\n", "given": "ok\nno$\n", "none": "# none\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin").write_bytes(b"node1\n\xff\n")
    return [
        *(refusal(f"source {environ}", chosen, request, environ, at=tmp_path) for request, environ in SOURCES),
        refusal("step of a job", allocated_hosts, {"SLURM_JOB_NODELIST": "n[1-2]", **OF_STEP}),
        refusal("srun", allocated_hosts, {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "4"}),
        *(
            refusal(
                f"--transport srun {short((hosts, environ))}",
                partial(choose_transport, find_program=program_found(has_srun)),
                "srun",
                hosts,
                environ,
            )
            for hosts, environ, has_srun in SRUN
        ),
        *(
            refusal(f"{name} PBS file", allocated_hosts, {"PBS_NODEFILE": str(tmp_path / name)}, at=tmp_path)
            for name in ("gone", "empty", "blank")
        ),
        *(
            refusal(f"--limit @{name}", limit_hosts, HOSTS, f"@{tmp_path}/{name}", at=tmp_path)
            for name in ("none", "latin", "gone")
        ),
    ]


def test_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.hosts.hostfile.MAX_ENTRIES", 1000)  # a million hosts take half a minute
    assert not (diff := golden_diff("hosts", [*files(tmp_path), *words(), *sources(tmp_path)])), diff
