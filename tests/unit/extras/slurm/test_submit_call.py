"""`ipexctl submit`: which host `--slurm LOGIN` is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.commands.shared_options import Targets
from ipexctl.commands.target_hosts import choose_hosts
from ipexctl.errors import UserError
from ipexctl.extras.slurm.submit_command import targets_of_login
from ipexctl.hosts.host import Host
from ipexctl.hosts.select import ENVIRONMENT
from message_data import missing


def login_of(name: str, targets: Targets) -> Host:
    (host,) = choose_hosts(targets_of_login(name, targets))
    return host


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "hosts"
    path.write_text("login address=10.0.0.1 user=me\nnode1\n")
    return path


def test_a_host_of_the_hostfile_is_reached_as_the_file_says(hostfile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert login_of("login", Targets(hostfile=hostfile)).address == "10.0.0.1"
    assert login_of("login", Targets(hostfile=hostfile)).user == "me"
    assert login_of("you@login", Targets(hostfile=hostfile)).user == "you"
    monkeypatch.setenv(ENVIRONMENT, str(hostfile))
    assert login_of("login", Targets()).address == "10.0.0.1"


def test_another_name_is_one_for_ssh_unless_the_call_names_hosts(
    hostfile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert login_of("me@other", Targets()).address == "other"
    monkeypatch.setenv(ENVIRONMENT, str(hostfile))
    assert login_of("me@other", Targets()).address == "other"
    with pytest.raises(UserError) as refused:
        login_of("me@node9", Targets(hostfile=hostfile))
    assert missing(f"{refused.value.message} {refused.value.fix}", "me@node9 hosts login, node1") == []
    with pytest.raises(UserError) as refused:
        login_of("login", Targets(hostfile=hostfile, limit="node1"))
    assert missing(f"{refused.value.message} {refused.value.fix}", "--limit --sbatch=--exclude") == []
