"""The transport that a call gets, the one a record names, and what each answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from case_table import case_table
from ipexctl.hosts.host import Host
from ipexctl.transports import DIRECT, OVER_SRUN, OVER_SSH, STEP, choose_transport, launcher_of, transport_named
from message_data import missing

IN_JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-2]"}
NODES = (Host("node1", "node1"), Host("node2", "node2"))
OUTSIDE = Host("node9", "node9")


def found(is_there: bool) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if is_there else None


@pytest.mark.parametrize(
    ("hosts", "environ", "has_srun", "transport"),
    [
        (NODES, IN_JOB, True, "srun"),
        (NODES[1:], IN_JOB, True, "srun"),
        ((*NODES, Host("localhost", "localhost")), IN_JOB, True, "srun"),
        (NODES, IN_JOB, False, "ssh"),
        (NODES, {}, True, "ssh"),
        (NODES, {"SLURM_JOB_NODELIST": "node[1-2]"}, True, "ssh"),
        (NODES, {**IN_JOB, "SLURM_JOB_NODELIST": "node[1-"}, True, "ssh"),
        ((*NODES, OUTSIDE), IN_JOB, True, "ssh"),
        ((NODES[0], replace(NODES[1], user="me")), IN_JOB, True, "ssh"),
        ((NODES[0], replace(NODES[1], ssh_config=Path("c"))), IN_JOB, True, "ssh"),
    ],
)
def test_auto_takes_srun_for_nodes_of_the_job_without_words_on_logins(
    hosts: tuple[Host, ...], environ: dict[str, str], *, has_srun: bool, transport: str
) -> None:
    assert choose_transport("auto", hosts, environ, find_program=found(has_srun)).name == transport
    assert choose_transport("ssh", hosts, environ, find_program=found(has_srun)) is OVER_SSH


def test_a_command_that_needs_ssh_takes_it_in_a_job_too() -> None:
    assert choose_transport("auto", None, IN_JOB, find_program=found(True)) is OVER_SSH
    assert choose_transport("srun", NODES, IN_JOB, find_program=found(True)) is OVER_SRUN


def test_names_of_records_are_decoded_and_an_unknown_one_is_ssh() -> None:
    names = ("ssh", "openssh", "srun")
    assert tuple(transport_named(name).name for name in names) == names
    assert transport_named("of-a-later-version") is OVER_SSH


def test_only_srun_has_a_job() -> None:
    assert (OVER_SSH.job(IN_JOB), OVER_SSH.announcement(IN_JOB)) == ("", "")
    assert OVER_SRUN.job(IN_JOB) == "12"
    assert missing(OVER_SRUN.announcement(IN_JOB), "srun 12") == []


@case_table
def test_ranks_that_need_no_mpi(ranks_per_host: dict[str, int], backend: str, *, direct: bool, step: bool) -> None:
    assert (DIRECT.can_start(ranks_per_host, "node1", backend), STEP.can_start(ranks_per_host, "node1", backend)) == (
        direct,
        step,
    )


def test_flavors_of_plans_are_decoded() -> None:
    assert (launcher_of("none"), launcher_of("srun"), launcher_of("intel")) == (DIRECT, STEP, None)
