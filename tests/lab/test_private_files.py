"""Homes on nodes are closed to other accounts, with the umask 002 on the node and on the control machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ipexctl.lab import LabSpec
from lab_run_helpers import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ipexctl.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    base = tmp_path_factory.mktemp("private")
    lab = make_lab(LabSpec(hosts=2, name=f"private-{os.getpid()}"))
    project = base / "project"
    project.mkdir()
    (project / "train.py").touch()
    before = os.umask(0o002)
    try:
        cluster = Cluster(lab, project, base / "state", ("--ppn", "1"))
        for index in range(2):
            cluster.on(
                index, "for file in .bashrc .profile; do sed -i '1i umask 002' $file || echo umask 002 >$file; done"
            )
            assert cluster.on(index, "umask").strip() == "0002"
        yield cluster
    finally:
        os.umask(before)


def test_a_home_that_others_can_open_is_closed(cluster: Cluster) -> None:
    for index in range(2):
        cluster.on(index, "mkdir -p .ipexctl && chmod 775 .ipexctl")
    ran = cluster.call("sync", "-H", cluster.lab.hostfile)
    assert ran.rc == 0, ran.err
    assert cluster.on(0, "stat -c %a .ipexctl") == "700\n"


@pytest.mark.parametrize("command", ["sync", "trust"])
def test_a_home_of_another_account_is_refused(command: str, cluster: Cluster) -> None:
    for index in range(2):
        cluster.as_root(index, "mkdir -p -m 777 /foreign && chmod 777 /foreign")
    ran = cluster.call(command, "-H", cluster.lab.hostfile, "--home", "/foreign")
    assert ran.rc == 1, ran.err
    assert "another account" in ran.out + ran.err
    for index in range(2):
        assert cluster.on(index, "find /foreign") == "/foreign\n"
