"""One more command on a connection that is open already: a Session's, beside paramiko as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.session import Session

from .contenders import bare_pool
from .figures import median
from .harness import Failed, in_turns, say
from .report import Goal, Report
from .rig import Rig

OURS, BESIDE = "ipexctl Session.run", "paramiko, default socket"
AIM_MS = 10.0
STEPS = 50


def host_of(rig: Rig) -> Host:
    """The lab's first host as the hostfile would name it."""
    first = rig.lab.hosts[0]
    return Host(first.name, first.address, user=first.user, identity=rig.lab.key, known_hosts=rig.lab.known_hosts)


def measure(rig: Rig) -> Report:
    say("step")
    way = bare_pool.Way.read(*rig.login)
    with Connector(ConnectOptions()) as connector:
        session = connector.open(host_of(rig), Cancel())
        transport = bare_pool.connect(way, rig.addresses(1)[0])
        try:
            steps = {OURS: lambda: _step(session), BESIDE: lambda: bare_pool.run(transport, "true")[0]}
            first = {name: _timed(name, step) for name, step in steps.items()}
            figures = in_turns(list(steps), STEPS, lambda name: _timed(name, steps[name]))
        finally:
            session.close()
            transport.close()
    rows = tuple(
        (name, f"{first[name]:.1f}", f"{median(times):.1f}", f"{sorted(times)[int(len(times) * 0.95)]:.1f}")
        for name, times in figures.items()
    )
    reached = median(figures[OURS])
    goal = Goal(f"a later step in ≤ {AIM_MS:g} ms", f"{reached:.1f} ms", reached <= AIM_MS)
    return Report(STEPS, ("`true`, ms", "first", "later: median", "later: 95 %"), rows, (goal,))


def _step(session: Session) -> int:
    return session.run(Command.argv("true"), lambda _stream, _data: None).code


def _timed(name: str, step: Callable[[], int]) -> float:
    begun = time.perf_counter()
    code = step()
    ms = (time.perf_counter() - begun) * 1000
    if code != 0:
        raise Failed(f"{name}: true ended with {code}")
    return ms
