"""Files that ipexctl has written, damaged: each command goes on without a cache, or says which record it can't read."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli_helpers import NO_HOSTS_ENV, CommandResult, ipexctl

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
LOCAL = ("--hosts", "localhost")
RUN = ("run", *LOCAL, "--python", sys.executable, "--backend", "none")
COMMANDS: tuple[tuple[object, ...], ...] = (
    ("ps",),
    ("why",),
    ("why", "last"),
    ("logs", "last"),
    ("wait", "last", "--timeout", 5),
    ("fetch", "last", "out"),
    ("report", "last", "-o", "page.html"),
    ("envs", *LOCAL),
    ("ps", "--prune", "--dry-run"),
    ("doctor", "--no-network", *LOCAL),
    ("uninstall", "--dry-run"),
    ("sync", *LOCAL),
    (*RUN, "train.py"),
)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "brackets": lambda path: path.write_text("[" * 200_000),
    "objects": lambda path: path.write_text('{"a":' * 200_000),
    "infinite": lambda path: path.write_text('{"schema": 1e999}'),
    "numbers": lambda path: path.write_text("9" * 100_000),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "list": lambda path: path.write_text("[[]]"),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "pipe": lambda path: replace_by_pipe(path),
}


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


class Station:
    """An account with a project, and what a run and other calls have left."""

    def __init__(self, base: Path) -> None:
        self.base, self.home, self.project = base, base / "home", base / "project"
        self.project.mkdir()
        self.home.mkdir()
        (self.project / "train.py").write_text("print('loss: 0.5')\n")
        (self.project / "secret.env").write_text("A=1\n")

    def call(self, *words: object) -> CommandResult:
        places = {f"XDG_{name}_HOME": str(self.home / name) for name in ("STATE", "CACHE", "DATA", "CONFIG")}
        ran = ipexctl(*words, cwd=self.project, env={**NO_HOSTS_ENV, **places, "HOME": str(self.home)})
        assert "did not expect" not in ran.err, ran.err
        assert ran.rc in (0, 1, 2), (words, ran.rc, ran.err)
        return ran

    def records(self) -> list[Path]:
        found = (path for path in sorted(self.home.rglob("*")) if path.is_file() and "agent" not in path.parts)
        return [path for path in found if path.suffix in (".json", ".jsonl") or path.parent.name == "leases"]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Station:
    station = Station(tmp_path_factory.mktemp("used"))
    assert station.call(*RUN, "--env-file", "secret.env", "train.py").rc == 0
    station.call(*RUN, "nosuch.py")
    time.sleep(2.5)  # hashes of files that were written right now are not kept
    station.call("sync", *LOCAL)
    names = {path.name for path in station.records()}
    assert {"hashes.json", "status.json", "plan.json", "events.jsonl", "state.json"} <= names
    assert any(path.parent.name == "env-files" for path in station.records())
    return station


@pytest.fixture
def station(used: Station, tmp_path: Path) -> Iterator[Station]:
    """It is as before afterwards, in its place: records have absolute paths."""
    shutil.copytree(used.home, tmp_path / "home", symlinks=True)
    yield used
    shutil.rmtree(used.home)
    shutil.move(tmp_path / "home", used.home)


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_command_stands_all_files_damaged_at_once(station: Station, damage: str) -> None:
    for path in station.records():
        DAMAGES[damage](path)
    for words in COMMANDS:
        station.call(*words)
    assert station.call(*RUN, "train.py").rc == 0
