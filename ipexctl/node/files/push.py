"""One host's part of `ipexctl push`: compares a path with the list of SRC, and puts received files in place.

`inspect` reports what the path lacks and what differs (`compare.py`). For files to come it makes `.ipexctl-push-KEY` on
the disk of the path, with the list and a store (`store.py`); `place` moves files to their names (`place.py`) and
removes that directory. What a broken call received stays for the next one.

- An existing file is equal by its hash (a hub's blobs: `VerifiedBlobs`), one that a push wrote and nobody has changed
  (`place.py: is_as_written`), or untouched without `force`.
- Each file is complete or absent, even after a full disk. No link below the path is followed.
- `/`, a home and ipexctl's own directory are refused.
- Other accounts may write in the path: both directories are opened once (`guarded_directory.py`), ours only if this
  account alone owns it; names are checked and contents hashed again when they are used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Iterator

from ipexctl.node.common.answer import Action, AgentError, answer
from ipexctl.node.common.clock import age_of
from ipexctl.node.common.files import encode_name, explain_full_disk, has_room, sha256_of_open
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory, blocks_of, enter_named
from ipexctl.node.common.home import check_home, home_of, make_home
from ipexctl.node.common.home_entries import is_stored
from ipexctl.node.common.hub_cache import CACHE, HF_HOME, HUB_CACHE
from ipexctl.node.common.processes import is_partial_in_use
from ipexctl.node.files import store
from ipexctl.node.files.call_replies import InspectReply
from ipexctl.node.files.checkpoint_path import OWN_DATA, enter_path
from ipexctl.node.files.compare import TargetView, compare
from ipexctl.node.files.file_stream import check_hash, read_body
from ipexctl.node.files.manifest import (
    RECORDED_SIZE,
    ManifestEntry,
    VerifiedBlobs,
    read_entries,
    to_json,
    unpack_entries,
)
from ipexctl.node.files.place import StagedFiles, Writer, is_as_written, umask_set
from ipexctl.node.files.policies import FORCED_PATH, HUB, PATH, Policy
from ipexctl.node.files.pushed import note_pushed

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.walk import Place
    from ipexctl.node.files.call_requests import InspectRequest, PlaceRequest
    from ipexctl.node.files.compare import Left, Match
    from ipexctl.node.files.store import Report

PREFIX = store.PUSH_PREFIX
LIST, STORE, TOKEN = "list-", "store", "id"
SHOWN = 20
_MAX_LIST = 1 << 30
_ABANDONED = 7 * 86400.0
_OWN_PLACE = "name another PATH, in a directory of your own"
_TOP = ""


def enter_data(text: str, home: str, *, is_file: bool) -> Place:
    """Enter the path of SRC on this host. Raises an AgentError where no data may go."""
    account = os.path.realpath(os.path.expanduser("~"))
    own = os.path.realpath(os.path.join(account, os.path.expanduser(home)))
    place = enter_path(os.path.join(account, os.path.expanduser(text)), own, fix=_OWN_PLACE, symlink_fix=OWN_DATA)
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


class PathTarget(TargetView):
    """What a path has. Raises an AgentError for another account's entry."""

    def __init__(
        self, place: Place, rows: list[ManifestEntry], report: Report, *, quick: bool, verified: VerifiedBlobs | None
    ) -> None:
        self._quick, self._verified, self._marks = quick, verified, verified is None
        self._progress = store.Progress(sum(row.size for row in rows), report)
        self._name = os.fsencode(place.name)
        self._directories = DirectoryChain(GuardedDirectory.of(place), lambda above, names: above.enter(names[-1]))

    def __enter__(self) -> PathTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self._directories.leave()

    def _place_of(self, entry: ManifestEntry) -> tuple[GuardedDirectory, bytes]:
        *above, name = b"/".join(filter(None, (self._name, encode_name(entry.path)))).split(b"/")
        return self._directories.enter(above), name

    def status_of(self, entry: ManifestEntry) -> os.stat_result | None:
        """Return the status of what is at an entry's path; None if nothing is. Raises an AgentError if it is another
        account's."""
        try:
            directory, name = self._place_of(entry)
        except (FileNotFoundError, NotADirectoryError):
            return None
        status = directory.status_of(name) if name else directory.status()
        directory.check_entry(name, status, _OWN_PLACE)
        return status

    def match(self, entry: ManifestEntry, status: os.stat_result) -> Match:
        """Return `equal` or `other`: of a link by its target, of a file by its hash, unless its size differs or the
        request is `quick`."""
        return "equal" if self._is_equal(entry, status) else "other"

    def left_of(self, entry: ManifestEntry, status: os.stat_result) -> Left:
        """Return `this` for a file that a push wrote and nobody has changed since, else `nothing`."""
        is_file = entry.kind != "d" and stat.S_ISREG(status.st_mode)
        return "this" if is_file and self._marks and is_as_written(*self._place_of(entry)) else "nothing"

    def _is_equal(self, entry: ManifestEntry, status: os.stat_result) -> bool:
        directory, name = self._place_of(entry)
        if entry.kind == "l":
            return os.readlink(name, dir_fd=directory.number) == encode_name(entry.content)
        if status.st_size != entry.size:
            return False
        if self._quick:
            return True
        if self._verified is not None and entry.content and self._verified.sha256_of(entry.path) == entry.content:
            self._progress.add(entry.size, entry.path)
            return True
        with open(directory.open_to_read(name), "rb", buffering=0) as file:
            if not entry.content:  # a hub lists small files by git's hash and without sha256
                of_git = hashlib.sha1(b"blob %d\0" % entry.size)  # noqa: S324
                for block in blocks_of(file):
                    of_git.update(block)
                return of_git.hexdigest() == entry.parts[-1]
            before = os.fstat(file.fileno())
            digest = sha256_of_open(file, lambda size: self._progress.add(size, entry.path))
            if self._verified is not None and digest == entry.content:
                self._verified.add(entry.path, digest, file.fileno(), before)
        return digest == entry.content


def _policy_of(request: InspectRequest | PlaceRequest) -> Policy:
    return HUB if request["repos"] else FORCED_PATH if request["force"] else PATH


def inspect(request: InspectRequest, stream: BinaryIO, report: Report = store.emit_or_end) -> InspectReply:
    """Report what the path lacks of the list and what differs. If files are lacking and none is in the way, make a
    directory for them.

    With `dry_run` or `quick`, no such directory is made.
    """
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
    with PathTarget(there, rows, report, quick=request["quick"], verified=verified) as target:
        comparison = compare(rows, target, _policy_of(request))
    if verified is not None and not request["dry_run"]:
        verified.save()
    blocked = [row.path for row in comparison.in_state("directory", "no directory", "special")]
    lacking = comparison.in_state("missing", "unknown", "written")
    is_refused = bool(comparison.entries("refuse all"))
    differing = [row.path for row in comparison.in_state("unknown", *(() if is_refused else ("written",)))]
    directory = token = digest = ""
    only_asks = request["dry_run"] or request["quick"]
    if not is_refused and lacking:
        name = own_directory(path, request["repos"])
        _check_room(GuardedDirectory.of(there), name, lacking)
        if not only_asks:
            directory, token, digest = prepare(path, name, lacking, is_file=request["is_file"])
    elif not lacking and not blocked and not only_asks:
        _remove_leftovers(GuardedDirectory.of(there), own_directory(path, request["repos"]), rows)
    names = [row.path for row in lacking if row.kind != "d"]
    same = sum(row.kind != "d" for row in comparison.in_state("equal"))
    if request["repos"]:
        names, same = _files_of_hub(rows, {row.path for row in lacking})
    return InspectReply(
        path=path,
        python=sys.executable,
        directory=directory,
        token=token,
        listed=digest,
        same=same,
        lacking=len(names),
        is_complete=not lacking and not blocked,
        is_refused=is_refused,
        need=tuple(dict.fromkeys(row.content for row in lacking if row.kind == "f")),
        names=tuple(names[:SHOWN]),
        differing=tuple(differing[:SHOWN]),
        differing_count=len(differing),
        blocked=tuple(blocked[:SHOWN]),
        blocked_count=len(blocked),
    )


def _files_of_hub(rows: list[ManifestEntry], lacking: set[str]) -> tuple[list[str], int]:
    """Return the files of repositories that are lacking, and the number of the others. A file is a link to its blob."""
    names, same = [], 0
    for row in rows:
        if row.kind == "l":
            blob = os.path.normpath(os.path.join(os.path.dirname(row.path), row.content))
            is_there = lacking.isdisjoint((row.path, blob))
            same += is_there
            names += [] if is_there else [row.path]
    return names, same


def own_directory(path: str, repos: str = "") -> bytes:
    """Return the name of the directory where files for that path arrive. Calls for other repositories have their
    own."""
    return os.fsencode(PREFIX + hashlib.sha256(os.fsencode(f"{path}\0{repos}" if repos else path)).hexdigest()[:16])


def list_name(digest: str) -> bytes:
    """Return the file name of a list. Hosts that share the directory may lack different files, so each has its own."""
    return b"%s%s.json" % (LIST.encode(), check_hash(digest)[:16].encode())


def enter_own(above: GuardedDirectory, name: bytes) -> GuardedDirectory:
    """Open the directory of a push. Raises an AgentError for a link, or if another account made it or can open it."""
    shown = os.path.join(above.path, os.fsdecode(name))
    fix = Fix("see whose it is: `ls -ld {path}`; or name another PATH", path=shown)
    try:
        directory = above.enter(name)
    except AgentError as error:
        raise AgentError(error.reason, fix) from None
    except NotADirectoryError:
        raise AgentError(f"{shown} is not a directory", fix) from None
    directory.check_private(fix)
    return directory


def _check_room(above: GuardedDirectory, name: bytes, lacking: list[ManifestEntry]) -> None:
    """Raise an AgentError if the disk has no room for the files, before anything is made there."""
    sizes = {row.content or row.path: row.size for row in lacking if row.kind == "f"}
    stored: list[int] = []
    with contextlib.suppress(FileNotFoundError), enter_own(above, name) as directory:
        stored += (status.st_size for status in _stored(directory))
    needed, files = sum(sizes.values()) - sum(stored), len(sizes) - len(stored)
    if not has_room(above.anchor, needed, files):
        raise explain_full_disk(above.path, needed, files=files)


def prepare(path: str, name: bytes, lacking: list[ManifestEntry], *, is_file: bool) -> tuple[str, str, str]:
    """Make the directory of a push on the disk of the path. Return its path, its token and the list's hash.

    The token is a dangling link, shared by hosts with that directory: creating one is atomic on NFS too.
    """
    with contextlib.ExitStack() as held:
        with umask_set(_umask):
            there = enter_named(path, _OWN_PLACE, make=True, is_file=is_file)
            above = held.enter_context(GuardedDirectory.of(there))
        if there.name and not is_file:  # a file since the comparison
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=above.number)
        except OSError as error:
            raise OSError(error.errno, error.strerror, above.path) from None
        with enter_own(above, name) as directory:
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


def place(request: PlaceRequest) -> Json:
    """Give the received files their names at the path, and remove what the push needed. Returns how many were placed.

    Raises an AgentError if files are lacking, or if something has changed at the path since `inspect`.
    """
    _use_umask_of_home(is_home=bool(request["repos"]))
    path = request["path"]
    gone = AgentError("another program removed the files that had arrived", "run it again")
    with contextlib.ExitStack() as held:
        there = enter_named(path, _OWN_PLACE)
        top, name = held.enter_context(GuardedDirectory.of(there)), there.name
        is_file = bool(name)  # received next to a file, but inside a directory
        try:
            directory = own_directory(path, request["repos"])
            own = held.enter_context(enter_own(top, directory))
            locked = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=own.number)
            held.callback(os.close, locked)
            with contextlib.suppress(OSError):  # a filesystem without locks
                fcntl.flock(locked, fcntl.LOCK_EX)  # another push of the same files may be here
            listed = own.read(list_name(request["listed"]), _MAX_LIST)
        except FileNotFoundError:
            raise gone from None
        if hashlib.sha256(listed).hexdigest() != request["listed"]:
            raise AgentError(f"the list in {own.path} was changed", "run it again")
        rows = read_entries(listed)
        if is_file != any(row.path == _TOP and row.kind != "d" for row in rows):
            raise AgentError(f"{path} was replaced during the push", "run it again")
        is_new = any(row.path == _TOP and row.kind == "d" for row in rows)
        rows = [row._replace(path=row.path or name) for row in rows if row.path != _TOP or row.kind != "d"]
        try:
            arrived = held.enter_context(own.enter(os.fsencode(STORE), make=True, mode=0o700))
            stage = StagedFiles(arrived, "what has arrived was changed")
            for parcel in request["parcels"]:
                stage.unpack(parcel)
        except FileNotFoundError:
            raise gone from None
        if any(row.kind == "f" and stage.lacks(row) for row in rows):
            raise AgentError("not all files have arrived", "run it again")
        writer = held.enter_context(Writer(top, _policy_of(request), _umask, replaces=request["force"]))
        try:
            writer.make(rows, stage)
        except (FileExistsError, IsADirectoryError) as error:
            raise AgentError(f"{error.filename} was created there during the push", "run it again") from None
        if request["repos"]:
            _note_verified(path, rows, writer)
        else:
            with contextlib.suppress(OSError, AgentError):  # without a home, nothing is recorded: uninstall keeps them
                note_pushed(home_of(request), path, top.path, rows, writer, request["by"], is_new=is_new)
        clean_up(top, own, directory)
        return {"placed": sum(row.kind != "d" for row in rows)}


def _remove_leftovers(top: GuardedDirectory, name: bytes, rows: list[ManifestEntry]) -> None:
    """Remove what pushes of these files have left, unless a push of others is not complete either."""
    with contextlib.suppress(OSError, AgentError), enter_own(top, name) as own:
        lists = [own.read(entry, _MAX_LIST) for entry in own.names() if entry.startswith(LIST.encode())]
        if {row for document in lists for row in read_entries(document)} <= {*rows}:
            clean_up(top, own, name)


def _note_verified(path: str, rows: list[ManifestEntry], writer: Writer) -> None:
    verified = VerifiedBlobs(Path(path))
    for row in rows:
        if row.kind == "f" and row.size >= RECORDED_SIZE:
            with writer.place_of(row.path) as (directory, name), open(directory.open_to_read(name), "rb") as file:
                verified.add(row.path, row.content, file.fileno(), os.fstat(file.fileno()))
    verified.save()


def clean_up(top: GuardedDirectory, own: GuardedDirectory, name: bytes) -> None:
    """Remove the directory of a push, with received contents. If another process still receives files there, do
    nothing."""
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
    """Use a umask that lets nobody else read, for a hub's cache: models may be private, even if `hub` links to another
    disk."""
    global _umask
    _umask = 0o077 if is_home else _umask


def main(action: str) -> int:
    """Answer the agent's call `inspect` or `place`, and return its exit code."""
    global _umask
    _umask = os.umask(0o077)
    store.end_on_signals()
    actions: dict[str, Action] = {"inspect": inspect, "place": lambda request, _: place(request)}
    return answer(actions[action])
