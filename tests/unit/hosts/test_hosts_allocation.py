"""The hosts a Slurm or PBS job has, and the slots it grants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ipexctl.hosts.allocation import allocated_hosts, read_tasks
from ipexctl.hosts.names import WordError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "tasks"), [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,4(x2)", [1, 4, 4]), ("8(x1)", [8])]
)
def test_slurms_tasks_are_written_short(text: str, tasks: list[int]) -> None:
    assert read_tasks(text) == tasks


@pytest.mark.parametrize("text", ["", "0", "x", "2(x0)", "2(3)", "2(x3", "-1", "2,,1", "1(x999999)"])
def test_what_slurm_would_not_write_is_refused(text: str) -> None:
    with pytest.raises(WordError):
        read_tasks(text)


def test_a_slurm_job_is_its_nodes_with_their_tasks_as_slots() -> None:
    environ = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[08-10],gpu1", "SLURM_TASKS_PER_NODE": "2(x3),1"}
    allocation = allocated_hosts(environ)
    assert allocation is not None
    hosts, source = allocation
    assert [(host.name, host.slots) for host in hosts] == [("n08", 2), ("n09", 2), ("n10", 2), ("gpu1", 1)]
    assert source == "Slurm job 9"


def test_an_older_slurm_and_no_tasks_leave_the_slots_open() -> None:
    allocation = allocated_hosts({"SLURM_NODELIST": "n1"})
    assert allocation is not None
    assert [(host.name, host.slots) for host in allocation[0]] == [("n1", None)]
    assert allocation[1] == "Slurm job"


def test_a_pbs_job_has_a_slot_for_every_line(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("b.site\nb.site\na.site\n")
    allocation = allocated_hosts({"PBS_NODEFILE": str(path), "PBS_JOBID": "7.server"})
    assert allocation is not None
    assert [(host.name, host.slots) for host in allocation[0]] == [("b.site", 2), ("a.site", 1)]
    assert allocation[1] == "PBS job 7.server"


def test_outside_a_job_there_is_no_allocation() -> None:
    assert allocated_hosts({}) is None
