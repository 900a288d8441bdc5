"""Recognizes the entries that ipexctl made in a home's directories, by name and structure. Others are never removed.

If a user replaced a directory with a link to a larger disk, the link stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Callable, Iterator, Mapping

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import read_json
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.home import HOME_ENTRIES, IGNORED, STATE_DIRECTORY
from ipexctl.node.common.hub_cache import HF_HOME, HUB_CACHE, is_cache_name

RUN_ID = re.compile(r".+-[0-9]{4}-[0-9]{6}-[0-9a-f]{4}", re.DOTALL)
_RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RUN_FILES = ("status.json", "job.json", "agent.zip", "rank.py", "hooks", "ranks", "machine", "files")
TREE = re.compile(r"(.+-[0-9a-f]{8})(?:\.gen([0-9]+))?", re.DOTALL)
_LEASES = f"{STATE_DIRECTORY}/leases".encode()
_HEX12 = "[0-9a-f]{12}"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PARTIAL = re.compile(r"[0-9a-f]+\..+\.[0-9]+\.[0-9a-f]+\.part")
"""`processes.partial_name` of a file in the store."""
LOCK_DIRECTORY = re.compile(r"lock\..+\.[0-9]+\.[0-9a-f]{8}\.part")
"""`processes.partial_name` of a directory for locking versions."""
BUILD_DIRECTORY = re.compile(rf"build-{_HEX12}")
STAGED_ENVIRONMENT = re.compile(rf"\.build-{_HEX12}(\+old|\+removed)?")
_LINK = re.compile(rf"\.link-{_HEX12}")
_OWNER = re.compile(rf"owner-[0-9a-f]+(\.{_HEX12})?")
_LOCK = re.compile(rf".+\.lock(\.{_HEX12})?", re.DOTALL)
_COPY = re.compile(r"[0-9a-f]{16}")
_NEW_COPY = re.compile(rf"\.new-{_HEX12}")
_BYTECODE = re.compile(r"[0-9a-f]{16}\.cpython-[0-9]+\.zip|\.[0-9a-f]{16}\.cpython-[0-9]+\.zip\.[0-9a-f]{8}\.new")
_CHECKPOINT = re.compile(r"[0-9a-f]{16}")
_CHECKPOINT_FILES = re.compile(r"files\.json(\.damaged)?|in|out|aside|\.files\.json\.[0-9a-f]{8}\.new")
_DIGEST_NAME = re.compile(r".+-[0-9a-f]{8}", re.DOTALL)
_ENV_FILES = ("env.json", "lock.json", "pyvenv.cfg")
KEPT, KEPT_PART = ".ipexctl-kept", ".ipexctl-kept.part"
REMOVED_RUN = re.compile(r"\.gone-[A-Za-z0-9_][A-Za-z0-9._-]*")
_RUNS_FILES = re.compile(
    rf"\.pruned\.jsonl|\.prune\.lock(\.{_HEX12})?|\.(ages|connectivity)\.json|"
    r"\.\.(pruned\.jsonl|(ages|connectivity)\.json)\.[0-9a-f]{8}\.new"
)
_PUSH = re.compile(r"\.ipexctl-push-[0-9a-f]{16}")
_VERIFIED = re.compile(r"verified\.json|\.verified\.json\.[0-9a-f]{8}\.new")
PUSHED = "pushed"
_HF_DIRECTORIES = ("assets", "datasets", "modules", "xet")
"""Directories that Hugging Face libraries fill from cached repositories."""


def is_directory(path: str) -> bool:
    """Return True for a directory; False for a link to one, and if nothing is there."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def is_file(path: str) -> bool:
    """Return True for a regular file; False for a link to one, and if nothing is there."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def list_names(directory: str) -> list[str]:
    """Return the names in a directory, sorted; empty if it can't be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def is_run(path: str) -> bool:
    """Return True for the directory of a run, of any version: by its record, its job, or its files."""
    name = os.path.basename(path)
    if not is_directory(path) or not _RUN_NAME.fullmatch(name):
        return False
    if str(read_regular(f"{path}/status.json").get("schema")).startswith("ipexctl.status/"):
        return True
    if "rundir" in read_regular(f"{path}/job.json"):
        return True
    if is_file(f"{path}/agent.zip") and is_file(f"{path}/machine"):
        return True
    return bool(RUN_ID.fullmatch(name)) and any(os.path.lexists(f"{path}/{file}") for file in _RUN_FILES)


def read_regular(path: str) -> Mapping[str, object]:
    """Return the JSON object in a regular file (reading a FIFO would block), else an empty one."""
    return read_json(path) if is_file(path) else {}


def is_tree(path: str) -> bool:
    """Return True for a tree of a project, by its name and ipexctl's directory in it."""
    return bool(TREE.fullmatch(os.path.basename(path))) and is_directory(f"{path}/{STATE_DIRECTORY}")


def is_environment(path: str) -> bool:
    """True for an environment: it has our record or, if that is damaged, a lock's name and one other file."""
    if not is_directory(path):
        return False
    record = read_regular(f"{path}/env.json")
    if record.get("digest") or str(record.get("schema")).startswith("ipexctl.env/"):
        return True
    name = os.path.basename(path)
    return bool(_DIGEST_NAME.fullmatch(name)) and any(is_file(f"{path}/{file}") for file in _ENV_FILES)


def is_environment_name(path: str) -> bool:
    """Return True for a link that gives an environment beside it a name, even if that is missing."""
    try:
        target = os.readlink(path).rstrip("/")
    except OSError:
        return False
    return is_plain_name(target)


def is_plain_name(name: str) -> bool:
    """Return True for the name of an entry that is not hidden; False for a path, and for an empty name."""
    return bool(name) and "/" not in name and not name.startswith(".")


def is_agent_copy(path: str) -> bool:
    """Return True for a copy of the agent: a directory, a zip file with bytecode, or one that is being made."""
    name = os.path.basename(path)
    if _BYTECODE.fullmatch(name):
        return is_file(path)
    if _NEW_COPY.fullmatch(name):
        return True
    is_copy = is_directory(f"{path}/ipexctl") or is_file(f"{path}/__main__.py")
    return bool(_COPY.fullmatch(name)) and is_directory(path) and is_copy


def is_stored(path: str) -> bool:
    """Return True for an entry of the store of wheels, or of received files: named by its SHA-256 and without
    directories in it, or a file that is being written."""
    name = os.path.basename(path)
    if _PARTIAL.fullmatch(name):
        return is_file(path)
    return bool(_SHA256.fullmatch(name)) and not any(is_directory(f"{path}/{entry}") for entry in list_names(path))


def is_checkpoint_record(path: str) -> bool:
    """True for what an exchange keeps of a checkpoint: hashes, files being received, files set aside."""
    is_named = _CHECKPOINT.fullmatch(os.path.basename(path)) and is_directory(path)
    return bool(is_named) and all(_CHECKPOINT_FILES.fullmatch(name) for name in list_names(path))


def is_temporary(path: str) -> bool:
    """Return True for an entry of HOME/tmp: received files of a sync, directories of builds, and links that are
    locks."""
    name = os.path.basename(path)
    if name == "sync":
        return is_directory(path) and all(is_stored(f"{path}/{entry}") for entry in list_names(path))
    if BUILD_DIRECTORY.fullmatch(name) or LOCK_DIRECTORY.fullmatch(name):
        return is_directory(path)
    return os.path.islink(path) and bool(_OWNER.fullmatch(name) or _LOCK.fullmatch(name))


def _is_in_envs(path: str) -> bool:
    name = os.path.basename(path)
    if os.path.islink(path):
        return is_environment_name(path) or bool(_LINK.fullmatch(name))
    return bool(STAGED_ENVIRONMENT.fullmatch(name)) or is_environment(path)


def _is_in_runs(path: str) -> bool:
    name = os.path.basename(path)
    if REMOVED_RUN.fullmatch(name):
        return is_directory(path)
    return is_run(path) or (bool(_RUNS_FILES.fullmatch(name)) and not is_directory(path))


def is_results(path: str) -> bool:
    """True for a run's results directory. Only its name tells; the files in it are the run's."""
    return is_directory(path) and RUN_ID.fullmatch(os.path.basename(path)) is not None


def _is_record_of_push(path: str) -> bool:
    return is_file(path) and re.fullmatch(r"[0-9a-f]{16}\.json", os.path.basename(path)) is not None


def _is_in_hub(path: str) -> bool:
    """True for what Hugging Face libraries make in HF_HOME, and for an unfinished push; not for the user's token."""
    name = os.path.basename(path)
    if not is_directory(path):
        return is_file(path) and _VERIFIED.fullmatch(name) is not None
    if name == HUB_CACHE:
        return all(is_cache_name(entry) or _PUSH.fullmatch(entry) for entry in list_names(path))
    return name in _HF_DIRECTORIES or _PUSH.fullmatch(name) is not None


def _is_in_code(path: str) -> bool:
    if os.path.basename(path) == ".store":  # a token: a dangling link
        return os.path.islink(path) and re.fullmatch("[0-9a-f]{32}", os.readlink(path)) is not None
    return is_tree(path)


_IS_OWN: Mapping[str, Callable[[str], bool]] = {
    "agent": is_agent_copy,
    "checkpoints": is_checkpoint_record,
    "code": _is_in_code,
    "envs": _is_in_envs,
    HF_HOME: _is_in_hub,
    PUSHED: _is_record_of_push,
    "results": is_results,
    "runs": _is_in_runs,
    "tmp": is_temporary,
    "wheels": is_stored,
}
"""Directory of a home → predicate for ipexctl's entries."""


def own_entries(home: str, directory: str) -> list[str]:
    """Return the paths in a directory of the home that ipexctl made. `directory`: its name, a key of `_IS_OWN`."""
    is_own = _IS_OWN[directory]
    paths = (f"{home}/{directory}/{name}" for name in list_names(f"{home}/{directory}"))
    return [path for path in paths if is_own(path)]


def foreign_entries(home: str) -> Iterator[str]:
    """Yield what ipexctl did not make: directly in the home, and in the directories that ipexctl keeps there."""
    for name in list_names(home):
        path = f"{home}/{name}"
        if name not in HOME_ENTRIES:
            if not re.fullmatch(IGNORED, name, re.DOTALL):
                yield path
        elif name in _IS_OWN:
            if not is_directory(path):
                yield path
                continue
            own = set(own_entries(home, name))
            yield from (entry for entry in (f"{path}/{below}" for below in list_names(path)) if entry not in own)


def release_trees(rundir: str) -> None:
    """Remove the leases that a run has on trees of the home, so that these may be changed and removed."""
    code, name = f"{os.path.dirname(os.path.dirname(rundir))}/code", os.fsencode(os.path.basename(rundir))
    for tree in list_names(code):  # one of them may be the user's link to a larger disk
        path = os.path.realpath(f"{code}/{tree}")
        with contextlib.suppress(OSError, AgentError), GuardedDirectory.open(path) as top, top.enter(_LEASES) as leases:
            leases.unlink(name)


def kept_copies(rundir: str) -> str:
    """Return where copies of a run's checkpoints are kept from before another run could overwrite them."""
    runs, run = os.path.split(rundir)
    return os.path.join(os.path.dirname(runs), "results", run, KEPT)


def drop_kept_copies(rundir: str) -> None:
    """Remove the kept copies of a run's checkpoints, and the run's directory of results if nothing else is in it."""
    results = os.path.dirname(kept_copies(rundir))
    with contextlib.suppress(OSError, AgentError), GuardedDirectory.open(os.path.realpath(results)) as opened:
        opened.remove_tree(os.fsencode(KEPT), ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(results)
