"""Check an environment against its record, its lock and the lists of files of its packages.

Problems are returned as sentences; an empty list means that there is none. Files are compared by size, not by content.
Packages that a user added are allowed. `ipexctl install` passes this source to the environment's own Python with `-c`,
so it imports little.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing takes 5 ms
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping

    Json = Mapping[str, Any]
    CheckFiles = Callable[[str, str], list[str]]

REQUIRED_FIELDS = {"digest": str, "build": str, "packages": dict, "variables": dict, "prepended": list, "backend": str}


def normalize(name: str) -> str:
    """Return a package's name as indexes compare names: `typing_extensions` as `typing-extensions`."""
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)


def find_problems(path: str, record: Json, lock: Json, digest: str | None) -> list[str]:
    """Return the problems of a record and a lock. `digest`: the lock that the environment must have; None for any."""
    if not all(isinstance(record.get(key), kind) for key, kind in REQUIRED_FIELDS.items()):
        return [f"{path}/env.json is missing or broken"]
    if not lock.get("wheels"):
        return [f"{path}/lock.json is missing or broken"]
    if digest not in (None, record.get("digest")):
        return [f"{os.path.basename(path)} was made from another lock"]
    return []


def check_packages(infos: Iterable[str], lock: Json, check_files: CheckFiles) -> list[str]:
    """Return how the installed packages differ from the lock. `infos`: names of all `.dist-info` directories.

    `check_files` gets the name of a package and its `.dist-info`, and returns the problems of its files.
    """
    installed: dict[str, list[str]] = {}
    for info in infos:
        installed.setdefault(normalize(info[:-10].rpartition("-")[0]), []).append(info)
    problems: list[str] = []
    for wheel in lock["wheels"]:
        name, version = str(wheel["name"]), str(wheel["version"])
        infos_of_name = installed.get(normalize(name), [])
        versions = {info[:-10].rpartition("-")[2] for info in infos_of_name}
        accepted = {version, *str(wheel.get("filename", "")).split("-")[1:2]}
        if not infos_of_name:
            problems.append(f"{name} is missing, the lock says {version}")
        elif len(infos_of_name) > 1:
            problems.append(f"{name} appears twice: {', '.join(sorted(versions))}; the lock says {version}")
        elif not versions & accepted:
            problems.append(f"{name} is {versions.pop()}, the lock says {version}")
        else:
            problems += check_files(name, infos_of_name[0])
    return problems


def check_site(site: str, lock: Json) -> list[str]:
    """Return what is wrong with the packages in site-packages, compared with a lock: sentences, empty if nothing is."""
    return check_packages(_infos_in(site), lock, lambda name, info: check_files(site, name, info))


def _infos_in(site: str) -> list[str]:
    return [name for name in os.listdir(site) if name.endswith(".dist-info")]


def check_files(site: str, name: str, info: str) -> list[str]:
    """Return what is missing or has another size: at most a sentence for each. `info`: the `.dist-info` directory."""
    try:
        with open(f"{site}/{info}/RECORD", encoding="utf-8") as file:
            rows = _split_rows(file.read())
    except (OSError, ValueError):
        return [f"{name} has no list of its files"]
    missing, changed = [], []
    for fields in rows:
        has_size = len(fields) >= 3 and fields[2].isdigit()
        if not has_size or fields[0].endswith((".pyc", ".dist-info/RECORD")):
            continue
        try:
            if os.stat(f"{site}/{fields[0]}").st_size != int(fields[2]):
                changed.append(fields[0])
        except OSError:
            missing.append(fields[0])
    sentences = []
    for files, what in ((missing, "missing"), (changed, "changed")):
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            sentences.append(f"{name}: {files[0]}{more} {'are' if more else 'is'} {what}")
    return sentences


def _split_rows(text: str) -> list[list[str]]:
    """Return the fields of each line of a RECORD. Raises a ValueError if it is not CSV."""
    if '"' not in text:
        return [line.split(",") for line in text.splitlines()]
    import csv  # 6 ms, and few lists have a quoted name

    try:
        return list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def sites_of(env: str) -> list[str]:
    """Return the site-packages directories of an environment; normally one, empty if it is damaged."""
    try:
        names = sorted(os.listdir(f"{env}/lib"))
    except OSError:
        return []
    paths = [f"{env}/lib/{name}/site-packages" for name in names if name.startswith("python3")]
    return [path for path in paths if os.path.isdir(path)]


def describe(link: str) -> list[str]:
    """Return the lines that the probe prints for the environment to which a link leads, with what its check finds.

    Empty if another account may change the home. Raises an OSError if the environment is incomplete.
    """
    env = os.path.realpath(link)
    name = os.path.basename(env)
    home = os.stat(os.path.dirname(os.path.dirname(env)))
    if home.st_uid != os.geteuid() or home.st_mode & 0o077:
        return []
    lines = [f"env {name}", f"env.runs {name}", f"env.link {name} {os.path.basename(link)}"]
    lines += [f"env.record {name} {line}" for line in _text_of(f"{env}/env.json").splitlines()]
    lines.append("env.lock " + " ".join(_text_of(f"{env}/lock.json").splitlines()))
    for file in os.listdir(f"{env}/verified"):
        lines.append(f"env.verified {file[:-5]} " + " ".join(_text_of(f"{env}/verified/{file}").splitlines()))
    site = "{}/lib/python{}.{}/site-packages".format(env, *sys.version_info[:2])
    for info in _infos_in(site):
        lines.append(f"env.{'damaged' if check_files(site, info, info) else 'intact'} {info}")
    return [*lines, "end yes"]


def _text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in describe(sys.argv[1])))
