"""What `push` wrote on this host: recorded in the home, so that `uninstall` removes these files and no others."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Mapping, NamedTuple, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import encode_name, make_private_directory, read_json, write_atomically
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory, enter_named
from ipexctl.node.common.home import make_home
from ipexctl.node.common.home_entries import PUSHED, own_entries
from ipexctl.node.common.json_records import decode
from ipexctl.node.files.manifest import ManifestEntry, identity_of

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.files.place import Writer


class PushedData(NamedTuple):
    path: str
    """As the user sees it: of the file or directory."""
    top: str
    """The directory to which the entries are relative."""
    host: str
    """Hosts that share a home may each have the path on a disk of their own."""
    entries: Mapping[str, tuple[int, ...]]
    """Path → size, mtime in ns and inode; of directories that were made, the inode. Empty path: the top."""
    by: Json | None = None
    """Who pushed it, as `RunBy`."""

    @property
    def size(self) -> int:
        """Bytes of all recorded files."""
        return sum(identity[0] for identity in self.entries.values())


def note_pushed(
    home: str,
    path: str,
    top: str,
    rows: Sequence[ManifestEntry],
    writer: Writer,
    by: Json | None,
    *,
    is_new: bool,
) -> None:
    """Record what a push has written, beside what earlier ones wrote to the path. `is_new`: the directory itself was
    made."""
    host, entries = os.uname().nodename, dict[str, "tuple[int, ...]"]({"": (0, 0, 0)} if is_new else {})
    for row in rows:
        with writer.place_of(row.path) as (directory, name):
            status = directory.status_of(name)
        if status is not None:
            entries[row.path] = (0, 0, status.st_ino) if row.kind == "d" else tuple(identity_of(status))
    file = Path(home, PUSHED, f"{hashlib.sha256(os.fsencode(f'{host}{path}')).hexdigest()[:16]}.json")
    before = read_json(file).get("entries")
    entries = {**(before if isinstance(before, dict) else {}), **entries}
    make_home(home)
    make_private_directory(file.parent)
    write_atomically(file, json.dumps(PushedData(path, top, host, entries, by)._asdict()).encode())


def read_pushed(home: str) -> Iterator[tuple[str, PushedData]]:
    """Yield the record's file and the record of each push."""
    for file in own_entries(home, PUSHED):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            yield file, decode(PushedData, read_json(file), "the record of a push")


def remove_pushed(home: str) -> list[PushedData]:
    """Remove what pushes wrote on this host and nobody has changed, and the records. Return what is left of them."""
    left = []
    for file, pushed in read_pushed(home):
        if pushed.host == os.uname().nodename:
            changed = dict(_remove_unchanged(pushed))
            left += [pushed._replace(entries=changed)] if changed else []
            Path(file).unlink()
    return left


def _remove_unchanged(pushed: PushedData) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Remove what nobody has changed, and yield what somebody has. A directory goes if a push made it and it is
    empty."""
    with contextlib.ExitStack() as held:
        try:
            top = held.enter_context(GuardedDirectory.at(enter_named(pushed.top, "")))
        except (OSError, AgentError):
            return
        chain = DirectoryChain(top, lambda above, names: above.enter(names[-1]))
        held.callback(chain.leave)
        for path in sorted(filter(None, pushed.entries), reverse=True):  # a directory after what is in it
            *above, name = encode_name(path).split(b"/")
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                directory, identity = chain.enter(above), pushed.entries[path]
                status = directory.status_of(name)
                if status is not None and identity == (0, 0, status.st_ino):
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=directory.number)
                elif status is not None and identity == tuple(identity_of(status)):
                    directory.unlink(name)
                elif status is not None:
                    yield path, identity
    if "" in pushed.entries:
        with contextlib.suppress(OSError):
            Path(pushed.top).rmdir()
