"""Real accelerate and transformers on real hosts, of today and the last with IPEX: their launcher's ranks and ours."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from real_helpers import examples_in, mpirun_config, real_lab, trainer_losses

from accelerate_files import ALONE
from cli_helpers import CommandResult, ipexctl
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import let_node0_in
from lab_run_helpers import REPORT_SCRIPT, by_rank, rank_reports

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED: Final = 12e9
ENVS: Final = {
    "old": ("transformers==4.56.2", "accelerate==1.12.0"),
    "today": ("transformers", "accelerate", "peft"),
}
"""The last transformers with --use_ipex wants accelerate 1.10 or later; 1.12 is the last that knows IPEX and oneCCL."""
OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
ACCELERATE_SETS: Final = re.compile(r"(ACCELERATE|CCL|KMP|OMP|MASTER|DYNAMO|IPEX_ENABLED)")
OURS_ALONE: Final = ("OMP_SCHEDULE", "CCL_WORKER_COUNT", "KMP_AFFINITY", "KMP_BLOCKTIME", "ACCELERATE_USE_CPU")
"""Docs tell how these differ: the first is ours, the others are looked at one by one."""


@dataclass(frozen=True)
class Hosts:
    """Two hosts with one home and both environments."""

    lab: Lab
    project: Path

    @property
    def where(self) -> tuple[str, ...]:
        return ("-H", str(self.lab.hostfile))

    def call(self, command: str, *words: object, timeout: float = 300) -> CommandResult:
        env = {"XDG_STATE_HOME": str(self.project.parent / "state"), **OFFLINE}
        return ipexctl(*command.split(), *self.where, *words, cwd=self.project, env=env, timeout=timeout)

    def run(self, env: str, *words: object) -> CommandResult:
        ran = self.call("run", "--env", env, "--plain", "-x", "HF_HUB_OFFLINE", *words)
        assert ran.rc == 0, ran.err + ran.out
        return ran

    def accelerate(self, env: str, *words: str, rc: int = 0) -> str:
        """Run accelerate on the first host without ipexctl; mpirun uses the account's own key."""
        place = f"/home/ipex/.ipexctl/envs/{env}/bin"
        line = f"cd guide && PATH={place}:$PATH I_MPI_HYDRA_BOOTSTRAP=ssh accelerate {' '.join(words)}"
        said = subprocess.run(
            [*ssh_argv(self.lab.hosts[0]), line], capture_output=True, text=True, timeout=200, check=False
        )
        assert said.returncode == rc, said.stderr
        return said.stderr if rc else said.stdout

    def put(self, name: str, text: str) -> None:
        """Here and in a directory of the hosts."""
        (self.project / name).write_text(text)
        line = f"mkdir -p guide && cat > guide/{name}"
        subprocess.run([*ssh_argv(self.lab.hosts[0]), line], input=text.encode(), timeout=60, check=True)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with real_lab("hug", 2, disk=DISK_NEEDED, package="accelerate", shared_home=True) as lab:
        made = Hosts(lab, examples_in(tmp_path_factory.mktemp("hug")))
        let_node0_in(lab)
        for env, packages in ENVS.items():
            wanted = [word for package in packages for word in ("--with", package)]
            said = made.call("install", "--stack", "torch", "--torch", "2.13", "--env", env, *wanted, timeout=600)
            assert said.rc == 0, said.err + said.out
        addresses = [host.address for host in lab.hosts]
        made.put("who.py", REPORT_SCRIPT)
        made.put("machines", "".join(f"{address}\n" for address in addresses))
        made.put("alone.yaml", ALONE)
        made.put("config.yaml", mpirun_config(addresses[0], machines=2, processes=4))
        yield made


def ranks(text: str) -> dict[int, dict[str, Any]]:
    """The report of each rank, by its MPI rank."""
    found = {}
    for line in text.splitlines():
        rank = json.loads(line[line.index("{") :])
        found[int(rank["env"]["PMI_RANK"])] = rank
    return found


@pytest.mark.parametrize("env", ENVS)
def test_ranks_of_accelerate_launch_and_ipexctl_have_equal_variables(hosts: Hosts, env: str) -> None:
    words = ("--config_file", "config.yaml", "who.py", "--epochs", "3")
    theirs = ranks(hosts.accelerate(env, "launch", *words))
    read = hosts.run(env, "--accelerate-config", "config.yaml", *words[2:])
    unwrapped = hosts.run(env, "--", "accelerate", "launch", *words)
    assert "accelerate launch is left out" in unwrapped.err
    assert sorted(theirs) == [0, 1, 2, 3]
    for ran in (read, unwrapped):
        ours = ranks("\n".join(line for lines in by_rank(ran.out).values() for line in lines))
        assert sorted(ours) == sorted(theirs)
        for rank, there in theirs.items():
            here = ours[rank]
            assert (here["host"], here["argv"]) == (there["host"], there["argv"])
            assert set(here["cores"]) <= set(there["cores"])
            assert set_by_accelerate(here["env"]) == set_by_accelerate(there["env"])
            assert (here["env"]["ACCELERATE_USE_CPU"], there["env"]["ACCELERATE_USE_CPU"]) == ("true", "True")
            # 0 without the bindings, unset if accelerate does not know oneCCL: gloo is used in both cases.
            assert (here["env"]["CCL_WORKER_COUNT"], there["env"].get("CCL_WORKER_COUNT", "0")) == ("1", "0")


def test_ipex_config_starts_an_equal_process_with_older_accelerate(hosts: Hosts) -> None:
    words = ("alone.yaml", "who.py", "--epochs", "3")
    there = json.loads(hosts.accelerate("old", "launch", "--config_file", *words))
    here = rank_reports(hosts.run("old", "--accelerate-config", *words))[0]
    assert (here["host"], here["argv"]) == (there["host"], there["argv"])
    theirs = set_by_accelerate(there["env"])
    assert theirs["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert {name: here["env"].get(name) for name in theirs} == theirs
    assert "had unknown keys (['ipex_config'])" in hosts.accelerate("today", "launch", "--config_file", *words, rc=1)
    assert "alone.yaml: ipex" in hosts.run("today", "--accelerate-config", *words).err


def set_by_accelerate(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if ACCELERATE_SETS.match(name) and name not in OURS_ALONE}


@pytest.mark.parametrize(
    ("env", "words", "said"),
    [
        (
            "old",
            ("--no_cuda", "--use_ipex", "--bf16", "--ddp_backend", "ccl"),
            (
                "--use_ipex is left out: IPEX is not installed here",
                "--ddp_backend is gloo: oneCCL's bindings are not installed here",
            ),
        ),
        ("today", ("--use_cpu", "--bf16"), ()),
    ],
)
def test_trainer_example_trains_with_old_and_new_flags(
    hosts: Hosts, env: str, words: tuple[str, ...], said: tuple[str, ...]
) -> None:
    """Nodes have no way to the hub. The bindings of oneCCL are on no index: what is missing is one sentence."""
    steps = ("--max_steps", "12", "--logging_steps", "2", "--learning_rate", "2e-3")
    summary = hosts.project / f"{env}.json"
    ran = hosts.run(env, "-n", "2", "--ppn", "1", "--summary", summary, "trainer_bert.py", *words, *steps)
    lines = by_rank(ran.out)[0]
    assert tuple(line for line in lines if line.startswith("--")) == said
    losses = trainer_losses(lines)
    assert len(losses) == 6
    assert losses[-1] < losses[0], "it learns nothing"
    assert any(line.startswith("ranks: 2, over gloo; accuracy ") for line in lines)
    measured = json.loads(summary.read_text())["throughput"]
    assert measured["source"] == "dataloader"
    assert measured["samples_per_s"] / measured["steps_per_s"] == pytest.approx(32, rel=0.1)


def test_the_example_of_fine_tuning_learns_and_shares_what_is_frozen(hosts: Hosts) -> None:
    summary = hosts.project / "finetune.json"
    ran = hosts.run("today", "-n", "4", "--ppn", "2", "--oversubscribe", "--summary", summary, "finetune.py")
    losses = trainer_losses(by_rank(ran.out)[0])
    assert losses[-1] < losses[0], "it learns nothing"
    assert "all are equal on all ranks and not sent; one copy on each host" in ran.err
    measured = json.loads(summary.read_text())["throughput"]
    assert measured["tokens_per_s"] / measured["samples_per_s"] == pytest.approx(128)


@pytest.mark.parametrize("first", ["transformers", "accelerate", "torch"])
def test_levers_act_whatever_is_imported_first(hosts: Hosts, first: str) -> None:
    (hosts.project / "first.py").write_text(
        f"import {first}, transformers, torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(5):\n"
        "    model(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    hosts.run("today", "-n", 1, "--autocast", "bf16", "--fused-optimizer", "--summary", "first.json", "first.py")
    levers = json.loads((hosts.project / "first.json").read_text())["levers"]
    acted = [(lever["name"], lever["acted"], lever["steps"]) for lever in levers]
    assert acted == [("autocast", True, 5), ("fused_optimizer", True, 5)]
