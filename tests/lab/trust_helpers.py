"""Calls of `ipexctl trust` in tests, and what is on a host before and after them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cli_helpers import CommandResult, ipexctl
from ipexctl.extras.lab.lab_record import Lab, LabHost
from ipexctl.extras.lab.lab_system import in_host
from lab_helpers import ask

# .config and .local are what a fish that is logged into makes for itself.
_SNAPSHOT = r"""
cd "$HOME_DIR"
find . \( -name .config -o -name .local \) -prune -o -printf '%p|%m|%U:%G|%y|%l\n' | sort
find . \( -name .config -o -name .local \) -prune -o -type f -exec cksum {} + | sort -k3
"""
SSH = "ssh -F ~/.ipexctl/ssh/config"


def snapshot(host: LabHost) -> str:
    """Every file of the home: name, mode, owner, kind, content."""
    return in_host(host, _SNAPSHOT)


@dataclass(frozen=True)
class Trusted:
    ran: CommandResult
    document: dict[str, Any]

    def status(self, name: str) -> str:
        return str(self.host(name)["status"])

    def host(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(host for host in self.document["hosts"] if host["name"] == name)
        return found

    @property
    def statuses(self) -> set[str]:
        return {host["status"] for host in self.document["hosts"]}


def trust(hostfile: object, *args: object, **options: Any) -> Trusted:
    ran = ipexctl("trust", "-H", hostfile, "--json", *args, **options)
    return Trusted(ran, json.loads(ran.out))


def node0_logins(lab: Lab) -> dict[str, str]:
    """For each name the host and account that node0 reaches with plain ssh and the config of trust."""
    names = " ".join(host.name for host in lab.hosts)
    one = f'{SSH} $n "hostname; whoami" 2>/dev/null </dev/null | tail -n 2 | xargs echo $n'
    said = ask(lab.hosts[0], f"sh -c 'for n in {names}; do ({one}) & done; wait'", timeout=40)
    answers = [line.partition(" ") for line in said.out.splitlines()]
    return {name: answer for name, _, answer in answers if name.startswith("node")}


def check_there_and_back(lab: Lab, hostfile: object, *args: object) -> Trusted:
    """Trust lets node0 in everywhere, changes nothing the second time, and leaves nothing once it is revoked."""
    before = {host.name: snapshot(host) for host in lab.hosts}
    done = trust(hostfile, *args)
    assert done.ran.rc == 0, done.document
    assert node0_logins(lab) == expected_logins(lab)
    assert trust(hostfile, *args).statuses == {"ok"}
    assert trust(hostfile, *args, "--revoke").ran.rc == 0
    assert {host.name: snapshot(host) for host in lab.hosts} == before
    return done


def expected_logins(lab: Lab) -> dict[str, str]:
    return {host.name: f"{host.name} {host.user}" for host in lab.hosts}


def read_authorized_keys(host: LabHost) -> str:
    return in_host(host, 'cat "$HOME_DIR/.ssh/authorized_keys"')
