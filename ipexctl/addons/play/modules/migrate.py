"""The module migrate: find the lines of a project that use IPEX or the oneCCL bindings, and edit them with `apply`.

It works on the text of lines, on the control machine, and runs nothing of the project. A line that only the user can
rewrite is named, and left as it is; then the imports in that file stay, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ipexctl.addons.play.modules.local_files import local_path
from ipexctl.addons.play.result import Call, TaskResult, unified_diff
from ipexctl.addons.play.variables import PlayContext
from ipexctl.errors import UserError
from ipexctl.file_reader import SOURCE, decode_text, read_regular
from ipexctl.hosts.host import Host

SUFFIXES: Final = frozenset({".py", ".sh", ".yaml", ".yml", ".json", ".txt", ".toml", ".cfg", ".md"})
_SKIPPED: Final = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".ipexctl", ".tox"})


@dataclass(frozen=True, slots=True)
class MigrationFinding:
    """A line that uses what IPEX had."""

    path: str
    """Relative to the project's directory."""
    line: int
    """Counted from 1."""
    text: str
    what: str
    """What is wrong with it, and what replaces it."""
    new: str | None = None
    """Replacement; empty deletes the line, None leaves it to the user."""


_PYTHON: Final = frozenset({".py"})
_TEXT_FILES: Final = frozenset({".py", ".sh", ".txt", ".md"})
_CONFIG: Final = frozenset({".yaml", ".yml", ".json"})
_IMPORTS_IPEX: Final = "imports IPEX: torch itself has its features now"
_IMPORTS_CCL: Final = "imports oneCCL's bindings: use torch's own gloo on CPUs"
_OPTIMIZES: Final = "ipex.optimize: remove it; torch.compile(model) replaces it"
_NO_USE_IPEX: Final = "use_ipex: no longer an option"
_CCL_WORKERS: Final = "mpirun_ccl: without the bindings there are no oneCCL workers"
_PACKAGES: Final = r"(intel[-_]extension[-_]for[-_]pytorch|oneccl[-_]bind[-_]pt)"
RULES: Final[tuple[tuple[str, str, str | None, frozenset[str]], ...]] = (
    (r"^\s*import intel_extension_for_pytorch\b.*$", _IMPORTS_IPEX, "", _PYTHON),
    (r"^\s*from intel_extension_for_pytorch\b.*$", _IMPORTS_IPEX, None, _PYTHON),
    (r"^\s*import (oneccl_bindings_for_pytorch|torch_ccl)\b.*$", _IMPORTS_CCL, "", _PYTHON),
    (r"^(\s*)(\w+)\s*,\s*\w+\s*=\s*ipex\.optimize\(.*$", _OPTIMIZES, None, _PYTHON),
    (r"\bipex\.\w+", "uses IPEX", None, _PYTHON),
    (
        r"(init_process_group\(\s*(?:backend\s*=\s*)?)([\"'])ccl\2",
        "backend ccl: use gloo, part of torch",
        r"\1\2gloo\2",
        _PYTHON,
    ),
    (r"\s--ddp_backend[ =]ccl\b", "--ddp_backend ccl: gloo", " --ddp_backend gloo", _TEXT_FILES),
    (r"([\"']?ddp_backend[\"']?\s*[:=]\s*[\"']?)ccl\b", "ddp_backend ccl: gloo", r"\1gloo", SUFFIXES),
    (r"\s--use_ipex\b(?![ =](?:False|false))", "--use_ipex: no longer an option", "", _TEXT_FILES),
    (r"^\s*[\"']?use_ipex[\"']?\s*:\s*\w+,?\s*$", _NO_USE_IPEX, "", _CONFIG),
    (r"\buse_ipex\s*=\s*\w+\s*,\s*", _NO_USE_IPEX, "", _PYTHON),
    (r"\buse_ipex\s*=\s*\w+", _NO_USE_IPEX, None, _PYTHON),
    (r"\s--no_cuda\b", "--no_cuda is --use_cpu now", " --use_cpu", _TEXT_FILES),
    (r"\bno_cuda\s*=\s*", "no_cuda is use_cpu now", "use_cpu=", _PYTHON),
    (r"^\s*mpirun_ccl\s*:.*$", _CCL_WORKERS, "", _CONFIG),
    (
        r"^(\s*)(ipex_fusion_enabled|ipex_enabled|ipex)\s*:\s*(true|True)\s*$",
        "accelerate's ipex: false",
        r"\1\2: false",
        _CONFIG,
    ),
    (rf"(?i)^\s*{_PACKAGES}\b.*$", "a package that is no longer released", "", frozenset({".txt"})),
    (rf"(?i){_PACKAGES}", "names a package that is no longer released", None, frozenset({".toml", ".cfg", ".sh"})),
)
"""Pattern, what it means, replacement as for `re.sub` (None: the user's to decide), and suffixes of files.

Rules are applied to a line one after the other, each to what the rules before it made of the line.
"""


def scan(root: Path) -> tuple[MigrationFinding, ...]:
    """Return the findings in all files below a directory; files that can't be read are skipped."""
    findings: list[MigrationFinding] = []
    for path in _files(root):
        try:
            text = _text(path)
        except (OSError, UnicodeDecodeError):
            continue
        findings += scan_text(text, str(path.relative_to(root)), path.suffix)
    return tuple(findings)


def _text(path: Path) -> str:
    return decode_text(read_regular(path, SOURCE))


def scan_text(text: str, name: str, suffix: str) -> list[MigrationFinding]:
    """Return the findings in one file. `name`: for `MigrationFinding.path`. `suffix`: such as `.py`."""
    findings = []
    for number, line in enumerate(text.split("\n"), 1):
        new, reasons, needs_user = line, [], False
        for pattern, what, edit, suffixes in RULES:
            if suffix not in suffixes or not re.search(pattern, new):
                continue
            reasons.append(what)
            if edit is None:
                needs_user = True
                break
            new = re.sub(pattern, edit, new)
        if reasons:
            edited = new if new.strip() else ""
            replacement = None if needs_user else edited
            findings.append(MigrationFinding(name, number, line, "; ".join(reasons), replacement))
    if all(finding.new is not None for finding in findings):
        return findings
    # Remaining uses of ipex.NAME need the import until the user has decided about them.
    return [replace(finding, new=None) if finding.what.startswith("imports") else finding for finding in findings]


def apply_findings(text: str, findings: list[MigrationFinding]) -> str:
    """Return the text of a file with the replacements of its findings."""
    edits = {finding.line: finding.new for finding in findings if finding.new is not None}
    lines = list(enumerate(text.split("\n"), 1))
    return "\n".join(edits.get(number, line) for number, line in lines if edits.get(number) != "")


def _files(root: Path) -> Iterator[Path]:
    """Yield the text files of a project, without symlinks and without directories of tools."""
    pending = [root]
    while pending:
        directory = pending.pop(0)
        for path in sorted(directory.iterdir()):
            if path.is_symlink():
                continue
            if path.is_dir():
                if path.name not in _SKIPPED:
                    pending.append(path)
            elif path.suffix in SUFFIXES and path.stat().st_size <= SOURCE.limit:
                yield path


def _migrate(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, TaskResult]:
    """Scan and edit the project once; the first host's result has the lines and the diff."""
    del context
    root = local_path(call.task.base, call.args["src"])
    if not root.is_dir():
        raise UserError(f"{root} on this machine is not a directory", fix="src: the project's directory")
    try:
        findings = scan(root)
        edits: dict[Path, tuple[str, str]] = {}
        for name in dict.fromkeys(finding.path for finding in findings if finding.new is not None):
            old = _text(root / name)
            edits[root / name] = (old, apply_findings(old, [finding for finding in findings if finding.path == name]))
        apply = call.args["apply"] and not call.check
        if apply:
            for path, (_, new) in edits.items():
                path.write_text(new, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename} on this machine: {error.strerror or error}") from None
    left = [finding for finding in findings if finding.new is None]
    data = {
        "found": [asdict(finding) for finding in findings],
        "edits": len(edits),
        "left": len(left),
    }
    diff = "".join(unified_diff(*texts, str(path.relative_to(root)), context=1) for path, texts in edits.items())
    lines = [
        f"{finding.path}:{finding.line}: {finding.what}" + ("" if finding.new is not None else " (yours to decide)")
        for finding in findings
    ]
    message = "\n".join(lines) or "it does not use IPEX"
    changes = bool(edits) and call.args["apply"]
    first = TaskResult(
        "changed" if changes else "ok", message=message, reason=message if changes else "", data=data, diff=diff
    )
    return {**dict.fromkeys([host.name for host in hosts], TaskResult("ok", data=data)), hosts[0].name: first}


RUNNERS: Final = {"migrate": _migrate}
