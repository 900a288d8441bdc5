"""The module migrate: list the lines of a project that use IPEX, and edit them with `apply`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from ipexctl.playbook.migrate import applied, scan
from ipexctl.playbook.modules.doctor_trust_sync import refused
from ipexctl.playbook.options import local_path
from ipexctl.playbook.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ipexctl.playbook.migrate import MigrationFinding
    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call


class _Migrate:
    def run_on_all(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        """Run once, on the control machine; the first host gets the result."""
        del context
        call = calls[0]
        root = local_path(call.task.base, call.args["src"])
        if not root.is_dir():
            return refused(calls, f"{root} on this machine is no directory", "src: the project's directory")
        try:
            findings = scan(root)
            edits = _edits(root, findings)
            apply = call.args["apply"] and not call.check
            if apply:
                for path, (_, new) in edits.items():
                    path.write_text(new, encoding="utf-8")
        except OSError as error:
            return refused(calls, f"{error.filename} on this machine: {error.strerror or error}")
        left = [finding for finding in findings if finding.new is None]
        data = {
            "found": [
                {
                    "path": finding.path,
                    "line": finding.line,
                    "what": finding.what,
                    "text": finding.text,
                    "new": finding.new,
                }
                for finding in findings
            ],
            "edits": len(edits),
            "left": len(left),
        }
        diff = "".join(_diff(root, path, *texts) for path, texts in edits.items())
        lines = [
            f"{finding.path}:{finding.line}: {finding.what}" + ("" if finding.new is not None else " (yours to decide)")
            for finding in findings
        ]
        message = "\n".join(lines) or "nothing of IPEX's ways is in it"
        changes = bool(edits) and call.args["apply"]
        first = Result(
            "changed" if changes else "ok", message=message, reason=message if changes else "", data=data, diff=diff
        )
        rest = Result("ok", data=data)
        return {host_call.host.name: first if host_call is call else rest for host_call in calls}


def _edits(root: Path, findings: Sequence[MigrationFinding]) -> dict[Path, tuple[str, str]]:
    edits: dict[Path, tuple[str, str]] = {}
    for name in dict.fromkeys(finding.path for finding in findings if finding.new is not None):
        path = root / name
        old = path.read_text(encoding="utf-8")
        edits[path] = (old, applied(old, [finding for finding in findings if finding.path == name]))
    return edits


def _diff(root: Path, path: Path, old: str, new: str) -> str:
    name = str(path.relative_to(root))
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = difflib.unified_diff(before, after, f"{name} (before)", f"{name} (after)", n=1)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


RUNNERS: Final = {"migrate": _Migrate()}
