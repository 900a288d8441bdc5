"""Builds an environment on this host, in a temporary directory that is renamed when complete. The rename is atomic,
even after kill -9; the lock only avoids building twice."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, TypedDict

from ipexctl.node.common.answer import AgentError, Json, answer_until_stopped, check_stopped, emit_step
from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.files import read_json
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.home import home_of, make_home, open_home
from ipexctl.node.common.home_entries import BUILD_DIRECTORY, STAGED_ENVIRONMENT, is_environment, own_entries
from ipexctl.node.common.store_lock import Marker, is_alive, store_lock
from ipexctl.node.env.environments import check_name, remove_tree
from ipexctl.node.env.fill import Fill

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import StoreFile


class LockedWheel(TypedDict):
    name: str
    version: str
    filename: str
    sha256: str
    size: int | None
    url: str | None


class LockDocument(TypedDict):
    schema: str
    python: str
    wheels: list[LockedWheel]


class BuildRequest(TypedDict):
    home: str
    name: str
    python: str
    files: list[StoreFile]
    """Wheels in the store. Other environments of the home contain the lock's other wheels (`unpacked.py`)."""
    installer: StoreFile
    record: Json
    lock: LockDocument
    drop_wheels: bool
    replace: str | None


class BuildArea:
    """A builder's entries in a home: `tmp/owner-TOKEN`, `tmp/build-TOKEN`, and `envs/.build-TOKEN`, where it builds."""

    def __init__(self, home: str) -> None:
        self.home = Path(home)
        self.envs, self.tmp, self.store = self.home / "envs", self.home / "tmp", self.home / "wheels"
        self.token = os.urandom(6).hex()
        self.work, self.target = self.tmp / f"build-{self.token}", self.envs / f".build-{self.token}"
        self._marker = Marker(str(self.tmp / f"owner-{self.token}"))

    def open(self) -> None:
        make_home(str(self.home))
        flags = os.statvfs(str(self.home)).f_flag
        if flags & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.home))
        if flags & getattr(os, "ST_NOEXEC", 8):
            raise AgentError(
                f"{self.home} is on a filesystem mounted noexec: no program can be run from there",
                "give --home a directory on a filesystem that allows programs to run",
            )
        for directory in (self.envs, self.tmp):
            directory.mkdir(exist_ok=True)
        self.remove_leftovers()
        self._marker.create()
        (self.work / "tmp").mkdir(parents=True)

    def close(self) -> None:
        remove_tree(str(self.target))
        remove_tree(f"{self.envs}/.build-{self.token}+old")
        remove_tree(str(self.work))
        self._marker.remove()

    def remove_leftovers(self) -> None:
        home = str(self.home)
        for entry in own_entries(home, "tmp"):
            name = Path(entry).name
            if BUILD_DIRECTORY.fullmatch(name):
                token = name[6:]
                if token != self.token and not is_alive(str(self.tmp / f"owner-{token}")):
                    remove_tree(f"{self.envs}/.build-{token}")
                    remove_tree(entry)
            elif name.startswith("owner-") and not is_alive(entry):
                remove_tree(entry)
        for entry in own_entries(home, "envs"):
            name = Path(entry).name
            if STAGED_ENVIRONMENT.fullmatch(name):
                if not (self.tmp / name[1:].split("+")[0]).exists():
                    remove_tree(entry)
            elif name.startswith(".link-"):  # left by a killed call that named an environment
                with contextlib.suppress(OSError):
                    if seconds_since(os.lstat(entry).st_mtime) > 3600:
                        remove_tree(entry)

    @contextlib.contextmanager
    def lock(self, name: str, ready: Callable[[], bool]) -> Iterator[None]:
        """Stops waiting for the lock once `ready()` is true."""
        is_reported = False

        def wait(_: float) -> bool:
            nonlocal is_reported
            if not is_reported:
                emit_step("waiting for another install of the same environment")
                is_reported = True
            check_stopped()
            return not ready()

        with store_lock(str(self.tmp / f"{name}.lock"), wait):
            yield


class Build:
    def __init__(self, request: BuildRequest) -> None:
        self.request = request
        self.area = BuildArea(home_of(request, "envs"))
        check_name(request["name"])
        self.final = self.area.envs / request["name"]

    def exists(self) -> bool:
        record = read_json(self.final / "env.json")
        is_new = bool(record.get("build")) and record.get("build") != self.request["replace"]
        is_current = is_new and record.get("digest") == self.request["record"]["digest"]
        return is_current and not self.final.is_symlink() and (self.final / "bin" / "python").exists()

    def run(self) -> Json:
        outcome = "there"
        open_home(str(self.area.home))
        if not self.exists():
            try:
                self.area.open()
                with self.area.lock(self.request["name"], self.exists):
                    if not self.exists():
                        outcome = self._build()
            finally:
                self.area.close()
        else:
            with contextlib.suppress(OSError):
                self.area.remove_leftovers()  # a builder may have died after the rename
        if self.request["drop_wheels"]:
            self._drop_wheels()
        return {"state": outcome}

    def _build(self) -> str:
        Fill(self.request, self.area, self.final).run()
        check_stopped()
        for _ in range(5):
            try:
                self.area.target.rename(self.final)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return "built"
            if self.exists():
                return "there"
            if os.path.lexists(self.final) and not self.final.is_symlink() and not is_environment(str(self.final)):
                raise AgentError(
                    f"{self.final} is in the way, and ipexctl did not make it", "look at it, then move it away"
                )
            old = self.area.envs / f".build-{self.area.token}+old"
            remove_tree(str(old))
            with contextlib.suppress(FileNotFoundError):
                self.final.rename(old)
        raise AgentError(f"{self.final} is being changed by another process", Fix("run `ipexctl install` again"))

    def _drop_wheels(self) -> None:
        if any(is_alive(str(marker)) for marker in self.area.tmp.glob("owner-*")):  # this build's marker is removed
            return
        for file in [*self.request["files"], self.request["installer"]]:
            remove_tree(str(self.area.store / file["sha256"]))


def main(action: str) -> int:
    return answer_until_stopped({"build": lambda request, _: Build(request).run()}[action])
