"""Lines from READMEs of training tools, as they are pasted behind `ipexctl run`, and what comes of each.

`IPEXCTL_GOLDEN=write` writes what comes into tests/data/readme_lines.json; a new line is a new entry, and no code.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.errors import UserError
from ipexctl.launch.launchers.cpu_options import with_cpu_options
from ipexctl.launch.launchers.unwrap import UnwrappedCall, unwrap
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import ipexctl_command
from ipexctl.node.common.run_options import Export
from ipexctl.run.start.start_project import locate_project, with_python_path
from plan_helpers import spec_of

FILE = Path(__file__).parents[2] / "data" / "readme_lines.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())


def shown(value: object) -> object:
    return value.value if isinstance(value, Export) else value


def located(spec: RunSpec, cwd: Path) -> dict[str, Any]:
    """What comes of a script that is here, or of a command that nothing is known of."""
    spec = replace(spec, project=locate_project(spec, cwd, ipexctl_command("run")))
    spec, note = with_python_path(spec, cwd)
    variables = {export.name: export.value for export in spec.asked.exports}
    return {"command": list(spec.project.command), "variables": variables, "notes": [note] if note else []}


def taken(found: UnwrappedCall) -> dict[str, Any]:
    return {
        "runs": f"{found.spec.asked.kind}: {shlex.join(found.spec.asked.argv)}",
        "options": {name: shown(each.value) for name, each in found.values.items()},
        "notes": [note for note in (*found.other_notes, found.note) if note],
    }


def what_comes(case: dict[str, Any], cwd: Path) -> dict[str, Any]:
    words = shlex.split(case["line"])
    dashes = words[:1] == ["--"]
    spec = spec_of("command" if dashes else "script", tuple(words[dashes:]))
    comes: dict[str, Any] = {}
    try:
        found = unwrap(spec, (), None, {})
        if found is not None:
            spec, for_cpus = with_cpu_options(found.spec)
            comes = taken(replace(found, spec=spec, other_notes=(*found.other_notes, for_cpus)))
        if spec.asked.kind == "script" and (found is None or "files" in case or not found.note):
            comes["located"] = located(spec, cwd)
    except UserError as error:
        comes["refused"] = [error.message, error.fix]
    return comes


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{at} {case['tool']}" for at, case in enumerate(CASES)])
def test_a_line_of_a_readme(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[number]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    for name, text in case.get("files", {}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    comes = what_comes(case, tmp_path)
    assert [*tmp_path.glob("*.log"), *tmp_path.glob("output")] == [], "nothing of a script was executed"
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        case["comes"] = comes
        FILE.write_text(json.dumps(CASES, indent=1, ensure_ascii=False) + "\n")
        return
    assert comes == case["comes"]


def test_lines_are_of_many_tools() -> None:
    assert len({case["tool"] for case in CASES}) >= 25
