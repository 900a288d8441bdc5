"""Removes what `ipexctl trust` of earlier versions left: a key and an ssh config in node0's home, and a line in each
authorized_keys. No run needs them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ipexctl.hosts.host import Host
from ipexctl.node.trust_left import TrustReply, TrustRequest
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostResult, Report
from ipexctl.remote.session import Session


@dataclass(frozen=True, slots=True)
class RevokeReport(Report[HostResult]):
    dry_run: bool = False


def revoke(
    hosts: Sequence[Host], pool: SessionPool, home: str, timeout: float | None, *, dry_run: bool = False
) -> RevokeReport:
    began = time.monotonic()
    request: TrustRequest = {"home": home, "dry_run": dry_run}

    def work(host: Host, session: Session) -> HostResult:
        label = "remove what trust left"
        reply = call(session, "trust_left", "", request, home=home, label=label, timeout=timeout).decode(TrustReply)
        seconds = time.monotonic() - began
        return HostResult(host, "changed" if reply.removed else "ok", "; ".join(reply.removed), seconds=seconds)

    results = {done.host: done.result_or(HostResult.of_error) for done in pool.each(hosts, work)}
    return RevokeReport(tuple(results[host] for host in hosts), time.monotonic() - began, dry_run)
