"""Notes before a run begins: in a job of Slurm that ends soon, and beside the jobs of a scheduler."""

from __future__ import annotations

import pytest

from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import Batch
from ipexctl.hosts.host import Host
from ipexctl.launch.run_context import RankEnv, RunContext
from ipexctl.node.common.plan import NO_PLAN
from ipexctl.run.start.start_notes import job_notes
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
    context = RunContext(spec, facts, {}, "/h", RankEnv("python3"), transport=OVER_SRUN, job=job, job_seconds=seconds)
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


def test_this_machine_is_called_that() -> None:
    assert "Slurm manages this machine" in notes(Batch(("slurm",)), address="localhost")


def test_a_run_in_a_job_is_told_of_its_end_only() -> None:
    inside = Batch(("slurm",), job="12")
    assert notes(inside, job="12") == notes(inside) == notes(Batch()) == ""
    assert notes(Batch(("slurm",)), job="12", seconds=7200) == ""
    assert missing(notes(inside, job="12", is_followed=False), "12 ends wait") == []
    assert notes(inside, job="12", seconds=300) == "Slurm job 12 ends in 5 min, and the run with it"
