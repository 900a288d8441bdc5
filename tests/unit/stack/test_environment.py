"""The calls an install is made of, on this machine, with tiny wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from env_helpers import PYTHON, Home
from ipexctl.hosts.host import Host
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from ipexctl.stack.env import environment

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.remote.session import Session


@pytest.fixture
def session() -> Session:
    return LocalSession(Host("localhost", "localhost"))


def build(session: Session, home: Home, **more: Any) -> environment.BuildResult:
    record = {"schema": "ipexctl.env/1", "row": "ipex-2.8", "python": home.python, "backend": "gloo", "module": None}
    asked = {"home": str(home.path), "name": home.name, "interpreter": PYTHON, "lock": home.lock, "record": record}
    return environment.build(session, PYTHON, **{**asked, "installer": None, "links": ["default"], **more})


def test_from_wheels_to_a_verified_environment_and_back(session: Session, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.add_stack(tmp_path / "source")
    events: list[dict[str, Any]] = []
    built = build(session, home, on_event=events.append)
    assert (built.state, built.path) == ("built", str(home.env))
    assert [event["event"] for event in events] == ["step"] * 3
    assert build(session, home).state == "there"

    checked = environment.check(session, PYTHON, home=str(home.path), name="default", digest=home.lock.digest)
    assert checked.ok
    assert (checked.name, checked.record["row"]) == (home.name, "ipex-2.8")

    verified = environment.verify_env(session, path=str(home.env), record=checked.record, machine="m1", limit=30)
    assert verified.ok
    assert verified.to_json()["backend"] == "gloo"
    again = environment.check(session, PYTHON, home=str(home.path), name="default")
    assert again.verified["m1"]["torch"] == "2.8.0"

    environment.link(session, PYTHON, home=str(home.path), name="default", links=["mine"])
    listed = environment.listing(session, PYTHON, home=str(home.path))
    assert listed.envs[0].names == ("default", "mine")
    assert listed.envs[0].complete
    assert listed.leftovers == 0

    removed = environment.remove(session, PYTHON, home=str(home.path), names=["mine"])
    assert removed.removed == ("mine",)
    assert environment.check(session, PYTHON, home=str(home.path), name="default").ok
    removed = environment.remove(session, PYTHON, home=str(home.path), names=["default"])
    assert removed.removed == ("default", home.name)
    assert not environment.check(session, PYTHON, home=str(home.path), name="default").exists
    pruned = environment.prune(session, PYTHON, home=str(home.path))
    assert pruned.failed == {}
    assert pruned.bytes > 0
    assert environment.listing(session, PYTHON, home=str(home.path)).wheels == 0


def test_a_build_that_cannot_be_is_an_error_of_that_host(session: Session, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.add_stack(tmp_path / "source")
    torch = home.wheels[0]
    (home.path / "wheels" / torch.sha256 / torch.filename).unlink()
    with pytest.raises(HostError, match=r"torch-.* is not in") as caught:
        build(session, home)
    assert caught.value.fix == "run ipexctl install again"
