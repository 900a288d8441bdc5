"""`run --notify CMD`: check the command before the run, and run it here if this call sees the end of the run.

If no call sees the end, node0 runs the command; `node/run/notify.py` makes sure that it runs at most once. A problem
with the command is only a warning, so that the exit code stays that of the run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

from ipexctl.errors import UserError
from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.node.common.files import RunReference
from ipexctl.node.common.node_limits import NOTIFY, NOTIFY_CLAIM
from ipexctl.node.run.notify import NotifyEnd, run_command
from ipexctl.node.run.record.run_document import CallDocument, document_of_run, run_text
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import Connector
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session
from ipexctl.run.node0 import call_on_node0, options_of


def check_notify(command: str) -> None:
    """Refuse a line that sh cannot read. The line is not shown, because it may contain a secret."""
    if not command:
        return
    text = command.encode("utf-8", "surrogateescape")
    checked = subprocess.run(["/bin/sh", "-n"], input=text, stderr=subprocess.DEVNULL, check=False)
    if checked.returncode:
        raise UserError(
            "--notify: sh can't read this line",
            fix="quote it as one word: --notify 'mail -s \"my run\" me@example.org'",
        )


def notify_of_run(
    command: str, record: RunRecord, code: int, seconds: float, on_warning: Callable[[str], None]
) -> None:
    """Run the command of --notify, unless node0 has run it or will.

    `code`, `seconds`: exit code and duration of this call.
    """
    status = read_final_status(RunRegistry().directory / record.id)
    if status is None:  # node0 does it at the end
        return
    node0 = record.node0
    connector = Connector(options_of(record, on_warning=on_warning))
    try:
        with connector, closing(connector.open(node0, Cancel())) as session:
            if not _claim(session, record):
                on_warning(f"note: {node0.name} runs the command of --notify: this call saw the end of the run late")
                return
    except HostError as error:
        on_warning(f"note: node0 will run the command of --notify: {node0.name}: {error.reason}")
        return
    text = run_text(document_of_run(record.plan, status)._replace(call=CallDocument(code, round(seconds, 3))))
    if problem := describe_end(run_command(command, text, NOTIFY, sys.stderr.fileno())):
        on_warning(f"note: the command of --notify {problem}")


def _claim(session: Session, record: RunRecord) -> bool:
    """Return True if this call is to run the command.

    If this raises a HostError, this call must not run the command, because node0 may have given the command to itself.
    """
    request: RunReference = {"home": record.home, "id": record.id}
    return call_on_node0(session, record, "run.notify", "claim", request, timeout=NOTIFY_CLAIM).flag("claimed")


def describe_end(end: NotifyEnd) -> str:
    """Return what went wrong with the command, as the end of a sentence; empty if it succeeded."""
    if end.error:
        return f"could not be started: {end.error}"
    if end.exit_code is None:
        return "took too long and was killed"
    return f"ended with exit code {end.exit_code}" if end.exit_code else ""
