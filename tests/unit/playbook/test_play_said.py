"""Messages of modules inside a playbook, and files that fetch brings into a project."""

from __future__ import annotations

import pytest

from ipexctl.playbook.cluster_tasks import as_playbook
from ipexctl.playbook.modules import MODULES
from ipexctl.playbook.result import Result


@pytest.mark.parametrize(
    ("said", "here"),
    [
        (
            "ipexctl install --env old makes it there, or run --install; a Python of your own: --python PATH",
            "a task install: {env: old} makes it there; a Python of your own: python: PATH",
        ),
        ("ipexctl install makes it there", "a task install: makes it there"),
        ("--mpi /opt is not there on node1", "mpi: /opt is not there on node1"),
        ("without --no-sync it is brought there", "without sync: false it is brought there"),
        ("--master-port 1 is taken", "master_port: 1 is taken"),
        ("leave it out: --limit '!node2'", "leave it out: --limit '!node2'"),
        ("", ""),
    ],
)
def test_options_are_called_as_the_playbook_calls_them(said: str, here: str) -> None:
    result = as_playbook(Result("failed", said, said), MODULES["run"].options)
    assert (result.reason, result.fix) == (here, here)
