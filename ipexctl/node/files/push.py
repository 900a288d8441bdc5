"""One host's part of `ipexctl push`: compares a path with what is to be there, and puts arrived files in place.

`inspect` gets the list of SRC (`sync/manifest.py`) behind its request, and tells what the path lacks and what differs
there. If something is to come, it makes a directory of its own, `.ipexctl-push-KEY`, on the disk of the path: the list
and the store (`store.py`) in which the contents arrive, from the control machine or from another host. `place` moves
them to their names, and removes that directory.

The rules: a file that is there is equal by its hash, or is not touched without `force`; each file is complete or
absent, also after a full disk; no link below the path is followed; nothing of the user is removed. What arrived before
a call broke off stays for the next one. `/`, a home and what is in ipexctl's own directory are no paths of data.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import pwd
import shlex
import shutil
import stat
import sys
from typing import TYPE_CHECKING, BinaryIO, Iterator, NamedTuple, TypedDict

from ipexctl.node.common.answer import Action, AgentError, answer
from ipexctl.node.common.files import (
    encode_name,
    explain_full_disk,
    free_space,
    read_json,
    remove_file,
    secure_directory,
    sha256_of,
    write_json_atomically,
)
from ipexctl.node.common.home_entries import is_stored
from ipexctl.node.common.processes import is_partial_in_use
from ipexctl.node.files import store
from ipexctl.node.files.checkpoint_path import open_directory
from ipexctl.node.files.file_stream import read_body, read_headers
from ipexctl.node.files.replies import InspectReply, PlaceReply

if TYPE_CHECKING:
    from ipexctl.node.files.store import Report

PREFIX = ".ipexctl-push-"
LIST, STORE, TOKEN = "list.json", "store", "id"
CONTENT, PARCEL = "content", "parcel"
"""The names in the store: a large file, or several small ones in a stream."""
SHOWN = 20
_TOP = ""
"""The name of SRC itself, if it is a file."""


class InspectRequest(TypedDict):
    path: str
    """Absolute, or relative to the account's home."""
    home: str
    """ipexctl's own directory on this host."""
    manifest: int
    """Bytes of the list that follow."""
    is_file: bool
    """SRC is a file; else a directory."""
    force: bool
    dry_run: bool
    quick: bool
    """Sizes are compared and no bytes: another host with this directory has just written it."""


class PlaceRequest(TypedDict):
    path: str
    directory: str
    force: bool
    blobs: list[list[str]]
    """Hash and name of each file in the store."""


class ListedPath(NamedTuple):
    """As `ManifestEntry` of the control machine."""

    path: str
    kind: str
    mode: int
    size: int
    content: str


def check_path(text: str, home: str, *, is_file: bool) -> str:
    """The path without links. Raises an AgentError for one that is no place for data."""
    account = os.path.realpath(os.path.expanduser("~"))
    path = os.path.realpath(os.path.join(account, os.path.expanduser(text)))
    own = os.path.realpath(os.path.join(account, os.path.expanduser(home)))
    places = [(account, "your home directory"), (own, "ipexctl's own directory")]
    with contextlib.suppress(KeyError):  # $HOME may be another directory
        places.append((os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir), "your home directory"))
    fix = "name a directory of its own: ipexctl push SRC data/NAME"
    for directory, what in places:
        if path == directory:
            raise AgentError(f"{path} is {what}", fix)
        if directory.startswith(f"{path.rstrip('/')}/"):
            raise AgentError(f"{path} is above {what}", fix)
    if path.startswith(f"{own}/"):
        raise AgentError(f"{path} is in ipexctl's own directory", fix)
    if is_file and os.path.isdir(path):
        raise AgentError(f"{path} is a directory", "end PATH with / to put the file into it")
    if not is_file and os.path.lexists(path) and not os.path.isdir(path):
        raise AgentError(f"{path} is a file", "name another path")
    return path


def read_list(packed: bytes) -> list[ListedPath]:
    rows = [ListedPath(*row) for row in json.loads(gzip.decompress(packed))]
    for row in rows:
        if any(part in ("", ".", "..") for part in row.path.split("/")) and row.path != _TOP:
            raise AgentError(f"{row.path!r} leads out of the path")
    return rows


class Comparison:
    """What of a list is at a path."""

    def __init__(self, path: str, rows: list[ListedPath], report: Report, *, quick: bool) -> None:
        self.lacking: list[ListedPath] = []
        self.differing: list[str] = []
        self.blocked: list[str] = []
        """Names at which something stands that is never replaced: a directory, or a link to one."""
        self.same = 0
        self._quick = quick
        self._progress = store.Progress(sum(row.size for row in rows), report)
        links: set[str] = set()
        for row in rows:
            at = place_of(path, row.path)
            if any(row.path.startswith(f"{above}/") for above in links):
                continue
            state = self._compare(at, row)
            if state == "blocked":
                self.blocked.append(row.path)
                links.add(row.path)
            elif state == "lacking":
                self.lacking.append(row)
            elif state == "differing":
                self.differing.append(row.path)
                self.lacking.append(row)
            else:
                self.same += row.kind != "d"

    def _compare(self, at: bytes, row: ListedPath) -> str:
        try:
            status = os.lstat(at)
        except (FileNotFoundError, NotADirectoryError):
            return "lacking"
        if row.kind == "d":
            return "same" if stat.S_ISDIR(status.st_mode) else "blocked"
        if stat.S_ISDIR(status.st_mode):
            return "blocked"
        if row.kind == "l":
            return (
                "same" if stat.S_ISLNK(status.st_mode) and os.readlink(at) == encode_name(row.content) else "differing"
            )
        if not stat.S_ISREG(status.st_mode) or status.st_size != row.size:
            return "differing"
        if self._quick:
            return "same"
        digest = sha256_of(at, lambda size: self._progress.add(size, row.path))
        return "same" if digest == row.content else "differing"


def place_of(path: str, name: str) -> bytes:
    return os.path.join(os.fsencode(path), encode_name(name)) if name else os.fsencode(path)


def inspect(request: InspectRequest, stream: BinaryIO, report: Report = store.emit_or_end) -> InspectReply:
    packed = b"".join(read_body(stream, request["manifest"], "the list"))
    rows = read_list(packed)
    path = check_path(request["path"], request["home"], is_file=request["is_file"])
    found = Comparison(path, rows, report, quick=request["quick"])
    refused = found.blocked or (found.differing and not request["force"])
    directory = token = ""
    if not refused and found.lacking and not request["dry_run"] and not request["quick"]:
        directory, token = prepare(path, found.lacking, is_file=request["is_file"])
    files = [row for row in found.lacking if row.kind == "f"]
    return InspectReply(
        path=path,
        python=sys.executable,
        directory=directory,
        token=token,
        same=found.same,
        lacking=sum(row.kind != "d" for row in found.lacking),
        is_complete=not found.lacking and not found.blocked,
        need=tuple(dict.fromkeys(row.content for row in files)),
        names=tuple(row.path for row in found.lacking if row.kind != "d")[:SHOWN],
        differing=tuple(found.differing[:SHOWN]),
        differing_count=len(found.differing),
        blocked=tuple(found.blocked[:SHOWN]),
        blocked_count=len(found.blocked),
    )


def prepare(path: str, lacking: list[ListedPath], *, is_file: bool) -> tuple[str, str]:
    """Make the directory in which files arrive, on the disk of the path; returns it, and a token of that directory.

    Hosts that see the same directory have the same token: a dangling link, because creating one is atomic on NFS, too.
    """
    parent = os.path.dirname(path) if is_file else path
    umask = os.umask(0o077)
    os.umask(_umask)
    try:
        os.makedirs(parent, exist_ok=True)
    finally:
        os.umask(umask)
    directory = os.path.join(parent, PREFIX + hashlib.sha256(os.fsencode(path)).hexdigest()[:16])
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    fix = f"see whose it is: ls -ld {shlex.quote(directory)}; or name another PATH"
    if os.path.islink(directory):
        raise AgentError(f"{directory} is a link", fix)
    secure_directory(directory, fix)
    needed = sum({row.content: row.size for row in lacking if row.kind == "f"}.values())
    arrived = sum(status.st_size for status in _stored(directory))
    if needed - arrived > free_space(directory):
        raise explain_full_disk(parent, needed - arrived)
    link = os.path.join(directory, TOKEN)
    with contextlib.suppress(FileExistsError):
        os.symlink(os.urandom(16).hex(), link)
    write_json_atomically(os.path.join(directory, LIST), {"rows": lacking})
    return directory, os.readlink(link)


def _stored(directory: str) -> Iterator[os.stat_result]:
    for above, _, names in os.walk(os.path.join(directory, STORE)):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.stat(os.path.join(above, name))


class Placement:
    """Puts what has arrived at its names."""

    def __init__(self, path: str, directory: str, rows: list[ListedPath], *, force: bool) -> None:
        self.path, self._force = path, force
        self._store = os.path.join(directory, STORE)
        self.uses: dict[str, list[ListedPath]] = {}
        """Content → the files that have it, as far as they are not in place."""
        for row in rows:
            if row.kind == "f":
                self.uses.setdefault(row.content, []).append(row)
        self.placed = 0

    def place_large(self, sha256: str) -> None:
        source = os.path.join(self._store, sha256, CONTENT)
        rows = self.uses.pop(sha256, [])
        for row in rows[1:]:
            with open(source, "rb") as file:
                self._write(row, iter(lambda: file.read(1 << 20), b""))
        if rows:
            with self._name_of(rows[0]) as (number, name):
                os.chmod(source, mode_of(rows[0]))
                self._check_free(rows[0], number, name)
                os.replace(source, name, dst_dir_fd=number)
                self.placed += 1

    def place_parcel(self, sha256: str) -> None:
        with open(os.path.join(self._store, sha256, PARCEL), "rb") as stream:
            for header in read_headers(stream):
                content, size = str(header["sha256"]), int(header["size"])
                data = b"".join(read_body(stream, size, content))
                for row in self.uses.pop(content, []):
                    self._write(row, iter((data,)))

    def place_empty_and_links(self, rows: list[ListedPath]) -> None:
        for row in rows:
            if row.kind != "l":
                continue
            with self._name_of(row) as (number, name):
                self._check_free(row, number, name)
                temporary = self._temporary(name)
                os.symlink(encode_name(row.content), temporary, dir_fd=number)
                os.replace(temporary, name, src_dir_fd=number, dst_dir_fd=number)
                self.placed += 1

    def _write(self, row: ListedPath, chunks: Iterator[bytes]) -> None:
        with self._name_of(row) as (number, name):
            self._check_free(row, number, name)
            temporary = self._temporary(name)

            def opener(path: str, flags: int) -> int:
                return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=number)

            try:
                with open(temporary, "wb", opener=opener) as file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fchmod(file.fileno(), mode_of(row))
                os.replace(temporary, name, src_dir_fd=number, dst_dir_fd=number)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=number)
                raise
            self.placed += 1

    @staticmethod
    def _temporary(name: bytes) -> bytes:
        return b".%s.ipexctl-%s.new" % (name[:200], os.urandom(4).hex().encode())

    @contextlib.contextmanager
    def _name_of(self, row: ListedPath) -> Iterator[tuple[int, bytes]]:
        """The opened directory of a file, without following a link, and its name there."""
        directory, name = os.path.split(place_of(self.path, row.path))
        umask = os.umask(_umask)
        try:
            number = open_directory(os.fsdecode(directory), make=True)
        finally:
            os.umask(umask)
        try:
            yield number, name
        finally:
            os.close(number)

    def _check_free(self, row: ListedPath, directory: int, name: bytes) -> None:
        """What was written there since the comparison is not replaced either."""
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not self._force or stat.S_ISDIR(status.st_mode):
            raise AgentError(f"{row.path or self.path} was made there meanwhile", "run it again")


def mode_of(row: ListedPath) -> int:
    """That of SRC as far as this account's umask allows; its owner can always read and replace it."""
    return row.mode & 0o777 & ~_umask | 0o600


def place(request: PlaceRequest) -> PlaceReply:
    path, directory = request["path"], request["directory"]
    if not os.path.basename(directory).startswith(PREFIX):
        raise AgentError(f"{directory} is none of push's directories")
    rows = [ListedPath(*row) for row in read_json(os.path.join(directory, LIST)).get("rows", ())]
    if not rows:
        raise AgentError(f"{directory} was taken away meanwhile", "run it again")
    placement = Placement(path, directory, rows, force=request["force"])
    for row in rows:
        if row.kind == "d":
            _make_directory(path, row)
    for sha256, name in request["blobs"]:
        try:
            placement.place_parcel(sha256) if name == PARCEL else placement.place_large(sha256)
        except FileNotFoundError as error:
            if os.fspath(error.filename or "").startswith(directory):
                raise AgentError("what had arrived was taken away meanwhile", "run it again") from None
            raise
    if placement.uses:
        raise AgentError("not all files have arrived", "run it again")
    placement.place_empty_and_links(rows)
    clean_up(directory)
    return PlaceReply(placement.placed)


def _make_directory(path: str, row: ListedPath) -> None:
    umask = os.umask(_umask)
    try:
        at = place_of(path, row.path)
        above = open_directory(os.fsdecode(os.path.dirname(at)), make=True)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.basename(at), row.mode & 0o777 | 0o700, dir_fd=above)
        finally:
            os.close(above)
    finally:
        os.umask(umask)


def clean_up(directory: str) -> None:
    """Remove what push has made here, unless another call still writes there."""
    with contextlib.suppress(OSError):
        names = os.listdir(os.path.join(directory, STORE))
        paths = [os.path.join(directory, STORE, name) for name in names]
        if any(is_partial_in_use(path) for path in paths if os.path.isfile(path)):
            return
        for path in filter(is_stored, paths):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        os.rmdir(os.path.join(directory, STORE))
    for name in (LIST, TOKEN):
        remove_file(os.path.join(directory, name))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


_umask = 0o077
"""That of the account, once `main` knows it."""


def main(action: str) -> int:
    global _umask
    _umask = os.umask(0o077)
    store.end_on_signals()
    actions: dict[str, Action] = {"inspect": inspect, "place": lambda request, _: place(request)}
    return answer(actions[action])
