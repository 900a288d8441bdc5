"""Who calls: account and name of the control machine."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from ipexctl.found_files import account_name, state_directory
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.owners import Owned, RemovalRequest, name_owners
from ipexctl.node.common.plan import RunBy
from ipexctl.node.common.processes import read_text

_MACHINE_ID: Final = "/etc/machine-id"
"""Missing on a Mac, and missing or empty in many containers."""


def caller_here() -> RunBy:
    """`records` stays when the host or the account gets another name."""
    host = os.uname().nodename
    place = os.fsencode(f"{os.getuid()} {read_text(_MACHINE_ID) or host} {state_directory()}")
    return RunBy(account_name()[:80], host[:80], f"{zlib.crc32(place):08x}")


def identify_caller(environ: Mapping[str, str]) -> RunBy | None:
    """Who begins a run or installs an environment here; None with IPEXCTL_ANONYMOUS=1."""
    return caller_here() if environ.get("IPEXCTL_ANONYMOUS", "") in ("", "0") else None


def describe_foreign(foreign: Mapping[str, Sequence[Owned]]) -> str:
    """Name what others made on these hosts, which is not removed without --force."""
    owned = dict.fromkeys(each for on_host in foreign.values() for each in on_host)
    return f"this is not yours on {fold(foreign)}: {name_owners(owned)}"


def removal_request(*, force: bool, known: Sequence[str] = ()) -> RemovalRequest:
    return {"records": caller_here().records, "known": known, "force": force}
