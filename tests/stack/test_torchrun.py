"""The variables of a rank beside those that a real torchrun sets, name by name; and what Lightning makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from real_helpers import real_lab

from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import on_host
from lab_run_helpers import Cluster, by_rank, new_cluster, rank_reports

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

OTHER_VALUES = {
    "MASTER_PORT": "a free one, chosen at each start",
    "OMP_NUM_THREADS": "the cores of the rank, not 1",
    "TORCHELASTIC_RUN_ID": "the id of the run",
}
NOT_SET = {
    "TORCHELASTIC_ERROR_FILE": "torchrun reads it; `why` reads the rank's traceback",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "of torchrun itself",
    "TORCHELASTIC_USE_AGENT_STORE": "torchrun has a store at MASTER_PORT; here rank 0 makes it, and not with True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "of GPUs",
}
REPORT = """\
import json, os

os.write(1, (json.dumps({"env": dict(os.environ)}) + "\\n").encode())
"""
"""Two ranks of torchrun share a pipe: a line is written at once."""
LIGHTNING = """\
import sys
from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import BoringModel

trainer = Trainer(num_nodes=int(sys.argv[1]), devices=int(sys.argv[2]), strategy="ddp", accelerator="cpu", max_steps=2,
                  logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(BoringModel())
strategy = trainer.strategy
print(type(strategy.cluster_environment).__name__, trainer.world_size, trainer.global_rank, strategy.node_rank,
      trainer.local_rank, trainer.global_step)
"""
STORE = """\
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    time.sleep(2)
    store = dist.distributed_c10d._get_default_store()
    store.set("late", "used")
    print(store.get("late").decode(), flush=True)
print("last line of", os.environ["RANK"], flush=True)
dist.destroy_process_group()
"""
"""Rank 1 uses the store two seconds after rank 0's last line."""
TRAIN = """\
import os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

way, rank = sys.argv[1], int(os.environ["RANK"])
if way == "gpus" and torch.cuda.device_count() < 2:
    print("Unable to locate sufficient 2 gpus to run this example. Exiting.")
    sys.exit()
model, mesh, group = torch.nn.Linear(4, 4), None, None
if way == "fsdp":
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
elif way != "alone" and way != "late":
    dist.init_process_group("gloo")
if way == "parts":
    group = [dist.new_group([number]) for number in range(2)][rank]
if way in ("ddp", "parts", "stepless"):
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.ones(480, 4)), batch_size=8)):
    if way == "late" and number == 40:
        dist.init_process_group("gloo")
    if way == "evaluate":
        continue
    model(batch).sum().backward()
    if way == "stepless":
        continue
    if way == "late" and number == 58:
        time.sleep(0.1)  # the meter looks at groups every 20 ms
    optimizer.step()
    optimizer.zero_grad()
if dist.is_initialized():
    dist.destroy_process_group()
"""
SHAPES = pytest.mark.parametrize(("hosts", "ranks"), [(2, 1), (1, 2)], ids=["2 hosts x 1", "1 host x 2"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with real_lab("elastic", 2, disk=6e9, package="pytorch-lightning", shared_home=True) as lab:
        made = new_cluster(lab, tmp_path_factory.mktemp("elastic"))
        words = ("--stack", "torch", "--torch", "2.13", "--with", "pytorch-lightning")
        made.good("install", "-H", lab.hostfile, *words, timeout=600)
        made.write("who.py", REPORT)
        made.write("light.py", LIGHTNING)
        made.write("store.py", STORE)
        made.write("train.py", TRAIN)
        for name, text in (("who.py", REPORT), ("store.py", STORE)):
            on_host(lab.hosts[0], f"cat > {name} <<'EOF'\n{text}EOF")
        yield made


def with_torchrun(lab: Lab, hosts: int, ranks: int, number: int, script: str) -> str:
    """What the script prints on one of the hosts, without a launcher if it is who.py, and under torchrun."""
    size = f"--nnodes {hosts} --nproc-per-node {ranks} --node-rank {number}"
    way = f"--master-addr {lab.hosts[0].address if hosts > 1 else '127.0.0.1'} --master-port 29571"
    alone = "$P who.py; " if script == "who.py" else ""
    line = f"{alone}$P -m torch.distributed.run {size} {way} {script}; echo ended with $? >&2"
    return on_host(lab.hosts[number], f"P='timeout 100 .ipexctl/envs/default/bin/python'; {line}", timeout=120)


def set_by_torchrun(lab: Lab, hosts: int, ranks: int) -> dict[int, dict[str, str]]:
    """Rank → what torchrun has added to the environment of a login, or changed in it."""

    def start(number: int) -> list[dict[str, str]]:
        said = with_torchrun(lab, hosts, ranks, number, "who.py")
        before, *envs = (json.loads(line)["env"] for line in said.splitlines())
        return [{name: value for name, value in env.items() if before.get(name) != value} for env in envs]

    with ThreadPoolExecutor() as pool:
        return {int(env["RANK"]): env for envs in pool.map(start, range(hosts)) for env in envs}


@SHAPES
def test_ranks_have_the_variables_of_torchrun(cluster: Cluster, hosts: int, ranks: int) -> None:
    theirs = set_by_torchrun(cluster.lab, hosts, ranks)
    ours = rank_reports(cluster.run("-n", hosts * ranks, "--ppn", ranks, "who.py"))
    assert sorted(theirs) == sorted(ours) == [0, 1]
    for rank, expected in theirs.items():
        env = ours[rank]["env"]
        assert sorted(expected.keys() - env.keys()) == sorted(NOT_SET)
        compared = (expected.keys() & env.keys()) - OTHER_VALUES.keys()
        assert {name: env[name] for name in compared} == {name: expected[name] for name in compared}
        assert {"GROUP_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"} <= compared


@SHAPES
def test_lightning_trains_with_the_ranks_that_are_there(cluster: Cluster, hosts: int, ranks: int) -> None:
    ran = cluster.run("-n", hosts * ranks, "--ppn", ranks, "light.py", hosts, ranks, timeout=200)
    said = {rank: lines[-1].split() for rank, lines in by_rank(ran.out).items()}
    assert said == {
        rank: ["TorchElasticEnvironment", "2", str(rank), str(rank // ranks), str(rank % ranks), "2"] for rank in (0, 1)
    }


@SHAPES
def test_a_rank_uses_the_store_after_rank_0_has_ended(cluster: Cluster, hosts: int, ranks: int) -> None:
    with ThreadPoolExecutor() as pool:
        theirs = pool.map(lambda number: with_torchrun(cluster.lab, hosts, ranks, number, "store.py"), range(hosts))
        expected = sorted(line for said in theirs for line in said.splitlines())
    ran = cluster.run("-n", hosts * ranks, "--ppn", ranks, "store.py", timeout=200)
    assert by_rank(ran.out) == {0: ["last line of 0"], 1: ["used", "last line of 1"]}
    assert sorted(line for lines in by_rank(ran.out).values() for line in lines) == expected
    assert "succeeded" in ran.err


@pytest.mark.parametrize(
    ("way", "seen"),
    [
        ("alone", 1),
        ("ddp", 2),
        ("late", 2),
        ("parts", 2),
        ("fsdp", 2),
        ("gpus", None),
        ("evaluate", None),
        ("stepless", None),
    ],
)
def test_ranks_that_train_apart_or_not_at_all_are_said(cluster: Cluster, way: str, seen: int | None) -> None:
    ran = cluster.run("-n", 2, "--ppn", 1, "train.py", way, timeout=200)
    document = json.loads(cluster.good("ps", "-n", 1, "--json"))["runs"][0]
    assert document["group"] == (seen and {"planned": 2, "seen": seen})
    assert ("do not train together" in ran.err) == (way == "alone")
    assert ("no rank took a training step" in ran.err) == (way in ("gpus", "evaluate", "stepless"))
