"""A call that follows a run begins the starters that the run has lost, where this machine's record has the host."""

from __future__ import annotations

import threading
from typing import Any

from agent_helpers import wait_until
from ipexctl.hosts.host import Host
from ipexctl.node.common.job import StarterContact
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import Session
from ipexctl.run.starters import LostStarters
from message_data import missing
from record_helpers import run_record

NODES = tuple(Host(f"node{number}", f"node{number}") for number in (1, 2, 3))


def contact(*hosts: str) -> StarterContact:
    return StarterContact("t" * 64, "@x", 7, hosts)


class Down:
    """Hosts that do not answer until they are let."""

    def __init__(self, **fields: Any) -> None:
        self.opened: list[str] = []
        self.answers = threading.Event()
        names = [host.name for host in NODES]
        record = run_record("r", NODES[0], "/h", "python3", hosts=names, nodes=NODES, **fields)
        self.lost = LostStarters(record, self.open, Cancel())

    def open(self, host: Host, _: Cancel) -> Session:
        self.opened.append(host.name)
        self.answers.wait(5)
        raise Unreachable("it is down")


def test_starters_are_begun_once_at_a_time_on_hosts_of_the_run() -> None:
    down = Down()
    for _ in range(3):
        down.lost.begin(contact("node1", "node3", "elsewhere"))
    down.answers.set()
    problems: list[str] = []

    def has_problem() -> bool:
        problems.extend(down.lost.take_problems())
        return bool(problems)

    wait_until(has_problem, 5)
    assert (down.opened, len(problems), missing(problems[0], "node3 down")) == (["node3"], 1, [])

    def begins_again() -> bool:
        down.lost.begin(contact("node3"))
        return len(down.opened) > 1

    wait_until(begins_again, 5)


def test_run_that_was_begun_elsewhere_gets_no_starter_from_here() -> None:
    down = Down(is_kept=False)
    down.lost.begin(contact("node2"))
    assert down.opened == []
