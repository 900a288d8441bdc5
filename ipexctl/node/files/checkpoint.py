"""One host's part of an exchange of checkpoints: reports its copies, sends and receives files, puts them in place.

A rank wrapper starts it as `PYTHON -I RUNDIR/agent.zip files.checkpoint`, with a `CheckpointRequest` on stdin. It
connects to the supervisor, and the two take turns, with one line of JSON each:

    {"rank"}
        → {"scan": true}
    {"copies", "incomplete", "known"}
        → {"serve": [copy, …], "token", "clients": the number of hosts that fetch them}
    {"port": of its file server, or null}
        → {"fetch": [{"address", "port", "token", "copies"}, …], "remove": [name, …],
           "known": {name: [sha256, is brought]}}
    {"done": true}
        → {"end": true}, when all hosts are done

Instead of any of its lines it may send {"failed": reason, "fix"}. HOME/checkpoints/KEY keeps what the host has after
the exchange. Files are received there, and replace those of the checkpoint when they are complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import socket
import stat
import sys
import threading
import time
import zipfile
from typing import Any, Iterator, NamedTuple

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.files import (
    explain_full_disk,
    explain_os_error,
    free_space,
    make_private_directory,
    read_json,
    sha256_of,
    write_json_atomically,
)
from ipexctl.node.files import store
from ipexctl.node.files.checkpoint_plan import (
    MAX_FILES,
    Copy,
    HostCopies,
    KnownFiles,
    check_name,
    is_temporary,
    read_copies,
    read_known,
)
from ipexctl.node.files.peer_transfer import (
    HANDSHAKE_TIME,
    MALFORMED,
    MAX_REQUEST,
    ConnectRequest,
    FileServer,
    ServeRequest,
    connect,
    prove_to_server,
    read_line,
    send_line,
)

TIME_LIMIT = 6 * 3600.0
"""Seconds for all hosts together to do a step, such as reading and sending large files."""
_IN_STORE = "file"
"""The name of each file in the two stores."""
_MAX_HEADER = 100 << 20


class CheckpointRequest(NamedTuple):
    rank: int
    path: str
    """Of the file or directory; absolute."""
    home: str
    address: str
    """Of the supervisor, like `port`."""
    port: int
    token: str


class CheckpointFiles:
    """The checkpoint of one host, and what is kept of it between exchanges."""

    def __init__(self, path: str, home: str) -> None:
        self.base, self.top = os.path.split(path)
        key = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        self.directory = os.path.join(home, "checkpoints", key)
        self.inbox, self.outbox = (os.path.join(self.directory, name) for name in ("in", "out"))
        self._record = os.path.join(self.directory, "files.json")
        self._mount: str | None = None
        """The mount point of the checkpoint's filesystem after the last exchange."""
        try:
            record = read_json(self._record)
            self._rows: Json = record["files"]
            self.known = read_known({name: row[:2] for name, row in self._rows.items()}, self.top)
            self._mount = record.get("mount")
        except (*MALFORMED, AttributeError):
            self._rows, self.known = {}, {}

    def path_of(self, name: str) -> str:
        """Raises an AgentError if a directory above it is a link: it may lead out of the checkpoint."""
        parts = check_name(name, self.top).split("/")
        for end in range(2, len(parts)):
            if os.path.islink(os.path.join(self.base, *parts[:end])):
                raise AgentError(f"{os.path.join(self.base, *parts[:end])} is a link", "name the directory itself")
        return os.path.join(self.base, *parts)

    def scan(self) -> HostCopies:
        """The copies of this host; hashes of unchanged files are those of the last exchange."""
        copies: dict[str, Copy] = {}
        incomplete: dict[str, str] = {}
        for name in self._names():
            if len(copies) >= MAX_FILES:
                raise AgentError(f"more than {MAX_FILES} files", "name the directory of the checkpoints alone")
            try:
                found = self._read(name)
            except OSError as error:
                found = error.strerror or str(error)
            if isinstance(found, Copy):
                copies[name] = found
            else:
                incomplete[name] = found
        self._check_mounted({*copies, *incomplete})
        return HostCopies(copies, incomplete, self.known)

    def _check_mounted(self, found: set[str]) -> None:
        """Raise an AgentError if all files that this host wrote are gone together with their filesystem.

        They would count as deleted, and the copies of the other hosts would be removed.
        """
        written = {name for name, file in self.known.items() if not file.is_brought}
        root = os.path.join(self.base, self.top)
        if written and not written & found and self._mount is not None and not os.path.ismount(self._mount):
            raise AgentError(
                f"{root}: its files are not there, and nothing is mounted at {self._mount} any more",
                f"mount it; or get the files of the other hosts back: rm {shlex.quote(self._record)}",
            )

    def _check_unreadable(self, error: OSError) -> None:
        """Raise the error of a directory that can't be read if it had known files: they would count as deleted."""
        below = os.path.relpath(error.filename, self.base)
        if not isinstance(error, FileNotFoundError) and any(name.startswith(f"{below}/") for name in self.known):
            raise error

    def _names(self) -> Iterator[str]:
        root = os.path.join(self.base, self.top)
        try:
            is_directory = stat.S_ISDIR(os.stat(root).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_directory = False
        if not is_directory:
            if os.path.lexists(root):
                yield self.top
            return
        for directory, directories, files in os.walk(root, onerror=self._check_unreadable):
            directories[:] = sorted(part for part in directories if not is_temporary(part))
            above = os.path.join(self.top, os.path.relpath(directory, root)) if directory != root else self.top
            for part in sorted(files):
                if not is_temporary(part):
                    yield f"{above}/{part}"

    def _read(self, name: str) -> Copy | str:
        """A complete copy, or why it is none."""
        path = os.path.join(self.base, name)
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return "it is not a file"
        root = os.path.realpath(os.path.join(self.base, self.top))
        if name != self.top and not os.path.realpath(path).startswith(root + os.sep):
            return "it is a link that leads out of the directory"
        if problem := problem_of(path, status.st_size):
            return problem
        row = self._rows.get(name)
        sha256 = str(row[0]) if row and row[2:] == _identity(status) else sha256_of(path)
        if _identity(os.stat(path)) != _identity(status):
            return "it is being written"
        return Copy(name, status.st_size, status.st_mtime_ns, stat.S_IMODE(status.st_mode), sha256)

    def offer(self, copies: list[Copy]) -> None:
        """Make a store of links to these files, from which other hosts fetch them."""
        for copy in copies:
            directory = os.path.join(self.outbox, copy.sha256)
            os.makedirs(directory, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.symlink(self.path_of(copy.name), os.path.join(directory, _IN_STORE))

    def place(self, copies: list[Copy]) -> None:
        """Replace files of the checkpoint with those received; each has its old or its new content, never a part."""
        uses = [copy.sha256 for copy in copies]
        for copy in copies:
            uses.remove(copy.sha256)
            target = self.path_of(copy.name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            source = os.path.join(self.inbox, copy.sha256, _IN_STORE)
            if copy.sha256 in uses or os.stat(source).st_dev != os.stat(os.path.dirname(target)).st_dev:
                temporary = f"{target}.{os.getpid()}.tmp"
                try:
                    shutil.copyfile(source, temporary)
                    _replace(temporary, target, copy)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary)
            else:
                _replace(source, target, copy)

    def remove(self, names: list[str]) -> None:
        """Remove files, and the directories that are empty then; scripts take those for checkpoints."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path_of(name))
            above = os.path.dirname(name)
            with contextlib.suppress(OSError):
                while "/" in above:
                    os.rmdir(os.path.join(self.base, above))
                    above = os.path.dirname(above)

    def save(self, known: KnownFiles) -> None:
        rows = {}
        for name, file in known.items():
            with contextlib.suppress(OSError):
                rows[name] = [*file, *_identity(os.stat(os.path.join(self.base, name)))]
        mount = os.path.realpath(os.path.join(self.base, self.top))
        while not os.path.ismount(mount):
            mount = os.path.dirname(mount)
        write_json_atomically(self._record, {"files": rows, "mount": mount})

    def clear(self) -> None:
        for directory in (self.inbox, self.outbox):
            shutil.rmtree(directory, ignore_errors=True)


def _replace(source: str, target: str, copy: Copy) -> None:
    os.chmod(source, copy.mode & 0o777 | 0o600)
    os.utime(source, ns=(copy.mtime_ns, copy.mtime_ns))
    os.replace(source, target)


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def problem_of(path: str, size: int) -> str:
    """Why a file is half-written; empty for a complete one. The formats of torch and safetensors show it."""
    if not size:
        return "it is empty"
    with open(path, "rb") as file:
        head = file.read(8)
        if head[:4] == b"PK\3\4":
            return "" if zipfile.is_zipfile(path) else "it is half-written: its end is missing"
        if path.endswith(".safetensors") and not _has_all_tensors(file.read, head, size):
            return "it is half-written: tensors are missing"
    return ""


def _has_all_tensors(read: Any, head: bytes, size: int) -> bool:
    length = int.from_bytes(head, "little")
    try:
        header = json.loads(read(min(length, _MAX_HEADER)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(8 + length + max(ends, default=0) == size)
    except (*MALFORMED, AttributeError, IndexError):
        return False


class Exchange:
    """The connection to the supervisor during an exchange."""

    def __init__(self, files: CheckpointFiles, conn: socket.socket) -> None:
        self._files, self._conn = files, conn
        self._stop_serving = -1

    def run(self) -> None:
        """Raises an error of the connection. Any other is sent to the supervisor."""
        files = self._files
        self._receive()  # from here on, the supervisor knows this host
        files.clear()
        try:
            make_private_directory(os.path.dirname(files.directory))
            make_private_directory(files.directory)
            self._steps()
        except AgentError as error:
            send_line(self._conn, {"failed": error.reason, "fix": error.fix})
        except ConnectionError:
            raise
        except OSError as error:
            explained = explain_os_error(error, files.directory)
            send_line(self._conn, {"failed": explained.reason, "fix": explained.fix})
        finally:
            if self._stop_serving >= 0:
                os.close(self._stop_serving)
            files.clear()

    def _steps(self) -> None:
        files = self._files
        send_line(self._conn, files.scan().to_json())
        order = self._receive()
        to_serve = list(read_copies(order["serve"], files.top).values())
        send_line(self._conn, {"port": self._serve(order, to_serve) if to_serve else None})
        order = self._receive()
        known = read_known(order["known"], files.top)
        fetches = [(fetch, list(read_copies(fetch["copies"], files.top).values())) for fetch in order["fetch"]]
        size = sum(copy.size for _, copies in fetches for copy in copies)
        if size > free_space(files.directory):
            raise explain_full_disk(files.directory, size)
        for fetch, copies in fetches:
            self._fetch(fetch, copies)
        files.place([copy for _, copies in fetches for copy in copies])
        files.remove([name for name in order["remove"] if files.known[name].is_brought])
        files.save(known)
        send_line(self._conn, {"done": True})
        self._receive()  # the other hosts may still fetch from this one

    def _receive(self) -> Any:
        return read_line(self._conn, time.monotonic() + TIME_LIMIT, MAX_REQUEST)

    def _serve(self, order: Json, copies: list[Copy]) -> int:
        """Start a file server in a thread; returns its port."""
        self._files.offer(copies)
        request: ServeRequest = {
            "store": self._files.outbox,
            "files": _as_store_files(copies),
            "bind": self._conn.getsockname()[0],
            "token": order["token"],
            "clients": order["clients"],
            "idle": TIME_LIMIT,
        }
        server = FileServer(request)
        user, self._stop_serving = os.pipe()
        threading.Thread(target=server.run, args=(user,), daemon=True).start()
        return server.port

    def _fetch(self, fetch: Json, copies: list[Copy]) -> None:
        request: ConnectRequest = {
            "store": self._files.inbox,
            "files": _as_store_files(copies),
            "address": fetch["address"],
            "port": fetch["port"],
            "token": fetch["token"],
        }
        failed = connect(request, lambda *_, **__: None)["failed"]
        if failed:
            raise AgentError(f"a file changed while it was sent: {failed[0]['reason']}")


def _as_store_files(copies: list[Copy]) -> list[store.StoreFile]:
    sizes = {copy.sha256: copy.size for copy in copies}
    return [{"sha256": sha256, "name": _IN_STORE, "size": size} for sha256, size in sizes.items()]


def main(action: str) -> int:  # noqa: ARG001
    """Errors that the supervisor does not know are on stderr."""
    request = CheckpointRequest(**json.loads(sys.stdin.readline()))
    store.end_on_signals()
    peer = f"{request.address} port {request.port}"
    try:
        with socket.create_connection((request.address, request.port), timeout=HANDSHAKE_TIME) as conn:
            prove_to_server(conn, request.token)
            send_line(conn, {"rank": request.rank})
            Exchange(CheckpointFiles(request.path, request.home), conn).run()
    except (OSError, *MALFORMED) as error:
        reason = getattr(error, "strerror", None) or str(error)
        sys.stderr.write(f"the checkpoint can't be exchanged with {peer}: {reason}\n")
        return 1
    return 0
