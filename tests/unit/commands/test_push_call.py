"""The hosts of `ipexctl push SRC HOSTS:PATH`, and what is said after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.commands.option_groups import Targets
from ipexctl.commands.push_command import _with_hosts, show
from ipexctl.commands.target_hosts import choose_hosts
from ipexctl.errors import Refusal, UserError
from ipexctl.files.push_files import PushReport, PushResult
from ipexctl.hosts.host import Host
from ipexctl.hub.downloader import explain_refused_lock


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(targets: Targets, hosts: str) -> list[tuple[str, str]]:
    return [(host.name, host.address) for host in choose_hosts(_with_hosts(targets, hosts))]


def test_hosts_of_the_hostfile_keep_what_it_says(directory: Path) -> None:
    (directory / "hostfile").write_text("me@node1\nnode2\nnode3\n")
    (host,) = choose_hosts(_with_hosts(Targets(), "node1"))
    assert (host.name, host.user) == ("node1", "me")
    assert [name for name, _ in names(Targets(), "node[2-3]")] == ["node2", "node3"]
    assert [name for name, _ in names(Targets(), "other[1-2]")] == ["other1", "other2"]


def test_hosts_without_a_hostfile_are_their_own() -> None:
    assert [name for name, _ in names(Targets(), "node[1-2]")] == ["node1", "node2"]


def test_named_hostfile_has_all_hosts(directory: Path) -> None:
    (directory / "nodes").write_text("node1\n")
    targets = Targets(hostfile=directory / "nodes")
    assert [name for name, _ in names(targets, "node1")] == ["node1"]
    with pytest.raises(UserError):
        names(targets, "node9")


def test_a_refused_environment_for_the_download_names_no_option_of_install() -> None:
    refused = Refusal("no package index can be reached", "install from a directory: --wheelhouse DIR")
    error = explain_refused_lock(refused)
    assert refused.reason in error.reason
    assert "--wheelhouse" not in error.fix
    assert "hf download" in error.fix


@pytest.mark.parametrize(
    ("path", "is_refused", "continues"), [("/d", False, True), (None, False, False), ("/d", True, False)]
)
def test_a_push_continues_only_where_something_may_have_been_sent(
    path: str | None, is_refused: bool, continues: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = PushResult(Host("node1", "node1"), "failed", "why", "fix", path=path, refused=is_refused)
    show(PushReport((failed,), 1.0, "d", "d", 1, 2))
    assert ("push continues from there" in capfd.readouterr().err) == continues
