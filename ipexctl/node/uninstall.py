"""List and remove what ipexctl put into a home on this host. Files that runs wrote are kept unless their removal is
requested.

`remove` changes nothing while a run or another process uses the home. It keeps `tune.before`, which is needed to undo
the settings.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from abc import ABC, abstractmethod
from typing import BinaryIO, Iterator, NamedTuple, Sequence

from ipexctl.node.common.answer import Action, AgentError, answer
from ipexctl.node.common.clock import age_of, seconds_since
from ipexctl.node.common.files import disk_usage, encode_name, read_json
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.home import DIRECTORIES, HOME_ENTRIES, MARK, HomeRefused, check_home, home_of, remove_mark
from ipexctl.node.common.home_entries import PUSHED, TREE, foreign_entries, is_results, is_run, is_tree, own_entries
from ipexctl.node.common.liveness import REPORT_LIMITS, RESERVED_FILE, Liveness, liveness_of
from ipexctl.node.common.owners import Owned, RemovalRequest, find_foreign, name_owners
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.processes import is_partial_in_use
from ipexctl.node.common.store_lock import is_alive
from ipexctl.node.env import environments
from ipexctl.node.files.checkpoint_aside import remove_aside
from ipexctl.node.files.pushed import PushedData, read_pushed, remove_pushed
from ipexctl.node.files.tree import ProjectTree
from ipexctl.node.files.tree_upload import TreePlan
from ipexctl.node.run.meter.window_file import HOST_SUFFIX, RANK_SUFFIX
from ipexctl.node.run.record.stored_status import NoRecord, read_document
from ipexctl.node.run.retention import runs_with_processes


class FileGroup(NamedTuple):
    """Files of one kind."""

    kind: str
    entries: int
    size: int
    """Bytes."""
    path: str = ""
    """Directory of files that are kept; else empty."""
    fix: str = ""
    """How to remove them if they stay; the control machine sets it."""


class HomeReply(NamedTuple):
    """What is in a home, and what an uninstall removes or keeps of it."""

    logins: bool
    """True if the home contains a directory `ssh`."""
    live: tuple[str, ...]
    """Runs that are alive."""
    starting: tuple[str, ...]
    """Runs that have files here and may still start."""
    over: tuple[str, ...]
    """Runs that have ended, according to their record here."""
    busy: tuple[str, ...]
    """Why nothing can be removed now, apart from runs."""
    found: tuple[FileGroup, ...]
    """What is removed, or would be."""
    left: tuple[FileGroup, ...]
    """What is kept; `runs`, `projects` and `results` are files that runs wrote."""
    foreign: tuple[Owned, ...] = ()
    """Runs and environments that others made."""


OUTPUT_DIRECTORIES = ("ranks", "spill")
WINDOW_SUFFIXES = tuple(encode_name(suffix) + part for suffix in (RANK_SUFFIX, HOST_SUFFIX) for part in (b"", b".part"))
KINDS = {"wheels": "wheels", "agent": "agent", "checkpoints": "checkpoints", "hub": "hub", "temporary": "tmp"}
MAX_FOREIGN = 200


class UninstallRequest(RemovalRequest):
    """Request to list or remove what is in a home."""

    home: str
    results: bool
    """True to remove files that runs wrote, too."""
    ended: Sequence[str]
    """Runs that the caller knows to have ended or never started."""


class Part(ABC):
    """A part of a home in which files of runs may be: a run, a project's tree, or a directory of results."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    @abstractmethod
    def results(self) -> list[bytes]:
        """Return the files that runs wrote, without bytecode."""

    def files(self, *, with_results: bool) -> list[bytes]:
        """Return all files of the part; unless `with_results`, without those that runs wrote."""
        kept = set() if with_results else set(self.results())
        return [path for path in files_below(self.path) if path not in kept]

    def remove(self, *, with_results: bool) -> None:
        """Remove these files, and then the directories that are empty."""
        for path in self.files(with_results=with_results):
            os.unlink(path)
        for above, _, _ in os.walk(self.path, topdown=False):
            remove_directory(above)


class TreePart(Part):
    """The tree of a project, into which runs may have written."""

    def __init__(self, home: str, name: str) -> None:
        match = TREE.fullmatch(name)
        assert match is not None
        self.tree = ProjectTree(os.fsencode(home), match[1], int(match[2] or 1))
        super().__init__(self.tree.path)

    def results(self) -> list[bytes]:
        """Return the files that sync did not write, or that were changed since."""
        synced = {self.tree.path_of(path) for path in TreePlan(self.tree, [], []).remove}
        state = self.tree.state_directory + b"/"
        files = (path for path in files_below(self.path) if path not in synced and not path.startswith(state))
        return [path for path in files if not is_bytecode(path)]

    def remove(self, *, with_results: bool) -> None:
        """Remove the tree's files. The state directory goes last, because it marks the tree as ipexctl's, and only if
        no file is kept."""
        state = self.tree.state_directory
        with self.tree.lock():  # no sync is running
            removed = self.files(with_results=with_results)
        for path in removed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        for above, _, _ in os.walk(self.path, topdown=False):
            if above not in (state, self.path):
                remove_directory(above)
        if list_names(self.path) == [os.path.basename(state)]:
            remove_directory(state)
            remove_directory(self.path)


class RunPart(Part):
    """The directory of a run."""

    def __init__(self, home: str, name: str) -> None:
        self.name = name
        super().__init__(os.fsencode(f"{home}/runs/{name}"))

    def liveness(self) -> Liveness:
        """Return whether the run is alive, by its files. Processes on this host are checked elsewhere."""
        rundir = os.fsdecode(self.path)
        try:
            stored = read_document(f"{rundir}/status.json")
        except NoRecord:  # a node other than node0, or before the start
            names = ("job.json", RESERVED_FILE, "agent.zip")
            job, reserved, agent = (age_or_infinite(self.path + b"/" + encode_name(name)) for name in names)
            job = min(job, reserved)
            return liveness_of(None, min(job, agent), REPORT_LIMITS, has_job=math.isfinite(job))
        except AgentError:
            return "unknown"
        return liveness_of(stored.status, seconds_since(stored.written), REPORT_LIMITS)

    def results(self) -> list[bytes]:
        """Return the output of the run. Window files are ipexctl's own, and empty files do not count."""
        directories = [self.path + b"/" + encode_name(name) for name in OUTPUT_DIRECTORIES]
        paths = [path for directory in directories for path in files_below(directory)]
        return [path for path in paths if not path.endswith(WINDOW_SUFFIXES) and os.lstat(path).st_size]


class ResultsPart(Part):
    """A directory of results of runs."""

    def __init__(self, path: str) -> None:
        super().__init__(os.fsencode(path))

    def results(self) -> list[bytes]:
        """Return all files: everything in a directory of results was written by runs."""
        return list(files_below(self.path))


class HomeContents:
    """What is in a home. Its runs, trees and results are listed once, when this object is made."""

    def __init__(self, request: UninstallRequest) -> None:
        self.home, self.request = home_of(request), request
        self.takes_results, self.ended = request["results"], list(request["ended"])
        check_home(self.home)
        self.pushed = [pushed for _, pushed in read_pushed(self.home)]
        self.runs = [RunPart(self.home, os.path.basename(path)) for path in self._own("runs") if is_run(path)]
        self.result_directories = [ResultsPart(path) for path in self._own("results")]
        self.trees = [TreePart(self.home, os.path.basename(path)) for path in self._own("code") if is_tree(path)]

    def _own(self, directory: str) -> list[str]:
        return own_entries(self.home, directory)

    def run_states(self) -> dict[Liveness, list[str]]:
        """Return state → names of the runs in it. A starting run that is in the request's `ended` is `unknown`."""
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
        """Return why nothing can be removed now, apart from runs, as sentences; empty if nothing prevents it."""
        reasons = []
        if users := environments.find_users([f"{self.home}/envs"]):
            reasons.append(f"process {', '.join(map(str, users[:5]))} uses an environment there")
        downloads = any(is_partial_in_use(path) for path in self._own("wheels") if path.endswith(".part"))
        if downloads or any(is_alive(path) for path in self._own("tmp") if "/owner-" in path):
            reasons.append("an install is running there")
        return reasons

    def describe(self) -> HomeReply:
        """Return what is in the home, and what of it would be removed."""
        states = self.run_states()
        return HomeReply(
            os.path.isdir(f"{self.home}/ssh"),
            live=tuple(states["live"]),
            starting=tuple(states["starting"]),
            over=tuple(sorted(states["over"] + states["dead"])),
            busy=() if states["live"] else tuple(self.busy()),
            found=tuple(entry for entry in self.found() if entry.entries),
            left=tuple(self.left()),
            foreign=self.foreign(),
        )

    def foreign(self) -> tuple[Owned, ...]:
        """Return the runs, environments and pushed data that others made."""
        runs = {run.name: read_json(f"{self.home}/runs/{run.name}/{PLAN_FILE}") for run in self.runs}
        found = environments.list_environments({"home": self.home}).envs
        envs = {env.name: read_json(f"{env.path}/env.json") for env in found}
        data = {pushed.path: pushed._asdict() for pushed in self.pushed}
        documents = {"run": runs, "environment": envs, "pushed path": data}
        return sum((find_foreign(kind, made, self.request) for kind, made in documents.items()), ())

    def found(self) -> Iterator[FileGroup]:
        """Yield what would be removed, by kind. A kind may have no entries."""
        envs = environments.list_environments({"home": self.home}).envs
        yield FileGroup("environments", len(envs), sum(env.bytes or 0 for env in envs))
        for kind, parts in self.parts().items():
            files = [part.files(with_results=self.takes_results) for part in parts]
            removable = [paths for part, paths in zip(parts, files) if paths or not part.results()]
            yield FileGroup(kind, len(removable), sum(size_of(path) for paths in removable for path in paths))
        yield from (pushed_entry("pushed", each) for each in self.pushed if self.takes_results)
        for kind, name in KINDS.items():
            paths = self._own(name)
            yield FileGroup(kind, len(paths), sum(usage_of(path) for path in paths))

    def parts(self) -> dict[str, list[Part]]:
        """Return kind → the parts that may contain files of runs."""
        return {"runs": [*self.runs], "projects": [*self.trees], "results": [*self.result_directories]}

    def left(self) -> Iterator[FileGroup]:
        """Yield what would be kept: files of runs, pushed data, saved settings, and files that are not ipexctl's."""
        for (kind, parts), name in zip(self.parts().items(), ("runs", "code", "results")):
            results = [path for part in parts if not self.takes_results for path in part.results()]
            if results:
                size = sum(size_of(path) for path in results)
                yield FileGroup(kind, len(results), size, f"{self.home}/{name}")
        yield from (pushed_entry("pushed", each) for each in self.pushed if not self.takes_results)
        settings = f"{self.home}/tune.before"
        if os.path.lexists(settings):
            yield FileGroup("settings", 1, usage_of(settings), settings)
        foreign = list(foreign_entries(self.home))
        for path in foreign[:MAX_FOREIGN]:
            yield FileGroup("other", 1, usage_of(path), path)
        if rest := foreign[MAX_FOREIGN:]:
            yield FileGroup("other", len(rest), sum(map(usage_of, rest)), self.home)

    def remove(self) -> None:
        """Remove what `found` yields. Raises an AgentError if an environment can't be removed. The caller has refused a
        home in use."""
        envs = [env.name for env in environments.list_environments({"home": self.home}).envs]
        request: environments.RemoveRequest = {
            "home": self.home,
            "names": envs,
            "used": {},
            "records": self.request["records"],
            "known": (),
            "force": True,  # foreign ones were refused before
        }
        for env, reason in environments.remove(request).failed.items():
            raise AgentError(f"{env} was not removed: {reason}")
        for path in self._own("checkpoints"):
            remove_aside(f"{path}/aside")  # may be on another disk, in a tree
        for part in (*self.trees, *self.runs, *self.result_directories):
            part.remove(with_results=self.takes_results)
        for name in DIRECTORIES:
            for path in self._own(name):
                # A part that has results or has just begun, and the record of what stays.
                if not (is_run(path) or is_tree(path) or is_results(path) or name == PUSHED):
                    remove_tree(os.fsencode(path))
            remove_directory(os.fsencode(f"{self.home}/{name}"))
        remove_tree(os.fsencode(f"{self.home}/tune.before.rest"))

    def remove_home(self) -> None:
        """Remove the mark and the home if nothing of ipexctl is left. Without the mark, the directory would no longer
        be a home."""
        if any(os.path.lexists(f"{self.home}/{name}") for name in HOME_ENTRIES - {MARK}):
            return
        remove_mark(self.home)
        remove_directory(os.fsencode(self.home))


def pushed_entry(kind: str, pushed: PushedData) -> FileGroup:
    """Return the group for data that a push wrote. Its path begins with the host if that is not this one."""
    where = "" if pushed.host == os.uname().nodename else f"{pushed.host}:"
    return FileGroup(kind, len(pushed.entries), pushed.size, where + pushed.path)


def is_directory(path: bytes) -> bool:
    """True for a directory that is not reached through a symlink."""
    return os.path.isdir(path) and not os.path.islink(path)


def list_names(directory: bytes) -> list[bytes]:
    """Return the sorted names in a directory; empty if there is none, or if it is a symlink."""
    return sorted(os.listdir(directory)) if is_directory(directory) else []


def files_below(directory: bytes) -> Iterator[bytes]:
    """Yield all files and symlinks below a directory. Symlinks are not followed."""
    for name in list_names(directory):
        path = directory + b"/" + name
        if is_directory(path):
            yield from files_below(path)
        else:
            yield path


def is_bytecode(path: bytes) -> bool:
    """True for a compiled file of Python in `__pycache__`."""
    return path.endswith(b".pyc") and os.path.basename(os.path.dirname(path)) == b"__pycache__"


def size_of(path: bytes) -> int:
    """Return the bytes of one file on disk; 0 if it is gone."""
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def remove_directory(directory: bytes) -> None:
    """Remove a directory if it is empty, and leave it otherwise."""
    with contextlib.suppress(OSError):  # not empty, or a user's link
        os.rmdir(directory)


def remove_tree(path: bytes) -> None:
    """Remove a directory with its files, a file or a symlink. Raises an OSError if that fails; a missing path is no
    error."""
    if is_directory(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def usage_of(path: str) -> int:
    """Return the bytes on disk of a file, or of a directory with its files."""
    return disk_usage(path) if is_directory(os.fsencode(path)) else size_of(os.fsencode(path))


def age_or_infinite(path: bytes) -> float:
    """Return the seconds since the file was changed; infinity if there is none."""
    try:
        return age_of(path)
    except OSError:
        return math.inf


def remove(request: UninstallRequest, _: BinaryIO) -> HomeReply:
    """Remove what ipexctl put into the home, and return what was found and what is left. Raises an AgentError, before
    anything is removed, if a run or another process uses the home or, without `force`, if others made something in it.
    """
    contents = HomeContents(request)
    description = contents.describe()
    for run in (*description.live, *description.starting):
        raise AgentError(f"run {run} is not over", Fix("`ipexctl stop {run}`", run=run))
    if description.foreign and not request["force"]:
        raise AgentError(name_owners(description.foreign), Fix("to remove it, too: `ipexctl uninstall --force`"))
    for reason in description.busy:
        raise AgentError(reason, Fix("wait until it has ended, then run `ipexctl uninstall` again"))
    changed = remove_pushed(contents.home) if contents.takes_results else []
    contents.remove()
    after = HomeContents(request)
    left = (*after.left(), *(pushed_entry("changed", each) for each in changed))
    after.remove_home()
    return description._replace(left=left, logins=os.path.isdir(f"{after.home}/ssh"))


def remove_data(request: UninstallRequest, _: BinaryIO) -> HomeReply:
    """Remove only the pushed data on this host's own disks, for another host of a shared home."""
    changed = remove_pushed(home_of(request))
    description = HomeContents(request).describe()
    return description._replace(found=(), left=tuple(pushed_entry("changed", each) for each in changed))


def list_home(request: UninstallRequest, _: BinaryIO) -> HomeReply:
    """Return what is in the home; remove nothing."""
    return HomeContents(request).describe()


def main(action: str) -> int:
    """List or remove what is in the home, as the call of the agent asks."""
    actions: dict[str, Action] = {"list": list_home, "remove": remove, "remove_data": remove_data}

    def act(request: UninstallRequest, stdin: BinaryIO) -> object:
        try:
            return actions[action](request, stdin)
        except HomeRefused as refused:
            # The fix for other calls names a new directory for a home, which would be wrong here.
            fix = "nothing there is removed; name ipexctl's directory: --home DIR"
            failed = AgentError(refused.reason, fix)
            failed.is_wrong_call = refused.is_wrong_call
            raise failed from None

    return answer(act)
