"""A member of a team against `push`: real accounts, the real agent, and a directory that both may change.

They rename what push makes there, and put links and directories of their own in its place. Nothing may be
written outside of the path, and nothing of the victim is read.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node_store_helpers import END, file_of, frame

from ipexctl.node.common.fix import fix_from_json
from ipexctl.node.files.place import CONTENT, PARCEL
from ipexctl.node.files.push import list_name, own_directory
from ipexctl.remote.node_call import agent_zip

VICTIM, ATTACKER, TEAM = 61001, 61002, 61100
PYTHON = "/usr/bin/python3"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="two accounts need root"),
    pytest.mark.skipif(not os.access(PYTHON, os.X_OK), reason="other accounts need a Python that they can reach"),
]


class Team:
    """The victim's home, a directory of the team, and a place of the attacker's own."""

    def __init__(self, top: Path) -> None:
        self.home, self.data, self.own = top / "victim", top / "models", top / "attacker"
        for path, owner, mode in ((self.home, VICTIM, 0o755), (self.data, 0, 0o2775), (self.own, ATTACKER, 0o755)):
            path.mkdir()
            os.chown(path, owner, TEAM)
            path.chmod(mode)
        (self.home / ".ssh").mkdir()
        (self.home / ".bashrc").write_text("mine\n")
        for path in (self.home / ".ssh", self.home / ".bashrc"):
            os.chown(path, VICTIM, TEAM)
        self.agent = top / "agent.zip"
        self.agent.write_bytes(agent_zip("files"))
        self.agent.chmod(0o644)

    def call(self, command: str, action: str, request: dict[str, Any], stdin: bytes = b"") -> dict[str, Any]:
        """The last event of the agent, run as the victim."""
        done = subprocess.run(
            [PYTHON, "-I", "-S", self.agent, f"files.{command}", action],
            input=json.dumps(request).encode() + b"\n" + stdin,
            capture_output=True,
            timeout=60,
            check=False,
            user=VICTIM,
            group=TEAM,
            extra_groups=[TEAM],
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin"},
            cwd="/",
        )
        assert b"Traceback" not in done.stderr, done.stderr
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return last

    def inspect(self, rows: list[list[Any]], path: str, *, force: bool = False) -> dict[str, Any]:
        packed, is_file = gzip.compress(json.dumps(rows).encode()), rows[0][1] == "f"
        request = {"path": path, "home": "~/.ipexctl", "manifest": len(packed), "is_file": is_file, "force": force}
        return self.call("push", "inspect", {**request, "dry_run": False, "quick": False, "repos": ""}, packed)

    def receive(self, found: dict[str, Any], *contents: bytes, name: str = CONTENT) -> dict[str, Any]:
        request = {"store": f"{found['directory']}/store", "files": None, "guarded": True}
        stream = b"".join(frame(content, name) for content in contents) + END
        return self.call("store", "receive", request, stream)

    def place(self, found: dict[str, Any], *contents: bytes, name: str = CONTENT) -> dict[str, Any]:
        parcels = [str(file_of(content)["sha256"]) for content in contents if name == PARCEL]
        request = {"path": found["path"], "listed": found["listed"], "force": False, "repos": "", "parcels": parcels}
        request |= {"home": "~/.ipexctl", "by": None}
        # An older agent took the directory from the request.
        return self.call("push", "place", {**request, "directory": found["directory"]})

    def as_attacker(self, code: str, *args: object) -> None:
        argv = [PYTHON, "-I", "-S", "-c", f"import os, sys, json\n{code}", *map(str, args)]
        subprocess.run(
            argv, user=ATTACKER, group=TEAM, extra_groups=[TEAM], check=True, timeout=60, cwd="/", umask=0o022
        )

    def untouched(self) -> bool:
        files = {str(path.relative_to(self.home)) for path in self.home.rglob("*")}
        files = {path for path in files if path.split("/")[0] != ".ipexctl"}  # the record of the push
        return files == {".ssh", ".bashrc"} and (self.home / ".bashrc").read_text() == "mine\n"


@pytest.fixture
def team() -> Iterator[Team]:
    top = Path(tempfile.mkdtemp(prefix="team-"))
    top.chmod(0o755)
    yield Team(top)
    shutil.rmtree(top)


CONTENTS = b"weights" * 1000
ROWS = [["", "d", 0o755, 0, ""], ["model.bin", "f", 0o644, len(CONTENTS), hashlib.sha256(CONTENTS).hexdigest()]]
FORGED = """\
directory, own, victim, sha, pwned, parcel, listed = sys.argv[1:]
os.makedirs(own + "/fake/store/" + sha)
open(own + "/fake/store/" + sha + "/parcel", "wb").write(bytes.fromhex(parcel))
json.dump({"rows": [[victim + "/.ssh/rc", "f", 0o755, 11, pwned]]}, open(own + "/fake/" + listed, "w"))
os.system(f"chmod -R a+rwX {own}/fake")
os.rename(directory, directory + ".aside")
os.rename(own + "/fake", directory)
"""
"""The attacker's own directory in place of push's: its list names a file of the victim by an absolute path."""
PWNED = b"echo pwned\n"


def forged(team: Team, directory: object, parcel: bytes, code: str = FORGED) -> None:
    sha256, content = str(file_of(parcel)["sha256"]), str(file_of(PWNED)["sha256"])
    stream, rows = frame(PWNED, content) + END, json.dumps(ROWS, separators=(",", ":")).encode()
    listed = os.fsdecode(list_name(hashlib.sha256(rows).hexdigest()))
    team.as_attacker(code, directory, team.own, team.home, sha256, content, stream.hex(), listed)


def test_a_directory_that_a_member_of_the_team_puts_in_place_is_not_used(team: Team) -> None:
    found = team.inspect(ROWS, str(team.data))
    parcel = frame(CONTENTS, str(ROWS[1][4])) + END
    assert team.receive(found, parcel, name=PARCEL)["event"] == "done"
    forged(team, found["directory"], parcel)
    assert team.place(found, parcel, name=PARCEL)["event"] == "failed"
    assert team.untouched()
    assert team.receive(found, parcel, name=PARCEL)["event"] == "failed", "nothing arrives in another's directory"


@pytest.mark.core
def test_each_push_places_what_is_in_its_own_list(team: Team) -> None:
    """Two hosts may see the same directory and lack different things; what a list has become meanwhile is not used."""
    found, other = team.inspect(ROWS, str(team.data)), [*ROWS, ["more.bin", "f", 0o644, len(CONTENTS), ROWS[1][4]]]
    second = team.inspect(other, str(team.data))
    assert second["directory"] == found["directory"]
    assert second["listed"] != found["listed"]
    team.receive(found, CONTENTS)
    lists = sorted(Path(found["directory"]).glob("list-*.json"))
    assert len(lists) == 2
    for file in lists:
        file.write_text(json.dumps(other))
    refused = team.place(found, CONTENTS)
    assert "was changed" in refused["reason"]
    assert not (team.data / "model.bin").exists()
    assert team.inspect(ROWS, str(team.data)) == found
    assert team.place(found, CONTENTS)["event"] == "done"
    assert {path.name for path in team.data.iterdir()} == {"model.bin"}


@pytest.mark.parametrize("force", [False, True])
def test_a_link_of_another_account_in_the_path_is_not_followed(team: Team, force: bool) -> None:
    shared = team.data.with_name("tmp")
    shared.mkdir()
    shared.chmod(0o1777)
    for name, target in (("dataset", team.home / ".ssh"), ("home", team.home)):
        team.as_attacker("os.symlink(sys.argv[2], sys.argv[1])", shared / name, target)
    rows = [["", "d", 0o755, 0, ""], [".bashrc", "f", 0o644, len(CONTENTS), ROWS[1][4]]]
    for path in ("dataset", "home/data", "home/.ssh"):
        found = team.inspect(rows, f"{shared}/{path}", force=force)
        assert found["event"] == "failed", found
        assert "--checkpoint" not in fix_from_json(found["fix"])
    assert team.untouched()


def test_a_member_who_renames_all_the_time_redirects_nothing(team: Team) -> None:
    """The attacker exchanges push's directory with one of their own, as fast as they can, during whole pushes."""
    parcel = frame(CONTENTS, str(ROWS[1][4])) + END
    directory = team.data / os.fsdecode(own_directory(str(team.data)))
    forged(team, directory, parcel, FORGED.partition("os.rename")[0])
    racing = """\
import time
directory, fake = sys.argv[1:]
end = time.monotonic() + 6
while time.monotonic() < end:
    for old, new in ((directory, directory + ".aside"), (fake, directory), (directory, fake)):
        try:
            os.rename(old, new)
        except OSError:
            pass
    try:
        os.rename(directory + ".aside", directory)
    except OSError:
        pass
"""
    attacker = threading.Thread(target=team.as_attacker, args=(racing, directory, team.own / "fake"))
    attacker.start()
    ends = []
    until = time.monotonic() + 6
    while time.monotonic() < until:
        found = team.inspect(ROWS, str(team.data))
        if found["event"] == "done" and found["directory"]:
            team.receive(found, parcel, name=PARCEL)
            ends.append(team.place(found, parcel, name=PARCEL)["event"])
        (team.data / "model.bin").unlink(missing_ok=True)
    attacker.join()
    assert team.untouched()
    assert {path.name.partition(".aside")[0] for path in team.data.iterdir()} <= {directory.name, "model.bin"}
