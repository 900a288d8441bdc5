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

    from ipexctl.playbook.migrate import Found
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
            found = scan(root)
            edits = _edits(root, found)
            apply = call.args["apply"] and not call.check
            if apply:
                for path, (_, new) in edits.items():
                    path.write_text(new, encoding="utf-8")
        except OSError as error:
            return refused(calls, f"{error.filename} on this machine: {error.strerror or error}")
        left = [each for each in found if each.new is None]
        data = {
            "found": [
                {"path": each.path, "line": each.line, "what": each.what, "text": each.text, "new": each.new}
                for each in found
            ],
            "edits": len(edits),
            "left": len(left),
        }
        diff = "".join(_diff(root, path, *texts) for path, texts in edits.items())
        lines = [
            f"{each.path}:{each.line}: {each.what}" + ("" if each.new is not None else " (yours to decide)")
            for each in found
        ]
        message = "\n".join(lines) or "nothing of IPEX's ways is in it"
        changes = bool(edits) and call.args["apply"]
        first = Result(
            "changed" if changes else "ok", message=message, reason=message if changes else "", data=data, diff=diff
        )
        rest = Result("ok", data=data)
        return {each.host.name: first if each is call else rest for each in calls}


def _edits(root: Path, found: Sequence[Found]) -> dict[Path, tuple[str, str]]:
    edits: dict[Path, tuple[str, str]] = {}
    for name in dict.fromkeys(each.path for each in found if each.new is not None):
        path = root / name
        old = path.read_text(encoding="utf-8")
        edits[path] = (old, applied(old, [each for each in found if each.path == name]))
    return edits


def _diff(root: Path, path: Path, old: str, new: str) -> str:
    name = str(path.relative_to(root))
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = difflib.unified_diff(before, after, f"{name} (before)", f"{name} (after)", n=1)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


RUNNERS: Final = {"migrate": _Migrate()}
