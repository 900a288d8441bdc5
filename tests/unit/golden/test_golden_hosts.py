"""The texts of hostfiles, inventories, node sets, limits and allocations that can't be read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_starter_choice as choice
from golden_file import Case, golden_diff, refusal, rows_of

import test_hosts_detect as detect
import test_hosts_hostfile as hostfile
import test_hosts_inventory_ini as ini
import test_hosts_inventory_yaml as yaml
import test_hosts_limit as limit
import test_hosts_nodeset as nodeset
import test_hosts_select as select
from ipexctl.hosts.allocation import allocated_hosts
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.hostfile import read_host_list, read_hostfile
from ipexctl.hosts.inventory_files import read_inventory_ini, read_inventory_yaml
from ipexctl.hosts.limit import limit_hosts
from ipexctl.hosts.names import WordError
from ipexctl.hosts.nodeset import expand
from ipexctl.hosts.select import select_hosts
from ipexctl.starters.choice import choose_starter


def short(text: object) -> str:
    return repr(text)[:80]


def files(tmp_path: Path) -> list[Case]:
    path = tmp_path / "hosts"
    cases = []
    for data, *_ in rows_of(detect.test_files_without_hosts_are_refused_with_a_fix):
        path.write_bytes(data)
        cases.append(refusal(f"file {short(data)}", read_hosts_file, path, at=tmp_path))
    cases += [
        refusal(f"file {name!r}", read_hosts_file, tmp_path / name, at=tmp_path) for name in ("missing", ".", "a\0b")
    ]
    path.write_bytes(b"n1\nJ\xfcrgen\n")
    cases.append(refusal("file in Latin-1", read_hosts_file, path, at=tmp_path))
    readers: list[tuple[str, Any, Any]] = [
        ("inventory", read_inventory_ini, ini.test_invalid_lines_are_refused_with_position_and_fix),
        ("yaml", read_inventory_yaml, yaml.test_invalid_inventories_are_refused_with_position_and_fix),
    ]
    lines = rows_of(hostfile.test_invalid_lines_are_refused_with_position_and_fix)
    cases += [refusal(f"hostfile {short(line)}", read_hostfile, line, "FILE") for line, *_ in lines]
    for second in rows_of(hostfile.test_conflicting_settings_of_a_host_are_refused_with_both_lines):
        first = "x@a port=22 address=b1 internal=10.0.0.1 identity=k1 known_hosts=g ssh_config=d"
        cases.append(refusal(f"hostfile, two ways: {second}", read_hostfile, f"{first}\n{second}", "FILE"))
    more = ("b\na slots=2 max_slots=2\na", "\n".join(f"h{n}x[1-100]" for n in range(11)))
    cases += [refusal(f"hostfile {short(text)}", read_hostfile, text, "FILE") for text in more]
    for name, read, test in readers:
        cases += [refusal(f"{name} {short(text)}", read, text, "FILE") for text, *_ in rows_of(test)]
    return cases


def words() -> list[Case]:
    specs = rows_of(hostfile.test_invalid_hosts_option_is_refused_with_the_item)
    cases = [refusal(f"--hosts {short(spec)}", read_host_list, spec) for spec, *_ in specs]
    limits = rows_of(limit.test_limit_without_matches_is_refused_with_a_fix)
    cases += [refusal(f"--limit {short(spec)}", limit_hosts, limit.HOSTS, spec) for spec, *_ in limits]
    for text, *_ in rows_of(nodeset.test_invalid_node_sets_are_refused_with_column):
        with pytest.raises(WordError) as caught:
            expand(text)
        cases.append(Case(f"node set {short(text)}", caught.value.message))
    return cases


def sources(tmp_path: Path) -> list[Case]:
    def chosen(request: Any, environ: dict[str, str]) -> object:
        return select_hosts(request, environ=environ, cwd=tmp_path)

    rows = rows_of(select.test_unusable_sources_are_named_in_the_error)
    of_step = {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_NODELIST": "n[1-2]"}
    (tmp_path / "empty").touch()
    return [
        *(refusal(f"source {environ}", chosen, request, environ, at=tmp_path) for request, environ, _ in rows),
        refusal("step of a job", allocated_hosts, {"SLURM_JOB_NODELIST": "n[1-2]", **of_step}),
        refusal("srun", allocated_hosts, {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "4"}),
        *(
            refusal(
                f"--transport srun {named}",
                partial(choose_starter, find_program=choice.found(has_srun)),
                "srun",
                hosts,
                environ,
            )
            for hosts, environ, has_srun, named in rows_of(choice.test_srun_that_cannot_be_is_refused)
        ),
        refusal("an empty PBS file", allocated_hosts, {"PBS_NODEFILE": str(tmp_path / "empty")}, at=tmp_path),
    ]


def test_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.hosts.hostfile.MAX_ENTRIES", 1000)  # a million hosts take half a minute
    assert not (diff := golden_diff("hosts", [*files(tmp_path), *words(), *sources(tmp_path)])), diff
