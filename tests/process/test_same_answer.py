"""doctor, versions, install and run name the same stack, whatever the indexes have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import ipexctl
from simple_index import SimpleIndex
from tiny_wheels import write_stack, write_torch

PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"


class Account:
    """One account on this machine, with a directory as its only index."""

    def __init__(self, directory: Path) -> None:
        self.wheels = directory / "wheels"
        self.wheels.mkdir()
        self.script = directory / "train.py"
        self.script.write_text("print('hello')\n")
        self.env = {
            "XDG_CACHE_HOME": str(directory / "cache"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "IPEXCTL_HOME": str(directory / "home"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }

    def ask(self, *args: object) -> dict[str, Any]:
        ran = ipexctl(*args, "--hosts", "localhost", "--json", cwd=self.script.parent, env=self.env)
        document: dict[str, Any] = json.loads(ran.out)
        return document

    def answers(self) -> dict[str, str | None]:
        """The stack that each command names which queries no index."""
        run = ipexctl("run", "--hosts", "localhost", "--dry-run", "--json", self.script, env=self.env)
        choice = self.ask("versions")["choice"]
        recommendation = self.ask("doctor", "--no-network")["recommendation"]
        return {
            "versions": choice and choice["name"],
            "doctor": recommendation["stack"],
            "run": json.loads(run.out).get("stack"),
        }


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


@pytest.mark.parametrize(
    ("torch", "ipex", "oneccl", "name"),
    [("2.7.0+cpu", "2.7.0", "2.7.0", "ipex-2.7"), ("2.8.0+cpu", "2.8.0", None, "torch-2.13")],
    ids=["all parts", "no bindings"],
)
def test_after_a_look_at_the_indexes_all_name_what_install_takes(
    account: Account, torch: str, ipex: str, oneccl: str | None, name: str
) -> None:
    write_stack(account.wheels, torch, ipex, oneccl, PYTHON)
    write_torch(account.wheels, "2.13.0+cpu", python=PYTHON)
    assert account.ask("install", "--dry-run")["stack"]["name"] == name
    assert account.answers() == {"versions": name, "doctor": name, "run": name}


def test_indexes_with_nothing_are_no_stack_for_all(account: Account) -> None:
    refused = account.ask("install", "--dry-run")
    assert refused["stack"] is None
    assert account.answers() == {"versions": None, "doctor": None, "run": None}
    assert account.ask("versions")["why"] == refused["refused"]["reason"]


def test_before_a_look_at_the_indexes_all_name_the_candidates(account: Account) -> None:
    assert account.answers() == {"versions": None, "doctor": None, "run": None}
    versions = [candidate["name"] for candidate in account.ask("versions")["candidates"]]
    assert versions == account.ask("doctor", "--no-network")["recommendation"]["candidates"]
    ran = ipexctl("run", "--hosts", "localhost", "--dry-run", "--json", account.script, env=account.env)
    plan = json.loads(ran.out)
    assert plan["candidates"] == versions
    assert len(versions) == 2
    assert not any("env.json" in setting["reason"] for setting in plan["settings"])


def test_an_installed_environment_is_what_all_name(account: Account) -> None:
    write_stack(account.wheels, "2.8.0+cpu", "2.8.0", None, PYTHON)
    assert account.ask("install", "--stack", "ipex")["hosts"][0]["status"] == "changed"
    write_torch(account.wheels, "2.13.0+cpu", python=PYTHON)
    again = account.ask("install")
    assert (again["stack"]["name"], again["hosts"][0]["status"]) == ("ipex-2.8", "ok")
    assert account.answers() == {"versions": "ipex-2.8", "doctor": "ipex-2.8", "run": "ipex-2.8"}
    assert account.ask("install", "--upgrade", "--dry-run")["stack"]["name"] == "torch-2.13"


def test_the_mpi_inside_bindings_that_are_behind_a_url_is_named_once_it_is_installed(account: Account) -> None:
    """Before the download it is not known, and the one of impi-rt is named."""
    write_stack(account.wheels, "2.8.0+cpu", "2.8.0", "2.8.0", PYTHON, impi="2021.18.0")
    with SimpleIndex(account.wheels) as served:
        account.env["PIP_FIND_LINKS"] = served.links
        calls = (("--dry-run",), (), ())
        found = [account.ask("install", "--stack", "ipex-2.8", *options)["stack"]["mpi"] for options in calls]
    assert found == ["2021.18.0", "2021.14", "2021.14"]
