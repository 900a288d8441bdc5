"""A home with tiny wheels in its store, and the agent run on it as it runs on a host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uv

from agent_helpers import agent_argv, mark_home
from ipexctl.node.common.processes import all_processes
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.remote.caller import caller_here, removal_request
from ipexctl.stack.lock.wheel_lock import Lock, Wheel
from tiny_wheels import write_stack

if TYPE_CHECKING:
    from ipexctl.node.env.build import BuildRequest

PYTHON = sys.executable
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
TAG = "cp" + MINOR.replace(".", "")

DEFAULTS: dict[str, Any] = {"digest": None, "used": {}, **removal_request(force=False)}
"""Fields of requests of `env.environments` that few tests set."""


@dataclass
class Home:
    """A home on this machine, and the lock of a stack whose wheels are in its store."""

    path: Path
    wheels: list[Wheel] = field(default_factory=list)
    python: str = MINOR

    def __post_init__(self) -> None:
        mark_home(self.path)

    @classmethod
    def below(cls, directory: Path, **asked: Any) -> Home:
        """A home in that directory, with a stack's wheels."""
        home = cls(directory / "home")
        home.add_stack(directory / "source", **asked)
        return home

    def add(self, file: Path) -> Wheel:
        """A file in the store, as a wheel of the lock."""
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        place = self.path / "wheels" / digest
        place.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".whl":
            shutil.copyfile(file, place / file.name)
        elif not (place / file.name).exists():
            (place / file.name).symlink_to(file)
        name, version = [*file.name.split("-"), "0"][:2]
        return Wheel(name.replace("_", "-"), version, file.name, digest, file.stat().st_size)

    def add_stack(self, source: Path, **asked: Any) -> None:
        self.wheels = [self.add(file) for file in write_stack(source, **{"python": TAG, **asked})]

    @property
    def lock(self) -> Lock:
        return Lock(self.python, tuple(self.wheels))

    @property
    def name(self) -> str:
        return f"ipex-2.8-{self.lock.digest[:8]}"

    @property
    def env(self) -> Path:
        return self.path / "envs" / self.name

    @property
    def site(self) -> Path:
        return self.env / "lib" / f"python{MINOR}" / "site-packages"

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.env / "env.json").read_text())
        return found

    def request(self, **more: Any) -> dict[str, Any]:
        uv_wheel = self.add(Path(uv.find_uv_bin()))
        lock = self.lock
        record = EnvRecord(
            schema="ipexctl.env/1",
            name=self.name,
            row="ipex-2.8",
            python=self.python,
            interpreter=PYTHON,
            digest=lock.digest,
            packages=lock.packages,
            backend="gloo",
            requests=(),
            by=caller_here()._asdict(),
        )
        request: BuildRequest = {
            "home": str(self.path),
            "name": self.name,
            "python": PYTHON,
            "files": [wheel.stored_file.to_json() for wheel in self.wheels],
            "installer": uv_wheel.stored_file.to_json(),
            "record": {**record._asdict(), **more.pop("record", {})},
            "lock": lock.to_json(),
            "drop_wheels": False,
            "replace": None,
        }
        return {**request, **more}

    def build(self, *, python: str = PYTHON, links: Sequence[str] = ("default",), **more: Any) -> dict[str, Any]:
        done = said(start("env.build", "build", self.request(**more), python=python))
        if done["event"] == "done":
            for link in links:
                self.envs("link", python=python, name=self.name, link=link)
        return done

    def envs(self, action: str, *, python: str = PYTHON, **request: Any) -> dict[str, Any]:
        return said(start("env.environments", action, {"home": str(self.path), **DEFAULTS, **request}, python=python))

    def leftovers(self) -> list[str]:
        """Files of a build that belong to no environment."""
        envs = [entry.name for entry in (self.path / "envs").iterdir() if entry.name.startswith(".")]
        return sorted([*envs, *(entry.name for entry in (self.path / "tmp").iterdir())])


def start(
    command: str,
    action: str,
    request: Mapping[str, Any],
    *,
    python: str = PYTHON,
    env: dict[str, str] | None = None,
    first: str = "",
    is_fed: bool = False,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """A command of the agent, in a session of its own, with its request on stdin; more follows there if it is fed."""
    child = subprocess.Popen(
        agent_argv(python, command, action, first),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=env,
        **options,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(request).encode() + b"\n")
    child.stdin.flush()
    if not is_fed:
        child.stdin.close()
        child.stdin = None
    return child


def said(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Its last word."""
    out, err = child.communicate(timeout=100)
    lines = out.decode().splitlines()
    assert lines, err.decode()
    last: dict[str, Any] = json.loads(lines[-1])
    assert last["event"] in ("done", "failed"), err.decode()
    assert not err, err.decode()
    return last


def session_of(pid: int) -> list[int]:
    """Living processes of that session."""
    return [stat.pid for stat in all_processes() if stat.session == pid and stat.is_alive]


def run_in(env: Path, *argv: str, variables: Sequence[str] = ()) -> str:
    clean = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return subprocess.run(
        [str(env / "bin" / argv[0]), *argv[1:]], env=clean, check=True, capture_output=True, text=True
    ).stdout
