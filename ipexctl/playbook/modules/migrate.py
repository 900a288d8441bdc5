"""The module migrate: find the lines of a project that use IPEX or the oneCCL bindings, and edit them with `apply`.

A line whose replacement depends on other lines is only reported; the user decides.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ipexctl.playbook.options import local_path
from ipexctl.playbook.result import Call, Result, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.playbook.play_context import PlayContext

SUFFIXES: Final = frozenset({".py", ".sh", ".yaml", ".yml", ".json", ".txt", ".toml", ".cfg", ".md"})
_SKIPPED: Final = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".ipexctl", ".tox"})
_MAX_BYTES: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class MigrationFinding:
    """One line that uses IPEX or the oneCCL bindings."""

    path: str
    line: int
    text: str
    what: str
    new: str | None = None
    """The replacement; empty: delete the line; None: the user has to decide."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    what: str
    replacement: str | None = None
    suffixes: frozenset[str] = SUFFIXES


_PYTHON: Final = frozenset({".py"})
_TEXT_FILES: Final = frozenset({".py", ".sh", ".txt", ".md"})
_CONFIG: Final = frozenset({".yaml", ".yml", ".json"})
RULES: Final = (
    _Rule(
        re.compile(r"^\s*import intel_extension_for_pytorch\b.*$"),
        "imports IPEX: what it had is in torch itself",
        "",
        _PYTHON,
    ),
    _Rule(
        re.compile(r"^\s*from intel_extension_for_pytorch\b.*$"),
        "imports IPEX: what it had is in torch itself",
        None,
        _PYTHON,
    ),
    _Rule(
        re.compile(r"^\s*import (oneccl_bindings_for_pytorch|torch_ccl)\b.*$"),
        "imports oneCCL's bindings: torch's own gloo serves CPUs",
        "",
        _PYTHON,
    ),
    _Rule(
        re.compile(r"^(\s*)(\w+)\s*,\s*\w+\s*=\s*ipex\.optimize\(.*$"),
        "ipex.optimize: leave it out; torch.compile(model) does what it did",
        None,
        _PYTHON,
    ),
    _Rule(re.compile(r"\bipex\.\w+"), "uses IPEX", None, _PYTHON),
    _Rule(
        re.compile(r"(init_process_group\(\s*(?:backend\s*=\s*)?)([\"'])ccl\2"),
        "the backend ccl: gloo, which torch has",
        r"\1\2gloo\2",
        _PYTHON,
    ),
    _Rule(re.compile(r"\s--ddp_backend[ =]ccl\b"), "--ddp_backend ccl: gloo", " --ddp_backend gloo", _TEXT_FILES),
    _Rule(re.compile(r"([\"']?ddp_backend[\"']?\s*[:=]\s*[\"']?)ccl\b"), "ddp_backend ccl: gloo", r"\1gloo"),
    _Rule(re.compile(r"\s--use_ipex\b(?![ =](?:False|false))"), "--use_ipex: no longer an option", "", _TEXT_FILES),
    _Rule(re.compile(r"^\s*[\"']?use_ipex[\"']?\s*:\s*\w+,?\s*$"), "use_ipex: no longer an option", "", _CONFIG),
    _Rule(re.compile(r"\buse_ipex\s*=\s*\w+\s*,\s*"), "use_ipex: no longer an option", "", _PYTHON),
    _Rule(re.compile(r"\buse_ipex\s*=\s*\w+"), "use_ipex: no longer an option", None, _PYTHON),
    _Rule(re.compile(r"\s--no_cuda\b"), "--no_cuda is --use_cpu today", " --use_cpu", _TEXT_FILES),
    _Rule(re.compile(r"\bno_cuda\s*=\s*"), "no_cuda is use_cpu today", "use_cpu=", _PYTHON),
    _Rule(
        re.compile(r"^\s*mpirun_ccl\s*:.*$"),
        "mpirun_ccl: without the bindings there are no workers of theirs",
        "",
        _CONFIG,
    ),
    _Rule(
        re.compile(r"^(\s*)(ipex_fusion_enabled|ipex_enabled|ipex)\s*:\s*(true|True)\s*$"),
        "accelerate's ipex: false",
        r"\1\2: false",
        _CONFIG,
    ),
    _Rule(
        re.compile(r"^\s*(intel[-_]extension[-_]for[-_]pytorch|oneccl[-_]bind[-_]pt)\b.*$", re.IGNORECASE),
        "a package that is no longer made",
        "",
        frozenset({".txt"}),
    ),
    _Rule(
        re.compile(r"intel[-_]extension[-_]for[-_]pytorch|oneccl[-_]bind[-_]pt", re.IGNORECASE),
        "names a package that is no longer made",
        None,
        frozenset({".toml", ".cfg", ".sh"}),
    ),
)


def scan(root: Path) -> tuple[MigrationFinding, ...]:
    """All lines of the project that have to change, in the order of the files."""
    findings: list[MigrationFinding] = []
    for path in _files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        findings += scan_text(text, str(path.relative_to(root)), path.suffix)
    return tuple(findings)


def scan_text(text: str, name: str, suffix: str) -> list[MigrationFinding]:
    findings = []
    for number, line in enumerate(text.split("\n"), 1):
        new, reasons, needs_user = line, [], False
        for rule in RULES:
            if suffix not in rule.suffixes or not rule.pattern.search(new):
                continue
            reasons.append(rule.what)
            if rule.replacement is None:
                needs_user = True
                break
            new = rule.pattern.sub(rule.replacement, new)
        if reasons:
            replacement = None if needs_user else new if new.strip() else ""
            findings.append(MigrationFinding(name, number, line, "; ".join(reasons), replacement))
    if any(finding.new is None for finding in findings):
        # Remaining uses of ipex.NAME need the import until the user has decided about them.
        findings = [
            replace(finding, new=None) if finding.what.startswith("imports") else finding for finding in findings
        ]
    return findings


def applied(text: str, findings: list[MigrationFinding]) -> str:
    """The text with the safe edits applied; a line that an edit empties is deleted."""
    edits = {finding.line: finding.new for finding in findings if finding.new is not None}
    lines = text.split("\n")
    kept = []
    for number, line in enumerate(lines, 1):
        new = edits.get(number, line)
        if number not in edits or new:
            kept.append(line if number not in edits else str(new))
    return "\n".join(kept)


def _files(root: Path) -> Iterator[Path]:
    pending = [root]
    while pending:
        directory = pending.pop(0)
        for path in sorted(directory.iterdir()):
            if path.is_symlink():
                continue
            if path.is_dir():
                if path.name not in _SKIPPED:
                    pending.append(path)
            elif path.suffix in SUFFIXES and path.stat().st_size <= _MAX_BYTES:
                yield path


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
