"""Files by hash in a directory: STORE/<sha256>/<name> is there whole and with that hash, or not at all.

Files come and go as frames: a line of JSON with sha256, name and size, then the bytes; after the last, a line that
says so. Over which wire they travel is another's business: `handover` and `fetch` beside this use it as a library.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, NoReturn

CHUNK = 1 << 20
_HEADER = 1 << 14
_TICK = 0.2
_STALE = 86400
_ROOM = "make room there, or name another directory: --home DIR"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_half_made: set[Path] = set()
_speaking = threading.Lock()


class Failed(Exception):
    """What a person is told, and what to do about it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


class WrongHash(Failed):
    """The bytes are not those that were meant."""


def say(event: str, **more: Any) -> None:
    """One event on stdout. Where nobody listens any more, nobody wants the work either."""
    line = json.dumps({"event": event, **more}).encode() + b"\n"
    with _speaking:
        try:
            while line:
                line = line[os.write(1, line) :]
        except OSError:
            end()


def end(*_: object) -> NoReturn:
    """Leave at once, and nothing half-made."""
    for path in list(_half_made):
        with suppress(OSError):
            path.unlink()
    os._exit(143)


class Progress:
    """Bytes as they come, from any thread, said at most five times a second."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._done, self._said = 0, 0.0
        self._lock = threading.Lock()

    def add(self, count: int, what: str) -> None:
        with self._lock:
            self._done += count
            done, now = self._done, time.monotonic()
            if now - self._said < _TICK:
                return
            self._said = now
        say("progress", done=done, total=self._total, what=what)


def total_of(files: list[dict[str, Any]]) -> int | None:
    """Their bytes together; None where one's size isn't known."""
    sizes = [file.get("size") for file in files]
    return None if None in sizes else sum(sizes)  # type: ignore[arg-type]


def path_of(store: str, file: dict[str, Any]) -> Path:
    """Where a file lies; neither its hash nor its name may lead anywhere else."""
    sha256, name = str(file.get("sha256")), str(file.get("name"))
    if not _SHA256.fullmatch(sha256):
        raise Failed(f"{sha256[:80]!r} is no sha256")
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > 200:
        raise Failed(f"{name[:80]!r} can't be a file's name in the store")
    return Path(store, sha256, name)


def is_there(store: str, file: dict[str, Any]) -> bool:
    try:
        found = path_of(store, file).stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and file.get("size") in (None, found.st_size)


def readable(size: float) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


_REFUSALS = {
    (errno.ENOSPC,): ("the disk is full", _ROOM),
    (errno.EDQUOT,): ("this account's disk quota is used up", _ROOM),
    (errno.EROFS,): ("the filesystem is mounted read-only", "name a directory that can be written: --home DIR"),
    (errno.EACCES, errno.EPERM): ("this account may not write there", "name a directory of its own: --home DIR"),
    (errno.ENOTDIR, errno.EEXIST): ("a file is where a directory is needed", "move that file away"),
    (errno.EISDIR, errno.ENOTEMPTY): ("a directory is where a file is needed", "remove that directory"),
}


def disk_failed(error: OSError, path: Path, wanted: int | None = None) -> Failed:
    """What a filesystem's refusal means."""
    if error.errno == errno.ENOSPC and wanted is not None:
        with suppress(OSError):
            return _too_full(path, wanted)
    known = [said for numbers, said in _REFUSALS.items() if error.errno in numbers]
    reason, fix = known[0] if known else (error.strerror or str(error), "")
    return Failed(f"{error.filename or path}: {reason}", fix)


def _room(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _too_full(path: Path, wanted: int) -> Failed:
    room = _room(path)
    return Failed(f"{path}: the disk is full: {readable(wanted)} more are needed, {readable(room)} are left", _ROOM)


def _here() -> str:
    """This kernel and this process's view of its processes: only there does a pid mean anything."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return f"{boot[:8]}-{Path('/proc/self/ns/pid').stat().st_ino}"
    return "-".join(re.findall(r"\w+", os.uname().nodename))


class Part:
    """A file on its way into the store: beside the others until it is whole, then among them."""

    def __init__(self, store: str, file: dict[str, Any]) -> None:
        self.path = path_of(store, file)
        self.sha256: str = file["sha256"]
        self.size: int | None = file.get("size")
        self.done = 0
        self._hash = hashlib.sha256()
        self._store = Path(store)
        mark = f"{self.sha256[:16]}.{_here()}.{os.getpid()}.{secrets.token_hex(4)}.part"
        self._aside = self._store / mark
        try:
            self._store.mkdir(0o700, parents=True, exist_ok=True)
            if self.size is not None and self.size > _room(self._store):
                raise _too_full(self._store, self.size)
            _half_made.add(self._aside)
            self._file = self._aside.open("xb", buffering=0)
        except OSError as error:
            _half_made.discard(self._aside)
            raise disk_failed(error, self._store, self.size) from None

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._aside.unlink()
        _half_made.discard(self._aside)

    def write(self, data: memoryview) -> None:
        self._hash.update(data)
        try:
            while data:
                written = self._file.write(data)
                self.done += written
                data = data[written:]
        except OSError as error:
            missing = None if self.size is None else self.size - self.done
            raise disk_failed(error, self._store, missing) from None

    def adopt(self) -> None:
        """Into the store, if these are the bytes that were meant."""
        found = self._hash.hexdigest()
        if found != self.sha256:
            raise WrongHash(f"{self.path.name}: its {self.done} bytes have the sha256 {found}, not {self.sha256}")
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            while self._aside.exists():
                self.path.parent.mkdir(0o700, exist_ok=True)
                # Somebody may have tidied the empty directory away.
                with suppress(FileNotFoundError):
                    self._aside.rename(self.path)
                    return
        except OSError as error:
            raise disk_failed(error, self.path) from None
        raise Failed(f"{self._aside} was taken away while it was written", "run it again")


def clear(store: str) -> None:
    """Take away what writers that are gone have left."""
    here = f".{_here()}."
    with suppress(OSError):
        for path in list(Path(store).iterdir()):
            with suppress(OSError, ValueError, IndexError):
                age = time.time() - path.stat().st_mtime
                if _SHA256.fullmatch(path.name):
                    if age > 60:
                        path.rmdir()  # only where it is empty
                elif path.name.endswith(".part"):
                    gone = here in path.name and not _is_alive(int(path.name.split(".")[-3]))
                    if gone or age > _STALE:
                        path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def have(request: dict[str, Any]) -> dict[str, Any]:
    """Which files are there. With `verify` each is read, and what isn't what its name says is removed."""
    found, damaged = [], []
    progress = Progress(total_of(request["files"]))
    for file in request["files"]:
        if not is_there(request["store"], file):
            continue
        if request.get("verify") and not _is_whole(path_of(request["store"], file), file["sha256"], progress):
            damaged.append(file)
        else:
            found.append(file["sha256"])
    drop({"store": request["store"], "files": damaged})
    return {"have": found, "damaged": [file["sha256"] for file in damaged]}


def _is_whole(path: Path, sha256: str, progress: Progress) -> bool:
    seen = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            for data in iter(lambda: file.read(CHUNK), b""):
                seen.update(data)
                progress.add(len(data), path.name)
    except OSError as error:
        raise Failed(f"{path} can't be read: {error.strerror or error}") from None
    return seen.hexdigest() == sha256


def drop(request: dict[str, Any]) -> dict[str, Any]:
    """Remove files; those that aren't there are removed already."""
    for file in request["files"]:
        path = path_of(request["store"], file)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise disk_failed(error, path) from None
        with suppress(OSError):
            path.parent.rmdir()
    return {}


def receive(request: dict[str, Any], stream: BinaryIO) -> dict[str, Any]:
    """Take in frames; each file is adopted as soon as it is whole. With `files`, no others are."""
    store = request["store"]
    files: list[dict[str, Any]] | None = request.get("files")
    wanted = None if files is None else {file["sha256"]: file for file in files}
    progress = Progress(None if files is None else total_of(files))
    got, failed = [], []
    clear(store)
    say("ready")
    for header in _headers(stream):
        file = header if wanted is None else wanted.get(header.get("sha256"))
        if file is None:
            raise Failed("a file was sent that nobody asked for")
        if "error" in header:
            failed.append({"sha256": file["sha256"], "reason": str(header["error"])})
            continue
        size = header.get("size")
        if not isinstance(size, int) or not 0 <= size <= (file.get("size") or size):
            raise Failed(f"{file.get('name')} is said to have {size} bytes, not {file.get('size')}")
        try:
            with Part(store, {"sha256": file["sha256"], "name": file["name"], "size": size}) as part:
                _take_in(part, size, stream, progress)
                part.adopt()
        except WrongHash as wrong:
            failed.append({"sha256": file["sha256"], "reason": wrong.reason, "kind": "hash"})
        else:
            got.append(file["sha256"])
            say("got", sha256=file["sha256"])
    return {"got": got, "failed": failed}


def _headers(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    while True:
        line = stream.readline(_HEADER)
        if not line.endswith(b"\n"):
            raise Failed("the stream broke off between two files" if len(line) < _HEADER else "that is no frame")
        header = None
        with suppress(ValueError):
            header = json.loads(line)
        if not isinstance(header, dict):
            raise Failed("that is no frame")
        if header.get("end") is True:
            return
        yield header


def _take_in(part: Part, size: int, stream: BinaryIO, progress: Progress) -> None:
    name, buffer = part.path.name, memoryview(bytearray(min(size, CHUNK) or 1))
    left = size
    while left:
        count: int | None = stream.readinto(buffer[: min(left, CHUNK)])  # type: ignore[attr-defined]
        if not count:
            raise Failed(f"the stream broke off {readable(left)} before the end of {name}")
        part.write(buffer[:count])
        left -= count
        progress.add(count, name)


def send(request: dict[str, Any], write: Callable[[bytes], Any], pour: Callable[[BinaryIO, int], Any]) -> None:
    """Write frames; a file that can't be had is said to be so in its place."""
    if "to" in request:
        write(json.dumps(request["to"]).encode() + b"\n")
    for file in request["files"]:
        header = {"sha256": file["sha256"], "name": file["name"]}
        try:
            opened = path_of(request["store"], file).open("rb", buffering=0)
        except OSError as error:
            said = f"{error.filename} can't be read: {error.strerror or error}"
            write(json.dumps({**header, "error": said}).encode() + b"\n")
            continue
        with opened:
            size = os.fstat(opened.fileno()).st_size
            write(json.dumps({**header, "size": size}).encode() + b"\n")
            pour(opened, size)
    write(b'{"end": true}\n')


def run(action: Callable[[dict[str, Any], BinaryIO], dict[str, Any]], request: dict[str, Any], stdin: BinaryIO) -> int:
    """The frame of every script that works on a store: events on stdout, and one last word."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, end)
    os.umask(0o077)
    try:
        answer = action(request, stdin)
    except Failed as failed:
        say("failed", reason=failed.reason, fix=failed.fix)
        return 1
    say("done", **answer)
    return 0


def _send_out(request: dict[str, Any]) -> int:
    """stdout is all frames, so that a complaint goes to stderr."""
    out = sys.stdout.buffer

    def pour(file: BinaryIO, size: int) -> None:
        shutil.copyfileobj(file, out, CHUNK)
        if file.tell() != size:
            raise Failed(f"{file.name} changed while it was read")

    try:
        send(request, out.write, pour)
        out.flush()
    except (Failed, OSError) as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)  # without a second try to write what is still in hand
    return 0


def main() -> int:
    stdin = sys.stdin.buffer
    request = json.loads(stdin.readline())
    if sys.argv[1] == "send":
        return _send_out(request)
    actions: dict[str, Callable[[dict[str, Any], BinaryIO], dict[str, Any]]] = {
        "have": lambda request, _: have(request),
        "drop": lambda request, _: drop(request),
        "receive": receive,
    }
    return run(actions[sys.argv[1]], request, stdin)


if __name__ == "__main__":
    sys.exit(main())
