"""A project's tree on this host: its state, and which runs use it. `tree_upload` changes it.

A tree is HOME/code/<project>, its further generations beside it. What sync knows of one is in its `.ipexctl`:
`state.json` (what it put there), `pending.json` (what it was about to), `leases` (runs that use it), `stage` (contents
by hash that aren't in place yet). Names are bytes; JSON has them as surrogates.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Iterator, List

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.files import (
    decode_name,
    encode_name,
    explain_os_error,
    file_lock,
    make_private_directory,
    read_json,
    write_json_atomically,
)

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Action, Json

CHUNK = 1 << 20
PATIENCE = 60.0
START_TIME = 600.0
UPLOAD_TIME = 20.0
STATE_DIRECTORY = ".ipexctl"
SHA256 = re.compile(r"[0-9a-f]{64}")
WORTH_READING = 64 << 20
"""A file that was written to and is larger is taken for changed, unread, where only a note depends on it."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
Row = List[Any]
"""path, kind (f, l, d), mode, size, sha256 or where a link leads; in a state also how it looked when it was noted
(size, mtime_ns, inode; nothing: it isn't what the project has) and whether sync put it there."""


def look(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def sha256_of(path: bytes) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(CHUNK), b""):
            digest.update(piece)
    return digest.hexdigest()


def home_of(request: Json) -> bytes:
    home = os.path.expanduser(str(request["home"]))
    if not os.path.isabs(home):
        raise AgentError(f"{home} is no absolute path", "give --home an absolute path")
    return os.fsencode(home)


def boot() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


class Tree:
    """One generation of a project's tree."""

    def __init__(self, home: bytes, project: str, generation: int) -> None:
        if not _NAME.fullmatch(project):
            raise AgentError(f"{project!r} can't be the name of a tree")
        self.home, self.generation = home, generation
        self.path = b"%s/code/%s" % (home, encode_name(project + (f".gen{generation}" if generation > 1 else "")))
        self.state_directory = self.path + b"/" + encode_name(STATE_DIRECTORY)
        self.stage, self.leases = self.state_directory + b"/stage", self.state_directory + b"/leases"
        self.load()

    def load(self) -> None:
        state = read_json(self.state_directory + b"/state.json")
        self.digest = state.get("digest")
        self.rows: dict[str, Row] = {row[0]: row for row in state.get("rows", [])}
        self.pending: list[Row] = read_json(self.state_directory + b"/pending.json").get("rows", [])

    def at(self, path: str) -> bytes:
        return self.path + b"/" + encode_name(path)

    def exists(self) -> bool:
        return os.path.isdir(self.state_directory)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One sync at a time."""
        make_private_directory(self.leases)
        busy = AgentError(f"another sync of {decode_name(self.path)} is at work", "wait for it, then run it again")
        with file_lock(self.state_directory + b"/lock", PATIENCE, busy):
            self.load()  # another process may have changed it meanwhile
            yield

    def runs(self) -> list[str]:
        """Those that said they use this tree."""
        with contextlib.suppress(OSError):
            return [decode_name(name) for name in sorted(os.listdir(self.leases)) if not name.startswith(b".")]
        return []

    def held(self, mine: str | None, ended: list[str]) -> list[str]:
        """The runs, other than ours, that use it still."""
        with_ranks.cache_clear()
        return [run for run in self.runs() if run != mine and run not in ended and not has_ended(self, run)]

    def lease(self, run: str | None) -> None:
        if run:
            make_private_directory(self.leases)
            write_json_atomically(
                self.leases + b"/" + encode_name(run), {"boot": boot(), "made": time.time()}, durable=False
            )

    def release(self, run: str | None) -> None:
        if run:
            with contextlib.suppress(OSError):
                os.unlink(self.leases + b"/" + encode_name(run))

    def is_as_left(self, row: Row, found: os.stat_result | None) -> bool:
        """Whether it is what sync put there, going by its looks."""
        if found is None or len(row) < 6 or not row[5]:
            return False
        if row[1] != "f":
            return self.holds(row[0], found, row)
        return stat.S_ISREG(found.st_mode) and [found.st_size, found.st_mtime_ns, found.st_ino] == row[5]

    def holds(self, path: str, found: os.stat_result, row: Row) -> bool:
        """Whether it is what that row says, going by what is in it."""
        if row[1] == "d":
            return stat.S_ISDIR(found.st_mode)
        if row[1] == "l":
            return stat.S_ISLNK(found.st_mode) and decode_name(os.readlink(self.at(path))) == row[4]
        return stat.S_ISREG(found.st_mode) and found.st_size == row[3] and sha256_of(self.at(path)) == row[4]

    def check(self) -> Json:
        """What of the state isn't so any more: gone, or written to by others."""
        gone, kept = 0, []
        for row in self.rows.values():
            found = look(self.at(row[0]))
            if found is None:
                gone += 1
            elif self.is_as_left(row, found):
                continue
            elif not row[6] or found.st_size > WORTH_READING or not self.holds(row[0], found, row):
                kept.append(row[0])
        return {"gone": gone, "kept": kept}


def record_of(tree: Tree, run: str) -> Json:
    """What the run's supervisor says of it; nothing where that is on another host, or has not begun."""
    return read_json(tree.home + b"/runs/" + encode_name(run) + b"/status.json")


def has_ended(tree: Tree, run: str) -> bool:
    """By the run's own record where that is on this host, else by what is left of it here."""
    lease, status = read_json(tree.leases + b"/" + encode_name(run)), record_of(tree, run)
    if status:
        supervisor = status.get("supervisor") or {}
        pid = supervisor.get("pid")
        here = supervisor.get("machine") == os.uname().nodename and lease.get("boot") == boot()
        lost = here and isinstance(pid, int) and not os.path.exists(f"/proc/{pid}")
        return status.get("state") not in ("starting", "running") or lost
    rundir = tree.home + b"/runs/" + encode_name(run)
    if os.path.exists(rundir + b"/job.json"):
        return bool(lease.get("boot") != boot())
    if encode_name(run) in with_ranks():
        return False
    # The job file beside it goes once the ranks have begun, or with the run. Older versions brought rank.py.
    brought = look(rundir + b"/agent.zip") or look(rundir + b"/rank.py")
    if brought is not None and time.time() - brought.st_ctime > UPLOAD_TIME:
        return True
    return time.time() - float(lease.get("made") or 0) > START_TIME


@functools.lru_cache(maxsize=None)
def with_ranks() -> list[bytes]:
    """The runs that have a rank on this host: its wrapper is called by its path."""
    found: list[bytes] = []
    for process in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
            found += re.findall(rb"/runs/([^/\0]+)/(?:agent\.zip\0run\.rank|rank\.py)(?:\0|$)", file.read())
    return found


def store_token(home: bytes, *, make: bool) -> str | None:
    """The same for two hosts that share this home: a link that leads nowhere, made in one step on NFS too."""
    place = home + b"/code/.store"
    with contextlib.suppress(OSError):
        if make:
            make_private_directory(home + b"/code")
            with contextlib.suppress(FileExistsError):
                os.symlink(os.urandom(16).hex().encode(), place)
        return decode_name(os.readlink(place))
    return None


def generations(home: bytes, project: str) -> list[Tree]:
    first = [Tree(home, project, 1)]
    with contextlib.suppress(OSError):
        found = [decode_name(name) for name in os.listdir(home + b"/code")]
        numbers = [name[len(project) + 4 :] for name in found if name.startswith(project + ".gen")]
        first += [Tree(home, project, int(n)) for n in sorted(numbers) if n.isdigit() and int(n) > 1]
    return first


def inspect(request: Json) -> Json:
    """What there is of this project, and, where it is as it should be, the lease for it."""
    home, digest = home_of(request), request["digest"]
    mine, ended = request.get("lease"), request.get("ended", [])
    answer: list[Json] = []
    leased = False
    for tree in generations(home, request["project"]):
        if not tree.exists():
            continue
        found: Json = {"whole": False}
        with tree.lock() if mine and tree.digest == digest and not leased else contextlib.nullcontext():
            if tree.digest == digest and not tree.pending:
                found.update(tree.check())
                found["whole"] = not found["gone"]
            if found["whole"] and not leased:
                tree.lease(mine)
                leased = bool(mine)
        found["staged"] = []
        with contextlib.suppress(OSError):
            found["staged"] = [
                decode_name(name) for name in os.listdir(tree.stage) if SHA256.fullmatch(decode_name(name))
            ]
        found.update(generation=tree.generation, path=decode_name(tree.path), digest=tree.digest)
        found["held"] = tree.held(mine, ended)
        found["ended"] = [run for run in tree.runs() if record_of(tree, run) and has_ended(tree, run)]
        answer.append(found)
    token = store_token(home, make=not request.get("dry_run"))
    return {"home": decode_name(home), "store": token, "python": sys.executable, "generations": answer}


def explaining(action: Action) -> Action:
    """The action, with an error of the filesystem as an AgentError."""

    def run(request: Json, stdin: BinaryIO) -> Json:
        try:
            return action(request, stdin)
        except OSError as error:
            raise explain_os_error(error, "the tree", "see: ipexctl doctor") from None

    return run


def main(action: str) -> int:
    return answer(explaining({"inspect": lambda request, _: inspect(request)}[action]))
