"""The calls an install is made of, on this machine, with tiny wheels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_helpers import PYTHON, Home
from ipexctl.hosts.host import Host
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from ipexctl.stack.env.build import EnvSpec
from ipexctl.stack.env.environment import EnvClient


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def client(home: Home) -> EnvClient:
    return EnvClient(LocalSession(Host("localhost", "localhost")), PYTHON, str(home.path))


def build(client: EnvClient, home: Home, on_event: Callable[[dict[str, Any]], None] = print) -> bool:
    record = {"schema": "ipexctl.env/1", "row": "ipex-2.8", "python": home.python, "backend": "gloo", "module": None}
    spec = EnvSpec(home.name, home.lock, None, record, {})
    return client.build(spec, PYTHON, on_event=on_event)


def test_from_wheels_to_a_verified_environment_and_back(client: EnvClient, home: Home, tmp_path: Path) -> None:
    home.add_stack(tmp_path / "source")
    events: list[dict[str, Any]] = []
    assert build(client, home, on_event=events.append)
    assert [event["event"] for event in events] == ["step"] * 3
    assert not build(client, home)
    client.link(home.name, ["default"])

    checked = client.check("default", digest=home.lock.digest)
    assert checked.ok
    assert (checked.name, checked.record["row"]) == (home.name, "ipex-2.8")

    verified = client.verify(home.name, checked.record, machine="m1")
    assert verified.ok
    assert verified.to_json()["backend"] == "gloo"
    again = client.check("default")
    assert again.verified["m1"]["torch"] == "2.8.0"

    client.link("default", ["mine"])
    listed = client.listing()
    assert listed.envs[0].names == ("default", "mine")
    assert listed.envs[0].complete
    assert listed.leftovers == 0

    removed = client.remove(["mine"])
    assert removed.removed == ("mine",)
    assert client.check("default").ok
    removed = client.remove(["default"])
    assert removed.removed == ("default", home.name)
    assert not client.check("default").exists
    assert client.prune().bytes > 0
    assert client.listing().wheels == 0


def test_a_build_that_cannot_be_is_an_error_of_that_host(client: EnvClient, home: Home, tmp_path: Path) -> None:
    home.add_stack(tmp_path / "source")
    torch = home.wheels[0]
    (home.path / "wheels" / torch.sha256 / torch.filename).unlink()
    with pytest.raises(HostError, match=r"torch-.* is not in") as caught:
        build(client, home)
    assert caught.value.fix == "run ipexctl install again"
