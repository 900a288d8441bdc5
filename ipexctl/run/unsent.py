"""Find project files that a script names, or that a rank missed, and that sync leaves out because of an ignore file.

Files whose names suggest results rather than data get no note.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command
from ipexctl.projects.root import owner_here, real_path, tree_name
from ipexctl.sync.ignore import is_secret, pattern_for
from ipexctl.sync.project import Project
from ipexctl.sync.scan import scan_project
from ipexctl.text import join_words

_FILE_NAME: Final = re.compile(r"(?:[\w.+-]{1,100}/){0,8}[\w+-][\w.+-]{0,100}\.[A-Za-z]\w{0,9}")
_DIRECTORY_NAME: Final = re.compile(r"(?:\./|(?=[\w.+-]{1,100}/))[\w.+-]{1,100}(?:/[\w.+-]{1,100}){0,8}/?")
"""`./data`, `data/` or `data/train`. A word alone may be anything."""
_RESULTS: Final = (".pt", ".pth", ".ckpt", ".log", ".png", ".html")
"""Endings of names of results."""
_RESULT_DIRECTORY: Final = re.compile(
    r"(?i)(?:.*[_/-])?(?:outs?|outputs?|results?|runs?|logs?|checkpoints?|ckpts?|saved?|wandb)"
)
_MOST_NAMES: Final = 100
"""Names of files that are looked for."""
_MOST_BYTES: Final = 100_000_000
"""Bytes of a directory whose files are taken together."""
_MOST_DIRECTORIES: Final = 50


def named_files(tree: ast.Module) -> tuple[str, ...]:
    """Return the names of files, then of directories, among the texts of a script, except names of results, such as
    `out.pt`."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = [text for text in texts if _FILE_NAME.fullmatch(text) and not text.endswith(_RESULTS)]
    names += [text for text in texts if _DIRECTORY_NAME.fullmatch(text) and not text.endswith(_RESULTS)]
    return tuple(dict.fromkeys(names))[:_MOST_NAMES]


def unsent_note(spec: RunSpec, project: Project) -> tuple[str, ...]:
    """Return a note if the script names files that an ignore file, or a rule for credentials, keeps from the hosts;
    else nothing.
    """
    script = spec.project.script
    names = script.files if script is not None else ()
    sent = {part for entry in project.manifest.entries for part in _ends(entry.path)}
    missing = [name for name in names if name not in sent]
    ignored = [*_ignored(missing, project), *_ignored_directories(missing, spec.project.subdirectory, project)]
    unsent = tuple(dict.fromkeys(ignored))
    if not unsent:
        return ()
    keeper = "credentials are not sent" if all(map(is_secret, unsent)) else "an ignore file keeps {them} from the hosts"
    options: list[str] = []
    for pattern in dict.fromkeys(_include_pattern(path, project.root) for path in unsent):
        options += ["--include", pattern]
    line = FixCommand("", tuple(options))
    if spec.options.call.is_known:
        line = spec.options.complete(ipexctl_command("run", *options, argv=spec.asked.program))
    them = "it" if len(unsent) == 1 else "them"
    kept = f"{spec.asked.script} names {join_words(unsent)}, but {keeper.format(them=them)}"
    return (Fix("{kept}; to send {them}: {line}", kept=kept, them=them, line=line),)


def _ends(path: str) -> Iterator[str]:
    """Yield `a/b/c`, `b/c` and `c` of a path."""
    yield path
    while "/" in path:
        path = path.partition("/")[2]
        yield path


def _ignored(names: Collection[str], project: Project) -> Iterator[str]:
    """Yield the ignored files with one of these names.

    Ignored directories were not scanned, so files are looked for there.
    """
    wanted = frozenset(names)
    yield from (path for path in project.ignored if not wanted.isdisjoint(_ends(path)))
    for directory in [path for path in project.ignored if path.endswith("/")][:_MOST_DIRECTORIES]:
        for name in names:
            below = name if name.startswith(directory) else directory + posixpath.basename(name)
            if (project.root / below).is_file():
                yield below


def _ignored_directories(names: Collection[str], directory: str, project: Project) -> Iterator[str]:
    """Yield the directories with one of these names, relative to `directory`, that hold ignored files and of which
    nothing is sent."""
    for name in names:
        path = posixpath.normpath(posixpath.join(directory, name)) + "/"
        is_sent = any(entry.path.startswith(path) for entry in project.manifest.entries)
        is_ignored = any(path.startswith(other) for other in project.ignored if other.endswith("/"))
        is_ignored |= any(other.startswith(path) for other in project.ignored)
        if is_ignored and not is_sent and not _RESULT_DIRECTORY.fullmatch(path[:-1]) and (project.root / path).is_dir():
            yield path


def _include_pattern(path: str, root: Path) -> str:
    """Return the pattern for --include: for all files of the directory if they are few bytes and no credentials, else
    for those of the same kind.
    """
    file = PurePosixPath(path)
    if (root / path).is_dir() and not is_secret(path):
        return f"{pattern_for(posixpath.normpath(path))[1:]}/**"
    if not file.suffix or is_secret(path):
        return pattern_for(path)
    if file.parent == PurePosixPath():
        return f"/*{pattern_for(file.suffix)[1:]}"
    beside = [sibling for sibling in islice((root / file.parent).iterdir(), _MOST_NAMES) if sibling.is_file()]
    is_data = {sibling.suffix for sibling in beside} != {file.suffix}
    is_data &= sum(sibling.stat().st_size for sibling in beside) < _MOST_BYTES
    is_data &= not any(is_secret(f"{file.parent}/{sibling.name}") for sibling in beside)
    return f"{pattern_for(str(file.parent))[1:]}/*{'' if is_data else pattern_for(file.suffix)[1:]}"


def _path_in_project(record: RunRecord, path: str) -> str:
    """Return the path in the project of a file that a rank knows by `path`; empty if it is outside the project."""
    with suppress(UserError, OSError):
        tree = f"/code/{tree_name(real_path(record.project), owner_here())}"  # then `.gen2`, and the path
        return posixpath.normpath(posixpath.join(record.plan.cwd, path)).partition(tree)[2].partition("/")[2]
    return ""


def project_file(record: RunRecord, path: str) -> str:
    """Return the same as `_path_in_project`; empty if the control machine has no such file."""
    name = _path_in_project(record, path)
    return name if name and (real_path(record.project) / name).is_file() else ""


def line_that_sends(record: RunRecord, path: str) -> tuple[str, str]:
    """Return why sync does not send a file that a rank missed, and the command that does; both empty if sync sends the
    file.
    """
    name = _path_in_project(record, path)
    with suppress(UserError, OSError):
        has_it = bool(name) and (real_path(record.project) / name).exists()
        sent = scan_project(real_path(record.project)).found if has_it else ()
        is_left_out = has_it and not any(f"{entry.path}/".startswith(f"{name}/") for entry in sent)
        if is_left_out or (name and not has_it and is_secret(name)):
            can_resume = record.typed.directory and not record.plan.job
            option = FixCommand("", ("--include", _include_pattern(name, real_path(record.project))))
            if can_resume:
                option = ipexctl_command("run", "--resume", record.id, *option.options)
            if not has_it:
                return "credentials are not sent", Fix("put it into the project, then: {line}", line=Fix.of((option,)))
            keeper = "credentials are not sent" if is_secret(name) else "an ignore file keeps it from the hosts"
            return f"the project has it, but {keeper}", Fix.of((option,))
    return "", ""
