"""Notes before a run begins: in a job of Slurm that ends soon, and beside the jobs of a scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import Batch
from ipexctl.hosts.host import Host
from ipexctl.launch.request import Gathered, RankEnv
from ipexctl.node.common.plan import NO_PLAN
from ipexctl.run.start.start_notes import check_resumed_trl, job_notes
from ipexctl.run.start.start_request import StartError
from ipexctl.transports import OVER_SRUN
from message_data import missing
from plan_helpers import spec_of


def notes(
    *batches: Batch, job: str = "", seconds: int | None = None, address: str = "10.0.0.1", is_followed: bool = True
) -> str:
    names = [f"node{number}" for number in range(1, len(batches) + 1)]
    facts = {name: Facts(batch=batch) for name, batch in zip(names, batches, strict=True)}
    hosts = tuple(Host(name, address) for name in names)
    spec = spec_of(hosts=hosts, is_followed=is_followed)
    context = Gathered(spec, facts, {}, "/h", RankEnv("python3"), transport=OVER_SRUN, job=job, job_seconds=seconds)
    return " / ".join(job_notes(context, NO_PLAN))


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ((Batch(("slurm",)), Batch(("slurm",))), "Slurm node[1-2] salloc -N 2 --exclusive"),
        ((Batch(), Batch(("pbs",))), "PBS node2 qsub select=1"),
        ((Batch(("lsf",)),), "LSF node1"),
        ((Batch(("of-a-later-probe",)),), "a scheduler node1"),
    ],
)
def test_a_run_beside_the_jobs_of_a_scheduler_is_told_so(batches: tuple[Batch, ...], words: str) -> None:
    assert missing(notes(*batches), words) == []


SFT = ("--output_dir", "out", "--resume_from_checkpoint", "out")


@pytest.mark.parametrize(
    ("version", "words", "changes", "fix"),
    [
        ("1.14.0", SFT, {}, "ipexctl install --with 'trl>=1.14.1'"),
        ("1.13.0", SFT, {"python": "/v/bin/python"}, "/v/bin/python -m pip install 'trl>=1.14.1'"),
        ("1.14.1", SFT, {}, ""),
        ("", SFT, {}, ""),
        ("1.13.0", SFT[:2], {}, ""),
        ("1.13.0", SFT, {"resumed": ()}, ""),
    ],
)
def test_a_trl_that_ignores_the_checkpoint_is_refused_where_a_run_is_resumed(
    version: str, words: tuple[str, ...], changes: dict[str, Any], fix: str
) -> None:
    spec = spec_of("module", ("trl.scripts.sft", *words))
    spec = replace(spec, asked=spec.asked._replace(**{"resumed": ("sft-1",), **changes}))
    packages = {"trl": version} if version else {}
    if not fix:
        return check_resumed_trl(spec, packages)
    with pytest.raises(StartError) as refused:
        check_resumed_trl(spec, packages)
    assert refused.value.failure.fix == fix
    assert refused.value.failure.exit_code == 2
    return None


def test_this_machine_is_called_that() -> None:
    assert "Slurm manages this machine" in notes(Batch(("slurm",)), address="localhost")


def test_a_run_in_a_job_is_told_of_its_end_only() -> None:
    inside = Batch(("slurm",), job="12")
    assert notes(inside, job="12") == notes(inside) == notes(Batch()) == ""
    assert notes(Batch(("slurm",)), job="12", seconds=7200) == ""
    assert missing(notes(inside, job="12", is_followed=False), "12 ends wait") == []
    assert notes(inside, job="12", seconds=300) == "Slurm job 12 ends in 5 min, and the run with it"
