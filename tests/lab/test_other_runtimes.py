"""The commands of docs/other-runtimes.md with the real Ray, Dask, LightGBM and GNU parallel, on lab hosts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clean_environment import package_environ
from doc_blocks import ROOT, blocks
from doc_shell import Shell
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import session_dir, stack_with
from page_fixtures import wheels_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
RAY_JOB = """\
import ray, socket
ray.init(address="auto")
print("squares", sum(ray.get([ray.remote(lambda x: x * x).remote(x) for x in range(10)])))
"""
DASK_JOB = """\
import socket, sys
from distributed import Client
client = Client(sys.argv[1], timeout=120)
client.wait_for_workers(2, timeout=120)
print("hosts", *sorted(set(client.run(socket.gethostname).values())), flush=True)
print("squares", sum(client.gather(client.map(lambda x: x * x, range(10)))), flush=True)
client.shutdown()
"""
TASK = """\
import os, sys, time
number = int(sys.argv[1])
if number % 20 == 0 and not os.path.exists(f"failed.{number}"):
    open(f"failed.{number}", "w").close()
    sys.exit(1)
time.sleep(0.1)
open(f"done.{number}", "a").write("x")
"""
TASKS = 200
TRAIN_GBM = """\
import sys
import lightgbm
import numpy as np
rank, peers, port = sys.argv[1:]
data = np.random.default_rng(int(rank)).random((500, 5))
parameters = {parameters}
parameters |= {{"objective": "regression", "num_threads": 1, "verbose": 1}}
model = lightgbm.train(parameters, lightgbm.Dataset(data, data.sum(axis=1)), num_boost_round=10)
print("model", model.num_trees(), round(float(model.predict([[0.5] * 5])[0]), 6))
"""


def commands(heading: str) -> list[str]:
    """The lines of a section of the page."""
    page = ROOT / "docs/other-runtimes.md"
    lines = page.read_text().splitlines()
    first = lines.index(f"## {heading}") + 1
    ends = [number for number, line in enumerate(lines, 1) if number > first and line.startswith("## ")]
    last = min(ends, default=len(lines))
    found = [block for block in blocks(page) if first < block.line < last]
    return [command.line for block in found for command in block.commands()]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = stack_with(session_dir(tmp_path_factory) / "none", session_dir(tmp_path_factory) / "runtimes")
    for wheel in directory.glob("numpy-*.whl"):
        wheel.unlink()  # Dask needs the real one
    said = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "-d", directory, "ray", "distributed", "lightgbm", "numpy<2.3"],
        capture_output=True, text=True, timeout=400, check=False, env=package_environ(),
    )  # fmt: skip
    if said.returncode:
        pytest.skip(f"ray, distributed and lightgbm can't be had from PyPI: {said.stderr.strip().splitlines()[-1:]}")
    return directory


@pytest.fixture(scope="module")
def shell(make_lab: Callable[[LabSpec], Lab], wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    lab = make_lab(LabSpec(hosts=2))
    place = tmp_path_factory.mktemp("runtimes")
    config = place / "ssh_config"
    config.write_text(lab.hosts[0].dir.parent.joinpath("ssh_config").read_text())
    made = Shell(place, wheels_of(wheels), ssh_config=config, timeout=300)
    made.write("hostfile", "node1\nnode2\n")
    made.write("pyproject.toml", "")
    made.type("ipexctl install")
    return made


def ranks_of_running(shell: Shell) -> list[dict[str, Any]]:
    runs = json.loads(shell.type("ipexctl ps --json"))["runs"]
    found: list[dict[str, Any]] = next(run for run in runs if run["state"] == "running")["ranks"]
    return found


def test_ray(shell: Shell) -> None:
    shell.write("job.py", RAY_JOB)
    install, run = commands("Ray")
    shell.type(install)
    assert "squares 285" in shell.type(run)


def test_dask(shell: Shell) -> None:
    shell.write("dask_job.py", DASK_JOB)
    shell.write(
        "dask_job.sh", next(block.text for block in blocks(ROOT / "docs/other-runtimes.md") if block.language == "sh")
    )
    install, run = commands("Dask")
    shell.type(install)
    output = shell.type(run.replace("--keep-going", "--keep-going --ppn 1"))
    assert "hosts node1 node2" in output
    assert "squares 285" in output


def python_of_page() -> tuple[str, str]:
    """The parameters of LightGBM and the setting for TensorFlow."""
    first, second, *_ = [block.text for block in blocks(ROOT / "docs/other-runtimes.md") if block.language == "python"]
    return first.strip(), second.strip()


def test_lightgbm_trains_one_model_on_the_data_of_two_hosts(shell: Shell) -> None:
    shell.write("train_gbm.py", TRAIN_GBM.format(parameters=python_of_page()[0]))
    install, run = commands("LightGBM, TensorFlow, llama.cpp")
    shell.type(install)
    output = shell.type(run)
    assert "total number of machines: 2" in output
    models = [line.partition("model ")[2] for line in output.splitlines() if "] model " in line]
    assert len(models) == 2
    assert len(set(models)) == 1, "trained alone, the models of different data would differ"


def test_tensorflow_finds_its_workers() -> None:
    """What it reads has the addresses in the order of the ranks."""
    words = [sys.executable, "-c", f"import json, os, sys\nrank, peers = sys.argv[1:]\n{python_of_page()[1]}\n"]
    words[2] += "print(os.environ['TF_CONFIG'])"
    done = subprocess.run([*words, "1", "10.0.0.1:2,10.0.0.2:3"], capture_output=True, text=True, check=True)
    expected = {"cluster": {"worker": ["10.0.0.1:2", "10.0.0.2:3"]}, "task": {"type": "worker", "index": 1}}
    assert json.loads(done.stdout) == expected


@pytest.mark.needs("jq")
def test_servers_are_started_again_one_by_one_on_their_port(shell: Shell) -> None:
    run, balance = commands("A server per NUMA node")
    shell.type(run)
    lines: list[str] = []
    until = time.monotonic() + 60
    while len(lines) < 2 and time.monotonic() < until:
        time.sleep(1)
        lines = [line for line in shell.type(balance).splitlines() if ":null" not in line]
    ports = {line.split()[1].partition(":")[0]: int(line.rpartition(":")[2].rstrip(";")) for line in lines}
    assert set(ports) == {"node1", "node2"}
    ranks = ranks_of_running(shell)
    shell.type(f"ipexctl exec -l node2 -- kill {ranks[1]['pid']}")
    while time.monotonic() < until:
        time.sleep(1)
        ranks = ranks_of_running(shell)
        if ranks[1]["restarts"]:
            break
    assert [(rank["restarts"], rank["port"] in ports.values(), rank["state"]) for rank in ranks] == [
        (0, True, "running"),
        (1, True, "running"),
    ]
    shell.type("ipexctl stop last")


@pytest.mark.needs("parallel")
def test_tasks_survive_failures_and_a_lost_host(shell: Shell, make_lab: Callable[[LabSpec], Lab]) -> None:
    hosts = make_lab(LabSpec(hosts=2)).hosts
    shell.write("task.py", TASK)
    push, export, run = commands("Many small jobs")
    shell.type(push)
    shell.type(export)
    lab = hosts[1].dir.parent.name
    shell.type(f"({run} >/dev/null 2>&1; true) & sleep 4; ipexctl lab break {lab}/node2 sshd-dead; wait")
    for _ in range(2):
        shell.type(f"{run} >/dev/null 2>&1; true")
    log = [line.split("\t") for line in (shell.project / "jobs.log").read_text().splitlines()[1:]]
    succeeded = Counter(line[8] for line in log if (line[6], line[7]) == ("0", "0"))
    assert len(succeeded) == TASKS
    assert set(succeeded.values()) == {1}
    counts = subprocess.run(
        [*ssh_argv(hosts[0]), "-l", "ipex", "ls | grep -c done"], capture_output=True, text=True, check=True
    )
    assert int(counts.stdout) > TASKS / 4
