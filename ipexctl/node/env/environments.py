"""Looks at the environments of one home: checks one against its lock, lists all, names and removes them.

Standard library only, Python 3.8 or newer. Making one is `build.py`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict

from ipexctl.node.common.answer import AgentError, answer

Json = Dict[str, Any]

RECORD = {"digest": str, "build": str, "packages": dict, "variables": dict, "prepended": list, "backend": str}
"""What env.json must say for the environment to be used."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def target(link: Path) -> str | None:
    try:
        return os.readlink(str(link)).rstrip("/")
    except OSError:
        return None


def read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def home_of(request: dict[str, Any]) -> Path:
    home = Path(request["home"]).expanduser()
    if not home.is_absolute():
        raise AgentError(f"{home} is no absolute path", "give --home an absolute path")
    return home


def env_of(request: dict[str, Any]) -> Path:
    """The directory of the environment with that name: its own, or one that points at it."""
    envs, name = home_of(request) / "envs", str(request["name"])
    if not name or "/" in name or name.startswith("."):
        raise AgentError(f"{name!r} is no name of an environment", "see: ipexctl envs")
    return envs / (target(envs / name) or name)


def check(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the environment is what its lock says. What a user added beside that is the user's."""
    env = env_of(request)
    record, lock = read(env / "env.json"), read(env / "lock.json")
    wrong: list[str] = []
    answer = {"name": env.name, "build": record.get("build"), "record": record, "wrong": wrong, "there": env.is_dir()}
    if not env.is_dir():
        wrong.append(f"there is no environment {request['name']}")
    elif not all(isinstance(record.get(key), kind) for key, kind in RECORD.items()):
        wrong.append(f"{env / 'env.json'} is missing or broken")
    elif not lock.get("wheels"):
        wrong.append(f"{env / 'lock.json'} is missing or broken")
    elif request.get("digest") not in (None, record.get("digest")):
        wrong.append(f"{env.name} was made from another lock")
    else:
        python = start_python(env, wrong)
        sites = sorted(env.glob("lib/python3*/site-packages"))
        for site in sites[:1]:
            wrong += check_packages(site, lock)
        if not sites:
            wrong.append(f"{env.name} has no site-packages")
        end_python(python, wrong)
    verified = {note.stem: read(note) for note in env.glob("verified/*.json")}
    return {**answer, "ok": not wrong, "verified": verified}


def start_python(env: Path, wrong: list[str]) -> subprocess.Popen[bytes] | None:
    python = env / "bin" / "python"
    try:
        return subprocess.Popen(
            [str(python), "-I", "-c", "0"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except OSError as error:
        real = os.path.realpath(str(python))
        wrong.append(f"its Python doesn't run: {real} ({error.strerror})")
        return None


def end_python(python: subprocess.Popen[bytes] | None, wrong: list[str]) -> None:
    if python is None:
        return
    try:
        _, complaint = python.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        python.kill()
        python.communicate()
        wrong.append("its Python doesn't end within 30 s")
        return
    if python.returncode:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        wrong.append(f"its Python doesn't run: {last[0] if last else f'exit code {python.returncode}'}")


def check_packages(site: Path, lock: dict[str, Any]) -> list[str]:
    installed: dict[str, list[Path]] = {}
    for info in site.glob("*.dist-info"):
        installed.setdefault(normal(info.name[:-10].rpartition("-")[0]), []).append(info)
    wrong: list[str] = []
    for wheel in lock["wheels"]:
        name, version = str(wheel["name"]), str(wheel["version"])
        infos = installed.get(normal(name), [])
        versions = {info.name[:-10].rpartition("-")[2] for info in infos}
        wanted = {version, *str(wheel.get("filename", "")).split("-")[1:2]}
        if not infos:
            wrong.append(f"{name} is missing, the lock says {version}")
        elif len(infos) > 1:
            wrong.append(f"{name} is there twice: {', '.join(sorted(versions))}; the lock says {version}")
        elif not versions & wanted:
            wrong.append(f"{name} is {versions.pop()}, the lock says {version}")
        else:
            wrong += check_files(site, name, infos[0])
    return wrong


def check_files(site: Path, name: str, info: Path) -> list[str]:
    """The files of one package, against its own list: there, and of their size."""
    try:
        rows = list(csv.reader((info / "RECORD").read_text().splitlines()))
    except (OSError, csv.Error, ValueError):
        return [f"{name} has no list of its files"]
    gone, changed = [], []
    prefix = f"{site}/"
    for row in rows:
        if len(row) < 3 or row[0].endswith((".pyc", ".dist-info/RECORD")) or not row[2].isdigit():
            continue
        try:
            if os.stat(prefix + row[0]).st_size != int(row[2]):  # noqa: PTH116
                changed.append(row[0])
        except OSError:
            gone.append(row[0])
    sentences = []
    for files, what in ((gone, "missing"), (changed, "changed")):
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            sentences.append(f"{name}: {files[0]}{more} {'are' if more else 'is'} {what}")
    return sentences


def usage(path: Path) -> int:
    """Bytes on disk."""
    seen: set[int] = set()
    total = 0
    pending = [str(path)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                stat = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                if stat.st_nlink == 1 or stat.st_ino not in seen or entry.is_dir(follow_symlinks=False):
                    total += stat.st_blocks * 512
                    seen.add(stat.st_ino)
    return total


def entries_of(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def listing(request: dict[str, Any]) -> dict[str, Any]:
    home = home_of(request)
    entries = entries_of(home / "envs")
    links = {entry.name: target(entry) for entry in entries if entry.is_symlink()}
    found = []
    for entry in entries:
        if entry.is_symlink() or not entry.is_dir() or entry.name.startswith("."):
            continue
        record = read(entry / "env.json")
        whole = bool(record.get("digest")) and (entry / "bin" / "python").exists()
        found.append(
            {
                "name": entry.name,
                "names": sorted(name for name, where in links.items() if where == entry.name),
                "path": str(entry),
                "row": record.get("row"),
                "python": record.get("python"),
                "backend": record.get("backend"),
                "created": record.get("created"),
                "packages": record.get("packages") or {},
                "bytes": usage(entry),
                "complete": whole,
            }
        )
    stale = [entry for entry in entries if entry.name.startswith(".build-")]
    stale += [entry for entry in entries_of(home / "tmp") if entry.name.startswith("build-")]
    return {
        "envs": found,
        "dangling": sorted(name for name, where in links.items() if not (home / "envs" / str(where)).is_dir()),
        "leftovers": {"count": len(stale), "bytes": sum(usage(entry) for entry in stale)},
        "wheels": {"count": len(entries_of(home / "wheels")), "bytes": usage(home / "wheels")},
    }


def users_of(paths: list[str]) -> list[int]:
    """Processes here that run out of these directories, without ourselves and those we descend from."""
    fronts = tuple(path.rstrip("/") + "/" for path in paths)
    ours, pid = set(), os.getpid()
    while pid > 1 and pid not in ours:
        ours.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            break
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int(entry.name) in ours:
                continue
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            with contextlib.suppress(OSError):
                words.append(os.readlink(str(entry / "exe")))
            if any(word.startswith(fronts) for word in words):
                found.append(int(entry.name))
    return sorted(found)


def remove(request: dict[str, Any]) -> dict[str, Any]:
    """Remove environments, each wholly or not at all; one that has other names yet loses this name alone."""
    removed: list[str] = []
    failed: dict[str, str] = {}
    for name in request["names"]:
        try:
            gone = remove_one(home_of(request), env_of({**request, "name": name}), str(name))
        except AgentError as error:
            failed[name] = error.reason
        except OSError as error:
            failed[name] = f"{error.filename}: {error.strerror}"
        else:
            removed += gone
    return {"removed": removed, "failed": failed}


def remove_one(home: Path, env: Path, name: str) -> list[str]:
    links = [link for link in entries_of(home / "envs") if target(link) == env.name]
    if env.is_dir() and name != env.name and len(links) > 1:
        (home / "envs" / name).unlink()
        return [name]
    if env.is_dir():
        pids = users_of([str(env), os.path.realpath(str(env)), *map(str, links)])
        if pids:
            raise AgentError(f"{env.name} is in use by process {', '.join(map(str, pids[:5]))}; end it first")
        aside = env.with_name(f".build-{os.urandom(6).hex()}+removed")
        env.rename(aside)  # gone at once; where we die now, the next build clears the rest
        shutil.rmtree(str(aside), ignore_errors=True)
    elif not links:
        raise AgentError(f"there is no environment {name}")
    for link in links:
        link.unlink()
    return sorted({name, env.name, *(link.name for link in links)})


def prune(request: dict[str, Any]) -> dict[str, Any]:
    """Remove what nothing needs: leftovers of builds, wheels, and environments without a name."""
    home = home_of(request)
    before = listing(request)
    answer: dict[str, Any] = {"removed": [], "failed": {}}
    if request.get("unnamed", True):
        answer = remove({**request, "names": [env["name"] for env in before["envs"] if not env["names"]]})
    freed = 0
    builds = [entry for entry in entries_of(home / "tmp") if entry.name.startswith("build-")]
    if not any(at_work(entry) for entry in builds):
        freed += before["leftovers"]["bytes"]
        for entry in [*(home / "envs").glob(".build-*"), *builds]:
            shutil.rmtree(str(entry), ignore_errors=True)
    if request.get("wheels", True):
        freed += before["wheels"]["bytes"] if before["wheels"]["count"] else 0
        shutil.rmtree(str(home / "wheels"), ignore_errors=True)
    return {**answer, "bytes": freed}


def at_work(build: Path) -> bool:
    """Whether its heart has beaten lately, by a clock that may be another machine's."""
    try:
        return abs(time.time() - (build / "beat").stat().st_mtime) < 300
    except OSError:
        return False


def link(request: dict[str, Any]) -> dict[str, Any]:
    """Make a name point at an environment."""
    envs, env = home_of(request) / "envs", env_of(request)
    if not env.is_dir():
        raise AgentError(f"there is no environment {request['name']}", "see: ipexctl envs")
    for name in request["links"]:
        if not re.match(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*$", name):
            raise AgentError(f"{name!r} can't be the name of an environment", "use letters, digits, . _ - and +")
        place, aside = envs / name, envs / f".link-{os.urandom(6).hex()}"
        if place.exists() and not place.is_symlink():
            raise AgentError(f"{place} is an environment itself", f"remove it: ipexctl envs --remove {name}")
        if target(place) != env.name:
            aside.symlink_to(env.name)
            aside.replace(place)
    return {"links": request["links"]}


def note(request: dict[str, Any]) -> dict[str, Any]:
    """Record that an environment answers one more request than those it was made for."""
    env = env_of(request)
    record = read(env / "env.json")
    asked = record.get("requests")
    if not isinstance(asked, list):
        raise AgentError(f"{env / 'env.json'} is missing or broken", "ipexctl install makes the environment anew")
    if request["request"] not in asked:
        record["requests"] = [*asked, request["request"]]
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
        aside = env / f".env-{os.urandom(6).hex()}.json"
        aside.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        aside.replace(env / "env.json")
    return {}


ACTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "check": check,
    "list": listing,
    "remove": remove,
    "prune": prune,
    "link": link,
    "note": note,
}


def main(action: str) -> int:
    def act(request: Json, _: BinaryIO) -> Json:
        try:
            return ACTIONS[action](request)
        except OSError as error:
            raise AgentError(f"{error.filename}: {error.strerror}", "see: ipexctl doctor") from None

    return answer(act, private=False)
