"""`ipexctl fetch --all-hosts` and `ipexctl wait`: options of the call, interrupts, and connections."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipexctl.api.known_runs import CallWatcher
from ipexctl.commands.app import ConfiguredValue
from ipexctl.commands.fetch_command import fetch_command
from ipexctl.commands.named_runs import find_runs
from ipexctl.commands.option_groups import Output, RunHosts
from ipexctl.commands.wait_command import wait_command
from ipexctl.errors import UserError
from ipexctl.files.requested import FetchResult
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import Connector
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.run import wait as jobs_wait
from ipexctl.run.fetch import FetchRequest, PathOnHosts
from record_helpers import run_record

HOSTS = tuple(Host(f"n{index}", f"10.0.0.{index}") for index in range(3))
RECORD = run_record("r-1", HOSTS[0], "/h", "python3", world_size=3, nodes=HOSTS, stores=("n0", "n1", "n2"))


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    RunRegistry().save(RECORD)


def test_connect_timeout_of_the_call_or_a_file_replaces_that_of_the_record() -> None:
    of_file = {"connect_timeout": ConfiguredValue(40.0, "config.toml")}
    given: tuple[tuple[dict[str, Any], float], ...] = (
        ({}, 10.0),
        ({"connect_timeout": 90.0}, 90.0),
        ({"connect_timeout": 40.0, "defaults": of_file}, 40.0),
    )
    for options, seconds in given:
        found = find_runs(["r-1"], RunHosts(**options), Output())[0]
        assert found.connect_timeout == CallWatcher(Cancel()).options(found).connect_timeout == seconds


def test_login_settings_that_were_typed_replace_those_of_the_record_and_those_of_files_fill_its_gaps(
    tmp_path: Path,
) -> None:
    (key := tmp_path / "key").touch()
    RunRegistry().save(replace(RECORD, id="r-2", node0=replace(HOSTS[0], user="me", known_hosts=Path("/own"))))
    of_file = {
        name: ConfiguredValue(value, "config.toml")
        for name, value in {"user": "eve", "identity": key, "known_hosts": Path("/file")}.items()
    }
    options: dict[str, Any] = {name: setting.value for name, setting in of_file.items()}
    typed: dict[str, Any] = {"port": 2222, "host_keys": "accept-new", "transport": "openssh"}
    found = find_runs(["r-2"], RunHosts(**options, **typed, defaults=of_file), Output())[0]
    node0 = found.node0
    assert (node0.user, node0.port, node0.identity, node0.known_hosts) == ("me", 2222, key, Path("/own"))
    assert [(host.user, host.known_hosts) for host in found.nodes] == [("eve", Path("/file"))] * 3
    assert (found.host_keys, found.transport_name) == ("accept-new", "openssh")
    assert find_runs(["r-2"], RunHosts(user="ann"), Output())[0].node0.user == "ann"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"limit": "n0"}, "--limit is for hosts that"), ({"home": Path("/h")}, "--home is for hosts that")],
)
def test_options_that_choose_hosts_do_not_fit_a_run_of_the_records(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_runs(["r-1"], RunHosts(**options), Output())


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FetchRequest]]:
    """The requests of fetches, of which that from n1 is interrupted."""
    requests: list[FetchRequest] = []

    def fetch_one(request: FetchRequest, *_: Any, **__: Any) -> tuple[FetchResult, PathOnHosts]:
        requests.append(request)
        is_interrupted = request.host.name == "n1"
        if is_interrupted:
            signal.raise_signal(signal.SIGTERM)
        result = FetchResult(request.host, "failed" if is_interrupted else "changed", dest=request.dest)
        return result, PathOnHosts()

    monkeypatch.setattr("ipexctl.api.fetch_calls.fetch_files", fetch_one)
    monkeypatch.setattr("ipexctl.commands.interrupt.leave_late", lambda *_: None)  # it ends the process
    yield requests


def test_interrupted_fetch_from_all_hosts_still_prints_its_document(fetched: list[FetchRequest]) -> None:
    done = CliRunner().invoke(fetch_command, ["r-1:ck/", "out", "--all-hosts", "--json"])
    assert done.exit_code == 143
    assert [host["status"] for host in json.loads(done.stdout)["hosts"]] == ["changed", "failed"]
    assert [request.dest for request in fetched] == ["out/n0/", "out/n1/"]


def test_options_of_the_call_apply_to_all_hosts(fetched: list[FetchRequest]) -> None:
    CliRunner().invoke(fetch_command, ["r-1", "out", "--results", "--user", "eve", "--port", "2222"])
    assert [(request.host.user, request.host.port) for request in fetched] == [("eve", 2222)] * 2


def test_wait_connects_again_by_one_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Connector] = []

    def open_session(connector: Connector, *_: Any) -> Any:
        used.append(connector)
        raise HostError("refused") if len(used) > 2 else Unreachable("no route")

    monkeypatch.setattr(Connector, "open", open_session)
    monkeypatch.setattr(jobs_wait, "ASK_AGAIN_SECONDS", 0.01)
    assert CliRunner().invoke(wait_command, ["r-1"]).exit_code == 1
    assert len(used) == 3
    assert len({id(connector) for connector in used}) == 1
