"""Each pair of files in tests/data/machines is a machine: recorded /proc and /sys, and the facts and plans that follow.

A line of NAME.txt is `PATH:LINE`, as `grep -r ''` prints it. `cpu[0-3]` in a path stands for several files, and `+0 +4`
for the CPU's own number and the fourth after it. In NAME.json, `about`, `recorded` and `asked` of each plan are typed;
`IPEXCTL_GOLDEN=write` writes the rest. A new machine is two new files, and no code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from launch_helpers import machine, plan

from ipexctl.doctor.doctor_run import examine_host
from ipexctl.doctor.finding import HostContext
from ipexctl.facts.cpu import Cpu, CpuList, parse_cpulist
from ipexctl.facts.facts import Facts, parse
from ipexctl.hosts.host import Host
from ipexctl.launch.run_context import EarlierMemory
from ipexctl.launch.topology import recommended_layout
from ipexctl.ui.machine_drawing import DrawnRank, machine_lines

MACHINES = Path(__file__).parents[2] / "data" / "machines"
PROBE = (Path(__file__).parents[3] / "ipexctl/facts/probe/kernel.awk").read_text(encoding="utf-8")
NAMES = sorted(file.stem for file in MACHINES.glob("*.txt"))


def write_tree(recorded: str, root: Path) -> None:
    files: defaultdict[Path, list[str]] = defaultdict(list)
    for row in recorded.splitlines():
        path, _, line = row.partition(":")
        several = re.search(r"\[([\d,-]+)\]", path)
        for number in parse_cpulist(several[1]) or () if several else (0,):
            own = path.replace(several[0], str(number)) if several else path
            is_relative = re.fullmatch(r"[+-]\d+( [+-]\d+)*", line)
            text = ",".join(str(number + int(word)) for word in line.split()) if is_relative else line
            files[root / own.lstrip("/")].append(text)
    for file, lines in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def probe(root: Path) -> str:
    """The lines of the probe about processors and NUMA nodes, read below `root`."""
    program = re.sub(r'"(/sys/devices/|/proc/(?:cpuinfo|self/status|1/status))', rf'"{root}\1', PROBE)
    printed = subprocess.run(["awk", program], capture_output=True, text=True, check=True).stdout
    return "".join(f"{line}\n" for line in printed.splitlines() if re.match("cpu|numa", line))


def facts_of(cpu: Cpu) -> dict[str, Any]:
    return {
        "sockets": cpu.sockets,
        "cores": cpu.cores,
        "threads": cpu.threads,
        "numa_nodes": cpu.numa_nodes,
        "tier": cpu.tier,
        "memory": {f"node {node.number}": node.memory for node in cpu.numa},
        "hbm": [node.number for node in cpu.hbm],
        "p_cores": str(cpu.p_cores or ""),
    }


def plan_of(text: str, asked: dict[str, Any]) -> dict[str, Any]:
    options = dict(asked)
    if cpus := options.pop("cpus", None):
        text += f"status Cpus_allowed_list:\t{cpus}\n"
    if quota := options.pop("quota", None):
        text += f"cgroup.cpu.max {quota * 100000:.0f} 100000\n"
    if gib := options.pop("earlier_gib", None):
        options["earlier_memory"] = EarlierMemory(gib << 30, "calm-otter")
    facts = machine(parse(text).cpu)
    facts = facts._replace(system=facts.system._replace(kernel=options.pop("kernel", None)))
    made = plan(facts, **options)
    ranks = made.ranks
    if not options:
        assert recommended_layout([facts.cpu], has_ccl=False)[0].ppn == len(ranks), "doctor recommends another number"
    drawn = [DrawnRank((rank.rank,), rank.cores, rank.ccl_cores, rank.memory, rank.omp) for rank in ranks]
    drawing = list(machine_lines(facts.cpu, drawn, 78))
    assert all(len(line) <= 78 for line in drawing)
    return {
        "asked": asked,
        "cores": [str(CpuList.of(rank.cores)) for rank in ranks],
        "memory": [str(CpuList.of(rank.memory)) for rank in ranks],
        "threads": ranks[0].omp,
        "notes": [*(choice for choice in made.choices if "HBM" in choice), *made.notes],
        "drawing": drawing,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_machine_gets_the_right_facts_findings_and_plans(name: str, tmp_path: Path) -> None:
    file = MACHINES / f"{name}.json"
    case = json.loads(file.read_text(encoding="utf-8"))
    write_tree((MACHINES / f"{name}.txt").read_text(encoding="utf-8"), tmp_path)
    text = probe(tmp_path)
    cpu = parse(text).cpu._replace(arch="x86_64")
    context = HostContext(Host("node1", "node1"), Facts(cpu=cpu, complete=True))
    findings = [finding.id for finding in examine_host(context)]
    found = {
        "facts": facts_of(cpu),
        "findings": [name for name in findings if name.startswith(("cpu.", "numa."))],
        "plans": [plan_of(text, each["asked"]) for each in case["plans"]],
    }
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        typed = {key: case[key] for key in ("about", "recorded")}
        file.write_text(json.dumps({**typed, **found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    assert found == {key: value for key, value in case.items() if key not in ("about", "recorded")}


def test_machines_of_many_kinds_are_recorded() -> None:
    assert len(NAMES) >= 15
