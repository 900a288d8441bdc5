"""Sends files of this host: first the list of what there is, then the bytes of those that are wanted.

    {"base": directory, "path": what below it} or {"run": id, "home", "cwd" or null, "since", "path" or null}
        → {"event": "entry", "i", "n": name, "t": "d" | "f" | "l", "m": mode, "s": size, "mt": ns, "to", "g"}, …
        → {"event": "note", "n", "reason"}, …
        → {"event": "listed", "from": path, "single": whether it is one file that was named}
    {"wants": [[i, have, hash of so many bytes or null], …]}
        → {"event": "file", "i", "at", "s", "m", "mt"}, pieces of a length in four bytes each, a length of nought,
          {"event": "whole", "crc", "changed"}; or {"event": "lost", "i", "reason"}
        → {"event": "done"}

A run without a path is its record and what it wrote in its working directory. A file of which the asker has the
beginning is given from there. Names are UTF-8 where they are, with Python's surrogates for what isn't.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import stat
import struct
import sys
import zlib
from typing import TYPE_CHECKING, Any, Iterator, Tuple

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import decode_name, encode_name, read_json

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

PIECE = 1 << 18
SHOWN = 6
STATE_DIRECTORY = b".ipexctl"
OF_RECORD = ("status.json", "events.jsonl", "plan.json", "mpirun.log", "supervise.log")
SLACK = 2.0
"""Seconds by which the clock of who started a run may be ahead of ours."""
Name = Tuple[bytes, bytes]
"""What it is to be called there, and where it is here."""


class Out:
    """Our own output: small things are held together, so that many of them are few writes."""

    def __init__(self) -> None:
        self.held = bytearray()
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(1, getattr(fcntl, "F_SETPIPE_SZ", 1031), 1 << 20)

    def say(self, event: str, **fields: Any) -> None:
        self.put(json.dumps({"event": event, **fields}).encode() + b"\n")

    def put(self, data: bytes) -> None:
        self.held += data
        if len(self.held) >= PIECE:
            self.flush()

    def flush(self) -> None:
        with memoryview(self.held) as whole:
            done = 0
            while done < len(whole):
                done += os.write(1, whole[done:])
        self.held = bytearray()


class Listing:
    """What there is, in the order of a walk; each thing by its number."""

    def __init__(self, out: Out) -> None:
        self.out = out
        self.paths: list[bytes] = []
        self.names: set[bytes] = set()
        self.links: set[bytes] = set()

    def add(self, name: bytes, path: bytes, *, follow: bool = False, growing: bool = False) -> os.stat_result | None:
        """Say that it is there; returns what it is, where it can be brought."""
        if name in self.names:
            return None
        try:
            found = os.stat(path, follow_symlinks=follow)
            to = os.readlink(path) if stat.S_ISLNK(found.st_mode) else b""
        except OSError as error:
            self.note(name, error.strerror or str(error))
            return None
        kinds = {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l"}
        kind = kinds.get(stat.S_IFMT(found.st_mode))
        if kind is None:
            self.note(name, "it is no file, and no directory", warning=True)
            return None
        self.names.add(name)
        if kind == "l":
            self.links.add(name)
        said = {"m": stat.S_IMODE(found.st_mode), "s": found.st_size, "mt": found.st_mtime_ns}
        self.out.say("entry", i=len(self.paths), n=decode_name(name), t=kind, to=decode_name(to), g=growing, **said)
        self.paths.append(os.path.realpath(path) if follow else path)
        return found

    def below_link(self, name: bytes) -> bool:
        """Whether it would have to be written through a link that is listed."""
        return any(name[:end] in self.links for end in range(len(name)) if name[end : end + 1] == b"/")

    def note(self, name: bytes, reason: str, *, warning: bool = False) -> None:
        self.out.say("note", n=decode_name(name), reason=reason, warning=warning)

    def tree(self, name: bytes, path: bytes, *, follow: bool = False) -> None:
        """A thing and all that is in it; no link in it is followed."""
        found = self.add(name, path, follow=follow)
        if found is not None and stat.S_ISDIR(found.st_mode):
            self.inside(name, path)

    def inside(self, name: bytes, path: bytes) -> None:
        try:
            children = sorted(os.listdir(path))
        except OSError as error:
            self.note(name or b".", error.strerror or str(error))
            return
        for child in children:
            if child == STATE_DIRECTORY and os.path.exists(path + b"/.ipexctl/state.json"):
                continue
            self.tree(name + b"/" + child if name else child, path + b"/" + child)


def give_path(listing: Listing, base: str, path: str) -> tuple[bytes, bool]:
    """As rsync has it: `DIR/` is what is in it, `DIR` is it; what wildcards stand for keeps its place.

    Who asks refuses other names than those. A home's own name is not known there, so `~` is what is in it.
    """
    asked = encode_name(path)
    is_home = asked[:1] == b"~" and b"/" not in asked and not glob.has_magic(asked)
    asked = os.path.expanduser(asked) if asked[:1] == b"~" else asked
    if is_home and asked[:1] == b"~":
        raise AgentError(
            f"there is no account {decode_name(asked[1:])}", f"a file of that name: ./{decode_name(asked)}"
        )
    start = os.path.abspath(os.path.expanduser(encode_name(base)))
    inside = is_home or os.path.basename(asked) in (b"", b".", b"..")
    full = os.path.normpath(os.path.join(start, asked))
    if os.path.lexists(full):
        if inside and not os.path.isdir(full):
            raise AgentError(f"{decode_name(full)} is no directory", "without the / at its end")
        if inside:
            listing.inside(b"", full)
            return full, False
        name = os.path.basename(full)
        listing.tree(name, full, follow=True)
        return full, len(listing.paths) == 1 and not os.path.isdir(full)
    if not glob.has_magic(asked):
        raise nothing_called(full)
    matches = list(matching(start, asked))
    for name, found in matches:
        if not inside:
            if not listing.below_link(name):
                listing.tree(name, found)
        elif os.path.isdir(found):
            listing.inside(b"", found)
    if not matches:
        raise nothing_called(full)
    return full, False


def matching(start: bytes, asked: bytes) -> Iterator[Name]:
    """What the pattern stands for, each with its path from the first wildcard on."""
    fixed: list[bytes] = []
    parts = os.path.normpath(asked).split(b"/")
    while parts and not glob.has_magic(parts[0]):
        fixed.append(parts.pop(0))
    above = os.path.join(start, b"/".join(fixed) or (b"/" if asked[:1] == b"/" else b""))
    above = above.rstrip(b"/") or b"/"
    pattern = glob.escape(above).rstrip(b"/") + b"/" + b"/".join(parts)
    for found in sorted(glob.glob(pattern, recursive=True)):
        name = os.path.relpath(found, above)
        if name != b"." and STATE_DIRECTORY not in name.split(b"/"):
            yield name, found.rstrip(b"/")


def nothing_called(full: bytes) -> AgentError:
    """Says what there is instead, where the first thing missing would have to be."""
    above = os.path.dirname(full)
    while not os.path.isdir(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    try:
        there = [decode_name(name) for name in sorted(os.listdir(above)) if not name.startswith(b".")]
    except OSError as error:
        return AgentError(f"{decode_name(above)} can't be looked into: {error.strerror}")
    some = ", ".join(there[:SHOWN]) + (", …" if len(there) > SHOWN else "")
    return AgentError(f"there is no {decode_name(full)}", f"in {decode_name(above)} there is: {some or 'nothing'}")


def give_run(listing: Listing, request: Json) -> tuple[bytes, bool]:
    """Its record, and what it wrote in its working directory."""
    run = encode_name(request["run"])
    rundir = encode_name(os.path.expanduser(request["home"])) + b"/runs/" + run
    status = read_json(rundir + b"/status.json")
    cwd = working_directory(request)
    listing.add(run, rundir if os.path.isdir(rundir) else cwd, follow=True)
    if request.get("record") and not status:
        listing.note(run + b"/record", "it isn't there any more", warning=True)
    record = [(encode_name(name), rundir + b"/" + encode_name(name)) for name in OF_RECORD]
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(rundir + b"/ranks") if name.endswith((b".out", b".err")))
        record += [(b"ranks/" + name, rundir + b"/ranks/" + name) for name in names]
    for name, path in record:
        if os.path.isfile(path):
            listing.add(run + b"/record/" + name, path, growing=True)
    since = float(status.get("started") or (float(request["since"]) - SLACK))
    brought = synced_to(cwd)
    for name, path in files_below(cwd):
        found = os.lstat(path)
        if found.st_mtime >= since and brought.get(path) != [found.st_size, found.st_mtime_ns, found.st_ino]:
            listing.add(run + b"/files/" + name, path)
    return cwd, False


def working_directory(request: Json) -> bytes:
    """Of the run, as who asks knows it, or as its plan says."""
    rundir = encode_name(os.path.expanduser(request["home"])) + b"/runs/" + encode_name(request["run"])
    cwd = request.get("cwd") or read_json(rundir + b"/plan.json").get("cwd")
    if not cwd:
        raise AgentError("the run's working directory is not known here", f"an absolute path: {request['run']}:/…")
    return encode_name(cwd)


def synced_to(directory: bytes) -> dict[bytes, Any]:
    """What a sync has put there, by how it looked then: no run wrote that."""
    top = directory
    while not os.path.exists(top + b"/.ipexctl/state.json"):
        if top == os.path.dirname(top):
            return {}
        top = os.path.dirname(top)
    rows = read_json(top + b"/.ipexctl/state.json").get("rows") or []
    return {top + b"/" + encode_name(row[0]): row[5] for row in rows if len(row) > 5}


def files_below(top: bytes) -> Iterator[Name]:
    for where, directories, files in os.walk(top):
        directories[:] = sorted(name for name in directories if name != STATE_DIRECTORY)
        links = [name for name in directories if os.path.islink(where + b"/" + name)]
        for name in sorted([*files, *links]):
            path = where + b"/" + name
            yield os.path.relpath(path, top), path


def hand_over(out: Out, number: int, path: bytes, have: int, known: str | None) -> None:
    """One file, from where who asks has it rightly."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        out.say("lost", i=number, reason=error.strerror or str(error))
        return
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            out.say("lost", i=number, reason="it is no file any more")
            return
        at = crc = 0
        if have and known and have <= before.st_size:
            crc, found = sums_of(file, have)
            at = have if found == known else os.lseek(file, 0, os.SEEK_SET)
            crc = crc if at else 0
        mode, size = stat.S_IMODE(before.st_mode), before.st_size
        out.say("file", i=number, at=at, s=size, m=mode, mt=before.st_mtime_ns)
        while at < size:
            data = os.read(file, min(PIECE, size - at))
            if not data:
                break
            crc = zlib.crc32(data, crc)
            at += len(data)
            out.put(struct.pack(">I", len(data)))
            out.put(data)
        after = os.fstat(file)
        changed = at != size or (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns)
        out.put(struct.pack(">I", 0))
        out.say("whole", crc=crc, changed=changed)
    finally:
        os.close(file)


def sums_of(file: int, size: int) -> tuple[int, str]:
    """Of the beginning of a file. What it is known by is a hash; the sum over all of it only guards the way."""
    digest, crc, left = hashlib.blake2b(digest_size=32), 0, size
    while left:
        data = os.read(file, min(PIECE, left))
        if not data:
            break
        digest.update(data)
        crc = zlib.crc32(data, crc)
        left -= len(data)
    return crc, digest.hexdigest()


def give(out: Out, request: Json) -> None:
    listing = Listing(out)
    if request.get("run") and request.get("path") is None:
        source, single = give_run(listing, request)
    else:
        relative = not request["path"].startswith(("/", "~"))
        base = decode_name(working_directory(request)) if request.get("run") and relative else request.get("base", "~")
        source, single = give_path(listing, base, request["path"])
    out.say("listed", **{"from": decode_name(source), "single": single})
    out.flush()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):  # who asked is gone, or has it all
        return
    for number, have, known in json.loads(line)["wants"]:
        hand_over(out, number, listing.paths[number], have, known)


def main(_: str = "") -> int:
    """Not `answer`: bytes of files stand between the events, and many small events are one write."""
    request = json.loads(sys.stdin.buffer.readline())
    out = Out()
    try:
        give(out, request)
        out.say("done")
    except AgentError as error:
        out.say("failed", reason=error.reason, fix=error.fix)
    except BrokenPipeError:
        return 0
    with contextlib.suppress(BrokenPipeError):
        out.flush()
    return 0
