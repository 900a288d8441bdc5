"""Whose place a path is: one table, on real files of real accounts, for both rules in Python and for `own_path` in sh.

Each row is a directory BASE/d and the entry x in it, made as the row says. Accounts: me, mal (a stranger), root, and
where a row says so, svc with me's primary group, or mal as a member of me's group.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from case_table import lines_of
from ipexctl.remote.command import shell_text
from ipexctl.remote.node_call import WALK

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other accounts")
ROOT = Path(__file__).parents[3]
UIDS = {"root": 0, "me": 4711, "mal": 4712, "svc": 4713, "nobody": 65534}
GIDS = {"root": 0, "me": 4711, "mal": 4712, "team": 4799, "nobody": 65534}

LOOK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from ipexctl.found_files import find_distrust
from ipexctl.node.common import walk
def look(path, rule):
    try:
        with walk.enter(path, getattr(walk, rule)) as place:
            if place.status is None:
                return "missing"
            os.close(place.open_end(os.O_RDONLY | os.O_NONBLOCK))
            return "ok"
    except walk.Refused as refused:
        return refused.kind
    except OSError as error:
        return "error"
paths = json.load(sys.stdin)
def distrust(path):
    found = find_distrust(path)
    return "ok" if found is None else f"{os.path.basename(found.part.path)} {found.objection}"
print(json.dumps([[look(path, "own_path"), look(path, "named_path"), distrust(path)] for path in paths]))
"""
LOOK_IN_SH = """
while read -r path; do
    if walk "$path" end; then echo ok; else echo "$walk_detail"; fi
done
"""
KINDS = {
    "is a link of": "link", "belongs to": "owner", "by every account": "others", "of its group": "group",
    "access control list": "acl",
}  # fmt: skip
SHELLS = [shell for shell in ("dash", "bash --posix", "ksh", "busybox sh") if shutil.which(shell.split()[0])]


class Row(NamedTuple):
    above: str
    entry: str
    expected: tuple[str, ...]
    accounts: str

    @classmethod
    def of(cls, line: str) -> Row:
        above, entry, *expected = (cell.strip() for cell in line.split("|"))
        last = expected.pop() if expected[-1] in ("svc", "member") else "plain"
        return cls(above, entry, tuple(expected), last)


ROWS = [Row.of(line) for line in lines_of(__file__, "directories")]
FILE_ROWS = [Row.of(line) for line in lines_of(__file__, "files")]


def give(path: Path, text: str) -> None:
    """`owner:group mode[+acl]`"""
    owner, mode = text.split()[:2]
    user, group = owner.split(":")
    os.chown(path, UIDS[user], GIDS[group])
    mode, _, acl = mode.partition("+")
    path.chmod(int(mode, 8))
    if acl:
        kind, name, perm = acl.split(":")
        named = (2, int(perm), UIDS[name]) if kind == "u" else (8, int(perm), GIDS[name])
        tags = [(1, 7, 0xFFFFFFFF), (4, 5, 0xFFFFFFFF), named, (16, 7, 0xFFFFFFFF), (32, 5, 0xFFFFFFFF)]
        entries = b"".join(struct.pack("<HHI", *tag) for tag in sorted(tags))
        os.setxattr(path, "system.posix_acl_access", b"\2\0\0\0" + entries)
        path.chmod(int(mode, 8) | 0o070)


def make(base: Path, row: Row) -> Path:
    """The row's files below BASE, beside a place of me's and one of mal's; returns the path to look at."""
    base.mkdir()
    base.chmod(0o755)
    directory, entry = base / "d", base / "d/x"
    directory.mkdir()
    for place, mode in (("mine", "me:me 755"), ("theirs", "mal:mal 755"), ("open", "root:root 777")):
        for above in (base, directory):
            (above / place).mkdir()
            give(above / place, mode)
    for above in (base / "open", directory / "open"):
        for place, owner in (("mine", "me:me 755"), ("theirs", "mal:mal 755")):
            (above / place).mkdir()
            give(above / place, owner)
    for place in ("mine", "open"):
        (directory / place / "file").touch()
        os.chown(directory / place / "file", UIDS["me"], GIDS["me"])
    (directory / "second").symlink_to("mine")
    os.lchown(directory / "second", UIDS["mal"], GIDS["mal"])
    owner, is_link, target = row.entry.partition(" -> ")
    if is_link:
        entry.symlink_to(target)
        os.lchown(entry, UIDS[owner], GIDS[owner])
    elif row.entry.endswith("/"):
        entry.mkdir()
        give(entry, row.entry[:-1])
    elif row.entry != "-":
        if row.entry.endswith("pipe"):
            os.mkfifo(entry)
        elif row.entry.endswith("null"):
            os.mknod(entry, 0o020666, os.makedev(1, 3))
        else:
            entry.touch()
        give(entry, row.entry)
        if row.entry.endswith("linked"):
            os.link(entry, base / "linked")
    give(directory, row.above)
    return entry


def as_me(base: Path, accounts: str, argv: list[str], stdin: str) -> str:
    """Run a program as me, where the accounts are those of the rows."""
    users = [f"{name}:x:{uid}:{GIDS.get(name, GIDS['me'])}::/:/bin/sh" for name, uid in UIDS.items()]
    users = [user for user in users if not user.startswith("svc") or accounts == "svc"]
    members = {"team": "me,mal", "me": "mal" if accounts == "member" else ""}
    groups = [f"{name}:x:{gid}:{members.get(name, '')}" for name, gid in GIDS.items()]
    for name, lines in (("passwd", users), ("group", groups)):
        (base / name).write_text("".join(f"{line}\n" for line in lines))
    mounts = 'mount --bind "$1/passwd" /etc/passwd; mount --bind "$1/group" /etc/group; shift; exec "$@"'
    account = ["setpriv", f"--reuid={UIDS['me']}", f"--regid={GIDS['me']}", f"--groups={GIDS['team']}"]
    may_read = [f"--{caps}=-all,+dac_read_search" for caps in ("inh-caps", "ambient-caps", "bounding-set")]
    argv = ["unshare", "--mount", "sh", "-ec", mounts, "sh", str(base), *account, *may_read, *argv]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Looks:
    def __init__(self, base: Path) -> None:
        self.paths = {row: make(base / f"{number:03}", row) for number, row in enumerate([*ROWS, *FILE_ROWS])}
        self.in_python: dict[Row, list[str]] = {}
        self.in_sh: dict[tuple[str, Row], str] = {}
        for accounts in ("plain", "svc", "member"):
            rows = [row for row in self.paths if row.accounts == accounts]
            paths = [str(self.paths[row]) for row in rows]
            found = as_me(base, accounts, [sys.executable, "-c", LOOK, str(ROOT)], json.dumps(paths))
            self.in_python.update(zip(rows, json.loads(found), strict=True))
            for shell in SHELLS:
                script = [*shell.split(), "-c", shell_text(WALK) + LOOK_IN_SH]
                lines = as_me(base, accounts, script, "".join(f"{path}\n" for path in paths)).splitlines()
                self.in_sh.update({(shell, row): line for row, line in zip(rows, lines, strict=True)})


@pytest.fixture(scope="module")
def looks() -> Iterator[Looks]:
    with tempfile.TemporaryDirectory(prefix="ipexctl-tests-") as directory:
        Path(directory).chmod(0o755)
        yield Looks(Path(directory))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join((row.above, "with", row.entry, row.accounts)))
def test_a_directory(row: Row, looks: Looks) -> None:
    own, named = row.expected
    found = looks.in_python[row]
    assert ["ok" if found[0] == "missing" else found[0], found[1]] == [own, named]
    for shell in SHELLS:
        line = looks.in_sh[shell, row]
        kind = next((kind for text, kind in KINDS.items() if text in line), line)
        if own == "error":  # sh leaves it to the program that enters the path
            assert kind == "ok"
        elif "busybox" not in shell and not ("+" in row.above + row.entry and shutil.which("getfacl") is None):
            assert kind == own, (shell, line)
        else:  # without them, no access control list can be read, and the group counts as others
            assert kind == own or kind in ("group", "acl"), (shell, line)


@pytest.mark.parametrize("row", FILE_ROWS, ids=lambda row: " ".join((row.above, "with", row.entry)))
def test_a_file_that_the_user_names_or_that_was_found(row: Row, looks: Looks) -> None:
    assert looks.in_python[row][1:] == list(row.expected)
