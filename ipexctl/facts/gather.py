"""Probe hosts with one command and one round trip each. The probe is a script in sh, so a host needs no Python. It is
stopped after 5 s of silence, or later on a busy host, because a dead file server would block it for ever; the facts
that have arrived by then are used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from ipexctl.errors import UserError
from ipexctl.facts.cpu import parse_cpulist
from ipexctl.facts.facts import Facts, parse
from ipexctl.facts.probe import probe_command
from ipexctl.facts.system_facts import HomeDirectory
from ipexctl.hosts.host import Host
from ipexctl.limits import PATIENCE, PROBE_REST
from ipexctl.node.common.clock import stretched
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import StreamName
from ipexctl.node.common.home import HomeRefused
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.outcome import HostError, HostResult, HostStatus, TimedOut, Unreachable
from ipexctl.remote.session import CommandEnd, OutputCollector, Session

_CANT_FORK: Final = (2, 254)
"""Exit codes of dash and bash after fork has failed."""
_FIRST_PART: Final = re.compile(
    rb"(?:^cpu\.online ([\d,-]+)$.*?)?(?:^load (\d+\.\d+) .*?)?^home\.path ", re.MULTILINE | re.DOTALL
)
"""The processors and the load, if the host has reported all that needs no file server."""
MOST_NAMES: Final = 100
"""Names that a host looks up; node0 looks up all. Else a thousand hosts would ask their name server a million times."""


class Skew(NamedTuple):
    seconds: float
    uncertainty: float


def skew(clock: float, sent: float, received: float) -> Skew:
    """Return how far the host's clock is ahead, in seconds, and how uncertain that is: half of the round trip."""
    half = max(0.0, received - sent) / 2
    return Skew(clock - sent - half, half)


@dataclass(frozen=True, slots=True)
class HostFacts(HostResult):
    facts: Facts | None = None
    skew: Skew | None = None
    has_one_session: bool = False
    """True if sshd opens one session per connection. Tried only if `tries_sessions` asks for it."""
    shell_seconds: float = 0.0
    """From the command to its first byte: mostly the start of the login shell."""

    def require_home(self) -> tuple[Facts, HomeDirectory]:
        """Return the facts and the home. Raises a HostError if either is missing, and a UserError if another account
        could replace the home."""
        if self.facts is None or self.status != "ok" or self.facts.home is None:
            kind = Unreachable if self.status == "unreachable" else HostError
            if self.reason:
                raise kind(self.reason, self.fix)
            cut = "its probe stopped before its home directory, without a byte in time"
            raise kind(cut, Fix("see how busy it is: `ipexctl doctor`"))
        home = self.facts.home
        if home.exposed:
            refused = HomeRefused("above", home.path, f": {home.exposed}")
            raise UserError(f"{self.host.name}: {refused.reason}", fix=refused.fix)
        return self.facts, home


class _ProbeOutput(OutputCollector):
    received: float | None = None
    _is_limited = False
    has_one_session = False

    def __init__(self, deadline: Deadline, session: Session | None) -> None:
        """Collect the output of a probe. `session`: whether it accepts a second command is tried while the probe runs;
        None to try nothing."""
        super().__init__()
        self._deadline = deadline
        self._session = session

    def sink(self, stream: StreamName, data: bytes) -> None:
        """Keep the output. Its first bytes mark the end of the round trip. Once the first part is complete, the rest of
        the probe has PROBE_REST seconds, stretched by the host's load."""
        if stream == "stdout":
            if self.received is None:
                self.received = time.time()
                self.has_one_session = self._session is not None and self._session.is_limited_to_one()
            super().sink(stream, data)
            if not self._is_limited and (first_part := _FIRST_PART.search(self._data["stdout"])):
                self._is_limited = True
                cpus = parse_cpulist((first_part[1] or b"").decode())
                self._deadline.limit(stretched(PROBE_REST, float(first_part[2] or 0), len(cpus) if cpus else 1))

    def failure(self, error: HostError, timeout: float | None) -> tuple[HostStatus, str, str]:
        """Return status, reason and fix of a probe that failed. A probe that took longer than PROBE_REST counts as
        `ok`, because its first part has arrived; if its processes could not be ended, that is its error, with no advice
        to wait longer."""
        if not isinstance(error, TimedOut) or self.received is None or self._deadline.seconds == timeout:
            return error.status, error.reason, error.fix
        if not error.left_running:
            return "ok", "", ""
        return error.status, error.reason, error.advice  # no option makes this limit longer


def gather_facts(
    opened: OpenHosts,
    *,
    tries_sessions: bool = False,
    on_step: Callable[[Host, str, float], None] | None = None,
) -> Iterator[HostFacts]:
    """Probe every host and yield results as they arrive. After a timeout or a lost connection, a result has the facts
    that have arrived, and the reason. Every host resolves the names of the first 100 hosts; node0 resolves all
    names."""
    hosts, pool, timeout = opened.hosts, opened.pool, opened.timeout
    names = tuple(dict.fromkeys(name for host in hosts for name in names_of(host)))
    of_node0, command = probe_command(names, opened.home), probe_command(names[:MOST_NAMES], opened.home)
    started = time.monotonic()

    def work(host: Host, session: Session) -> HostFacts:
        deadline = Deadline(timeout or PATIENCE, pool.cancel, is_of_silence=timeout is None)
        output = _ProbeOutput(deadline, session if tries_sessions else None)
        probed_at = time.monotonic()
        sent = time.time()
        status: HostStatus = "ok"
        reason = fix = ""
        ended: CommandEnd | None = None
        try:
            ended = session.run(of_node0 if host is hosts[0] else command, output.sink, deadline=deadline)
        except HostError as error:
            status, reason, fix = output.failure(error, timeout)
        else:
            if not output.stdout:
                status, reason = "failed", f"the probe printed nothing ({ended})"
        if on_step is not None:
            on_step(host, "probed", time.monotonic() - probed_at)
        facts = parse(output.stdout.decode("utf-8", "replace")) if output.stdout else None
        if ended is not None and facts is not None and not facts.complete:
            status, reason = "failed", f"the probe ended before its last line ({ended})"
            fix = Fix(f"`ipexctl exec --limit {host.name} -- uptime`")
        if status == "failed" and ended is not None and ended.code in _CANT_FORK:
            reason += ", as a shell does that can't start a program: a limit of processes (ulimit -u) may be reached"
            fix = Fix(f"see the limit: `ipexctl exec --limit {host.name} -- grep processes /proc/self/limits`")
        if facts is not None and not session.is_login:
            # Without ssh, the connection is the caller's own login to the control machine.
            facts = facts._replace(network=facts.network._replace(reached=None))
        seconds = time.monotonic() - started
        difference, waited = None, 0.0
        if output.received is not None:
            waited = output.received - sent
            if facts is not None and facts.clock is not None:
                difference = skew(facts.clock, sent, output.received)
        return HostFacts(host, status, reason, fix, seconds, facts, difference, output.has_one_session, waited)

    for outcome in opened.each(work):
        seconds = time.monotonic() - started
        yield outcome.result_or(partial(HostFacts.of_error, seconds=seconds))


def names_of(host: Host) -> tuple[str, ...]:
    """Return the names by which others may look the host up."""
    return tuple(name for name in (host.name, host.internal) if name)
