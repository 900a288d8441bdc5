"""The variables of a rank beside those that a real torchrun sets, name by name; and what Lightning makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from real_helpers import real_lab

from ipexctl.extras.lab.lab_record import Lab
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
SHAPES = pytest.mark.parametrize(("hosts", "ranks"), [(2, 1), (1, 2)], ids=["2 hosts x 1", "1 host x 2"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with real_lab("elastic", 2, disk=6e9, package="pytorch-lightning", shared_home=True) as lab:
        made = new_cluster(lab, tmp_path_factory.mktemp("elastic"))
        words = ("--stack", "torch", "--torch", "2.13", "--with", "pytorch-lightning")
        made.good("install", "-H", lab.hostfile, *words, timeout=600)
        made.write("who.py", REPORT)
        made.write("light.py", LIGHTNING)
        on_host(lab.hosts[0], f"cat > who.py <<'EOF'\n{REPORT}EOF")
        yield made


def set_by_torchrun(lab: Lab, hosts: int, ranks: int) -> dict[int, dict[str, str]]:
    """Rank → what torchrun has added to the environment of a login, or changed in it."""

    def start(number: int) -> list[dict[str, str]]:
        size = f"--nnodes {hosts} --nproc-per-node {ranks} --node-rank {number}"
        way = f"--master-addr {lab.hosts[0].address if hosts > 1 else '127.0.0.1'} --master-port 29571"
        line = f"$P who.py; $P -m torch.distributed.run {size} {way} who.py; true"
        said = on_host(lab.hosts[number], f"P='timeout 100 .ipexctl/envs/default/bin/python'; {line}", timeout=120)
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
