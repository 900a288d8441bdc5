"""Checks that paths which the user named are the same on every host: --python, --mpi, --setup, --data, --no-sync.

mpirun starts all ranks by one path, and ranks with different torch or MPI cannot communicate. Data that hosts lack is
refused with the line that copies it. Two things are only notes: a path whose directories another account can change,
because a team may share its tree, and a path among the script's arguments that no host has, because it may be data to
push, or a directory that the script creates.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ipexctl.facts.software import Mpi, parse_mpi
from ipexctl.files.sent_manifest import Manifest
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.hosts.nodeset import fold
from ipexctl.hosts.select import LOCAL
from ipexctl.launch.run_context import RankEnv
from ipexctl.launch.spec import RunSpec
from ipexctl.launch.training_memory import DATA, MODEL
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.node.common.json_records import JsonError, parse_object
from ipexctl.node.common.mpi import INTEL, MPICH, MPIS
from ipexctl.remote.command import Command, shell_text
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import WALK, script_text
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session, capture
from ipexctl.run.start.start_request import StartError, ask_all

_OLDEST_PYTHON = (3, 8)
_BUNDLED_MPI = re.compile(r"(/.*)/opt/mpi(?:/bin(?:/mpi(?:run|exec(?:\.hydra)?))?)?/*")
_SAME_PACKAGES = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl-bindings-for-pytorch")
_PACKAGES = (*_SAME_PACKAGES, *(mpi.package for mpi in MPIS), "accelerate", "transformers", "trl")
"""Packages on which a plan depends."""
# Intel's mpirun looks for mpiexec.hydra on PATH. It is a script that prints errors first if its path has a space.
_SCRIPT = """\
{tests}
mpi={mpi} python={python}
if [ -n "$mpi" ]; then
  for it in "$mpi" "$mpi/mpirun" "$mpi/bin/mpirun" -; do [ -f "$it" ] && [ -x "$it" ] && break; done
  [ "$it" = - ] || version=$(PATH=${{it%/*}}:$PATH "$it" --version </dev/null 2>&1 | grep -vF "$it: " | head -n 3)
  [ "$it" = - ] || printf 'mpi %s\\t%s\\n' "$it" "$(printf '%s' "$version" | tr '\\n' '|')"
  [ "$it" != - ] || echo "--mpi $mpi"
fi
if [ -n "$python" ]; then
  command -v "$python" >/dev/null || {{ echo "python it does not exist"; exit 0; }}
  output=$("$python" -c {script} {packages} 2>&1); code=$?
  last=$(printf '%s\\n' "$output" | grep '[^[:space:]]' | tail -n 1)
  if [ -z "$last" ]; then echo "python it printed nothing (exit code $code): is it a Python?"
  elif [ $code = 0 ]; then printf 'found %s\\n' "$last"
  else printf 'python %s\\n' "$last"
  fi
fi
exit 0
"""


_MOST_ARGUMENTS = 16
_WRITTEN = re.compile(
    r"(^|[-_])(out|output|save|saved|logs?|logging|ckpts?|checkpoints?|results?|reports?|metrics|history|cache|te?mp)"
    r"([-_]|$)"
)
"""Words in names of options that say where a script writes: such a directory need not exist."""
_FILE = re.compile(r"\.(csv|tsv|txt|jsonl?|parquet|arrow|np[yz]|pth?|bin|safetensors|h5|hdf5|tar|gz|zip|ya?ml)$")
_OF_SYSTEM = re.compile(r"/(dev|proc|sys|run)?(/.*)?")


@dataclass(frozen=True, slots=True)
class FoundPython:
    """The Python at --python, on one host."""

    version: tuple[int, int, int]
    prefix: str
    packages: Mapping[str, str] = field(hash=False)
    mpi: bool
    """True if its environment has Intel MPI."""
    providers: tuple[str, ...]
    libraries: tuple[str, ...]

    def version_of(self, package: str) -> str:
        """Return the version of a package, `python` for the Python itself; `(none)` if it is not installed."""
        return "{}.{}".format(*self.version) if package == "python" else self.packages.get(package, "(none)")


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """What one host has of the paths."""

    missing: tuple[str, ...] = ()
    """Options with a path that the host lacks: `--data /data`."""
    mpi: Mpi | None = None
    setvars: bool = False
    """True if the bindings around --mpi have a setvars.sh."""
    python: FoundPython | None = None
    python_error: str | None = None
    lacking: tuple[str, ...] = ()
    """Arguments of the script that are no path on the host."""
    exposed: tuple[tuple[str, str], ...] = ()
    """An option with its path, and the directory above that another account can change."""


class LocalPath(NamedTuple):
    """A --data directory, or an argument of the script."""

    path: str
    """Where the ranks look for it."""
    source: str
    """Empty for an argument that the control machine lacks, too."""
    target: str
    """A path on the hosts for `push`: its own, or one of the user's, because push keeps out of the tree."""
    is_in_project: bool = False


@dataclass(frozen=True, slots=True)
class CheckedPaths:
    env: RankEnv | None = None
    mpi: Mpi | None = None
    setvars: str | None = None
    """The setvars.sh of the bindings that contain this MPI."""
    notes: tuple[str, ...] = ()


def check_paths(
    spec: RunSpec,
    pool: SessionPool,
    local_data: Mapping[str, LocalPath] | None = None,
    local_arguments: Mapping[str, LocalPath] | None = None,
) -> CheckedPaths:
    """Check the paths of the call on all hosts, by one round trip, or none if the call has no such path. Raises a
    StartError if a host lacks what it needs.

    `local_data`, `local_arguments`: path → where this machine has it; None to look for absolute paths here."""
    asked = spec.asked
    hosts, unsynced = spec.hosts, spec.executed_path
    data = [path for path in asked.data if path.startswith("/")]
    mpi = asked.mpi if "/" in asked.mpi else ""
    if local_arguments is None:
        absolute = [path for path in data_arguments(asked.argv[1:]) if path.startswith("/")]
        sources = {path: path if os.path.exists(path) else "" for path in absolute[:_MOST_ARGUMENTS]}  # noqa: PTH110
        local_arguments = {path: LocalPath(path, source, path) for path, source in sources.items()}
    if not (data or asked.setup or asked.python or mpi or unsynced or local_arguments):
        return CheckedPaths()
    bundled = _BUNDLED_MPI.fullmatch(mpi)
    setvars = f"{bundled[1]}/env/setvars.sh" if bundled else None
    tests = [f"[ -e {shlex.quote(unsynced)} ] || echo {shlex.quote('--no-sync ' + unsynced)}"] if unsynced else []
    tests += [f"[ -d {shlex.quote(path)} ] || echo {shlex.quote('--data ' + path)}" for path in data]
    tests += [
        f"[ -e {shlex.quote(argument.path)} ] || echo {shlex.quote('argument ' + word)}"
        for word, argument in local_arguments.items()
    ]
    if asked.setup:
        tests.append(f"[ -r {shlex.quote(asked.setup)} ] || echo {shlex.quote('--setup ' + asked.setup)}")
    if setvars:
        tests.append(f"! [ -r {shlex.quote(setvars)} ] || echo setvars")
    executed = {"--no-sync": unsynced, "--setup": asked.setup or "", "--python": asked.python or ""}
    if any(executed.values()):
        tests.append(shell_text(WALK))
    tests += [
        f"walk {shlex.quote(path)} || printf 'exposed %s\\t%s\\n' {shlex.quote(f'{option} {path}')} \"$walk_detail\""
        for option, path in executed.items()
        if path
    ]
    script = _SCRIPT.format(
        tests="\n".join(tests) or ":",
        mpi=shlex.quote(mpi),
        python=shlex.quote(asked.python or ""),
        script=shlex.quote(script_text("run.interpreter")),
        packages=shlex.join(_PACKAGES),
    )

    def check(host: Host, session: Session) -> FoundPaths:
        del host
        result = capture(session, Command(script, "check paths"), silence=PATIENCE)
        if not result.ended.ok:
            raise HostError(f"could not check paths: {result.ended}")
        return parse_paths(result.stdout.decode(errors="replace"))

    by_host = ask_all(hosts, pool, check)
    if local_data is None:
        local_data = {path: LocalPath(path, path, path) for path in data if os.path.isdir(path)}  # noqa: PTH112
    checked = evaluate_paths(by_host, asked.python, hosts, local_data, local_arguments)
    return replace(checked, setvars=setvars) if all(paths.setvars for paths in by_host.values()) else checked


def data_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return the arguments that may be paths which a script reads → their option (empty if there is none). Paths of the
    system, and values of options whose name says that the script writes there, are left out. Pure."""
    paths, option = dict[str, str](), ""
    for argument in arguments:
        name, equals, value = argument.partition("=") if argument.startswith("-") else (option, "", argument)
        option = name if argument.startswith("-") and not equals else ""
        path = posixpath.normpath(value) if value.startswith("/") else value.rstrip("/") or "/"
        if not _OF_SYSTEM.fullmatch(path) and path.isprintable() and not _WRITTEN.search(name.lower()):
            paths[path] = name
    return paths


def unsynced_arguments(spec: RunSpec, synced: Manifest, tree: str) -> dict[str, LocalPath]:
    """Return the relative paths among the script's arguments that a sync leaves out: argument → where it is.

    An argument that this machine lacks, too, is only among them if its name is that of a data file. What
    `--dataset_name` and `--model_name_or_path` lack is noted earlier."""
    project = spec.project
    work = project.root / project.subdirectory
    words = {word: option for word, option in data_arguments(spec.asked.argv[1:]).items() if word[0] != "/"}
    here = {word for word in words if os.path.exists(work / word)}  # noqa: PTH110 - also for a text of any length
    absent = {word for word, option in words.items() if _FILE.search(word) and option.strip("-") not in (DATA, MODEL)}
    local_paths: dict[str, LocalPath] = {}
    for word in [word for word in words if word in here | absent][:_MOST_ARGUMENTS]:
        source = Path(os.path.normpath(work / word))
        name = source.relative_to(project.root).as_posix() if source.is_relative_to(project.root) else ""
        if name != "." and not any(f"{entry.path}/".startswith(f"{name}/") for entry in synced.entries):
            path = posixpath.normpath(f"{tree}/{project.subdirectory}/{word}")
            local_paths[word] = LocalPath(path, str(source.resolve()) if word in here else "", _target_of(source, tree))
    return local_paths


def _target_of(source: Path, tree: str) -> str:
    """Return the path on the hosts for `push`, beside the ipexctl home. `tree`: HOME/code/NAME."""
    return str(PurePosixPath(tree).parents[2] / (source.resolve().name or "data"))


def check_data(
    spec: RunSpec,
    tree: str,
    pool: SessionPool,
    arguments: Mapping[str, LocalPath],
) -> tuple[str, ...]:
    """Check relative --data directories, and return notes on the arguments. Raises a StartError if hosts lack data."""
    root = spec.project.root
    sources = {
        posixpath.normpath(f"{tree}/{path}"): Path(os.path.normpath(root / path))
        for path in spec.asked.data
        if not path.startswith("/")
    }
    of_data = spec.asked._replace(data=tuple(sources), setup=None, python=None, mpi="", sync=True)
    local_data = {}
    for path, source in sources.items():
        if source.is_dir():
            target = path if str(source) == path else _target_of(source, tree)
            local_data[path] = LocalPath(path, str(source.resolve()), target, source.is_relative_to(root))
    return check_paths(replace(spec, asked=of_data), pool, local_data=local_data, local_arguments=arguments).notes


def parse_paths(output: str) -> FoundPaths:
    """Return what the script of `check_paths` printed on a host. Raises MalformedReply. Pure."""
    lines = [line.partition(" ") for line in output.splitlines()]
    said = {word: rest for word, _, rest in lines}
    mpi, _, banner = said.get("mpi", "").partition("\t")
    exposed = (rest.partition("\t") for word, _, rest in lines if word == "exposed")
    return FoundPaths(
        missing=tuple("".join(line) for line in lines if line[0] in ("--data", "--setup", "--mpi", "--no-sync")),
        mpi=parse_mpi(mpi, banner) if mpi else None,
        setvars="setvars" in said,
        python=_parse_python(said["found"]) if "found" in said else None,
        python_error=said.get("python"),
        lacking=tuple(rest for word, _, rest in lines if word == "argument"),
        exposed=tuple((path, detail) for path, _, detail in exposed),
    )


def _parse_python(text: str) -> FoundPython:
    try:
        reply = Reply(parse_object(text))
    except JsonError as error:
        raise MalformedReply(str(error), text) from None
    version = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})", reply.text("version"))
    if version is None:
        raise MalformedReply("version is not a version", text)
    return reply.decode(FoundPython, version=(int(version[1]), int(version[2]), int(version[3])))


def evaluate_paths(
    by_host: Mapping[str, FoundPaths],
    python: str | None,
    hosts: Sequence[Host],
    local_data: Mapping[str, LocalPath],
    local_arguments: Mapping[str, LocalPath],
) -> CheckedPaths:
    """Return what the hosts have in common, or raise a StartError if they differ or lack something. Pure.

    `by_host`: host → what it has, in the order of the hosts. `python`: the path of --python; None if the call has
    none."""
    missing: dict[str, list[str]] = {}
    for name, paths in by_host.items():
        for line in paths.missing:
            missing.setdefault(line, []).append(name)
    for line, names in missing.items():
        option, _, path = line.partition(" ")
        reason = f"{line} does not exist on {fold(names)}"
        fix: str = Fix("every host must have that path; to see which do: `ipexctl exec -- ls -d {path}`", path=path)
        if option == "--no-sync":
            reason = f"--no-sync: {path} does not exist on {fold(names)}"
            fix = "without --no-sync it is synced; with it, every host must have that path"
        elif option == "--data":
            fix = _data_fix(path, hosts, names, local_data.get(path))
        raise StartError.because(reason, fix, tuple(names))
    mpi = _same_mpi({name: paths.mpi for name, paths in by_host.items() if paths.mpi is not None})
    notes = (*_exposed_notes(by_host), *_argument_notes(by_host, local_arguments))
    if python is None:
        return CheckedPaths(None, mpi, notes=notes)
    broken = {name: paths.python_error for name, paths in by_host.items() if paths.python_error is not None}
    broken |= {
        name: "it was not found" for name, paths in by_host.items() if paths.python is None and name not in broken
    }
    if broken:
        first = next(iter(broken))
        failing = tuple(name for name, text in broken.items() if text == broken[first])
        raise StartError.because(
            f"--python {python} on {fold(failing)}: {broken[first]}",
            "name a Python that has the same path on every host; without --python: the environment of ipexctl install",
            failing,
        )
    env = _same_environment({name: paths.python for name, paths in by_host.items() if paths.python is not None}, python)
    return CheckedPaths(env, mpi, notes=notes)


def _argument_notes(by_host: Mapping[str, FoundPaths], local: Mapping[str, LocalPath]) -> Iterator[str]:
    first, *others = by_host.values()
    for word in first.lacking:
        if word in local and all(word in paths.lacking for paths in others):
            source, target = local[word].source, local[word].target
            if not source:
                yield f"{word}, an argument of the script, is on no host, nor here; if the script reads it, it fails"
                continue
            yield Fix(
                "{word}, an argument of the script, is on the control machine and on no host; to copy it: {push}{then}",
                word=word,
                push=ipexctl_command("push", source, target),
                then=f"; then: {shlex.quote(target)} in its place" if target != word else "",
            )


def _exposed_notes(by_host: Mapping[str, FoundPaths]) -> Iterator[str]:
    hosts_with: dict[tuple[str, str], list[str]] = {}
    for name, paths in by_host.items():
        for exposed in paths.exposed:
            hosts_with.setdefault(exposed, []).append(name)
    for (path, detail), names in hosts_with.items():
        yield (
            f"{path} on {fold(names)}: {detail}, so another account can decide what the ranks execute; "
            "use a directory of your own unless you trust it"
        )


def _data_fix(path: str, hosts: Sequence[Host], lacking: Sequence[str], local: LocalPath | None) -> str:
    if local is None:
        copied = copy_line(path, hosts, lacking)
        if copied is None:
            return "neither the hosts nor this machine have it: fix the path, or leave out --data"
        return f"--data is not synced; to copy it: {copied}"
    target = local.target
    # At a path of its own it goes to all hosts: some may have it in their trees.
    limit = ("-l", fold(lacking)) if target == path else ()
    state = "--data is not synced" if not local.is_in_project else "without --data it is synced with the project"
    push = ipexctl_command("push", local.source, target, *limit)
    fix = Fix("{state}; to copy it: {push}", state=state, push=push)
    return fix if target == path else Fix("{fix}; then: `--data {target}`", fix=fix, target=target)


def _same_mpi(mpis: Mapping[str, Mpi]) -> Mpi | None:
    if not mpis:
        return None
    first, mpi = next(iter(mpis.items()))
    for name, other in mpis.items():
        if (other.flavor, other.version) != (mpi.flavor, mpi.version):
            version, other_version = (f"{program.flavor} {program.version or ''}".strip() for program in (mpi, other))
            raise StartError.because(
                f"{mpi.path} is {version} on {first} and {other_version} on {name}: they cannot start ranks together",
                Fix("use the same MPI on every host; without --mpi: the one that `ipexctl install` brings"),
                (name,),
            )
    return mpi


def _same_environment(pythons: Mapping[str, FoundPython], python: str) -> RankEnv:
    first, *_ = pythons
    for name, interpreter in pythons.items():
        if interpreter.version < _OLDEST_PYTHON:
            raise StartError.because(
                f"--python {python} on {name} is Python {'.'.join(map(str, interpreter.version))}",
                "ranks need Python 3.8 or newer: --python PATH",
                (name,),
            )
        for package in ("python", *_SAME_PACKAGES):
            version, other_version = pythons[first].version_of(package), interpreter.version_of(package)
            if version != other_version:
                raise StartError.because(
                    f"--python {python} has {package} {version} on {first} and {other_version} on {name}: ranks of "
                    "different stacks cannot communicate",
                    Fix("use the same packages on every host, or: `ipexctl install`"),
                    (name,),
                )
    interpreter = pythons[first]
    variables, prepended, packages = {"PATH": f"{interpreter.prefix}/bin"}, ["PATH"], dict(interpreter.packages)
    if all(other.mpi for other in pythons.values()):
        variables["I_MPI_ROOT"] = interpreter.prefix
        if interpreter.libraries:
            variables["LD_LIBRARY_PATH"] = ":".join(interpreter.libraries)
            prepended.append("LD_LIBRARY_PATH")
        if interpreter.providers:
            variables["FI_PROVIDER_PATH"] = interpreter.providers[0]
    elif MPICH.package in packages:
        packages.pop(INTEL.package, None)  # MPICH's wheel, installed later, has replaced its mpirun
    return RankEnv(
        python=python,
        prefix=interpreter.prefix,
        packages=packages,
        variables=variables,
        prepended=tuple(prepended),
        ccl=any(name.startswith("oneccl-bind") for name in interpreter.packages),
        version="{}.{}".format(*interpreter.version),
        mpi_backend=None,
    )


def copy_line(path: str, hosts: Sequence[Host], lacking: Sequence[str]) -> str | None:
    """Return the line of sh that copies a directory from the first host that has it to those that lack it; None if no
    host has it. `hosts`: all hosts of the call, in order."""
    source = next((host for host in hosts if host.name not in lacking), None)
    targets = [host for host in hosts if host.name in lacking]
    if source is None:
        return None
    packed = _on(source, _tar("-c", path), stdin="</dev/null")
    unpacked = f"mkdir -p -- {shlex.quote(path)} && {_tar('-x', path)}"
    remote = [host for host in targets if host.address != LOCAL.address]
    if len(remote) == len(targets) > 1 and len({tuple(ssh_options(host)) for host in targets}) == 1:
        ssh = shlex.join(["ssh", *ssh_options(targets[0])])
        names = " ".join(shlex.quote(host.address) for host in targets)
        return f'for host in {names}; do {packed} | {ssh} "$host" {shlex.quote(unpacked)}; done'
    return "; ".join(f"{packed} | {_on(host, unpacked)}" for host in targets)


def _tar(verb: str, path: str) -> str:
    return f"tar {verb}f - -C {shlex.quote(path)}" + (" ." if verb == "-c" else "")


def _on(host: Host, line: str, stdin: str = "") -> str:
    if host.address == LOCAL.address:
        return f"sh -c {shlex.quote(line)}"
    return " ".join(filter(None, (shlex.join(["ssh", *ssh_options(host), host.address, line]), stdin)))
