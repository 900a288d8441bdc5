"""What Slurm says of a job: its end, and the time that is left."""

from __future__ import annotations

import pytest

from ipexctl.node.common.slurm import environment_of_srun, job_end_in, seconds_left, variables_of_job

SHOWN = "JobId=7 JobName=x\n   UserId=a(1)\n   JobState={} Reason={} Dependency=(null)\n"


@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [
        ("RUNNING", "None", ""),
        ("CANCELLED", "None", "CANCELLED"),
        ("TIMEOUT", "TimeLimit", "TIMEOUT"),
        ("COMPLETING", "TimeLimit", "TIMEOUT"),
        ("COMPLETING", "NodeDown", "NODE_FAIL"),
        ("COMPLETING", "None", "COMPLETING"),
        ("SOMETHING_NEW", "None", ""),
    ],
)
def test_the_end_of_a_job_is_read_from_its_state_and_reason(state: str, reason: str, word: str) -> None:
    assert job_end_in(SHOWN.format(state, reason)) == word
    assert job_end_in("slurm_load_jobs error: Invalid job id specified") == ""


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [
        ("11:58\n", 718),
        ("1:00:00", 3600),
        ("2-03:04:05", 183845),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_the_time_left_of_a_job(shown: str, seconds: int | None) -> None:
    assert seconds_left(shown) == seconds


def test_srun_gets_the_variables_of_the_job_alone() -> None:
    of_script = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "9", "SLURM_PROCID": "0", "SLURM_CPU_BIND": "quiet", "PATH": ""}
    assert environment_of_srun(variables_of_job(of_script)) == {"SLURM_JOB_ID": "7"}
