"""Say who calls: the account and the name of the control machine.

Hosts note it with each run and each environment. What another caller made is not removed without --force.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from ipexctl.found_files import account_name, state_directory
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.owners import Owned, RemovalRequest, name_owners
from ipexctl.node.common.plan import RunBy
from ipexctl.node.common.processes import read_text

_MACHINE_ID: Final = "/etc/machine-id"
"""Missing on a Mac, and missing or empty in many containers."""


def caller_here() -> RunBy:
    """Return the caller. `RunBy.records` tells callers apart: it stays the same if the machine is renamed, and differs
    for another state directory, such as another $HOME's.

    Without a machine id, as on a Mac, a machine that is renamed counts as another caller.
    """
    host = os.uname().nodename
    origin = os.fsencode(f"{os.getuid()} {read_text(_MACHINE_ID) or host} {state_directory()}")
    return RunBy(account_name()[:80], host[:80], f"{zlib.crc32(origin):08x}")


def identify_caller(environ: Mapping[str, str]) -> RunBy | None:
    """Return who begins a run or installs an environment here; None with IPEXCTL_ANONYMOUS=1."""
    return caller_here() if environ.get("IPEXCTL_ANONYMOUS", "") in ("", "0") else None


def describe_foreign(foreign: Mapping[str, Sequence[Owned]]) -> str:
    """Return a sentence about what other callers made. `foreign`: host → what is on it."""
    owned = dict.fromkeys(chain.from_iterable(foreign.values()))
    return f"this is not yours on {fold(foreign)}: {name_owners(owned)}"


def removal_request(*, force: bool, known: Sequence[str] = ()) -> RemovalRequest:
    """Return what a host must know to remove only what the caller made.

    `known`: names that are removed whoever made them.
    """
    return {"records": caller_here().records, "known": known, "force": force}
