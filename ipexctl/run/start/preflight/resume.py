"""Notes about a script that is to resume: hosts with different newest checkpoints, and a Trainer that cannot load one.
Without `--checkpoint`, each rank resumes from its own host. If only rank 0 writes or deletes there, the ranks resume
from different steps, and fail or wait for each other. The Trainer loads the optimizer to `args.device` if there are
several ranks; newer accelerates add an index for CPUs, `cpu:0`, which torch.load refuses, and older transformers do not
leave it out (`ipexctl/hugging_face.py`). All but `check_resumed` is pure.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.hugging_face import INDEXED_CPU, RESUMES_ON_CPU
from ipexctl.limits import PATHS_CHECK
from ipexctl.node.common.plan import Plan
from ipexctl.remote.command import Command
from ipexctl.remote.session import Session, capture
from ipexctl.remote.session_pool import SessionPool
from ipexctl.spec import RunSpec
from ipexctl.text import printable

_FLAG: Final = re.compile(r"--(?:auto[-_])?resume(?:[-_]\w+)*|--ckpt[-_]path")
_NO_PATH: Final = re.compile(r"|true|yes|auto|last|latest|best|hpc|must|allow|[0-9]+", re.IGNORECASE)
_OFF: Final = frozenset({"false", "no", "none", "0", "never"})
_MAX_PLACES: Final = 50
_MAX_FOUND: Final = 1000
_CHECKPOINT: Final = re.compile(r"(?P<kind>(?:checkpoint|step|epoch)[-_])(?P<number>[0-9]{1,12})")
_SCRIPT: Final = """\
cd {cwd} 2>/dev/null || exit 0
[ -z {path} ] || [ ! -e {path} ] || echo path
for place in {places} . */; do
  for it in "$place"/checkpoint[-_][0-9]* "$place"/step[-_][0-9]* "$place"/epoch[-_][0-9]*; do
    [ ! -d "$it" ] || printf '%s\\n' "found $it"
  done
done | head -n {most}
"""


class ResumeFlag(NamedTuple):
    name: str
    path: str = ""
    """The checkpoint that it names; empty if the script chooses one itself."""


class HostCheckpoints(NamedTuple):
    names: frozenset[str] = frozenset()
    """Directories with the number of a step in their name."""
    has_path: bool = False


def find_resume_flag(argv: Sequence[str]) -> ResumeFlag | None:
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if _FLAG.fullmatch(name):
            following = argv[at + 1] if at + 1 < len(argv) and not argv[at + 1].startswith("-") else ""
            value = value if equals else following
            if value.lower() in _OFF:
                return None
            return ResumeFlag(name, "" if _NO_PATH.fullmatch(value) else posixpath.normpath(value))
    return None


def trainer_resume_note(flag: ResumeFlag | None, *, has_trainer: bool, packages: Mapping[str, str], ranks: int) -> str:
    if flag is None or not has_trainer or ranks < 2:
        return ""
    from ipexctl.launch.accelerate_env import before  # slow to import, and few scripts resume

    transformers, accelerate = packages.get("transformers", ""), packages.get("accelerate", "")
    if not transformers or not before(transformers, RESUMES_ON_CPU) or before(accelerate, INDEXED_CPU):
        return ""
    return (
        f"{flag.name}: the Trainer of transformers {transformers} cannot load its optimizer with several ranks on CPUs "
        f"(tagged with cpu:0); ipexctl install --with 'transformers>={RESUMES_ON_CPU}' brings one that can"
    )


def check_resumed(nodes: Sequence[Host], spec: RunSpec, plan: Plan, pool: SessionPool) -> str:
    """One round trip for a script that resumes without `--checkpoint` on several hosts. Returns a note, or ''."""
    argv = spec.argv[1:]
    flag = find_resume_flag(argv)
    if flag is None or spec.checkpoint or len(nodes) < 2:
        return ""
    script = search_script(flag, argv, plan.cwd)

    def find(host: Host, session: Session) -> HostCheckpoints | None:
        del host
        result = capture(session, Command(script, "find checkpoints"), timeout=PATHS_CHECK, cancel=pool.cancel)
        return parse_checkpoints(result.stdout.decode(errors="replace")) if result.ended.ok else None

    found = {done.host.name: done.result for done in pool.each(nodes, find)}
    answers = {host.name: answer for host in nodes if (answer := found[host.name]) is not None}
    return resume_note(flag, argv, answers)


def search_script(flag: ResumeFlag, argv: Sequence[str], cwd: str) -> str:
    """The shell script that finds checkpoints on a host; `parse_checkpoints` reads its output."""
    places, path = shlex.join(_places_in(argv)), shlex.quote(flag.path)
    return _SCRIPT.format(cwd=shlex.quote(cwd), path=path, places=places, most=_MAX_FOUND)


def _places_in(argv: Sequence[str]) -> list[str]:
    values = [word.partition("=")[2] if word.startswith("-") else word for word in argv]
    paths = [posixpath.normpath(value) for value in values if value and value.isprintable()]
    return [f"./{path}" if path.startswith("-") else path for path in dict.fromkeys(paths)][:_MAX_PLACES]


def parse_checkpoints(output: str) -> HostCheckpoints:
    lines = output.splitlines()
    names = (posixpath.normpath(line[len("found ") :]) for line in lines if line.startswith("found "))
    found = frozenset(name for name in names if _CHECKPOINT.fullmatch(posixpath.basename(name)))
    return HostCheckpoints(found, "path" in lines)


def resume_note(flag: ResumeFlag, argv: Sequence[str], found: Mapping[str, HostCheckpoints]) -> str:
    """Which hosts have another newest checkpoint, or lack the one that the flag names; empty if they agree."""
    lacking = [name for name, host in found.items() if not host.has_path]
    having = [name for name, host in found.items() if host.has_path]
    if flag.path and having and lacking:
        what = f"{printable(flag.path)} is on {fold(having)}, and not on {fold(lacking)}"
        return _note(flag, what, posixpath.dirname(flag.path) or flag.path)
    named = {flag.path} if flag.path else set(_places_in(argv))
    newest = {name: _newest(host) for name, host in found.items()}
    places = {place for host in newest.values() for place in host if place[0] in named}
    if not places and not flag.path:
        places = {place for host in newest.values() for place in host}
    for place, kind in sorted(places):
        by_checkpoint: dict[str, list[str]] = {}
        for name, host_newest in newest.items():
            number = host_newest.get((place, kind))
            by_checkpoint.setdefault("none" if number is None else f"{kind}{number}", []).append(name)
        if len(by_checkpoint) > 1:
            hosts = ", ".join(f"{checkpoint} on {fold(names)}" for checkpoint, names in by_checkpoint.items())
            return _note(flag, f"the newest checkpoint in {printable(place)} is {hosts}", place)
    return ""


def _newest(host: HostCheckpoints) -> dict[tuple[str, str], int]:
    """A directory and the kind of name → the highest number."""
    newest: dict[tuple[str, str], int] = {}
    for name in host.names:
        place, last = posixpath.split(name)
        match = _CHECKPOINT.fullmatch(last)
        if match is not None:
            key, number = (place or ".", match["kind"]), int(match["number"])
            newest[key] = max(number, newest.get(key, number))
    return newest


def _note(flag: ResumeFlag, what: str, place: str) -> str:
    return (
        f"{flag.name}: {what}; ranks that resume from different steps fail or wait for each other; --checkpoint "
        f"{shlex.quote(place)} gives all hosts the newest complete one before each start"
    )
