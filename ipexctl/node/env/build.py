"""Makes an environment on this node: one builder at a time, aside, renamed in whole. What fills it is `fill.py`.

Standard library only, Python 3.8 or newer. Looking at environments and removing them is `envs.py`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.archive import agent_argv
from ipexctl.node.common.stop import answer_until_stopped, check_reader, emit_step
from ipexctl.node.env.child import end_with_parent

Json = Dict[str, Any]

BEAT = 3.0
STALE = 30.0
"""Seconds without a heartbeat after which a builder on another machine counts as gone."""


def wipe(path: Path) -> None:
    shutil.rmtree(str(path), ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()


def started(pid: int) -> str | None:
    """When that process began, by this kernel's clock; None where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def whoami() -> dict[str, Any]:
    """This process, and the kernel and process namespace in which its number means something."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        kernel = os.uname().nodename
    return {"kernel": kernel, "pid": os.getpid(), "start": started(os.getpid())}


class Place:
    """The directories of one home, and who else works in them.

    A builder has a directory `tmp/build-TOKEN` with a heartbeat, and its environment aside as `envs/.build-TOKEN`.
    """

    def __init__(self, home: str) -> None:
        self.home = Path(home).expanduser()
        if not self.home.is_absolute():
            raise AgentError(f"{home} is no absolute path", "give --home an absolute path")
        self.envs, self.tmp, self.store = self.home / "envs", self.home / "tmp", self.home / "wheels"
        self.token = os.urandom(6).hex()
        self.work, self.aside = self.tmp / f"build-{self.token}", self.envs / f".build-{self.token}"
        self._over = threading.Event()

    def open(self) -> None:
        self.home.mkdir(0o700, parents=True, exist_ok=True)
        flags = os.statvfs(str(self.home)).f_flag
        if flags & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.home))
        if flags & getattr(os, "ST_NOEXEC", 8):
            raise AgentError(
                f"{self.home} is on a filesystem mounted noexec: no program can be run from there",
                "give --home a directory on a filesystem that lets programs run",
            )
        for directory in (self.envs, self.tmp):
            directory.mkdir(exist_ok=True)
        self.clear()
        ready = self.tmp / f".new-{self.token}"  # it appears with its owner and heartbeat, or not at all
        (ready / "tmp").mkdir(parents=True)
        (ready / "owner").write_text(json.dumps(whoami()))
        (ready / "beat").write_bytes(b"")
        ready.rename(self.work)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(str(self.work / "beat"))

    def close(self) -> None:
        wipe(self.aside)
        wipe(self.envs / f".build-{self.token}+old")
        self._over.set()
        wipe(self.work)
        wipe(self.tmp / f".new-{self.token}")

    def alive(self, token: str) -> bool:
        """Whether that builder still works. On another machine: by its heartbeat and the filesystem's own clock."""
        work = self.tmp / f"build-{token}"
        try:
            owner = json.loads((work / "owner").read_text())
            if owner["kernel"] == whoami()["kernel"]:
                return bool(owner["start"] == started(owner["pid"]))
            with (work / "beat").open("rb") as beat:  # opening asks an NFS server anew, stat alone may not
                theirs = os.fstat(beat.fileno()).st_mtime
            probe = self.tmp / f".now-{self.token}"
            probe.write_bytes(b".")
            now = probe.stat().st_mtime
            probe.unlink()
        except (OSError, ValueError, KeyError):
            return False
        return now - theirs < STALE

    def others(self) -> set[str]:
        """The builders at work in this home, without us."""
        tokens = {entry.name[6:] for entry in self.tmp.glob("build-*")} - {self.token}
        return {token for token in tokens if self.alive(token)}

    def clear(self) -> None:
        """Remove what builders that are gone have left."""
        alive = self.others()
        for entry in self.tmp.glob("build-*"):
            token = entry.name[6:]
            if token not in alive and not self.alive(token):
                wipe(self.envs / f".build-{token}")
                wipe(entry)
        for entry in self.envs.glob(".build-*"):
            if not (self.tmp / entry.name[1:].split("+")[0]).exists():
                wipe(entry)
        for entry in [*self.tmp.glob(".new-*"), *self.tmp.glob(".now-*"), *self.envs.glob(".link-*")]:
            with contextlib.suppress(OSError):
                if time.time() - entry.lstat().st_mtime > 3600:
                    wipe(entry)

    @contextlib.contextmanager
    def lock(self, name: str, ready: Callable[[], bool]) -> Iterator[None]:
        """Hold the lock of that environment; whoever waits for it stops waiting when `ready()` is true.

        It only spares a second build. What decides is the rename of the finished environment.
        """
        lock = self.tmp / f"{name}.lock"
        pause = 0.05
        while not ready():
            try:
                lock.symlink_to(self.token)  # made with its content in one step, on NFS too
                break
            except FileExistsError:
                pass
            holder = _target(lock)
            if holder == self.token:
                break  # an NFS server that was asked twice
            if holder is not None and not self.alive(holder):
                self._take_away(lock, holder)
                continue
            if pause == 0.05:
                emit_step("waiting for another install of the same environment")
            time.sleep(pause)
            check_reader()
            pause = min(1.0, pause * 1.5)
        try:
            yield
        finally:
            if _target(lock) == self.token:
                with contextlib.suppress(OSError):
                    lock.unlink()

    def _take_away(self, lock: Path, holder: str) -> None:
        gone = self.work / "lock"
        with contextlib.suppress(OSError):
            lock.rename(gone)
            taken = _target(gone)
            gone.unlink()
            if taken is not None and taken != holder:  # somebody was faster, and this is the next one's
                lock.symlink_to(taken)


def _target(link: Path) -> str | None:
    try:
        return os.readlink(str(link))
    except OSError:
        return None


class Build:
    """One environment: there already, or made, then named."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.place = Place(request["home"])
        self.name: str = request["name"]
        self.digest: str = request["record"]["digest"]
        self.links: list[str] = request.get("links") or []
        self.replace: str | None = request.get("replace")
        """The `build` of an environment that a check found broken."""
        self.final = self.place.envs / self.name
        for word in [self.name, *self.links]:
            if not re.match(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*$", word):
                raise AgentError(f"{word!r} can't be the name of an environment", "use letters, digits, . _ - and +")

    def is_there(self) -> bool:
        try:
            record = json.loads((self.final / "env.json").read_text())
            fresh = bool(record.get("build")) and record.get("build") != self.replace
            right = fresh and record.get("digest") == self.digest
        except (OSError, ValueError, AttributeError):
            return False
        return right and not self.final.is_symlink() and (self.final / "bin" / "python").exists()

    def work(self) -> dict[str, Any]:
        began = time.monotonic()
        state = "there"
        if not (self.is_there() and all(_target(self.place.envs / link) == self.name for link in self.links)):
            try:
                self.place.open()
                self._check_links()
                with self.place.lock(self.name, self.is_there):
                    if not self.is_there():
                        state = self._make()
                    self._link()
            finally:
                self.place.close()
        else:
            with contextlib.suppress(OSError):
                self.place.clear()  # a builder may have died between the last rename and its own tidying up
        if self.request.get("drop_wheels"):
            self._drop()
        return {"state": state, "path": str(self.final), "seconds": round(time.monotonic() - began, 3)}

    def _make(self) -> str:
        self._fill()
        for _ in range(5):
            try:
                self.place.aside.rename(self.final)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return "built"
            if self.is_there():
                return "there"
            old = self.place.envs / f".build-{self.place.token}+old"
            wipe(old)
            with contextlib.suppress(FileNotFoundError):
                self.final.rename(old)
        raise AgentError(f"{self.final} is being changed by somebody else", "run ipexctl install again")

    def _fill(self) -> None:
        """Have the environment made aside, by a process of its own, which speaks on our stdout."""
        answer = self.place.work / "filled.json"
        order = {**self.request, "aside": str(self.place.aside), "work": str(self.place.work)}
        order.update(final=str(self.final), token=self.place.token, home=str(self.place.home), answer=str(answer))
        (self.place.work / "order.json").write_text(json.dumps(order))
        child = subprocess.Popen(
            agent_argv(sys.executable, "env.fill", str(self.place.work / "order.json")),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=end_with_parent(signal.SIGTERM),
        )
        try:
            _, complaint = child.communicate()
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(1.5)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        check_reader()
        try:
            said = json.loads(answer.read_text())
        except (OSError, ValueError):
            last = complaint.decode(errors="replace").strip().splitlines()[-1:]
            cause = last[0] if last else f"exit code {child.returncode}"
            raise AgentError(f"the environment could not be made: {cause}", "run ipexctl install again") from None
        if "reason" in said:
            raise AgentError(said["reason"], said["fix"])

    def _check_links(self) -> None:
        for name in self.links:
            link = self.place.envs / name
            if name == self.name or (link.exists() and not link.is_symlink()):
                raise AgentError(
                    f"{link} is an environment itself, so {name} can't become a name for another",
                    f"choose another --env, or remove it: ipexctl envs --remove {name}",
                )

    def _link(self) -> None:
        for name in self.links:
            link, aside = self.place.envs / name, self.place.envs / f".link-{self.place.token}"
            if _target(link) != self.name:
                aside.symlink_to(self.name)
                aside.replace(link)

    def _drop(self) -> None:
        """Remove the wheels, unless somebody else may be about to unpack them."""
        if self.place.others():
            return
        installer = self.request.get("installer")
        for file in [*self.request["files"], *([installer] if installer else [])]:
            wipe(self.place.store / file["sha256"])


def explained(error: OSError, home: str) -> AgentError:
    where = error.filename or home
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        why = "is on a read-only filesystem" if error.errno == errno.EROFS else "can't be written to by this account"
        return AgentError(f"{where} {why}", "give --home a directory that can be written to")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the quota of this account is used up" if error.errno == errno.EDQUOT else "the disk is full"
        return AgentError(f"{what}: {where}", "make room there, or give --home a directory with more")
    return AgentError(f"{where}: {error.strerror or error}", "run ipexctl install again")


def build(request: Json, _: BinaryIO) -> Json:
    try:
        return Build(request).work()
    except OSError as error:
        raise explained(error, request["home"]) from None


def main(action: str) -> int:
    return answer_until_stopped({"build": build}[action])
