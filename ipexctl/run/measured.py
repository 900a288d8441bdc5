"""Results of `autotune` for a project, kept for later plans: `measured.json` in the user's data directory.

In come a gain that was shown and the plan; out come, for a later plan with the same settings, "measured on 2026-11-30:
1.18x", and a note if the hosts, torch or the script are no longer those that were measured. The rules: the fingerprint
has CPUs, NUMA nodes, number of hosts and ranks, torch and the hash of the script; there is no note on a plan with other
settings.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.file_reader import SCRIPT, read_regular
from ipexctl.node.common.files import make_private_directory, read_json, write_json_atomically
from ipexctl.option_declaration import values_of
from ipexctl.sync.root import owner_here, tree_name
from ipexctl.text import join_words
from ipexctl.user_directories import data_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ipexctl.facts.facts import Facts
    from ipexctl.launch.plan import LaunchPlan
    from ipexctl.run.start.context import RunContext
    from ipexctl.run.start.project import ProjectLocation
    from ipexctl.spec import RunSpec

SCHEMA: Final = "ipexctl.measured/1"
NAME: Final = "measured.json"
_PARTS: Final = {
    "cpus": "the CPUs",
    "numa": "the NUMA nodes",
    "ranks": "hosts and ranks",
    "torch": "torch",
    "script": "the script",
}


def directory_of(root: Path) -> Path:
    """The directory of the project's searches."""
    return data_directory() / "autotune" / tree_name(root, owner_here())


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a measurement depends on."""

    cpus: str
    numa: str
    ranks: str
    torch: str
    script: str

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        return tuple(text for name, text in _PARTS.items() if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True, slots=True)
class Measured:
    """A gain that was shown."""

    date: str
    ratio: float
    low: float
    high: float
    settings: tuple[tuple[str, str], ...]
    fingerprint: Fingerprint


def fingerprint_of(
    plan: LaunchPlan, facts: Mapping[str, Facts], packages: Mapping[str, str], script: str
) -> Fingerprint:
    """`script`: its text, or the words of a command."""
    used = [facts[host.name].cpu for host in plan.hosts]
    return Fingerprint(
        cpus=",".join(sorted({f"{cpu.model_name} {cpu.allowed}" for cpu in used})),
        numa=",".join(sorted({str(cpu.numa_nodes) for cpu in used})),
        ranks=f"{len(plan.hosts)} {plan.world_size}",
        torch=packages.get("torch", ""),
        script=hashlib.sha256(script.encode("utf-8", "surrogateescape")).hexdigest()[:16],
    )


def script_text(project: ProjectLocation, spec: RunSpec) -> str:
    """The text of the script; of a module or a command its words."""
    if spec.kind == "script":
        with contextlib.suppress(OSError):
            return _text_of(project.root / project.subdirectory / project.command[0])
    return " ".join(spec.argv[:1])


def _text_of(path: Path) -> str:
    return read_regular(path, SCRIPT).decode(errors="replace")


def notes_on(plan: LaunchPlan, context: RunContext, spec: RunSpec, project: ProjectLocation) -> tuple[str, str]:
    """What was measured of the settings, and a note if that is no longer what runs; empty if there is nothing."""
    known = find(directory_of(project.root), spec.script)
    if known is None or not has_settings(spec, known.settings):
        return "", ""
    now = fingerprint_of(plan, context.facts, context.env.packages, script_text(project, spec))
    text = f"measured on {known.date}: {known.ratio:.2f}x ({known.low:.2f} to {known.high:.2f}) by autotune"
    changed = now.differences(known.fingerprint)
    if not changed:
        return text, ""
    return text, (
        f"these settings were measured on {known.date}, and {join_words(changed)} changed since: "
        "ipexctl autotune measures them again"
    )


def has_settings(spec: RunSpec, settings: Iterable[tuple[str, str]]) -> bool:
    """Whether the spec has these options and variables. Pure."""
    variables = {f"x.{export.name}": export.value for export in spec.exports if not export.secret}
    options = {name: str(value) for name, value in values_of(spec).items()}
    values = {**options, **variables, "iface": spec.iface}
    return all(values.get(name) == value for name, value in settings)


def save(directory: Path, script: str, measured: Measured) -> None:
    """`script`: its name in the project. Raises an OSError."""
    make_private_directory(directory)
    known = _read_scripts(directory)
    write_json_atomically(directory / NAME, {"schema": SCHEMA, "scripts": {**known, script: asdict(measured)}})


def find(directory: Path, script: str) -> Measured | None:
    """The result for a script; None if there is none, or it can't be read."""
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        fields = dict(_read_scripts(directory)[script])
        settings = tuple((str(name), str(value)) for name, value in fields.pop("settings"))
        fingerprint = Fingerprint(**{name: str(value) for name, value in fields.pop("fingerprint").items()})
        date = str(fields.pop("date"))
        ratio, low, high = (float(fields[name]) for name in ("ratio", "low", "high"))
        return Measured(date, ratio, low, high, settings, fingerprint)
    return None


def _read_scripts(directory: Path) -> dict[str, dict[str, Any]]:
    document = read_json(directory / NAME)
    scripts = document.get("scripts") if document.get("schema") == SCHEMA else None
    return scripts if isinstance(scripts, dict) else {}
