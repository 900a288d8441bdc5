"""Helpers for tests of sync: a project, and this machine as a host with a separate home."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import OpenHosts, SessionPool
from ipexctl.remote.local import LocalSession
from ipexctl.sync.node_calls import SyncReport, SyncResult
from ipexctl.sync.project import read_project
from ipexctl.sync.project_sync import query_project

LOCAL_HOST = Host("here", "localhost")


class RecordingSession(LocalSession):
    """A local session that records the labels of its commands."""

    def __init__(self, host: Host, ran: list[str]) -> None:
        super().__init__(host)
        self._ran = ran

    def run(self, command: Command, *args: Any, **more: Any) -> Any:
        self._ran.append(command.label)
        return super().run(command, *args, **more)


class LocalConnector:
    """A connector that opens local sessions for every host."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    def open(self, host: Host, cancel: Cancel) -> LocalSession:
        return RecordingSession(host, self.ran)


@dataclass
class Place:
    """A project directory and an ipexctl home to sync it to."""

    root: Path
    home: Path
    ran: list[str] = field(default_factory=list)

    def sync(self, *, hosts: tuple[Host, ...] = (LOCAL_HOST,), **more: Any) -> SyncReport:
        self.ran.clear()
        pool = SessionPool(LocalConnector(self.ran), Cancel(), forks=8)  # type: ignore[arg-type]
        with pool:
            names = ("excludes", "includes", "secret_files", "allow_big", "data")
            reading = {name: more.pop(name) for name in names if name in more}
            project = read_project(self.root, home=str(self.home), **reading)
            return query_project(project, OpenHosts(hosts, pool, str(self.home)), **more).upload()

    def synced(self, **more: Any) -> SyncResult:
        """Sync to one host and return its result, which must be ok or changed."""
        (done,) = self.sync(**more).hosts
        assert done.status in ("ok", "changed"), done.reason
        return done

    @property
    def tree(self) -> Path:
        found = [path for path in (self.home / "code").iterdir() if path.is_dir() and ".gen" not in path.name]
        assert len(found) == 1
        return found[0]

    def there(self) -> dict[str, str]:
        """Content of the synced tree: text of files, targets of links, "/" for directories."""
        return contents(self.tree)


def contents(top: Path) -> dict[str, str]:
    found = {}
    for directory, names, files in os.walk(top):
        if directory == str(top):
            names[:] = [name for name in names if name != ".ipexctl"]
        for name in (*names, *files):
            place = Path(directory, name)
            path = os.path.relpath(place, top)
            if place.is_symlink():
                found[path] = f"-> {os.readlink(place)}"
            elif place.is_dir():
                found[path] = "/"
            else:
                found[path] = place.read_text()
    return found


def put(root: Path, path: str, text: str = "x") -> Path:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place
