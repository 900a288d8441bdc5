"""Begin host starters (`node/run/host_starter/__main__.py`): with a run, and after a host's reboot by a call that
follows.

A starter starts the ranks of its host, so that no node has to log in to another.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import closing
from functools import partial
from queue import SimpleQueue

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.limits import PATIENCE
from ipexctl.node.common.job import StarterContact, starter_request
from ipexctl.node.common.plan import Plan, program_line
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import call_line
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.session import Session

OpenHost = Callable[[Host, Cancel], Session]


def unpack_line(plan: Plan, size: int) -> str:
    """Return the sh line that unpacks an archive, the next `size` bytes of stdin, into the run's directory, readable by
    its account only.
    """
    return f"(umask 077; head -c {size} | tar -xpof - -C {shlex.quote(plan.rundir)}) || exit 1\n"


def begin_starter(session: Session, plan: Plan, contact: StarterContact, files: bytes = b"") -> None:
    """Begin the starter of ranks on the session's host. Raises a HostError. The starter ends with the supervisor.

    `files`: an archive to unpack first; empty for none.
    """
    host = session.host.name
    script = (unpack_line(plan, len(files)) if files else "") + program_line(plan, "run.host_starter", host)
    command = Command(script, "begin the starter of ranks")
    call_line(session, command, files, starter_request(plan, host, contact), silence=PATIENCE)


class LostStarters:
    """Begins again the starters that a run has lost, each in the background.

    node0 says which are lost, and how a starter reaches the supervisor. Which hosts may be contacted comes only from
    the record of this machine.
    """

    def __init__(self, record: RunRecord, open_host: OpenHost | None, cancel: Cancel) -> None:
        """Begin no starter if `open_host` is None, or if the run was begun on another machine."""
        self._plan, self._open_host, self._cancel = record.plan, open_host, cancel
        others = {host.name for host in self._plan.all_hosts} - {self._plan.node0}
        may_begin = record.is_kept and open_host is not None
        self._hosts = {host.name: host for host in record.nodes if host.name in others} if may_begin else {}
        self._busy = set[str]()
        self._problems = SimpleQueue[str]()

    def begin(self, contact: StarterContact) -> None:
        """Begin the starters that node0 misses, except those that are just being begun."""
        for name in contact.hosts:
            if name in self._hosts and name not in self._busy:
                self._busy.add(name)
                run_in_background(partial(self._begin, name, contact), "starter")

    def take_problems(self) -> list[str]:
        """Return why starters could not be begun since the last call."""
        problems = []
        while not self._problems.empty():
            problems.append(self._problems.get())
        return problems

    def _begin(self, name: str, contact: StarterContact) -> None:
        """Begin one starter. Runs in the background."""
        assert self._open_host is not None
        try:
            with closing(self._open_host(self._hosts[name], self._cancel)) as session:
                begin_starter(session, self._plan, contact)
        except Cancelled:
            pass
        except HostError as error:
            self._problems.put(f"{name}: the starter of ranks could not be begun again: {error.reason}")
        finally:
            self._busy.discard(name)
