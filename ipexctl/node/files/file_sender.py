"""Sends files of this host: first a listing, then the content of the requested files.

    SendRequest
        → {"event": "entries", "rows": [a `ManifestEntry`, …]}, …
        → {"event": "note", "n", "reason"}, …
        → {"event": "listed", "from": path, "single": true when the path is one file,
           "older": [number of an entry that is older than the run of the path, …],
           "missing": true when there is no such path}
    {"wants": [a `WantedFile` with the number of an entry, …]}
        → {"event": "parts", "rows": [a `PART_FIELDS`, …]} and the bytes of these parts, …; the last part of a file,
          which may be the first, has the CRC of the whole file and says whether the file changed meanwhile
        → {"event": "lost", "i", "reason"}, …
        → {"event": "done"}

A file that the receiver has in part is sent from that offset. {"event": "working"} comes at any time between two others
where nothing else does: the list of a large directory and the sum of a large file take minutes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import glob
import os
import shlex
import stat
import zlib
from typing import TYPE_CHECKING, BinaryIO, Iterable, Iterator, Sequence, Tuple, TypedDict

from ipexctl.node.common.answer import AgentError, Json, answer, buffer_output, emit, emit_with_bytes, signs_of_life
from ipexctl.node.common.checkpoint_layout import parts_of
from ipexctl.node.common.files import RunReference, decode_name, encode_name, read_json
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory
from ipexctl.node.common.home import rundir_of
from ipexctl.node.common.json_records import parse_json
from ipexctl.node.common.node_limits import LONGEST_READ, SIGN_OF_LIFE
from ipexctl.node.files.file_stream import MOST_TOGETHER, SEND_CHUNK, WantedFile
from ipexctl.node.files.manifest import EntryKind, ManifestEntry, identity_of
from ipexctl.node.run.record.file_owner import FileOwners
from ipexctl.node.run.record.run_files import note_fetched

if TYPE_CHECKING:
    from typing_extensions import NotRequired

    from ipexctl.node.common.records import LaterWrite

LIST_CHUNK_SIZE = 1 << 14
"""Bytes of the list sent at once: small, so the receiver checks while the list is made."""
_ROW_SIZE = 60
"""Bytes of a row of the list without its path and target."""
PART_FIELDS = ("i", "size", "offset", "length", "mode", "mtime", "crc", "changed")
"""`i` is the number of the file; `crc` is null in all parts but the last one."""
MAX_NAMES = 6
STATE_DIRECTORY = b".ipexctl"
RECORD_FILES = ("status.json", "events.jsonl", "plan.json", "mpirun.log", "supervise.log")
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: dict[int, EntryKind] = {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l"}
_OF_RANKS = (b".out", b".err", b".meter", b".host", b".profile")
PROFILE = "profile"
"""Directory of the traces that `inrank/profiler.py` writes."""
NO_LIST = "no list of the run's files is here, as no rank of it began, or an older ipexctl recorded it"
OVERWRITTEN = "overwritten"
NamedPath = Tuple[bytes, bytes]


class RunFiles(RunReference):
    cwd: str | None
    """None if only the run's plan knows it."""
    has_record: bool
    dest: str
    takes_parts: NotRequired[bool]
    """True if DEST is a directory: a file that is a part of a checkpoint then comes with the others."""
    force: NotRequired[bool]
    """True to send what is there now, whose ever it is."""


class SendRequest(TypedDict):
    path: str | None
    """None: the run's record and the files it wrote."""
    run: RunFiles | None
    may_be_missing: NotRequired[bool]
    """True if a missing or empty path is no error, and no directory is made for it."""


class NotOfRun(AgentError):
    """Another run, or nobody who is known, wrote the file since."""

    kind = OVERWRITTEN


class NoSuchPath(AgentError):
    """There is nothing of that name."""


class Listing:
    """Entries so far, sent in groups; a path's index is the number of its entry.

    No path has a link above it, so `send_file` follows none: a directory may have been exchanged by then.
    """

    def __init__(self) -> None:
        self.paths: list[bytes] = []
        self.files = 0
        self.owners: FileOwners | None = None
        """Tells which files are the run's; None if whose they are does not matter."""
        self.own: list[str] = []
        """Files that the run left, at their paths."""
        self.older: list[int] = []
        """Numbers of files that were there before the run, and are no run's."""
        self.withheld: LaterWrite | None = None
        """The first file of another run, which is not sent."""
        self._rows: list[ManifestEntry] = []
        self._size = 0

    def add(self, name: bytes, path: bytes, *, follow: bool = False) -> os.stat_result | None:
        """Add an entry; returns its status, or None if it can't be sent."""
        kept = self._kept_in_place_of(path)
        try:
            status = os.stat(kept or path, follow_symlinks=follow)
            link_target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else b""
        except OSError as error:
            self.note(name, unreadable(path, error))
            return None
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            self.note(name, "it is neither a file nor a directory", warning=True)
            return None
        if kind == "f" and self.owners is not None:
            if not kept and (writer := self.owners.other_writer(decode_name(path), status)) is not None:
                kept = self.kept(path)
                if not kept:
                    self.withheld = self.withheld or writer
                    self.note(name, writer.whose, warning=True)
                    return None
                status = os.lstat(kept)
            if kept or self.owners.is_own(decode_name(path), status):
                self.own.append(decode_name(os.path.realpath(path)))
            else:
                self.older.append(len(self.paths))
        path = kept or path
        mode, target = stat.S_IMODE(status.st_mode), decode_name(link_target)
        self._rows.append(ManifestEntry(decode_name(name), kind, mode, status.st_size, target, status.st_mtime_ns))
        self._size += _ROW_SIZE + len(name) + len(link_target)
        self.paths.append(os.path.realpath(path) if follow else path)
        self.files += kind == "f"
        if self._size >= LIST_CHUNK_SIZE:
            self.send()
        return status

    def add_lost(self, directory: bytes, above: bytes) -> None:
        """Add the kept copies of files that the run left below a directory and that are gone, named relative to
        `above`. A file without a copy is noted."""
        for lost in self.owners.lost_below(decode_name(directory)) if self.owners is not None else ():
            path = encode_name(lost)
            name = os.path.relpath(path, os.path.realpath(above))
            if self.kept(path):
                self.add(name, path)
            else:
                self.note(name, "the run wrote it, and it is gone", warning=True)

    def _kept_in_place_of(self, path: bytes) -> bytes:
        """Return the kept copy of a file that is gone, or the path itself if it is one; else empty."""
        if self.owners is None:
            return b""
        if path.startswith(encode_name(self.owners.kept_copies) + b"/"):
            return path
        return b"" if os.path.lexists(path) else self.kept(path)

    def kept(self, path: bytes) -> bytes:
        """Return a copy of the run's file from before another run wrote there; empty without one."""
        return encode_name(self.owners.kept(decode_name(path))) if self.owners else b""

    def send(self) -> None:
        """Send the entries that were added since the last call."""
        if self._rows:
            emit("entries", rows=self._rows)
            self._rows, self._size = [], 0

    def note(self, name: bytes, reason: str, *, warning: bool = False) -> None:
        """Tell the receiver at once about an entry that is not sent. `warning`: it does not make the fetch fail."""
        emit("note", n=decode_name(name), reason=reason, warning=warning)

    def add_tree(self, name: bytes, path: bytes, *, follow: bool = False) -> None:
        """Add an entry and, if it is a directory, all below it. `follow`: add what a link leads to in place of the
        link."""
        status = self.add(name, path, follow=follow)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.add_content(name, self.paths[-1])

    def add_content(self, name: bytes, path: bytes) -> None:
        """Add all entries below a directory, without recursion: a tree may have more levels than Python's stack."""
        waiting = self._children(name, path)
        while waiting:
            name, path = waiting.pop()
            status = self.add(name, path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                waiting += self._children(name, path)

    def _children(self, name: bytes, path: bytes) -> list[NamedPath]:
        """Return names and paths of the entries in a directory, the last one first."""
        try:
            children = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            self.note(name or b".", unreadable(path, error))
            return []
        if STATE_DIRECTORY in children and os.path.exists(path + b"/.ipexctl/state.json"):
            children.remove(STATE_DIRECTORY)
        return [(name + b"/" + child if name else child, path + b"/" + child) for child in children]


def list_path(listing: Listing, base: str, path: str, *, takes_parts: bool = False) -> tuple[bytes, bool]:
    """List a path as rsync does: `DIR/` is the content of the directory, `DIR` the directory. Matches of a pattern keep
    their paths; with a `/` at its end, it matches directories only. `takes_parts`: list the whole checkpoint of a file.

    The receiver refuses other names. It does not know a home directory's name, so `~` means its content.
    """
    is_content = is_contents(encode_name(path))
    requested = os.path.expanduser(encode_name(path))
    if is_content and requested[:1] == b"~" and b"/" not in requested:
        raise AgentError(
            f"there is no account {decode_name(requested[1:])}", f"a file of that name: ./{decode_name(requested)}"
        )
    start = os.path.abspath(os.path.expanduser(encode_name(base)))
    full = os.path.normpath(os.path.join(start, requested))
    if not os.path.lexists(full):
        full = listing.kept(full) or full
    if os.path.lexists(full):
        if is_content and not os.path.isdir(full):
            raise AgentError(f"{decode_name(full)} is not a directory", "without the / at its end")
        if is_content:
            listing.add_content(b"", os.path.realpath(full))
            return full, False
        if os.path.exists(full) and not os.path.isfile(full) and not os.path.isdir(full):
            raise AgentError(f"{decode_name(full)} is a FIFO, socket or device", "name a file or a directory")
        above, name = os.path.split(full)
        listing.add_tree(name, full, follow=True)
        if takes_parts and not os.path.isdir(full):
            for part in sorted(
                parts_of(decode_name(name), list(map(decode_name, os.listdir(above)))) - {decode_name(name)}
            ):
                listing.add(encode_name(part), os.path.join(os.path.realpath(above), encode_name(part)))
        return full, len(listing.paths) == 1 and not os.path.isdir(full)
    matches = list(iter_glob_matches(start, requested)) if glob.has_magic(requested) else []
    if not matches:
        raise no_such_path(full)
    for name, match in matches:
        if not is_content or os.path.isdir(match):
            listing.add_tree(name, os.path.join(os.path.realpath(os.path.dirname(match)), os.path.basename(match)))
    return full, False


def unreadable(path: bytes, error: OSError) -> str:
    """Say why a path can't be read, and how to see whose it is if that may be why."""
    shown = decode_name(path)
    fix = f"; see whose it is on that host: ls -ld {shlex.quote(shown)}" if error.errno == errno.EACCES else ""
    return f"{shown} can't be read: {error.strerror or error}{fix}"


def is_contents(path: bytes) -> bool:
    """True if a path means a directory's content, without its name: `ck/`, `.`, `..`, `~`. Pure."""
    is_home = path.startswith(b"~") and b"/" not in path and not glob.has_magic(path)
    return is_home or os.path.basename(path) in (b"", b".", b"..")


def split_pattern(path: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the components before the first wildcard, and the others: names sent for a pattern begin there. Pure."""
    parts = os.path.normpath(path).split(b"/")
    first = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return parts[:first], parts[first:]


def iter_glob_matches(start: bytes, requested: bytes) -> Iterator[NamedPath]:
    """Yield the matches of a pattern, each named by its path from the first wildcard on."""
    fixed, parts = split_pattern(requested)
    above = os.path.join(start, b"/".join(fixed) or (b"/" if requested[:1] == b"/" else b""))
    waiting = [(b"", above.rstrip(b"/"), positions_from(parts, 0) - {len(parts)})]
    while waiting:
        above_name, directory, positions = waiting.pop()
        for child in _possible_names(directory, [parts[index] for index in positions]):
            name, path, after = above_name + child, directory + b"/" + child, next_positions(parts, positions, child)
            if not after or child == STATE_DIRECTORY:
                continue
            if len(parts) in after and (os.path.isdir(path) or not needs_directory(parts)):
                yield name, path
            elif os.path.isdir(path):
                waiting.append((name + b"/", path, after))


def _possible_names(directory: bytes, components: list[bytes]) -> list[bytes]:
    """Return the names in a directory that may match. One that this account can't list may still have a name without a
    wildcard, as in a shell."""
    if not any(glob.has_magic(component) for component in components):
        return [name for name in components if os.path.lexists(directory + b"/" + name)]
    with contextlib.suppress(OSError):
        return sorted(os.listdir(directory))
    return []


def positions_from(pattern: Sequence[bytes], index: int) -> set[int]:
    """Return the positions where a name may continue: after each `**` too, which also matches no directory."""
    positions = {index}
    while index < len(pattern) and pattern[index] == b"**":
        index += 1
        positions.add(index)
    return positions


def next_positions(pattern: Sequence[bytes], positions: Iterable[int], name: bytes) -> set[int]:
    """Return where in a pattern a path may be after one more name, by the rules of Python's glob. Pure."""
    after: set[int] = set()
    for index in positions:
        if pattern[index] == b"**":
            after |= set() if name.startswith(b".") else positions_from(pattern, index)
        elif _matches_one(pattern[index], name):
            after |= positions_from(pattern, index + 1)
    return after


def matches(pattern: Sequence[bytes], parts: Sequence[str], *, is_directory: bool) -> bool:
    """Return True if the pattern matches a path or a directory above it, by the rules of Python's glob. Pure."""
    positions = positions_from(pattern, 0) - {len(pattern)}
    for depth, part in enumerate(parts, 1):
        positions = next_positions(pattern, positions, encode_name(part))
        if len(pattern) in positions:
            return is_directory or depth < len(parts) or not needs_directory(pattern)
    return False


def needs_directory(pattern: Sequence[bytes]) -> bool:
    """Return True if a pattern matches directories only: `ck*/**` matches no file called `ck1`."""
    return pattern[-1] == b"**" and any(component != b"**" for component in pattern)


def _matches_one(component: bytes, name: bytes) -> bool:
    if not glob.has_magic(component):
        return component == name
    if name.startswith(b".") and not component.startswith(b"."):
        return False
    return fnmatch.fnmatchcase(name, component)


def no_such_path(full: bytes) -> AgentError:
    """Return the error for a missing path, which shows what the nearest existing directory has."""
    above = os.path.dirname(full)
    while not os.path.isdir(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    try:
        names = [decode_name(name) for name in sorted(os.listdir(above)) if not name.startswith(b".")]
    except OSError as error:
        return AgentError(f"{decode_name(above)} can't be looked into: {error.strerror}")
    listed = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
    return NoSuchPath(f"there is no {decode_name(full)}", f"in {decode_name(above)} there is: {listed or 'nothing'}")


def list_run(listing: Listing, run: RunFiles) -> tuple[bytes, bool]:
    """List the record of a run and the files that it wrote. Returns the run's working directory, and False: it is never
    a single file."""
    top, rundir = encode_name(run["id"]), os.path.realpath(encode_name(rundir_of(run)))
    status = read_json(rundir + b"/status.json")
    shown = working_directory(run)
    cwd = os.path.realpath(shown)
    listing.add(top, rundir if os.path.isdir(rundir) else cwd, follow=True)
    if run["has_record"] and not status:
        listing.note(top + b"/record", "it isn't there any more", warning=True)
    record = [(encode_name(name), rundir + b"/" + encode_name(name)) for name in RECORD_FILES]
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(rundir + b"/ranks") if name.endswith(_OF_RANKS))
        record += [(b"ranks/" + name, rundir + b"/ranks/" + name) for name in names]
    for name, path in record:
        if os.path.isfile(path):
            listing.add(top + b"/record/" + name, path)
    owners = FileOwners(rundir_of(run))
    listing.owners = None if run.get("force") else owners
    for written in sorted(path for own in owners.own[:1] for path in own.paths()):
        if written.startswith(decode_name(cwd) + "/"):
            path = encode_name(written)
            name = top + b"/files/" + os.path.relpath(path, cwd)
            if os.path.lexists(path) or owners.kept(written):
                listing.add(name, path)
            else:
                listing.note(name, "the run wrote it, and it is gone", warning=True)
    if not owners.own and run["has_record"]:
        listing.note(top + b"/files", NO_LIST, warning=True)
    return shown, False


def working_directory(run: RunFiles) -> bytes:
    """Return the working directory of the run's ranks. Raises an AgentError if neither the caller nor the run's plan
    knows it."""
    cwd = run["cwd"] or read_json(f"{rundir_of(run)}/plan.json").get("cwd")
    if not cwd:
        raise AgentError("the run's working directory is not known here", f"an absolute path: {run['id']}:/…")
    return encode_name(cwd)


class PartSender:
    """Sends parts of files, small ones together."""

    def __init__(self) -> None:
        self._rows: list[tuple[object, ...]] = []
        self._data: list[bytes] = []
        self._size = 0

    def add(self, row: tuple[object, ...], data: bytes) -> None:
        """Add a part. It is sent once there is enough for a message, or by `send`. `row`: a value for each of
        PART_FIELDS."""
        if self._size + len(data) > SEND_CHUNK or len(self._rows) == MOST_TOGETHER:
            self.send()
        self._rows.append(row)
        self._data.append(data)
        self._size += len(data)

    def send(self) -> None:
        """Send the parts that were added."""
        if self._rows:
            emit_with_bytes("parts", b"".join(self._data), rows=self._rows)
            self._rows, self._data, self._size = [], [], 0


def send_file(path: bytes, wanted: WantedFile, directories: DirectoryChain, parts: PartSender) -> None:
    """Send a file from where the receiver has it, in parts. A file that is gone is reported as lost.

    `directories`: from `/`; they stay open, as the next file is in the same one or near.
    """
    number, have, known = wanted
    *above, name = path.split(b"/")[1:]
    try:
        file = os.open(name, _READING, dir_fd=directories.enter(above).number)
    except (AgentError, OSError) as error:
        emit("lost", i=number, reason=unreadable(path, error) if isinstance(error, OSError) else str(error))
        return
    try:
        before = os.fstat(file)
        size, mode, mtime = before.st_size, stat.S_IMODE(before.st_mode), before.st_mtime_ns
        if not stat.S_ISREG(before.st_mode):
            emit("lost", i=number, reason="it is no longer a file")
            return
        at = crc = 0
        if have and known and have <= size:
            crc, digest, _ = checksums(file, have)
            at = have if digest == known else os.lseek(file, 0, os.SEEK_SET)
            crc = crc if at else 0
        is_last = False
        while not is_last:
            data = os.read(file, min(SEND_CHUNK, size - at))
            crc, end = zlib.crc32(data, crc), at + len(data)
            is_last = end == size or not data
            is_changed = is_last and (end != size or identity_of(os.fstat(file)) != identity_of(before))
            parts.add((number, size, at, len(data), mode, mtime, crc if is_last else None, is_changed), data)
            at = end
    finally:
        os.close(file)


def checksums(file: int, size: int) -> tuple[int, str, int]:
    """Return CRC and hash of up to `size` bytes of a file, and their number. The hash identifies them; the CRC only
    detects transfer errors."""
    import hashlib  # loads OpenSSL (3 to 15 ms), which a fetch of new files does not need

    digest, crc, left = hashlib.blake2b(digest_size=32), 0, size
    while left:
        data = os.read(file, min(SEND_CHUNK, left))
        if not data:
            break
        digest.update(data)
        crc = zlib.crc32(data, crc)
        left -= len(data)
    return crc, digest.hexdigest(), size - left


def send(request: SendRequest, stdin: BinaryIO) -> Json:
    """Send a listing, then the files that the receiver asks for on stdin."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(1, getattr(fcntl, "F_SETPIPE_SZ", 1031), 1 << 20)
    buffer_output(LIST_CHUNK_SIZE)
    try:
        with signs_of_life(SIGN_OF_LIFE, LONGEST_READ):
            serve(request, stdin)
    finally:
        buffer_output(0)
    return {}


def list_requested(listing: Listing, request: SendRequest, path: str) -> tuple[bytes, bool]:
    """List the path that the request names. Returns the path, and whether it is a single file.

    Of a run's path, files that another run has written since are left out, unless the request has `force`.
    """
    run, may_be_missing = request["run"], request.get("may_be_missing", False)
    base = "~" if run is None or path.startswith(("/", "~")) else decode_name(directory_of(run, path))
    full = os.path.join(os.path.expanduser(encode_name(base)), os.path.expanduser(encode_name(path)))
    # Results have a literal path, even if the home's name looks like a pattern.
    if may_be_missing and run is None and not os.path.lexists(full.rstrip(b"/")):
        return full, False
    lacks_list = False
    if run is not None and not run.get("force") and not full.startswith(results_of(run) + b"/"):
        owners = FileOwners(rundir_of(run))
        lacks_list, listing.owners = not owners.own, owners if owners.own else None
    try:
        listed = list_path(listing, base, path, takes_parts=bool(run and run.get("takes_parts")))
        if run is not None and lacks_list:
            fields = {"own": f"{run['id']}:{path}", "dest": run["dest"]}
            fix = Fix("to take what is there now: `ipexctl fetch {own} {dest} --force`", **fields)
            raise AgentError(f"whose {decode_name(full)} is can't be told: {NO_LIST}", fix)
        if os.path.isdir(listed[0]):
            listing.add_lost(listed[0], listed[0] if is_contents(encode_name(path)) else os.path.dirname(listed[0]))
        return listed
    except NoSuchPath as error:
        if run is not None and is_in_results(run, path):
            fix = Fix(
                "it is in IPEXCTL_RUN_DIR: `ipexctl fetch {run} {run2} --results`", run=run["id"], run2=run["dest"]
            )
            raise AgentError(error.reason, fix) from None
        if not may_be_missing:
            raise
        return full, False


def directory_of(run: RunFiles, path: str) -> bytes:
    """Return where a relative path of a run begins: its working directory, but `profile/` is in its results."""
    is_profile = path.split("/")[0] == PROFILE and os.path.isdir(os.path.join(results_of(run), PROFILE.encode()))
    return results_of(run) if is_profile else working_directory(run)


def results_of(run: RunFiles) -> bytes:
    """Return the run's directory for results (IPEXCTL_RUN_DIR)."""
    home = os.path.dirname(os.path.dirname(encode_name(rundir_of(run))))
    return os.path.join(home, b"results", encode_name(run["id"]))


def is_in_results(run: RunFiles, path: str) -> bool:
    """True if a path missing in the working directory is below the run's IPEXCTL_RUN_DIR."""
    requested = encode_name(path)
    if requested[:1] in (b"/", b"~") or b".." in requested.split(b"/"):
        return False
    results = results_of(run)
    return (
        os.path.lexists(os.path.join(results, requested))
        or next(iter_glob_matches(results, requested), None) is not None
    )


def serve(request: SendRequest, stdin: BinaryIO) -> None:
    """Send the listing; read from stdin what is wanted of it, and send that. Without a line on stdin, nothing more is
    sent."""
    listing, path, run = Listing(), request["path"], request["run"]
    if run is not None and path is None:
        source, single = list_run(listing, run)
    else:
        assert path is not None
        source, single = list_requested(listing, request, path)
        if run is not None and listing.withheld is not None and not listing.files:
            writer = listing.withheld.run
            by_run = "`ipexctl fetch {writer} {dest}`; or take it" if writer else "take it"
            fix = Fix(
                by_run + " as it is now: `ipexctl fetch {own} {dest} --force`",
                writer=f"{writer}:{path}", own=f"{run['id']}:{path}", dest=run["dest"],
            )  # fmt: skip
            raise NotOfRun(f"{decode_name(source)} is no longer of this run: {listing.withheld.sentence}", fix)
    is_missing = request.get("may_be_missing", False) and not listing.paths
    listing.send()
    emit("listed", **{"from": decode_name(source), "single": single, "older": listing.older, "missing": is_missing})
    buffer_output(SEND_CHUNK)
    line = stdin.readline()
    if not line.endswith(b"\n"):  # the receiver is gone, or needs nothing
        return
    parts = PartSender()
    with GuardedDirectory.open("/") as root:
        directories = DirectoryChain(root, lambda above, names: above.enter(names[-1]))
        for wanted in map(WantedFile.of, parse_json(line)["wants"]):
            send_file(listing.paths[int(wanted.name)], wanted, directories, parts)
        directories.leave()
    parts.send()
    if run is not None and listing.own:
        note_fetched(rundir_of(run), listing.own)


def main(_: str = "") -> int:
    """Answer the agent's call, and return its exit code; 0 also if the receiver has left."""
    try:
        return answer(send)
    except BrokenPipeError:
        return 0
