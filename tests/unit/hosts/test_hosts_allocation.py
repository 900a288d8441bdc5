"""The hosts a Slurm or PBS job has, and the slots it grants."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.hosts.allocation import allocated_hosts, read_tasks
from ipexctl.hosts.names import WordError


@pytest.mark.parametrize(
    ("text", "tasks"), [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,4(x2)", [1, 4, 4]), ("8(x1)", [8])]
)
def test_slurms_tasks_are_written_short(text: str, tasks: list[int]) -> None:
    assert read_tasks(text) == tasks


@pytest.mark.parametrize("text", ["", "0", "x", "2(x0)", "2(3)", "2(x3", "-1", "2,,1", "1(x999999)"])
def test_what_slurm_would_not_write_is_refused(text: str) -> None:
    with pytest.raises(WordError):
        read_tasks(text)


def slots(environ: dict[str, str]) -> tuple[dict[str, int | None], str]:
    allocation = allocated_hosts(environ)
    assert allocation is not None
    return {host.name: host.slots for host in allocation[0]}, allocation[1]


def test_a_slurm_job_is_its_nodes_with_their_tasks_as_slots() -> None:
    asked = {"SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "2(x3),1"}
    found = slots({"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[08-10],gpu1", **asked})
    assert found == ({"n08": 2, "n09": 2, "n10": 2, "gpu1": 1}, "Slurm job 9")


def test_an_older_slurm_and_tasks_that_nobody_asked_for_leave_the_slots_open() -> None:
    """`salloc -N2 --exclusive` has a task for every core in its environment, and no number of tasks."""
    assert slots({"SLURM_NODELIST": "n1"}) == ({"n1": None}, "Slurm job")
    exclusive = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "48(x2)"}
    assert slots(exclusive)[0] == {"n1": None, "n2": None}


def test_a_step_on_fewer_nodes_has_all_of_its_job() -> None:
    """`srun -N1 -n1 --pty bash` on one node of an allocation of two."""
    step = {"SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1"}
    of_step = {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_NODELIST": "n[1-2]"}
    assert slots({"SLURM_JOB_NODELIST": "n[1-2]", **of_step, **step})[0] == {"n1": None, "n2": None}
    with pytest.raises(UserError, match=r"\b1\b.*\b2\b"):
        allocated_hosts({"SLURM_JOB_NODELIST": "n[1-2]", **of_step})


def test_srun_in_front_of_a_call_is_refused_where_it_makes_many() -> None:
    with pytest.raises(UserError, match=r"srun.*\b4\b") as refused:
        allocated_hosts({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "4"})
    assert "srun -n 1" in refused.value.fix


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # PBS Pro: select=2:ncpus=4:mpiprocs=2 · select=2:ncpus=4 · Torque: nodes=1:ppn=2+1
        ("b\nb\na\na\n", {"b": 2, "a": 2}),
        ("b.site\na.site\n", {"b.site": None, "a.site": None}),
        ("b\nb\na\n", {"b": 2, "a": 1}),
        ("b\r\nb", {"b": 2}),
    ],
)
def test_lines_of_a_pbs_job_are_slots_where_they_repeat(
    tmp_path: Path, lines: str, found: dict[str, int | None]
) -> None:
    path = tmp_path / "7.server"
    path.write_bytes(lines.encode())
    environ = {"PBS_NODEFILE": str(path), "PBS_JOBID": "7.server", "NCPUS": "4", "OMP_NUM_THREADS": "4"}
    assert slots(environ) == (found, "PBS job 7.server")


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_a_pbs_job_whose_file_says_nothing_is_told_what_to_name_instead(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "nodes"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as refused:
        allocated_hosts({"PBS_NODEFILE": str(path), "PBS_JOBID": "7.server"})
    assert "PBS_NODEFILE" in refused.value.message
    assert "--hosts" in refused.value.fix


def test_outside_a_job_there_is_no_allocation() -> None:
    assert allocated_hosts({}) is None
