"""Lists and removes what ipexctl put into a home of this host; files that runs wrote stay unless they are requested.

`remove` changes nothing while a run or another process uses the
home. It does not remove the files of `trust`; `tune.before` stays, because it is needed to undo the settings.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import time
from pathlib import Path
from typing import BinaryIO, Iterator, Sequence, TypedDict

from ipexctl.node.common.answer import Action, AgentError, answer
from ipexctl.node.common.files import HOME_ENTRIES, check_owner, disk_usage, encode_name, home_of
from ipexctl.node.common.liveness import REPORT_LIMITS, Liveness, liveness_of
from ipexctl.node.common.processes import is_partial_in_use
from ipexctl.node.common.store_lock import is_alive
from ipexctl.node.env import environments
from ipexctl.node.env.environments import list_directory
from ipexctl.node.files.tree import ProjectTree
from ipexctl.node.files.tree_upload import Plan
from ipexctl.node.run.retention import runs_with_processes
from ipexctl.node.run.status_file import NoRecord, read_document
from ipexctl.node.uninstall.replies import HomeEntry, HomeReply

OUTPUT_DIRECTORIES = ("ranks", "spill")
"""The directories of a run with the output of its ranks."""
STAYS = frozenset({"ssh", "tune.before"})
_TREE = re.compile(r"(.+-[0-9a-f]{8})(?:\.gen([0-9]+))?")


class UninstallRequest(TypedDict):
    """Of `list` and `remove`."""

    home: str
    results: bool
    """Whether files that runs wrote go too."""
    ended: Sequence[str]
    """Runs that have ended or were never started."""


class Part:
    """A directory of the home with files of ipexctl and files that runs wrote."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def results(self) -> list[bytes]:
        """The files that runs wrote, without bytecode."""
        raise NotImplementedError

    def files(self, *, with_results: bool) -> list[bytes]:
        """The files to remove."""
        kept = set() if with_results else set(self.results())
        return [path for path in files_below(self.path) if path not in kept]

    def remove(self, *, with_results: bool) -> None:
        for path in self.files(with_results=with_results):
            os.unlink(path)
        for above, _, _ in os.walk(self.path, topdown=False):
            remove_directory(above)


class TreePart(Part):
    """A project's tree."""

    def __init__(self, home: str, name: str) -> None:
        match = _TREE.fullmatch(name)
        assert match is not None
        self.tree = ProjectTree(os.fsencode(home), match[1], int(match[2] or 1))
        super().__init__(self.tree.path)

    def results(self) -> list[bytes]:
        """All but what sync wrote and nothing changed since."""
        synced = {self.tree.path_of(path) for path in Plan(self.tree, []).remove}
        state = self.tree.state_directory + b"/"
        files = (path for path in files_below(self.path) if path not in synced and not path.startswith(state))
        return [path for path in files if not is_bytecode(path)]

    def remove(self, *, with_results: bool) -> None:
        if self.tree.exists():
            with self.tree.lock():  # no sync is at work, and none begins while its state is still there
                kept = self.files(with_results=with_results)
            remove_tree(self.tree.state_directory)
            for path in kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        super().remove(with_results=with_results)


class RunPart(Part):
    """The files of a run on this host."""

    def __init__(self, home: str, name: str) -> None:
        self.name = name
        super().__init__(os.fsencode(f"{home}/runs/{name}"))

    def liveness(self) -> Liveness:
        """By its files alone; processes on this host can show that it is in use."""
        try:
            stored = read_document(os.fsdecode(self.path + b"/status.json"))
        except NoRecord:  # a node other than node0, or before the start
            job, agent = (age_of(self.path + name) for name in (b"/job.json", b"/agent.zip"))
            return liveness_of(None, min(job, agent), REPORT_LIMITS, has_job=math.isfinite(job))
        except AgentError:
            return "unknown"
        return liveness_of(stored.status, time.time() - stored.written, REPORT_LIMITS)

    def results(self) -> list[bytes]:
        """The output of its ranks."""
        directories = [self.path + b"/" + encode_name(name) for name in OUTPUT_DIRECTORIES]
        return [path for directory in directories for path in files_below(directory) if os.lstat(path).st_size]


class HomeContents:
    """The home of a request, as it is. Reading it changes nothing."""

    def __init__(self, request: UninstallRequest) -> None:
        self.home = home_of(request)
        self.takes_results, self.ended = request["results"], list(request["ended"])
        check_owner(self.home)
        self.runs = [RunPart(self.home, path.name) for path in self._directories("runs")]
        self.trees = [
            TreePart(self.home, path.name) for path in self._directories("code") if _TREE.fullmatch(path.name)
        ]

    def _directories(self, name: str) -> list[Path]:
        entries = list_directory(Path(self.home, name))
        return [path for path in entries if is_directory(os.fsencode(path)) and not path.name.startswith(".")]

    def run_states(self) -> dict[Liveness, list[str]]:
        """The names of the runs in each state. `ended` of the request wins over `starting`."""
        active = runs_with_processes(f"{self.home}/runs") if self.runs else set()
        states: dict[str, Liveness] = {run.name: "live" if run.name in active else run.liveness() for run in self.runs}
        for tree in self.trees:
            for name in tree.tree.active_runs(None, self.ended):
                states[name] = "live" if states.get(name) == "live" else "starting"
        names: dict[Liveness, list[str]] = {"live": [], "starting": [], "dead": [], "over": [], "unknown": []}
        for name, state in sorted(states.items()):
            names["unknown" if state == "starting" and name in self.ended else state].append(name)
        return names

    def busy(self) -> list[str]:
        """Reasons why nothing can be removed now, apart from runs."""
        home = Path(self.home)
        reasons = []
        if users := environments.find_users([f"{self.home}/envs"]):
            reasons.append(f"process {', '.join(map(str, users[:5]))} uses an environment there")
        downloads = any(is_partial_in_use(str(path)) for path in (home / "wheels").glob("*.part"))
        if downloads or any(is_alive(str(marker)) for marker in (home / "tmp").glob("owner-*")):
            reasons.append("an install is at work there")
        return reasons

    def describe(self) -> HomeReply:
        states = self.run_states()
        return HomeReply(
            os.path.isdir(f"{self.home}/ssh"),
            live=tuple(states["live"]),
            starting=tuple(states["starting"]),
            over=tuple(sorted(states["over"] + states["dead"])),
            busy=() if states["live"] else tuple(self.busy()),
            found=tuple(entry for entry in self.found() if entry.entries),
            left=tuple(self.left()),
        )

    def found(self) -> Iterator[HomeEntry]:
        """The entries that `remove` removes."""
        envs = environments.list_environments({"home": self.home}).envs
        yield HomeEntry("environments", len(envs), sum(env.bytes for env in envs))
        for kind, parts in self.parts().items():
            files = [part.files(with_results=self.takes_results) for part in parts]
            removable = [paths for part, paths in zip(parts, files) if paths or not part.results()]
            yield HomeEntry(kind, len(removable), sum(size_of(path) for paths in removable for path in paths))
        kinds = {"wheels": "wheels", "agent": "agent", "checkpoints": "checkpoints", "temporary": "tmp"}
        for kind, name in kinds.items():
            path = Path(self.home, name)
            yield HomeEntry(kind, len(list_directory(path)), disk_usage(path))

    def parts(self) -> dict[str, list[Part]]:
        return {"runs": [*self.runs], "projects": [*self.trees]}

    def left(self) -> Iterator[HomeEntry]:
        """The entries that `remove` leaves there."""
        for (kind, parts), name in zip(self.parts().items(), ("runs", "code")):
            results = [path for part in parts if not self.takes_results for path in part.results()]
            if results:
                size = sum(size_of(path) for path in results)
                yield HomeEntry(kind, len(results), size, f"{self.home}/{name}")
        for path in list_directory(Path(self.home)):
            if path.name not in HOME_ENTRIES or path.name == "tune.before":
                kind = "settings" if path.name == "tune.before" else "other"
                yield HomeEntry(kind, 1, disk_usage(path), str(path))
        for path in self._directories("code"):
            if not _TREE.fullmatch(path.name):
                yield HomeEntry("other", 1, disk_usage(path), str(path))

    def remove(self) -> None:
        envs = [env.name for env in environments.list_environments({"home": self.home}).envs]
        for env, reason in environments.remove({"home": self.home, "names": envs, "used": {}}).failed.items():
            raise AgentError(f"{env} was not removed: {reason}")
        for part in (*self.trees, *self.runs):
            part.remove(with_results=self.takes_results)
        home = os.fsencode(self.home)
        for name in sorted(HOME_ENTRIES - STAYS - {"code", "runs"}):
            remove_tree(home + b"/" + encode_name(name))
        for directory in (home + b"/code", home + b"/runs"):
            for found in list_names(directory):
                if found.startswith(b"."):  # the store's name, the list of pruned runs, locks, remains
                    remove_tree(directory + b"/" + found)
            remove_directory(directory)
        remove_directory(home)


def is_directory(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def list_names(directory: bytes) -> list[bytes]:
    return sorted(os.listdir(directory)) if is_directory(directory) else []


def files_below(directory: bytes) -> Iterator[bytes]:
    """Files and links."""
    for name in list_names(directory):
        path = directory + b"/" + name
        if is_directory(path):
            yield from files_below(path)
        else:
            yield path


def is_bytecode(path: bytes) -> bool:
    return path.endswith(b".pyc") and os.path.basename(os.path.dirname(path)) == b"__pycache__"


def size_of(path: bytes) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def remove_directory(directory: bytes) -> None:
    with contextlib.suppress(OSError):  # it is not empty, or a link of the user
        os.rmdir(directory)


def remove_tree(path: bytes) -> None:
    if is_directory(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def age_of(path: bytes) -> float:
    """Seconds since the last write; infinite if there is no such file."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return math.inf


def remove(request: UninstallRequest, _: BinaryIO) -> HomeReply:
    contents = HomeContents(request)
    description = contents.describe()
    for run in (*description.live, *description.starting):
        raise AgentError(f"run {run} is alive", f"ipexctl stop {run}")
    for reason in description.busy:
        raise AgentError(reason, "wait until it has ended, then run it again")
    contents.remove()
    after = HomeContents(request)
    return description._replace(left=tuple(after.left()), logins=os.path.isdir(f"{after.home}/ssh"))


def main(action: str) -> int:
    actions: dict[str, Action] = {"list": lambda request, _: HomeContents(request).describe(), "remove": remove}
    return answer(actions[action])
