"""What `uninstall --dry-run` prints: one line for hosts with the same kinds of files, one block for what stands against
it, in the order of the hosts."""

from __future__ import annotations

import pytest

from ipexctl.commands.uninstall_command import show
from ipexctl.homes.uninstall_hosts import CONTROL_MACHINE, UninstallReport, UninstallResult
from ipexctl.hosts.host import Host
from ipexctl.node.uninstall import FileGroup
from ipexctl.remote.outcome import HostError


def test_hosts_of_one_kind_are_one_line_and_obstacles_one_block(capfd: pytest.CaptureFixture[str]) -> None:
    hosts = tuple(
        UninstallResult(
            Host(name, name),
            "changed",
            found=(FileGroup("environments", 1, size << 30, ""), FileGroup("runs", size, 1 << 20, "")),
        )
        for name, size in (("node2", 3), ("node10", 1), ("node1", 2))
    )
    control = UninstallResult(CONTROL_MACHINE, "ok")
    again = "ipexctl uninstall --force"
    obstacles = {
        "node1": HostError("this is not yours: run b", again),
        "node10": HostError("this is not yours: run b", again),
        "node2": HostError("this is not yours: run a", again),
    }
    show(UninstallReport(hosts, 0.0, control, obstacles=obstacles))
    said = capfd.readouterr()
    lines = said.out.splitlines()
    assert len([line for line in lines if line.startswith("node")]) == 1
    assert "3 environments (6.4 GB), 6 runs (3.1 MB)" in said.out
    notes = said.err.splitlines()
    at = notes.index("note: now the call without --dry-run is refused:")
    assert [line.partition(":")[0].strip() for line in notes[at + 1 : at + 3]] == ["node2", "node[1,10]"]
    assert said.err.count(again) == 1
