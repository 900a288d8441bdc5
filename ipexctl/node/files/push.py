"""One host's part of `ipexctl push`: compares a path with the list of SRC, and puts received files in place.

`inspect` reports what the path lacks and what differs. For files to come it makes `.ipexctl-push-KEY` on the disk of
the path, with the list and a store (`store.py`); `place` moves files to their names and removes that directory. What a
broken call received stays for the next one.

- An existing file is equal by its hash (a hub's blobs: `verified_blobs.py`) or untouched without `force`.
- Each file is complete or absent, even after a full disk. No link below the path is followed.
- `/`, a home and ipexctl's own directory are refused.
- Other accounts may write in the path: both directories are opened once (`guarded_directory.py`), ours only if this
  account alone owns it; names are checked and contents hashed again when they are used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pwd
import shlex
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Iterator, TypedDict

from ipexctl.node.common.answer import FREE_SPACE_FIX, Action, AgentError, answer
from ipexctl.node.common.clock import age_of
from ipexctl.node.common.files import encode_name, explain_full_disk, free_space, sha256_of_open
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory, blocks_of, check_name, enter_named
from ipexctl.node.common.home import check_home, home_of, make_home
from ipexctl.node.common.home_entries import is_stored
from ipexctl.node.common.hub_cache import CACHE, HF_HOME, HUB_CACHE
from ipexctl.node.common.processes import is_partial_in_use
from ipexctl.node.files import store
from ipexctl.node.files.checkpoint_path import OWN_DATA, enter_path
from ipexctl.node.files.file_stream import ManifestEntry, read_body, read_entries, read_files, to_json, unpack_entries
from ipexctl.node.files.replies import InspectReply, PlaceReply
from ipexctl.node.files.verified_blobs import VerifiedBlobs

if TYPE_CHECKING:
    from ipexctl.node.common.walk import Place
    from ipexctl.node.files.store import Report

PREFIX = store.PUSH_PREFIX
LIST, STORE, TOKEN = "list-", "store", "id"
CONTENT, PARCEL = "content", "parcel"
"""Names in the store: a large file, or a stream of several small ones."""
SHOWN = 20
_MAX_LIST = 1 << 30
_ABANDONED = 7 * 86400.0
_OWN_PLACE = "name another PATH, in a directory of your own"
_TOP = ""


class InspectRequest(TypedDict):
    path: str
    """Absolute, or relative to the account's home."""
    home: str
    manifest: int
    is_file: bool
    force: bool
    dry_run: bool
    repos: str
    """Repositories of a hub: the list is of its cache, and the path is the cache's place below the home. Else empty."""
    quick: bool
    """Compare sizes only: another host with this directory has just written it."""


class PlaceRequest(TypedDict):
    path: str
    listed: str
    force: bool
    repos: str
    """Repositories of a hub. Nobody else writes in a home, so received files are not hashed again."""
    blobs: list[list[str]]


def enter_data(text: str, home: str, *, is_file: bool) -> Place:
    """Path of SRC on this host. Raises an AgentError where no data may go."""
    account = os.path.realpath(os.path.expanduser("~"))
    own = os.path.realpath(os.path.join(account, os.path.expanduser(home)))
    place = enter_path(os.path.join(account, os.path.expanduser(text)), own, fix=_OWN_PLACE, link_fix=OWN_DATA)
    try:
        _check_path(place, account, own, is_file=is_file)
    except AgentError:
        os.close(place.number)
        raise
    return place


def _check_path(place: Place, account: str, own: str, *, is_file: bool) -> None:
    path = place.path
    places = [(account, "your home directory"), (own, "ipexctl's own directory")]
    with contextlib.suppress(KeyError):  # $HOME may be another directory
        places.append((os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir), "your home directory"))
    fix = "name a separate directory, such as data/corpus"
    for directory, what in places:
        if path == directory:
            raise AgentError(f"{path} is {what}", fix)
        if directory.startswith(f"{path.rstrip('/')}/"):
            raise AgentError(f"{path} is above {what}", fix)
    if path.startswith(f"{own}/"):
        raise AgentError(f"{path} is in ipexctl's own directory", fix)
    if is_file and not place.name:
        raise AgentError(f"{path} is a directory", "end PATH with / to put the file into it")
    if not is_file and place.name and place.status is not None:
        raise AgentError(f"{path} is a file", "name another path")


def remove_abandoned(top: GuardedDirectory, age: float = _ABANDONED) -> None:
    """Remove leftovers of killed calls in a hub's cache that nobody continued."""
    for name in top.names():
        with contextlib.suppress(OSError):
            if name.startswith(PREFIX.encode()) and age_of(f"{top.anchor}/{os.fsdecode(name)}") >= age:
                top.remove_tree(name, ignore_errors=True)


def _enter_place(request: InspectRequest) -> Place:
    if not request["repos"]:
        return enter_data(request["path"], request["home"], is_file=request["is_file"])
    home = home_of(request, CACHE)  # `hub` may be the user's link to a larger disk
    check_home(home) if request["dry_run"] else make_home(home)
    return enter_named(os.path.realpath(os.path.join(home, HF_HOME)), _OWN_PLACE)


@contextlib.contextmanager
def _open_top(path: str, *, is_file: bool, make: bool = False) -> Iterator[GuardedDirectory]:
    place = enter_named(path, _OWN_PLACE, make=make, is_file=is_file)
    with GuardedDirectory(place.number, os.path.dirname(path) if is_file else path) as top:
        if place.name and (not is_file or "/" in place.name):
            number = errno.ENOENT if place.status is None else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)
        yield top


class Comparison:
    """What a path has of a list. Raises an AgentError for another account's entry."""

    def __init__(
        self, place: Place, rows: list[ManifestEntry], report: Report, *, quick: bool, verified: VerifiedBlobs | None
    ) -> None:
        self.lacking: list[ManifestEntry] = []
        self.differing: list[str] = []
        self.blocked: list[str] = []
        """Names where a directory, or a link to one, is in the way. It is never replaced."""
        self.same = 0
        self._quick, self._verified = quick, verified
        self._progress = store.Progress(sum(row.size for row in rows), report)
        self._name = os.fsencode(place.name)
        self._directories = DirectoryChain(GuardedDirectory.of(place), lambda above, names: above.enter(names[-1]))
        links: set[str] = set()
        for row in rows:
            if any(row.path.startswith(f"{above}/") for above in links):
                continue
            state = self._compare(row)
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
        self._directories.leave()

    def _compare(self, row: ManifestEntry) -> str:
        *above, name = b"/".join(filter(None, (self._name, encode_name(row.path)))).split(b"/")
        status = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            directory = self._directories.enter(above)
            status = directory.status_of(name) if name else directory.status()
        if status is None:
            return "lacking"
        directory.check_entry(name, status, _OWN_PLACE)
        return self._compare_entry(directory, name, status, row)

    def _compare_entry(
        self, directory: GuardedDirectory, name: bytes, status: os.stat_result, row: ManifestEntry
    ) -> str:
        if row.kind == "d":
            return "same" if stat.S_ISDIR(status.st_mode) else "blocked"
        if stat.S_ISDIR(status.st_mode):
            return "blocked"
        if row.kind == "l":
            return (
                "same"
                if stat.S_ISLNK(status.st_mode)
                and os.readlink(name, dir_fd=directory.number) == encode_name(row.content)
                else "differing"
            )
        if not stat.S_ISREG(status.st_mode) or status.st_size != row.size:
            return "differing"
        if self._quick:
            return "same"
        if not row.content:  # a hub lists small files by git's hash and without sha256
            with open(directory.open_to_read(name), "rb", buffering=0) as file:
                of_git = hashlib.sha1(b"blob %d\0" % row.size)  # noqa: S324
                for block in blocks_of(file):
                    of_git.update(block)
            return "same" if of_git.hexdigest() == row.parts[-1] else "differing"
        if self._verified is not None and self._verified.sha256_of(row.path) == row.content:
            self._progress.add(row.size, row.path)
            return "same"
        with open(directory.open_to_read(name), "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            digest = sha256_of_open(file, lambda size: self._progress.add(size, row.path))
            if self._verified is not None and digest == row.content:
                self._verified.add(row.path, digest, file.fileno(), before)
        return "same" if digest == row.content else "differing"


def inspect(request: InspectRequest, stream: BinaryIO, report: Report = store.emit_or_end) -> InspectReply:
    _use_umask_of_home(is_home=bool(request["repos"]))
    packed = b"".join(read_body(stream, request["manifest"], "the list"))
    rows = unpack_entries(packed)
    with _enter_place(request) as there:
        return _inspect(request, rows, there, report)


def _inspect(request: InspectRequest, rows: list[ManifestEntry], there: Place, report: Report) -> InspectReply:
    path = there.path
    if request["repos"] and not request["dry_run"]:
        for directory in (path, os.path.join(path, HUB_CACHE)):
            with contextlib.suppress(FileNotFoundError), GuardedDirectory.open(directory) as top:
                remove_abandoned(top)
    verified = VerifiedBlobs(Path(path)) if request["repos"] else None
    found = Comparison(there, rows, report, quick=request["quick"], verified=verified)
    if verified is not None and not request["dry_run"]:
        verified.save()
    refused = found.blocked or (found.differing and not request["force"])
    directory = token = digest = ""
    if not refused and found.lacking and not request["dry_run"] and not request["quick"]:
        fix = FREE_SPACE_FIX if request["repos"] else store.NO_ROOM
        name = own_directory(path, request["repos"])
        directory, token, digest = prepare(path, name, found.lacking, is_file=request["is_file"], fix=fix)
    files = [row for row in found.lacking if row.kind == "f"]
    lacking, same = (_files_of_hub if request["repos"] else _files)(rows, found)
    return InspectReply(
        path=path,
        python=sys.executable,
        directory=directory,
        token=token,
        listed=digest,
        same=same,
        lacking=len(lacking),
        is_complete=not found.lacking and not found.blocked,
        need=tuple(dict.fromkeys(row.content for row in files)),
        names=tuple(lacking[:SHOWN]),
        differing=tuple(found.differing[:SHOWN]),
        differing_count=len(found.differing),
        blocked=tuple(found.blocked[:SHOWN]),
        blocked_count=len(found.blocked),
    )


def _files(rows: list[ManifestEntry], found: Comparison) -> tuple[list[str], int]:
    del rows
    return [row.path for row in found.lacking if row.kind != "d"], found.same


def _files_of_hub(rows: list[ManifestEntry], found: Comparison) -> tuple[list[str], int]:
    missing = {row.path for row in found.lacking}
    names, same = [], 0
    for row in rows:
        if row.kind == "l":
            blob = os.path.normpath(os.path.join(os.path.dirname(row.path), row.content))
            is_there = missing.isdisjoint((row.path, blob))
            same += is_there
            names += [] if is_there else [row.path]
    return names, same


def own_directory(path: str, repos: str = "") -> bytes:
    """Directory where files for that path arrive. Calls for other repositories have their own."""
    return os.fsencode(PREFIX + hashlib.sha256(os.fsencode(f"{path}\0{repos}" if repos else path)).hexdigest()[:16])


def list_name(digest: str) -> bytes:
    """File name of a list. Hosts that share the directory may lack different files, so each has its own."""
    if not store.is_sha256(digest):
        raise AgentError(f"{digest[:80]!r} is not a sha256")
    return b"%s%s.json" % (LIST.encode(), digest[:16].encode())


def enter_own(above: GuardedDirectory, name: bytes) -> GuardedDirectory:
    """Open that directory. Raises an AgentError for a link, or if another account made it or can open it."""
    shown = os.path.join(above.path, os.fsdecode(name))
    fix = f"see whose it is: ls -ld {shlex.quote(shown)}; or name another PATH"
    try:
        directory = above.enter(name)
    except AgentError as error:
        raise AgentError(error.reason, fix) from None
    except NotADirectoryError:
        raise AgentError(f"{shown} is not a directory", fix) from None
    directory.check_private(fix)
    return directory


def prepare(path: str, name: bytes, lacking: list[ManifestEntry], *, is_file: bool, fix: str) -> tuple[str, str, str]:
    """Make that directory on the disk of the path; returns it, its token and the list's hash.

    The token is a dangling link, shared by hosts with that directory: creating one is atomic on NFS too.
    """
    with contextlib.ExitStack() as held:
        with _umask_of_account():
            above = held.enter_context(_open_top(path, is_file=is_file, make=True))
        needed = sum({row.content: row.size for row in lacking if row.kind == "f"}.values())
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=above.number)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise explain_full_disk(above.path, needed, fix) from None
        with enter_own(above, name) as directory:
            arrived = sum(status.st_size for status in _stored(directory))
            if needed - arrived > free_space(directory.anchor):
                raise explain_full_disk(above.path, needed - arrived, fix)
            with contextlib.suppress(FileExistsError):
                os.symlink(os.urandom(16).hex(), TOKEN, dir_fd=directory.number)
            rows = to_json(lacking)
            digest = hashlib.sha256(rows).hexdigest()
            directory.write(list_name(digest), (rows,))
            return directory.path, os.readlink(TOKEN, dir_fd=directory.number), digest


def _stored(directory: GuardedDirectory) -> Iterator[os.stat_result]:
    for above, _, names in os.walk(os.path.join(directory.anchor, STORE)):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.stat(os.path.join(above, name), follow_symlinks=False)


@contextlib.contextmanager
def _umask_of_account() -> Iterator[None]:
    umask = os.umask(_umask)
    try:
        yield
    finally:
        os.umask(umask)


class Placement:
    def __init__(
        self, top: GuardedDirectory, own: GuardedDirectory, name: str, *, force: bool, verified: VerifiedBlobs | None
    ) -> None:
        """`name`: of SRC in `top` if it is a file. `verified`: only in a home, where nobody else writes."""
        self._verified = verified
        self._own, self._name, self._force = own, name, force
        self._directories = DirectoryChain(top, lambda above, names: above.enter(names[-1], make=True))
        self.uses: dict[str, list[ManifestEntry]] = {}
        self.placed = 0

    def place_large(self, sha256: str) -> None:
        """Move the file to its first name, and copy it to the others."""
        rows = self.uses.pop(sha256, [])
        if not rows:
            return
        with self._arrived(sha256) as directory:
            with open(directory.open_to_read(os.fsencode(CONTENT)), "rb", buffering=0) as file:
                if self._verified is None and sha256_of_open(file) != sha256:
                    raise AgentError(f"{rows[0].path or self._name}: what has arrived was changed", "run it again")
                for row in rows[1:]:
                    file.seek(0)
                    self._write(row, blocks_of(file))
                os.fchmod(file.fileno(), mode_of(rows[0]))
                with self._place_of(rows[0]) as (target, name), self._free(rows[0]):
                    target.rename(directory.number, os.fsencode(CONTENT), name, replace=self._force)
                if self._verified is not None:
                    self._verified.add(rows[0].path, sha256, file.fileno(), os.fstat(file.fileno()))
            self.placed += 1

    def place_parcel(self, sha256: str) -> None:
        with self._arrived(sha256) as directory, open(directory.open_to_read(os.fsencode(PARCEL)), "rb") as stream:
            for file in read_files(stream):
                data = file.content("what has arrived was changed")
                for row in self.uses.pop(file.sha256, []):
                    self._write(row, iter((data,)))

    def place_links(self, rows: list[ManifestEntry]) -> None:
        for row in rows:
            if row.kind == "l":
                with self._place_of(row) as (target, name), self._free(row):
                    target.link_to(encode_name(row.content), name, replace=self._force)
                self.placed += 1

    def make_directory(self, row: ManifestEntry) -> None:
        with _umask_of_account(), self._place_of(row) as (above, name), contextlib.suppress(FileExistsError):
            os.mkdir(name, row.mode & 0o777 | 0o700, dir_fd=above.number)

    def close(self) -> None:
        self._directories.leave()
        if self._verified is not None:
            self._verified.save()

    def _arrived(self, sha256: str) -> GuardedDirectory:
        if not store.is_sha256(sha256):
            raise AgentError(f"{sha256[:80]!r} is not a sha256")
        return self._own.enter(f"{STORE}/{sha256}".encode())

    def _write(self, row: ManifestEntry, chunks: Iterator[bytes]) -> None:
        with self._place_of(row) as (target, name), self._free(row):
            target.write(name, chunks, mode_of(row), replace=self._force)
        self.placed += 1

    @contextlib.contextmanager
    def _place_of(self, row: ManifestEntry) -> Iterator[tuple[GuardedDirectory, bytes]]:
        if row.path != _TOP:
            check_name(row.path)
        *above, name = encode_name(row.path or self._name).split(b"/")
        with _umask_of_account():
            directory = self._directories.enter(above)
        yield directory, name

    @contextlib.contextmanager
    def _free(self, row: ManifestEntry) -> Iterator[None]:
        """Guard a name: files written since the comparison are not replaced, and directories never."""
        try:
            yield
        except (FileExistsError, IsADirectoryError):
            raise AgentError(f"{row.path or self._name} was created there during the push", "run it again") from None


def mode_of(row: ManifestEntry) -> int:
    """Mode of SRC, masked by the umask. The owner always gets rw."""
    return row.mode & 0o777 & ~_umask | 0o600


def place(request: PlaceRequest) -> PlaceReply:
    _use_umask_of_home(is_home=bool(request["repos"]))
    path = request["path"]
    gone = AgentError("another program removed the files that had arrived", "run it again")
    with contextlib.ExitStack() as held:
        there = held.enter_context(enter_named(path, _OWN_PLACE))
        is_file = bool(there.name)  # received next to a file, but inside a directory
        name = os.path.basename(path) if is_file else ""
        try:
            top = held.enter_context(_open_top(path, is_file=is_file))
            directory = own_directory(path, request["repos"])
            own = held.enter_context(enter_own(top, directory))
            listed = own.read(list_name(request["listed"]), _MAX_LIST)
        except FileNotFoundError:
            raise gone from None
        if hashlib.sha256(listed).hexdigest() != request["listed"]:
            raise AgentError(f"the list in {own.path} was changed", "run it again")
        rows = read_entries(listed)
        if is_file != any(row.path == _TOP and row.kind != "d" for row in rows):
            raise AgentError(f"{path} was replaced during the push", "run it again")
        verified = VerifiedBlobs(Path(path)) if request["repos"] else None
        placement = Placement(top, own, name, force=request["force"], verified=verified)
        for row in rows:
            if row.kind == "d" and row.path != _TOP:
                placement.make_directory(row)
            elif row.kind == "f":
                placement.uses.setdefault(row.content, []).append(row)
        for sha256, kind in request["blobs"]:
            try:
                placement.place_parcel(sha256) if kind == PARCEL else placement.place_large(sha256)
            except FileNotFoundError as error:
                if not store.is_there(os.path.join(own.anchor, STORE), {"sha256": sha256, "name": kind, "size": None}):
                    raise gone from None
                raise error from None
        if placement.uses:
            raise AgentError("not all files have arrived", "run it again")
        placement.place_links(rows)
        placement.close()
        clean_up(top, own, directory)
        return PlaceReply(placement.placed)


def clean_up(top: GuardedDirectory, own: GuardedDirectory, name: bytes) -> None:
    with contextlib.suppress(OSError), own.enter(os.fsencode(STORE)) as arrived:
        names = arrived.names()
        paths = {name: os.path.join(arrived.anchor, os.fsdecode(name)) for name in names}
        if any(is_partial_in_use(place) for place in paths.values() if os.path.isfile(place)):
            return
        for sha256 in names:
            if is_stored(paths[sha256]):
                arrived.remove_tree(sha256)
        os.rmdir(STORE, dir_fd=own.number)
    for entry in own.names():
        if entry == TOKEN.encode() or (entry.startswith(LIST.encode()) and entry.endswith(b".json")):
            own.unlink(entry)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top.number)


_umask = 0o077
"""The account's umask, set by `main`; not used in a home."""


def _use_umask_of_home(*, is_home: bool) -> None:
    """Models may be private: nobody else reads a hub's cache, even if `hub` links to another disk."""
    global _umask
    _umask = 0o077 if is_home else _umask


def main(action: str) -> int:
    global _umask
    _umask = os.umask(0o077)
    store.end_on_signals()
    actions: dict[str, Action] = {"inspect": inspect, "place": lambda request, _: place(request)}
    return answer(actions[action])
