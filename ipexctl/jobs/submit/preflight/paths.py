"""What must lie on every host at one path and isn't brought by us: --python, --mpi PATH, --setup, --data, --no-sync."""

from __future__ import annotations

import json
import posixpath
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipexctl.facts.parse_software import parse_mpi
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.submit.failure import PreflightFailure
from ipexctl.launch.request import LaunchOptions, RankEnv
from ipexctl.remote.command import Command
from ipexctl.remote.node_call import script_text
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import capture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.software import Mpi
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

_TIME = 60.0
_OLDEST = (3, 8)
_MUST_AGREE = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl-bindings-for-pytorch")
_LOOK = """\
{tests}
mpi={mpi} python={python}
if [ -n "$mpi" ]; then
  for it in "$mpi" "$mpi/mpirun" "$mpi/bin/mpirun" -; do [ -f "$it" ] && [ -x "$it" ] && break; done
  [ "$it" = - ] || printf 'mpi %s %s\\n' "$it" "$("$it" --version </dev/null 2>&1 | head -n 3 | tr '\\n' '|')"
  [ "$it" != - ] || echo "--mpi $mpi"
fi
if [ -n "$python" ]; then
  command -v "$python" >/dev/null || {{ echo "python it is not there"; exit 0; }}
  said=$("$python" -c {script} 2>&1) || {{ printf 'python %s\\n' "$(printf '%s' "$said" | tail -n 1)"; exit 0; }}
  printf 'found %s\\n' "$(printf '%s' "$said" | tail -n 1)"
fi
exit 0
"""


@dataclass(frozen=True, slots=True)
class CheckedPaths:
    """What was named and found."""

    env: RankEnv | None = None
    """The environment of the user's Python."""
    mpi: Mpi | None = None


def check_paths(
    hosts: Sequence[Host], wishes: RunRequest, pool: SessionPool, unsynced: str = ""
) -> PreflightFailure | CheckedPaths:
    """One round trip, or none where nothing of the kind was named.

    `unsynced` is what is executed of a project that isn't brought.
    """
    data = [each for each in wishes.data if each.startswith("/")]
    mpi = wishes.options.mpi if "/" in wishes.options.mpi else ""
    if not (data or wishes.setup or wishes.python or mpi or unsynced):
        return CheckedPaths()
    tests = [f"[ -e {shlex.quote(unsynced)} ] || echo {shlex.quote('--no-sync ' + unsynced)}"] if unsynced else []
    tests += [f"[ -d {shlex.quote(each)} ] || echo {shlex.quote('--data ' + each)}" for each in data]
    if wishes.setup:
        tests.append(f"[ -r {shlex.quote(wishes.setup)} ] || echo {shlex.quote('--setup ' + wishes.setup)}")
    script = _LOOK.format(
        tests="\n".join(tests) or ":",
        mpi=shlex.quote(mpi),
        python=shlex.quote(wishes.python or ""),
        script=shlex.quote(script_text("run.interpreter")),
    )

    def look_there(host: Host, session: Session) -> str:
        del host
        said = capture(session, Command(script, "look for what a run needs"), timeout=_TIME, cancel=pool.cancel)
        if not said.ended.ok:
            raise HostError(f"could not look for what a run needs: {said.ended}")
        return said.stdout.decode(errors="replace")

    answers: dict[str, str] = {}
    for done in pool.each(hosts, look_there):
        if done.error is not None:
            lost = done.error.status == "unreachable"
            return PreflightFailure(f"{done.host.name}: {done.error.reason}", done.error.fix, (done.host.name,), lost)
        answers[done.host.name] = done.result or ""
    return evaluate_paths({host.name: answers[host.name] for host in hosts}, wishes.python)


def check_data(hosts: Sequence[Host], wishes: RunRequest, tree: str, pool: SessionPool) -> PreflightFailure | None:
    """A --data that is the project's own is looked for in the project's directory on the hosts, once that is known."""
    own = tuple(posixpath.normpath(f"{tree}/{each}") for each in wishes.data if not each.startswith("/"))
    if not own:
        return None
    found = check_paths(hosts, replace(wishes, data=own, setup=None, python=None, options=LaunchOptions()), pool)
    if not isinstance(found, PreflightFailure):
        return None
    fix = (
        "it isn't brought: put it there on every host, a link to where it lies will do; or name its path there, from /"
    )
    return replace(found, fix=fix)


def evaluate_paths(answers: Mapping[str, str], python: str | None) -> PreflightFailure | CheckedPaths:
    """From what the hosts said, in their order. Pure."""
    lacking: dict[str, list[str]] = {}
    broken: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {}
    mpis: dict[str, Mpi] = {}
    for name, text in answers.items():
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            if word in ("--data", "--setup", "--mpi", "--no-sync"):
                lacking.setdefault(line, []).append(name)
            elif word == "mpi":
                mpis[name] = parse_mpi(rest)
            elif word == "python":
                broken[name] = rest
            elif word == "found":
                found[name] = json.loads(rest)
    for what, names in lacking.items():
        if what.startswith("--no-sync "):
            reason = f"--no-sync, and {what.removeprefix('--no-sync ')} is not there on {fold(names)}"
            fix = "without --no-sync it is brought there; with it, it has to lie on every host at that path"
            return PreflightFailure(reason, fix, tuple(names))
        return PreflightFailure(
            f"{what} is not there on {fold(names)}",
            f"it has to be on every host at that path: ipexctl exec -- ls -d {what.split(' ', 1)[1]} shows who has it",
            tuple(names),
        )
    mpi = _same_mpi(mpis)
    if isinstance(mpi, PreflightFailure):
        return mpi
    if python is None:
        return CheckedPaths(None, mpi)
    if broken:
        first = next(iter(broken))
        alike = tuple(name for name, text in broken.items() if text == broken[first])
        return PreflightFailure(
            f"--python {python} on {fold(alike)}: {broken[first]}",
            "a Python that lies at one path on every host; without it: the environment of ipexctl install",
            alike,
        )
    env = _environment(found, python)
    return env if isinstance(env, PreflightFailure) else CheckedPaths(env, mpi)


def _same_mpi(mpis: Mapping[str, Mpi]) -> PreflightFailure | Mpi | None:
    """The first host's, where the others' says the same of itself."""
    if not mpis:
        return None
    first, mpi = next(iter(mpis.items()))
    for name, other in mpis.items():
        if (other.flavor, other.version) != (mpi.flavor, mpi.version):
            here, there = (f"{each.flavor} {each.version or ''}".strip() for each in (mpi, other))
            return PreflightFailure(
                f"{mpi.path} is {here} on {first} and {there} on {name}: its daemons wouldn't understand one another",
                "the same MPI on every host; without --mpi: the one that ipexctl install brought",
                (name,),
            )
    return mpi


def _environment(found: Mapping[str, Mapping[str, Any]], python: str) -> PreflightFailure | RankEnv:
    first, *_ = found
    for name, said in found.items():
        if tuple(int(part) for part in said["version"].split(".")[:2]) < _OLDEST:
            return PreflightFailure(
                f"--python {python} on {name} is Python {said['version']}: ranks need 3.8 or newer",
                "a newer one",
                (name,),
            )
        for what in ("python", *_MUST_AGREE):
            here, there = _version(found[first], what), _version(said, what)
            if here != there:
                return PreflightFailure(
                    f"--python {python} has {what} {here} on {first} and {there} on {name}: ranks of different stacks "
                    "don't understand one another",
                    "the same packages on every host, or: ipexctl install",
                    (name,),
                )
    said = found[first]
    prefix = said["prefix"]
    variables, prepended = {"PATH": f"{prefix}/bin"}, ["PATH"]
    if all(each["mpi"] for each in found.values()):
        variables["I_MPI_ROOT"] = prefix
        if said["libraries"]:
            variables["LD_LIBRARY_PATH"] = ":".join(said["libraries"])
            prepended.append("LD_LIBRARY_PATH")
        if said["providers"]:
            variables["FI_PROVIDER_PATH"] = said["providers"][0]
    packages = dict(said["packages"])
    return RankEnv(
        python=python,
        prefix=prefix,
        packages=packages,
        variables=variables,
        prepended=tuple(prepended),
        ccl=any(name.startswith("oneccl-bind") for name in packages),
        mpi_backend=None,
    )


def _version(said: Mapping[str, Any], what: str) -> str:
    if what == "python":
        return ".".join(said["version"].split(".")[:2])
    return str(said["packages"].get(what, "not at all"))
