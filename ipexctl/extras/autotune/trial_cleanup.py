"""Ends a trial and removes it: for `trial.py` after each one, and for a call that finds those of a killed call.

In come the record of a trial and the name of its tree; nothing comes out, or a HostError if it could not be stopped.
The rules: only trees and records that trials have made are removed, and those that another call uses are never taken
for left-overs, as a project has one search at a time (`only_search`); a record stays until its hosts are clean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import shlex
from contextlib import closing
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.node.common.files import make_private_directory, open_private
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError
from ipexctl.run.local_copy import remove_copy
from ipexctl.run.registry import RunRegistry
from ipexctl.run.start.begin import clean_up
from ipexctl.run.stop import stop
from ipexctl.sync.root import owner_here, tree_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.registry import RunRecord

TRIAL: Final = ".trial-"
"""Between the name of the project's tree and a random part."""
_LOCK: Final = "lock"


class StopCall:
    """Stops the run in the background, over a connection of its own; again if that fails and it is asked again."""

    def __init__(self, record: RunRecord, pool: SessionPool) -> None:
        self._record, self._pool = record, pool
        self._call: Future[None] | None = None

    @property
    def is_requested(self) -> bool:
        return self._call is not None

    def request(self) -> None:
        if self._call is None or (self._call.done() and self._call.exception() is not None):
            self._call = run_in_background(self._stop, "stop")

    def wait(self) -> None:
        """Raises a HostError if the run could not be stopped."""
        if self._call is not None:
            self._call.result()

    def _stop(self) -> None:
        cancel = Cancel()  # it also stops the run of a call that was cancelled
        with closing(self._pool.connector.open(self._record.node0, cancel)) as session:
            stopped = stop(session, self._record, cancel=cancel)
        if not stopped.status.is_over:
            raise HostError(f"trial {self._record.id} was told to stop, and is not over yet")


def remove_record(record: RunRecord, pool: SessionPool) -> bool:
    """Remove the record of a trial that is over; False if a host has some of it still."""
    registry = RunRegistry()
    results = f"{record.home}/results/{record.id}"
    left = clean_up(record.nodes, f"rm -rf {shlex.quote(record.rundir)} {shlex.quote(results)}", pool)
    if not left:
        registry.remove(record.id)
        remove_copy(registry.directory, record.id)
    return not left


def remove_tree(hosts: Sequence[Host], home: str, root: Path, tree: str, pool: SessionPool) -> None:
    """`tree`: TRIAL and the random part, or TRIAL and `*` for all trials of the project."""
    place = shlex.quote(home.removeprefix("~/")) + f"/code/{tree_name(root, owner_here())}"  # sessions start at home
    clean_up(hosts, f"rm -rf {place}{tree} {place}{tree}.gen*", pool)


@contextlib.contextmanager
def only_search(directory: Path) -> Iterator[None]:
    """Hold the lock of the project's searches. Raises a UserError if another call has it.

    `directory`: that of the project's searches.
    """
    with contextlib.ExitStack() as stack:
        try:
            make_private_directory(directory)
            file = stack.enter_context(open(directory / _LOCK, "w", opener=open_private))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise UserError(
                    "another call of autotune measures this project",
                    fix="wait until it has ended; ipexctl ps shows its trial",
                ) from None
            # A file system without locks, or without room: as if the project had no other search.
        yield


def remove_left_over(hosts: Sequence[Host], home: str, root: Path, pool: SessionPool) -> tuple[str, ...]:
    """Stop and remove trials of calls that were killed; returns the ids of those runs. `only_search` is held."""
    mark = f"/code/{tree_name(root, owner_here())}{TRIAL}"
    found = [record for record in RunRegistry().all() if record.is_trial and mark in record.cwd]
    calls = [StopCall(record, pool) for record in found]
    for call in calls:
        call.request()
    for call in calls:
        with contextlib.suppress(HostError):  # also if node0 has no such run; one that lives is found by the next trial
            call.wait()
    nodes = {host.name: host for record in found for host in record.nodes}
    remove_tree([*{**nodes, **{host.name: host for host in hosts}}.values()], home, root, f"{TRIAL}*", pool)
    for record in found:
        remove_record(record, pool)
    return tuple(record.id for record in found)
