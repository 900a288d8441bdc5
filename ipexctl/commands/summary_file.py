"""`--summary FILE` of run, attach and wait: the outcome of a run as JSON, for scripts.

The file is checked before the run and written at its end. A problem that arises in between is printed, and makes the
exit code 1 if it would be 0.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ipexctl.errors import UserError
from ipexctl.files.named_paths import check_named_file, open_named_file
from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.node.common.plan import OtherRun
from ipexctl.node.common.records import RunStatus
from ipexctl.node.run.record.run_document import CallDocument, document_of_run, run_text
from ipexctl.ui.message_output import print_message


def check_summary(path: Path | None) -> None:
    """Refuse a file that cannot be written at the end of the run."""
    if path is not None and (problem := _unwritable(path)):
        raise UserError(f"--summary {path}: {problem}", fix="name a file that can be written")


def _unwritable(path: Path) -> str:
    """Return why the file cannot be written; empty if it can."""
    try:
        if path.is_dir():
            return "it is a directory"
        if not path.parent.is_dir():
            return f"there is no directory {path.parent}"
        check_named_file(path)
        is_writable = os.access(path if path.exists() else path.parent, os.W_OK)
    except PermissionError:
        is_writable = False
    except OSError as error:
        return error.strerror or str(error)
    return "" if is_writable else os.strerror(errno.EACCES)


def write_summary(
    path: Path,
    record: RunRecord | None,
    status: RunStatus | None,
    code: int,
    seconds: float,
    other_runs: Sequence[OtherRun] | None = None,
) -> bool:
    """Write the outcome; return True if that worked, else print why not and return False.

    `record`: None if no run started; id and state are then null. `other_runs`: runs on the hosts when the call started;
    None if it did not look.
    """
    others = None if other_runs is None else tuple(other_runs)
    call = CallDocument(code, round(seconds, 3), others)
    document = document_of_run(None if record is None else record.plan, status)._replace(call=call)
    try:
        with open(open_named_file(path), "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(run_text(document))
    except (OSError, UserError) as error:
        problem = getattr(error, "strerror", None) or error
        print_message(f"--summary {path}: {problem}; it is not written")
        return False
    return True


def write_summary_of_run(
    path: Path, record: RunRecord, code: int, seconds: float, other_runs: Sequence[OtherRun] | None = None
) -> bool:
    """Write the outcome of a run whose final status was copied here; return True if that worked."""
    return write_summary(
        path, record, read_final_status(RunRegistry().directory / record.id), code, seconds, other_runs
    )
