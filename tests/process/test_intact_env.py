"""`install` finds in one round trip that an environment is intact; other states are left to the agent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from env_helpers import MINOR, Home
from ipexctl.facts.facts import parse
from ipexctl.facts.probe import environment_command, probe_command
from ipexctl.hosts.host import Host
from ipexctl.remote.node_call import script_text
from ipexctl.stack.env.environment import machine_token
from ipexctl.stack.install_stack import IntactEnv, parse_intact

HOST = Host("node1", "10.0.0.1")
PROOF = {"ok": True, "phases": [], "seconds": 1.5, "torch": "2.8.0"}


def answer_of(script: str) -> str:
    return subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True, text=True, timeout=60).stdout


def look(home: Home) -> IntactEnv | None:
    script = environment_command(str(home.path), "default", script_text("env.check")).script
    return parse_intact(answer_of(script), HOST, "default")


@pytest.fixture(scope="module")
def verified_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("built") / "home")
    home.add_stack(home.path / "source")
    home.build()
    token = machine_token(parse(answer_of(probe_command().script)), HOST)  # as a build knows it, from the whole probe
    (home.env / "verified").mkdir()
    (home.env / "verified" / f"{token}.json").write_text(json.dumps(PROOF))
    return home


@pytest.fixture
def home(verified_home: Home, tmp_path: Path) -> Home:
    shutil.copytree(verified_home.path / "envs", tmp_path / "home" / "envs", symlinks=True)
    (tmp_path / "home").chmod(0o700)
    return Home(tmp_path / "home", verified_home.wheels)


@pytest.mark.core
def test_intact_environment_is_found_with_lock_and_verification(home: Home) -> None:
    found = look(home)
    assert found is not None
    assert (found.name, found.lock, found.verified.torch) == (home.name, home.lock, "2.8.0")
    (env,) = found.facts.software.envs
    assert (env.names, env.runs, json.loads(env.record)) == (("default",), True, home.record)


def without_verification(home: Home) -> None:
    (verified,) = (home.env / "verified").iterdir()
    verified.rename(verified.with_name("0123456789abcdef.json"))


def failed_verification(home: Home) -> None:
    (verified,) = (home.env / "verified").iterdir()
    verified.write_text(json.dumps({**PROOF, "ok": False}))


def broken_record(home: Home) -> None:
    (home.env / "env.json").write_text(json.dumps({**home.record, "variables": None}))


def another_lock(home: Home) -> None:
    (home.env / "env.json").write_text(json.dumps({**home.record, "digest": "0" * 64}))


def another_version(home: Home) -> None:
    (home.site / "torch-2.8.0.dist-info").rename(home.site / "torch-2.9.0.dist-info")


def python_of_another_version(home: Home) -> None:
    (home.env / "lib" / f"python{MINOR}").rename(home.env / "lib" / "python3.7")


def silent_python(home: Home) -> None:
    (home.env / "bin" / "python").unlink()
    (home.env / "bin" / "python").symlink_to("/bin/false")


DAMAGES: dict[str, Callable[[Home], object]] = {
    "no verification of this boot": without_verification,
    "failed verification": failed_verification,
    "broken record": broken_record,
    "another lock": another_lock,
    "no lock": lambda home: (home.env / "lock.json").unlink(),
    "another version": another_version,
    "file of another size": lambda home: (home.site / "numpy.py").write_text(""),
    "missing file": lambda home: (home.site / "numpy.py").unlink(),
    "python of another version": python_of_another_version,
    "python does not run": silent_python,
    "no python": lambda home: (home.env / "bin" / "python").unlink(),
    "no such name": lambda home: (home.path / "envs" / "default").unlink(),
    "home open to others": lambda home: home.path.chmod(0o755),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_environment_is_left_to_the_agent(home: Home, damage: str) -> None:
    DAMAGES[damage](home)
    assert look(home) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a home to another account")
def test_home_of_another_account_starts_no_program(home: Home, tmp_path: Path) -> None:
    python = home.env / "bin" / "python"
    python.unlink()
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    python.chmod(0o755)
    assert look(home) is None
    (tmp_path / "started").unlink()
    os.chown(home.path, 12345, 12345)
    assert look(home) is None
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("line", ["env.lock []", "env.lock " + "[" * 100_000, "env.verified x", "env.record default {"])
def test_malformed_answer_is_no_environment(home: Home, line: str) -> None:
    script = environment_command(str(home.path), "default", script_text("env.check")).script
    key = line.split()[0]
    lines = [line if known.startswith(key) else known for known in answer_of(script).split("\n")]
    assert parse_intact("\n".join(lines), HOST, "default") is None


def test_check_writes_nothing(home: Home) -> None:
    before = {path: path.stat().st_mtime_ns for path in home.path.rglob("*")}
    assert look(home) is not None
    assert {path: path.stat().st_mtime_ns for path in home.path.rglob("*")} == before
