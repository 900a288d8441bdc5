"""Check, list, name and remove the environments of a home.

An environment is a directory such as `envs/ipex-2.8-1a2b3c4d`. A name such as `default` is a symlink to it, and several
names may lead to one environment. An environment is removed with its last name, unless a process uses it. Before that,
it is renamed, so that no process can start in half an environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import IO, Any, Callable, Mapping, Sequence

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.clock import Countdown
from ipexctl.node.common.files import HomeRequest, disk_usage, read_json, write_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.home import home_of, open_home
from ipexctl.node.common.home_entries import (
    BUILD_DIRECTORY,
    STAGED_ENVIRONMENT,
    is_environment,
    is_environment_name,
    is_plain_name,
    own_entries,
)
from ipexctl.node.common.json_records import decode_valid
from ipexctl.node.common.node_limits import ENV_SIZES
from ipexctl.node.common.owners import RemovalRequest, find_foreign, name_owners, read_owner
from ipexctl.node.common.processes import command_lines, is_partial_in_use, read_stat
from ipexctl.node.common.store_lock import is_alive
from ipexctl.node.env.check import check_site, find_problems, sites_of
from ipexctl.node.env.env_replies import CheckResult, EnvEntry, EnvListing, EnvRecord, Removed
from ipexctl.node.env.unpacked import list_unpacked

HYDRA = "opt/mpi/bin/mpiexec.hydra"
"""Path of Intel MPI's hydra, relative to the package of the oneCCL bindings."""
MPI_VERSION = re.compile(rb"\b2021\.\d{1,2}(?:\.\d{1,2})?\b")
MAX_PROGRAM = 64 << 20
"""Bytes of hydra in which its version is searched."""


class EnvActionRequest(HomeRequest):
    """Request about one environment of a home."""

    name: str
    """An environment's name or directory."""


class CheckRequest(EnvActionRequest):
    """Request to check an environment."""

    digest: str | None
    """The lock that the environment must be made from; None for any."""


class UsedRequest(EnvActionRequest):
    """Request to find out whether an environment is used on this host."""

    names: Sequence[str]
    """Names by which processes may have started it."""
    or_named: bool
    """True if an environment with a name counts as used."""


class PruneRequest(HomeRequest, RemovalRequest):
    """Request to remove leftovers, and base of the request to remove environments."""

    used: Mapping[str, str]
    """Environment → on which other host it is used, as the end of a sentence."""


class RemoveRequest(PruneRequest):
    """Request to remove environments."""

    names: Sequence[str]
    """Names or directories of the environments."""


class SymlinkRequest(EnvActionRequest):
    """Request to give an environment a name, or to take it away."""

    link: str
    """The name to give or to take away."""


class NoteRequest(EnvActionRequest):
    """Request to note in env.json what an environment fulfils."""

    request: Json
    """A request of `install` that this environment fulfils."""


def intel_mpi_version(program: IO[bytes]) -> str:
    """Return the version in the bytes of Intel's hydra, such as `2021.13`, or a text that says it is unknown."""
    version = MPI_VERSION.search(program.read(MAX_PROGRAM))
    return version.group().decode() if version else "of an unknown version"


def link_target(link: Path) -> str | None:
    """Return where a symlink leads; None if the path is no symlink."""
    try:
        return os.readlink(str(link)).rstrip("/")
    except OSError:
        return None


def check_name(name: str) -> None:
    """Refuse a name that is not a plain file name, because it becomes a path."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
        raise AgentError(f"{name!r} can't be the name of an environment", "use letters, digits, . _ - and +")


def env_of(request: EnvActionRequest) -> Path:
    """Return the directory of the environment that a request names; it may not exist.

    Raises an AgentError for a symlink that ipexctl did not make: it could lead out of the home.
    """
    envs, name = Path(home_of(request, "envs"), "envs"), request["name"]
    check_name(name)
    target = link_target(envs / name)
    if target is not None and not is_plain_name(target):
        raise AgentError(f"{envs / name} is a link that ipexctl did not make, to {target}", Fix("see: `ipexctl envs`"))
    directory = target or name
    check_name(directory)
    return envs / directory


def check(request: CheckRequest) -> CheckResult:
    """Check an environment's record and lock; if both are right, also its Python and its files."""
    env = env_of(request)
    record, lock = read_json(env / "env.json"), read_json(env / "lock.json")
    if not env.is_dir():
        problems = [f"environment {request['name']!r} does not exist"]
    else:
        problems = find_problems(str(env), record, lock, request["digest"])
        if not problems:
            problems = check_python(env / "bin" / "python")
            sites = sites_of(str(env))
            problems += check_site(sites[0], lock) if sites else [f"{env.name} has no site-packages"]
    return CheckResult(
        name=env.name,
        build=record.get("build"),
        record=None if problems else decode_valid(EnvRecord, record),
        problems=tuple(problems),
        exists=env.is_dir(),
        verified={path.stem: read_json(path) for path in env.glob("verified/*.json")},
    )


def check_python(python: Path) -> list[str]:
    """Return a sentence if the environment's Python does not run, else nothing."""
    argv = [str(python), "-I", "-c", "0"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return ["its Python doesn't exit within 30 s"]
    except OSError as error:
        return [f"its Python doesn't run: {os.path.realpath(str(python))} ({error.strerror})"]
    if not done.returncode:
        return []
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return [f"its Python doesn't run: {last[0] if last else f'exit code {done.returncode}'}"]


def remove_tree(path: str) -> None:
    """Remove a directory, a file or a symlink; errors are ignored."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        Path(path).unlink()


def list_directory(directory: Path) -> list[Path]:
    """Return the sorted entries; empty if there is no such directory."""
    return sorted(directory.iterdir()) if directory.is_dir() else []


def size_until(path: Path, countdown: Countdown | None) -> int | None:
    """Return the bytes on disk; None if time runs out: the 30,000 files of an environment take a minute on a slow NFS.

    `countdown`: None for no limit.
    """
    try:
        return disk_usage(path, countdown)
    except TimeoutError:
        return None


def list_within_time(request: HomeRequest) -> EnvListing:
    """Return the environments of a home. Sizes that can't be measured in time are None."""
    return list_environments(request, Countdown(ENV_SIZES))


def list_environments(request: HomeRequest, countdown: Countdown | None = None) -> EnvListing:
    """Return the environments of a home, its leftovers and its wheels. `countdown`: limits measuring environments."""
    home = Path(home_of(request, "envs"))
    entries = list_directory(home / "envs")
    links = {entry.name: link_target(entry) for entry in entries if entry.is_symlink()}
    envs = []
    for entry in entries:
        if entry.name.startswith(".") or not is_environment(str(entry)):
            continue
        record = read_json(entry / "env.json")
        is_complete = bool(record.get("digest")) and (entry / "bin" / "python").exists()
        envs.append(
            EnvEntry(
                name=entry.name,
                names=tuple(sorted(name for name, env in links.items() if env == entry.name)),
                path=str(entry),
                row=record.get("row"),
                python=record.get("python"),
                backend=record.get("backend"),
                created=record.get("created"),
                packages=record.get("packages") or {},
                bytes=size_until(entry, countdown),
                complete=is_complete,
                by=read_owner(record),
            )
        )
    stale, wheels = leftovers(home), own_entries(str(home), "wheels")
    return EnvListing(
        envs=tuple(envs),
        leftovers=len(stale),
        leftover_bytes=sum(map(disk_usage, stale)),
        wheels=len(wheels),
        wheel_bytes=sum(map(disk_usage, wheels)),
    )


def leftovers(home: Path) -> list[str]:
    """Return the directories of builds and removals; those of builds that run now are among them."""
    staged = [path for path in own_entries(str(home), "envs") if STAGED_ENVIRONMENT.fullmatch(Path(path).name)]
    return staged + [path for path in own_entries(str(home), "tmp") if BUILD_DIRECTORY.fullmatch(Path(path).name)]


def find_users(paths: list[str]) -> list[int]:
    """Return the pids of processes on this host that were started with a path below these directories.

    Their program and their arguments count, not their open files. This process and its ancestors are left out.
    """
    prefixes = tuple(path.rstrip("/") + "/" for path in paths)
    ancestors, pid = set(), os.getpid()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        try:
            pid = read_stat(pid).parent
        except OSError:
            break
    pids = []
    for pid, line in command_lines():
        argv = line.decode(errors="replace").split("\0")
        with contextlib.suppress(OSError):
            argv.append(os.readlink(f"/proc/{pid}/exe"))
        if pid not in ancestors and any(argument.startswith(prefixes) for argument in argv):
            pids.append(pid)
    return sorted(pids)


def remove(request: RemoveRequest) -> Removed:
    """Remove environments by name or directory. A name goes alone if the environment has other names.

    An environment that is in use here or on another host, or (without `force`) that others installed, is kept;
    `failed` says why. The next ones are still removed.
    """
    removed: list[str] = []
    failed: dict[str, str] = {}
    for name in request["names"]:
        try:
            env = env_of({"home": request["home"], "name": name})
            foreign = find_foreign("environment", {env.name: read_json(env / "env.json")}, request)
            if foreign and not request["force"]:
                raise AgentError(f"{name_owners(foreign)}; --force removes it, too")
            names = remove_one(Path(home_of(request, "envs")), env, name, request["used"].get(env.name))
        except AgentError as error:
            failed[name] = error.reason
        except OSError as error:
            failed[name] = f"{error.filename}: {error.strerror}"
        else:
            removed += names
    return Removed(tuple(removed), failed)


def is_used(request: UsedRequest) -> Json:
    """Return whether a process here uses an environment, under any of `names`; with `or_named`, whether it has a name,
    too."""
    envs, env = Path(home_of(request, "envs"), "envs"), env_of(request)
    links = [link for link in list_directory(envs) if link_target(link) == env.name] if request["or_named"] else []
    paths = [str(envs / name) for name in request["names"]]
    return {"used": bool(links) or bool(find_users([str(env), os.path.realpath(str(env)), *paths]))}


def remove_one(home: Path, env: Path, name: str, used: str | None) -> list[str]:
    """Remove an environment, or one of its names; return the names and the directory that are gone.

    `name`: what the user typed, a name or the directory. `used`: where another host uses it, as the end of a
    sentence; None if no other host does. Raises an AgentError if the environment is in use or does not exist.
    """
    links = [link for link in list_directory(home / "envs") if link_target(link) == env.name]
    if env.is_dir() and not is_environment(str(env)):
        raise AgentError(f"{env} is not an environment that ipexctl made")
    if env.is_dir() and name != env.name and len(links) > 1:
        (home / "envs" / name).unlink()
        return [name]
    if env.is_dir():
        pids = find_users([str(env), os.path.realpath(str(env)), *map(str, links)])
        if pids:
            raise AgentError(f"{env.name} is in use by process {', '.join(map(str, pids[:5]))}; end it first")
        if used:
            raise AgentError(f"{env.name} {used}")
        temporary = env.with_name(f".build-{os.urandom(6).hex()}+removed")
        env.rename(temporary)  # atomic; if this call is killed, the next build removes the rest
        shutil.rmtree(str(temporary), ignore_errors=True)
    elif not links:
        raise AgentError(f"environment {name!r} does not exist")
    for link in links:
        link.unlink()
    return sorted({name, env.name, *(link.name for link in links)})


def prune(request: PruneRequest) -> Removed:
    """Remove environments without a name, leftovers of dead builds, and the wheels of the store.

    Leftovers stay while any install builds in this home, wheels also while one is arriving.
    """
    home = Path(home_of(request, "envs"))
    before = list_environments(request)
    unnamed = [env for env in before.envs if not env.names]
    records = {env.name: read_json(Path(env.path, "env.json")) for env in unnamed}
    foreign = find_foreign("environment", records, request)
    kept = () if request["force"] else foreign
    kept_names = {owned.name for owned in kept}
    names = [env.name for env in unnamed if env.name not in kept_names]
    result = remove({**request, "names": names})
    freed = 0
    is_building = any(is_alive(str(marker)) for marker in (home / "tmp").glob("owner-*"))
    if not is_building:
        freed += before.leftover_bytes
        for entry in leftovers(home):
            shutil.rmtree(entry, ignore_errors=True)
    # While an install is running, its finished wheels stay, because the build needs them all.
    is_downloading = any(is_partial_in_use(str(path)) for path in (home / "wheels").glob("*.part"))
    if not is_building and not is_downloading:
        freed += before.wheel_bytes
        for entry in own_entries(str(home), "wheels"):
            remove_tree(entry)
        with contextlib.suppress(OSError):  # it contains the user's files, or does not exist
            (home / "wheels").rmdir()
    return result._replace(bytes=freed, foreign=kept)


def write_record(env: Path, record: Mapping[str, Any]) -> None:
    """Write env.json, with one field a line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    write_atomically(env / "env.json", ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def link(request: SymlinkRequest) -> Json:
    """Make a name lead to an environment. Raises an AgentError if something else has the name."""
    envs, env = Path(home_of(request, "envs"), "envs"), env_of(request)
    if not env.is_dir():
        raise AgentError(f"environment {request['name']!r} does not exist", Fix("see: `ipexctl envs`"))
    name = request["link"]
    check_name(name)
    link_path, temporary = envs / name, envs / f".link-{os.urandom(6).hex()}"
    if link_path.is_symlink() and not is_environment_name(str(link_path)):
        raise AgentError(f"{link_path} is a link that ipexctl did not make", "choose another --env")
    if link_path.exists() and not link_path.is_symlink():
        fix = Fix(
            f"choose another --env; if nobody needs it (`ipexctl envs`, `ipexctl ps`): `ipexctl envs --remove {name}`"
        )
        raise AgentError(f"{link_path} is an environment itself", fix)
    if link_target(link_path) != env.name:
        temporary.symlink_to(env.name)
        temporary.replace(link_path)
    return {}


def unlink(request: SymlinkRequest) -> Json:
    """Take a name away, if it still leads to this environment."""
    check_name(request["link"])
    link_path = Path(home_of(request, "envs"), "envs", request["link"])
    if link_target(link_path) == request["name"]:
        link_path.unlink()
    return {}


def add_request(request: NoteRequest) -> Json:
    """Note in env.json that the environment fulfils a request, so that the same `install` finds it again."""
    env = env_of(request)
    record = read_json(env / "env.json")
    requests = record.get("requests")
    if not isinstance(requests, list):
        raise AgentError(f"{env / 'env.json'} is missing or broken", Fix("`ipexctl install` rebuilds the environment"))
    if request["request"] not in requests:
        record["requests"] = [*requests, request["request"]]
        write_record(env, record)
    return {}


READING = frozenset({"check", "list", "unpacked", "used"})
"""Actions that change nothing; before the others, the home is marked as ipexctl's and closed to other accounts."""
ACTIONS: dict[str, Callable[[Any], object]] = {
    "check": check,
    "list": list_within_time,
    "unpacked": list_unpacked,
    "remove": remove,
    "used": is_used,
    "prune": prune,
    "link": link,
    "unlink": unlink,
    "note": add_request,
}


def run_action(action: str, request: HomeRequest) -> object:
    """Do what a request asks for. Raises an AgentError if the action would change a home that is not ipexctl's."""
    if action not in READING:
        open_home(home_of(request, "envs"))
    return ACTIONS[action](request)


def main(action: str) -> int:
    """Answer a call of `env.environments`: check, list, name or remove environments."""
    return answer(lambda request, _: run_action(action, request))
