"""Find out whether the ranks of a resumed script would load different checkpoints on different hosts.

Without `--checkpoint`, nothing copies checkpoints between hosts. If rank 0 of an earlier run wrote or deleted them on
one host only, the ranks resume from different steps, and then fail or wait for each other.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.spec import RunSpec
from ipexctl.limits import PATIENCE
from ipexctl.node.common.placeholders import fill_run
from ipexctl.node.common.plan import ApartHosts, Plan
from ipexctl.projects.named_checkpoints import of_call
from ipexctl.projects.script_file import ResumeFlag
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.session import Session, capture

_RESUME_OPTION: Final = re.compile(r"--(?:auto[-_])?resume(?:[-_]\w+)*|--ckpt[-_]path")
_CHOOSES_ITSELF: Final = re.compile(r"|true|yes|auto|last|latest|best|hpc|must|allow|[0-9]+", re.IGNORECASE)
_DOES_NOT_RESUME: Final = frozenset({"false", "no", "none", "0", "never"})
_MAX_PLACES: Final = 50
_MAX_FOUND: Final = 1000
_ABOVE: Final = ("*/", "*/*/")
"""A script often joins a file's name to a directory, so files are also looked for one and two directories deeper."""
_MAX_RECORDS: Final = 8
_CHECKPOINT: Final = re.compile(r"(?P<kind>(?:checkpoint|step|epoch)[-_])(?P<number>[0-9]{1,12})")
_SCRIPT: Final = """\
cd {cwd} 2>/dev/null || exit 0
[ -z {path} ] || [ ! -e {path} ] || echo path
for it in {files}; do
  [ ! -f "$it" ] || printf '%s\\n' "file $it"
done | head -n {maximum}
for place in {places} . */; do
  for it in "$place"/checkpoint[-_][0-9]* "$place"/step[-_][0-9]* "$place"/epoch[-_][0-9]*; do
    [ ! -d "$it" ] || printf '%s\\n' "found $it"
  done
done | head -n {maximum}
"""


class HostCheckpoints(NamedTuple):
    """Checkpoints on one host. Paths are relative to the working directory."""

    names: frozenset[str] = frozenset()
    """Directories with the number of a step in their name, as `out/checkpoint-500`."""
    has_path: bool = False
    """True if the host has the path that the resume option names."""
    files: frozenset[str] = frozenset()
    """Files that the script names and that exist."""


def find_resume_flag(argv: Sequence[str]) -> ResumeFlag | None:
    """Return the first option such as `--resume_from_checkpoint`; None if there is none, or if its value is `false`."""
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if _RESUME_OPTION.fullmatch(name):
            following = argv[at + 1] if at + 1 < len(argv) and not argv[at + 1].startswith("-") else ""
            value = value if equals else following
            if value.lower() in _DOES_NOT_RESUME:
                return None
            return ResumeFlag(name, "" if _CHOOSES_ITSELF.fullmatch(value) else posixpath.normpath(value))
    return None


def earlier_checkpoint(spec: RunSpec, records: Sequence[RunRecord]) -> ResumeFlag | None:
    """Return the PATH that the last run of this script had for `--checkpoint`: the script may load it again."""
    of_project = [record for record in reversed(records) if record.project == str(spec.project.root)]
    for record in of_project[:_MAX_RECORDS]:
        path = record.plan.asked.checkpoint
        is_same = record.plan.asked.argv[:1] == (spec.asked.script,)
        if isinstance(path, str) and path and is_same:
            return ResumeFlag(f"run {record.id} had --checkpoint {path}", posixpath.normpath(path), path)
    return None


def check_resumed(
    nodes: Sequence[Host], spec: RunSpec, plan: Plan, pool: SessionPool, records: Sequence[RunRecord]
) -> ApartHosts | None:
    """Return how the checkpoints of the hosts differ; None if they do not, or if the script does not resume.

    Takes one round trip to each host, and none with `--checkpoint`, on one host, or if nothing hints at a checkpoint.
    """
    if spec.asked.checkpoint or len(nodes) < 2:
        return None
    argv, script = fill_run(spec.asked.argv[1:], plan.first_run), spec.project.script
    flag = find_resume_flag(argv) or (script.resumes if script is not None else None)
    flag = flag or earlier_checkpoint(spec, records)
    variables = {export.name: export.value for export in spec.asked.exports}
    named = of_call(script.checkpoints, argv, variables) if script is not None else ()
    if flag is None and not named:
        return None
    search = search_script(flag, argv, plan.cwd, named)

    def find(host: Host, session: Session) -> HostCheckpoints | None:
        del host
        result = capture(session, Command(search, "find checkpoints"), silence=PATIENCE)
        return parse_checkpoints(result.stdout.decode(errors="replace")) if result.ended.ok else None

    by_host = {done.host.name: done.result for done in pool.each(nodes, find)}
    answers = {host.name: answer for host in nodes if (answer := by_host[host.name]) is not None}
    apart = find_apart(flag, argv, answers) if flag is not None else None
    return apart or find_differing(spec.asked.script, answers)


def search_script(flag: ResumeFlag | None, argv: Sequence[str], cwd: str, named: Sequence[str] = ()) -> str:
    """Return the sh script that finds checkpoints on a host; `parse_checkpoints` reads its output."""
    patterns: list[str] = []
    for name in named:
        pattern = "*".join(shlex.quote(part) for part in name.split("*"))  # `*` stays a wildcard
        patterns += [pattern, *(above + pattern.lstrip("/") for above in _ABOVE)]
    return _SCRIPT.format(
        cwd=shlex.quote(cwd),
        path=shlex.quote(flag.path if flag is not None else ""),
        places=shlex.join(places_in(argv)),
        files=" ".join(patterns),
        maximum=_MAX_FOUND,
    )


def places_in(argv: Sequence[str]) -> list[str]:
    """Return the arguments and values of options that may be paths."""
    values = [word.partition("=")[2] if word.startswith("-") else word for word in argv]
    paths = [posixpath.normpath(value) for value in values if value and value.isprintable()]
    return [f"./{path}" if path.startswith("-") else path for path in dict.fromkeys(paths)][:_MAX_PLACES]


def parse_checkpoints(output: str) -> HostCheckpoints:
    """Return what the script of `search_script` printed on one host. A line that it would not print is left out."""
    lines = output.splitlines()
    names = (posixpath.normpath(line[len("found ") :]) for line in lines if line.startswith("found "))
    checkpoints = frozenset(name for name in names if _CHECKPOINT.fullmatch(posixpath.basename(name)))
    files = frozenset(posixpath.normpath(line[len("file ") :]) for line in lines if line.startswith("file "))
    return HostCheckpoints(checkpoints, "path" in lines, files)


def find_differing(script: str, by_host: Mapping[str, HostCheckpoints]) -> ApartHosts | None:
    """Return a file that the script names and that only some hosts have: rank 0 of an earlier run wrote it there."""
    files = sorted({file for host in by_host.values() for file in host.files})
    for file in files:
        having = [name for name, host in by_host.items() if file in host.files]
        if lacking := [name for name in by_host if name not in having]:
            where = f"which is on {fold(having)}, and not on {fold(lacking)}"
            return ApartHosts(f"{script} names {file}, {where}", file)
    return None


def find_apart(flag: ResumeFlag, argv: Sequence[str], by_host: Mapping[str, HostCheckpoints]) -> ApartHosts | None:
    """Return how the hosts differ: some lack the path of the flag, or their newest checkpoints differ. Else None."""
    lacking = [name for name, host in by_host.items() if not host.has_path]
    having = [name for name, host in by_host.items() if host.has_path]
    if flag.path and having and lacking:
        what = f"{flag.path} is on {fold(having)}, and not on {fold(lacking)}"
        return ApartHosts(f"{flag.name}: {what}", flag.place or posixpath.dirname(flag.path) or flag.path)
    named = {flag.path} if flag.path else set(places_in(argv))
    newest = {name: _newest(host) for name, host in by_host.items()}
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
            return ApartHosts(f"{flag.name}: the newest checkpoint in {place} is {hosts}", place)
    return None


def _newest(host: HostCheckpoints) -> dict[tuple[str, str], int]:
    """Return for each directory and kind of name, as `out` and `checkpoint-`, the highest number."""
    newest: dict[tuple[str, str], int] = {}
    for name in host.names:
        place, last = posixpath.split(name)
        match = _CHECKPOINT.fullmatch(last)
        if match is not None:
            key, number = (place or ".", match["kind"]), int(match["number"])
            newest[key] = max(number, newest.get(key, number))
    return newest


def resume_note(apart: ApartHosts) -> str:
    """Return the note that says how the hosts differ, what comes of it, and which option prevents it."""
    return (
        f"{apart.what}; ranks that resume from different steps fail or wait for each other; --checkpoint "
        f"{shlex.quote(apart.place)} gives all hosts the newest complete one before each start"
    )
