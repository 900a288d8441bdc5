"""Lines that users of the guides paste, as they stand but for addresses, paths and the model, on real hosts.

The shell divides them, as a terminal's does: behind `ipexctl run`, with its backslashes and its spaces.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from accelerate_files import ALONE
from cli_helpers import IPEXCTL, NO_HOSTS_ENV, CommandResult
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import REPORT_SCRIPT, Cluster, rank_reports
from message_data import missing

MPI_LAB = LabSpec(hosts=4)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

ARGS = (
    "--model_name_or_path tiny --dataset_name squad --do_train --do_eval --per_device_train_batch_size 12 "
    "--learning_rate 3e-5 --num_train_epochs 2 --max_seq_length 384 --doc_stride 128 --output_dir /tmp/debug_squad/ "
    "--no_cuda --ddp_backend ccl --use_ipex"
)
RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
Paste = Callable[..., CommandResult]


@pytest.fixture
def paste(cluster: Cluster) -> Paste:
    """Pastes a line behind `ipexctl run`; the guide's hostfile does not say how to log in."""
    addresses = [host.address for host in cluster.lab.hosts]
    cluster.write("hostfile", "".join(f"{address} #node{at} ip\n" for at, address in enumerate(addresses)))
    cluster.write("two", "".join(f"{address}\n" for address in addresses[:2]))
    for name in ("run_qa.py", "script.py", "examples/nlp_example.py"):
        cluster.write(name, REPORT_SCRIPT)
    cluster.write(".ipexctlignore", "")
    login = ("--ssh-config", str(cluster.lab.ssh_config))

    def call(line: str, *options: str, exports: str = "", rc: int = 0) -> CommandResult:
        script = f"{exports}\n{shlex.join([*IPEXCTL, 'run', *login, *options])} {line}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cluster.project,
            env={**os.environ, **NO_HOSTS_ENV, **cluster.env, "HF_HOME": str(cluster.state / "hf")},
            timeout=200,
            check=False,
        )
        assert done.returncode == rc, f"{done.returncode}\n{done.stderr}\n{done.stdout}"
        return CommandResult(done.returncode, done.stdout, done.stderr, 0.0)

    return call


def hosts_of(reports: dict[int, dict[str, Any]]) -> list[str]:
    return [reports[rank]["host"] for rank in sorted(reports)]


def values(reports: dict[int, dict[str, Any]], name: str) -> set[str | None]:
    return {report["env"].get(name) for report in reports.values()}


@pytest.mark.core
def test_mpirun_on_two_nodes(cluster: Cluster, paste: Paste) -> None:
    """Line 2; MASTER_ADDR is the one of the guide for a single node."""
    ran = paste(
        f" mpirun -f hostfile -n 4 -ppn 2 \\\n -genv OMP_NUM_THREADS=23 \\\n python3 run_qa.py {ARGS} \\\n --bf16",
        exports="export CCL_WORKER_COUNT=1\nexport MASTER_ADDR=127.0.0.1",
    )
    reports = rank_reports(ran)
    assert hosts_of(reports) == ["node1", "node1", "node2", "node2"]
    assert values(reports, "OMP_NUM_THREADS") == {"23"}
    assert values(reports, "WORLD_SIZE") == {"4"}
    assert values(reports, "CCL_WORKER_COUNT") == {"1"}
    assert values(reports, "MASTER_ADDR") == {cluster.lab.hosts[0].address}
    assert reports[3]["argv"] == [*ARGS.split(), "--bf16"]
    notes = [line for line in ran.err.splitlines() if "mpirun" in line and line.startswith("note: ")]
    assert len(notes) == 1
    data = "--hostfile hostfile -n 4 --ppn 2 OMP_NUM_THREADS=23 CCL_WORKER_COUNT MASTER_ADDR"
    assert missing(notes[0], data) == []


def test_accelerate_with_one_process(cluster: Cluster, paste: Paste) -> None:
    """Line 3: no process group, as under `accelerate launch`."""
    default = cluster.state / "hf" / "accelerate" / "default_config.yaml"
    default.parent.mkdir(parents=True)
    default.write_text(ALONE)
    reports = rank_reports(paste("accelerate launch examples/nlp_example.py --args_to_my_script", "-H", "two"))
    assert hosts_of(reports) == ["node1"]
    assert reports[0]["argv"] == ["--args_to_my_script"]
    env = reports[0]["env"]
    assert not {*RANK_NAMES, "MASTER_ADDR", "MASTER_PORT"} & set(env)
    assert (env["ACCELERATE_MIXED_PRECISION"], env["ACCELERATE_USE_CPU"]) == ("bf16", "true")
    assert (env["IPEXCTL_RANK"], env["IPEXCTL_BACKEND"]) == ("0", "none")
    both = rank_reports(paste("accelerate launch examples/nlp_example.py", "-H", "two", "-n", "2"))
    assert values(both, "WORLD_SIZE") == {"2"}


@pytest.mark.core
def test_independent_instances(cluster: Cluster, paste: Paste) -> None:
    """Line 9: copies without a process group, which mpirun starts without its own variables."""
    cluster.write("one", f"{cluster.lab.hosts[0].address}\n")
    reports = rank_reports(paste("ipexrun --ninstances 2 script.py", "-H", "one"))
    assert hosts_of(reports) == ["node1", "node1"]
    for rank, report in reports.items():
        env = report["env"]
        assert (env["IPEXCTL_RANK"], env["IPEXCTL_WORLD_SIZE"]) == (str(rank), "2")
        assert not [name for name in env if name.startswith(("PMI", "MPI_LOCAL", "MASTER_")) or name in RANK_NAMES]
    assert not set(reports[0]["cores"]) & set(reports[1]["cores"])


def test_a_pasted_line_is_planned(cluster: Cluster, paste: Paste) -> None:
    line = "mpirun -f hostfile -n 4 -ppn 2 -genv OMP_NUM_THREADS=23 python3 run_qa.py --bf16"
    planned = json.loads(paste(line, "--dry-run", "--json").out)
    assert [len(host["ranks"]) for host in planned["hosts"]] == [2, 2]
    assert planned["command"][1:] == ["run_qa.py", "--bf16"]
