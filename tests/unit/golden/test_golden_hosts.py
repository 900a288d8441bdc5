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

from case_table import literals_of
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
HOSTFILE_LINES = (*literals_of(__file__, "hostfile_lines"), "x" * 254)
INI = (*literals_of(__file__, "ini"), "".join(f"[g{n}:children]\ng{n + 1}\n" for n in range(200)) + "[g200]\nn\n")
YAML = (*literals_of(__file__, "yaml"), BOMB, TEXT_BOMB, "[" * 10_000)
NODE_SETS = (
    *literals_of(__file__, "node_sets"),
    f"node[0-{MAX_HOSTS * 2}/2]",
    f"node[1-{'9' * 5000}]",
    f"n[0-{MAX_HOSTS}]",
)
RANGES = literals_of(__file__, "ranges")
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
LIMITS = literals_of(__file__, "limits")
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
            refusal(f"--limit @{name}", limit_hosts, HOSTS, f"@{name}")  # a long path would be cut
            for name in ("none", "latin", "gone")
        ),
    ]


def test_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ipexctl.hosts.hostfile.MAX_ENTRIES", 1000)  # a million hosts take half a minute
    assert not (diff := golden_diff("hosts", [*files(tmp_path), *words(), *sources(tmp_path)])), diff
