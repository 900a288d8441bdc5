"""Content store: a file STORE/<sha256>/<name> is always complete and has that hash.

Files arrive as a `file_stream` under another name and are renamed when the hash is right. Hashes and names in a request
never lead out of the store; files nobody requested are refused. A full disk is noticed before the first byte. What an
ended process left is continued for a day: the sender starts at the receiver's offset, and the hash of the complete file
decides.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import stat
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Iterator, NoReturn, Sequence, TypeVar, cast

from ipexctl.node.common.answer import Action, AgentError, Json, answer, emit, explain_os_error
from ipexctl.node.common.clock import Countdown, age_of, seconds_since
from ipexctl.node.common.files import (
    explain_full_disk,
    free_space,
    make_private_directory,
    secure_directory,
    sha256_of,
)
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.home import make_home
from ipexctl.node.common.home_entries import is_stored
from ipexctl.node.common.json_records import parse_json
from ipexctl.node.common.liveness import DAY
from ipexctl.node.common.processes import is_partial_in_use, partial_name
from ipexctl.node.files.file_stream import CHUNK, END, SHA256, check_hash, header_line, header_of, offset_of, read_files

if TYPE_CHECKING:
    from typing import Mapping

    from ipexctl.node.files.call_requests import HaveRequest, ReceiveRequest, StoreFile, StoreRequest


_TICK = 0.2
SILENT_WRITER = 30.0
"""After so many seconds without a write, another process may continue an unfinished file."""
MINIMUM_KEPT = 1 << 20
"""Smaller unfinished files are not worth continuing."""
Request = TypeVar("Request", bound="Mapping[str, Any]")
Report = Callable[..., None]


PUSH_PREFIX = ".ipexctl-push-"
"""Prefix of the directory in or next to PATH with a push's store."""


class HashMismatch(AgentError):
    """The bytes do not have the expected hash."""


class PartTaken(AgentError):
    """Another process has claimed or removed the unfinished file: ask again what is there."""


def end_on_signals() -> None:
    """Exit at once on a signal. A later call continues unfinished files."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)


def _end(*_: object) -> NoReturn:
    os._exit(143)


def emit_or_end(event: str, **fields: Any) -> None:
    """Write an event to stdout; exit if nobody reads stdout any more."""
    try:
        emit(event, **fields)
    except OSError:
        _end()


class Progress:
    def __init__(self, total: int | None, report: Report = emit_or_end) -> None:
        self._total, self._report = total, report
        self._done, self._pause = 0, Countdown(0.0)
        self._lock = threading.Lock()

    def add(self, count: int, name: str) -> None:
        """Count bytes, and report the sum from time to time. `name`: of the file that they belong to."""
        with self._lock:
            self._done += count
            if not self._pause.is_over:
                return
            done, self._pause = self._done, Countdown(_TICK)
        self._report("progress", done=done, total=self._total, what=name)


def total_of(files: Sequence[StoreFile]) -> int | None:
    """Return the bytes of all files together; None if the size of one is unknown."""
    sizes = [file["size"] for file in files if file["size"] is not None]
    return sum(sizes) if len(sizes) == len(files) else None


@contextmanager
def enter_store(request: Request) -> Iterator[Request]:
    """Yield the request with a store path that stays the same directory, whatever others do above it.

    A guarded store is entered once without following a link. Raises an AgentError unless this account alone owns it.
    """
    if not request.get("guarded"):
        yield request
        return
    above, name = os.path.split(request["store"])
    with GuardedDirectory.open(above) as directory:
        directory.check_private(Fix("see whose it is: `ls -ld {path}`", path=above))
        try:
            yield cast("Request", {**request, "store": f"{directory.anchor}/{name}"})
        except AgentError as error:
            raise AgentError(error.reason.replace(directory.anchor, above), error.fix) from None


def path_of(store: str, file: StoreFile) -> Path:
    """Return the path of a file. Raises an AgentError if its hash or name would lead out of the store."""
    sha256, name = check_hash(file["sha256"]), file["name"]
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > 200:
        raise AgentError(f"{name[:80]!r} can't be a file's name in the store")
    return Path(store, sha256, name)


def is_there(store: str, file: StoreFile) -> bool:
    """Return True if the store has the file, of the right size if that is known. Raises an AgentError for a name that
    no store may have."""
    try:
        status = path_of(store, file).stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and file["size"] in (None, status.st_size)


def open_store(store: str) -> GuardedDirectory:
    """Enter the store once. Its path may have links: the user's, or one to an opened directory."""
    return GuardedDirectory(os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), store)


def _explain(error: OSError, path: str, expected: int | None = None) -> AgentError:
    if error.errno == errno.ENOSPC and expected is not None:
        with suppress(OSError):
            return explain_full_disk(path, expected)
    is_of_home = isinstance(error.filename, str) and error.filename.startswith("/")
    return explain_os_error(error if is_of_home else OSError(error.errno, error.strerror), path)


class PartialFile:
    """A file being written to the store, under a temporary name until it is complete.

    It starts at the file's offset, after the bytes an ended process left, and is kept if incomplete.
    """

    def __init__(self, store: str, file: StoreFile, home: str = "") -> None:
        self.path = path_of(store, file)
        self.sha256, self.size = file["sha256"], file["size"]
        self.done = 0
        self._is_wrong = False
        self._hash = hashlib.sha256()
        self._store = store
        self._temporary = os.fsencode(partial_name(self.sha256[:16]))
        offset = file.get("offset", 0)
        try:
            if home:
                make_home(home)
            else:
                secure_directory(os.path.dirname(store))
            make_private_directory(store)
            if self.size is not None and self.size - offset > free_space(store):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._directory = open_store(store)
        except OSError as error:
            raise _explain(error, store, self.size and self.size - offset) from None
        try:
            self._number = self._continue(offset) if offset else self._open(self._temporary, os.O_CREAT | os.O_EXCL)
        except BaseException as error:
            self._directory.close()
            if isinstance(error, OSError):
                raise _explain(error, store, self.size) from None
            raise

    def _open(self, name: bytes, flags: int) -> int:
        return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600, dir_fd=self._directory.number)

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.close(self._number)
        if self._is_wrong or self.done < MINIMUM_KEPT:
            with suppress(OSError):
                self._directory.unlink(self._temporary)
        self._directory.close()

    def _continue(self, offset: int) -> int:
        """Take over the longest unfinished file of an ended process. Renaming it claims it. Others are removed."""
        left = sorted(_left_by_ended(self._store, self.sha256))
        while left:
            size, path = left.pop()
            if size < offset:
                break
            with suppress(FileNotFoundError):  # another process was faster
                self._directory.rename(self._directory.number, os.fsencode(path.name), self._temporary)
                number = self._open(self._temporary, 0)
                while self.done < offset and (data := os.read(number, min(CHUNK, offset - self.done))):
                    self._hash.update(data)
                    self.done += len(data)
                os.ftruncate(number, offset)
                os.lseek(number, offset, os.SEEK_SET)
                for _, other in left:
                    self._directory.unlink(os.fsencode(other.name))
                return number
        raise PartTaken("another program removed the files that had arrived", "run it again")

    def write(self, data: memoryview) -> None:
        """Append bytes. Raises an AgentError if the disk is full."""
        self._hash.update(data)
        try:
            while data:
                written = os.write(self._number, data)
                self.done += written
                data = data[written:]
        except OSError as error:
            missing = None if self.size is None else self.size - self.done
            raise _explain(error, self._store, missing) from None

    def adopt(self) -> None:
        """Give the complete file its name in the store. Raises a HashMismatch if it has another hash; then it is not
        kept."""
        digest = self._hash.hexdigest()
        if digest != self.sha256:
            self._is_wrong = True
            raise HashMismatch(f"{self.path.name}: its {self.done} bytes have the sha256 {digest}, not {self.sha256}")
        try:
            os.fsync(self._number)
            name = os.fsencode(self.path.name)
            while self._directory.status_of(self._temporary) is not None:
                with suppress(FileNotFoundError):
                    with self._directory.enter(self.sha256.encode(), make=True, mode=0o700) as target:
                        target.rename(self._directory.number, self._temporary, name)
                    return
        except OSError as error:
            raise _explain(error, self._store) from None
        temporary = os.path.join(self._store, os.fsdecode(self._temporary))
        raise AgentError(f"{temporary} was taken away while it was written", "run it again")


def _left_by_ended(store: str, sha256: str = "") -> Iterator[tuple[int, Path]]:
    """Yield size and path of unfinished files that no process writes; of all contents, or one."""
    with suppress(OSError):
        for path in list(Path(store).iterdir()):
            with suppress(OSError):
                is_unfinished = path.name.endswith(".part") and path.name.startswith(sha256[:16])
                if not is_unfinished or not is_stored(str(path)):
                    continue
                status = path.stat()
                if not _is_kept(path):
                    continue
                # A process with a cut connection may wait for hours. If it writes again, the hash shows it.
                if seconds_since(status.st_mtime) > SILENT_WRITER or not is_partial_in_use(str(path)):
                    yield status.st_size, path


def _is_kept(path: Path) -> bool:
    """True if an unfinished file is worth continuing; `clear` removes others."""
    return age_of(str(path)) < DAY and path.stat().st_size >= MINIMUM_KEPT


def unfinished(store: str) -> dict[str, int]:
    """Return the first 16 digits of a hash → bytes that there are of that file. Files that a process is writing are
    left out."""
    sizes: dict[str, int] = {}
    for size, path in _left_by_ended(store):
        prefix = path.name[:16]
        sizes[prefix] = max(size, sizes.get(prefix, 0))
    return sizes


def clear(store: str) -> None:
    """Remove unfinished files that nobody continues, and empty directories."""
    with suppress(OSError), open_store(store) as directory:
        for name in map(os.fsdecode, directory.names()):
            path = os.path.join(store, name)
            with suppress(OSError, ValueError, IndexError):
                if SHA256.fullmatch(name):
                    if age_of(path) > 60:
                        os.rmdir(name, dir_fd=directory.number)  # only if empty
                    continue
                if not _is_kept(Path(path)) and is_stored(path) and not is_partial_in_use(path):
                    directory.unlink(os.fsencode(name))


def have(request: HaveRequest) -> Json:
    """Return which of the files the store has. With `verify` each is read, and removed if its hash is wrong."""
    present, damaged = [], []
    progress = Progress(total_of(request["files"]))
    for file in request["files"]:
        if not is_there(request["store"], file):
            continue
        if request["verify"] and not _has_hash(path_of(request["store"], file), file["sha256"], progress):
            damaged.append(file)
        else:
            present.append(file["sha256"])
    with suppress(FileNotFoundError), open_store(request["store"]) as directory:
        for sha256 in present:
            with suppress(OSError):  # in use again: a sync removes contents that are a day old
                os.utime(sha256, dir_fd=directory.number)
        for file in damaged:
            _remove(directory, file)
    return {
        "have": present,
        "damaged": [file["sha256"] for file in damaged],
        "unfinished": unfinished(request["store"]),
    }


def find_lacking(store: str, files: Sequence[StoreFile], report: Report = emit_or_end) -> list[StoreFile]:
    """Report and return the files that the store lacks, each with the offset at which an ended transfer is resumed."""
    present_files = have({"store": store, "files": list(files), "verify": False})
    present = set(present_files["have"])
    lacking: list[StoreFile] = [
        {**file, "offset": offset_of(file, present_files["unfinished"])}
        for file in files
        if file["sha256"] not in present
    ]
    report("lacking", files={file["sha256"]: file["offset"] for file in lacking})
    return lacking


def _has_hash(path: Path, sha256: str, progress: Progress) -> bool:
    try:
        return sha256_of(path, lambda size: progress.add(size, path.name)) == sha256
    except OSError as error:
        raise AgentError(f"{path} can't be read: {error.strerror or error}") from None


def _remove(store: GuardedDirectory, file: StoreFile) -> None:
    path = path_of(store.path, file)
    try:
        with store.enter(file["sha256"].encode()) as directory:
            directory.unlink(os.fsencode(path.name))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _explain(error, str(path)) from None
    with suppress(OSError):
        os.rmdir(file["sha256"], dir_fd=store.number)


def _check_room(store: str, files: Sequence[StoreFile]) -> None:
    needed = sum((file["size"] or 0) - file.get("offset", 0) for file in files)
    above = store
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    if needed > free_space(above):
        raise _explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), above, needed)


def receive(request: ReceiveRequest, stream: BinaryIO, report: Report = emit_or_end) -> Json:
    """Take the files of a stream into the store. Returns the hashes of those it got, and which failed, with the reason.

    Raises an AgentError for a file that was not requested, a disk without room, or a stream that breaks off; what has
    arrived of a large file stays for the next call.
    """
    store, files, home = request["store"], request["files"], request.get("home", "")
    expected = None if files is None else {file["sha256"]: file for file in files}
    progress = Progress(None if files is None else total_of(files), report)
    got, failed = [], []
    clear(store)
    report("ready")
    _check_room(store, files or ())
    for arriving in read_files(stream):
        header, sha256, part = arriving.header, arriving.sha256, arriving.part
        file: StoreFile | None = {"sha256": sha256, "name": str(header.get("name")), "size": None}
        if expected is not None:
            file = expected.pop(sha256, None)  # once, or a sender could keep the receiver busy with one file
        if file is None:
            raise AgentError("the sender sent a file that was not requested")
        if "error" in header:
            failed.append({"sha256": sha256, "reason": str(header["error"])})
            continue
        if file["size"] is not None and part.size > file["size"]:
            raise AgentError(f"{file['name']}: the sender announces {part.size} bytes, expected are {file['size']}")
        begun: StoreFile = {"sha256": sha256, "name": file["name"], "size": part.size, "offset": part.offset}
        try:
            with PartialFile(store, begun, home) as partial:
                progress.add(part.offset, partial.path.name)
                for chunk in arriving.chunks(partial.path.name):
                    partial.write(memoryview(chunk))
                    progress.add(len(chunk), partial.path.name)
                    del chunk  # frees its memory before the next one
                partial.adopt()
        except HashMismatch as wrong:
            failed.append({"sha256": sha256, "reason": wrong.reason, "kind": "hash"})
        except PartTaken as lost:
            for _ in arriving.chunks(file["name"]):
                pass
            failed.append({"sha256": sha256, "reason": lost.reason, "kind": "claim"})
        else:
            got.append(sha256)
            report("got", sha256=sha256)
    return {"got": got, "failed": failed}


def send(
    request: StoreRequest,
    write: Callable[[bytes], Any],
    send_body: Callable[[BinaryIO, int, int], Any],
    open_file: Callable[[str], BinaryIO] | None = None,
) -> None:
    """Write a stream of files. For an unreadable file the header has an error and no bytes follow.

    `send_body` gets file, offset and byte count. `open_file` opens a file by hash if it is not in the store.
    """
    for file in request["files"]:
        header: Json = {"sha256": file["sha256"], "name": file["name"]}
        try:
            path = path_of(request["store"], file)
            opened = path.open("rb", buffering=0) if open_file is None else open_file(file["sha256"])
        except OSError as error:
            message = f"{error.filename} can't be read: {error.strerror or error}"
            write(header_line({**header, "error": message}))
            continue
        with opened:
            line, offset, count = header_of(opened, {**header, "offset": file.get("offset", 0)})
            write(line)
            send_body(opened, offset, count)
    write(END)


def _send_to_stdout(request: StoreRequest) -> int:
    out = sys.stdout.buffer

    def send_body(file: BinaryIO, offset: int, size: int) -> None:
        file.seek(offset)
        shutil.copyfileobj(file, out, CHUNK)
        if file.tell() != offset + size:
            raise AgentError(f"{file.name} changed while it was read")

    try:
        with enter_store(request) as inside:
            send(inside, out.write, send_body)
        out.flush()
    except (AgentError, OSError) as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)  # skips another attempt to write the buffer
    return 0


def main(action: str) -> int:
    """Answer the agent's call `have` or `receive`, or write files to stdout for `send`. Returns the exit code."""
    if action == "send":
        return _send_to_stdout(parse_json(sys.stdin.buffer.readline()))
    end_on_signals()
    actions: dict[str, Action] = {"have": _have, "receive": _receive}
    return answer(actions[action])


def _have(request: HaveRequest, _: BinaryIO) -> Json:
    with enter_store(request) as inside:
        return have(inside)


def _receive(request: ReceiveRequest, stream: BinaryIO) -> Json:
    with enter_store(request) as inside:
        if inside["files"] is not None and inside.get("asks"):
            inside = {**inside, "files": find_lacking(inside["store"], inside["files"])}
        return receive(inside, stream)
