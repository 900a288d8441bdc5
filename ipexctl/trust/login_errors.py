"""Why node0 couldn't log into a node, as a sentence, and what to do about it: from what ssh said. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.hosts.internal import common_networks
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.hosts.internal import HostAddresses
    from ipexctl.trust.host_state import HostState

_ANSWER = re.compile(r"ipexctl-is (.*)")
QUESTION = (
    "exec /bin/sh -c 'echo; echo ipexctl-is $(id -un) $(uname -n)"
    " $(cat /proc/sys/kernel/random/boot_id 2>/dev/null) $(readlink /proc/self/ns/net 2>/dev/null)'"
)
"""Asked of a node by node0's ssh: which machine and account it has reached. No login shell trips over it."""


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """How one login from node0 ended: ssh's exit code, and the last of what was printed."""

    code: int
    said: str

    @property
    def identity(self) -> tuple[str, ...]:
        found = _ANSWER.search(self.said)
        return tuple(found[1].split()) if found else ()

    def reached(self, there: HostState) -> bool:
        return self.code == 0 and self.identity == there.identity


@dataclass(frozen=True, slots=True)
class Why:
    reason: str
    fix: str = ""


def explain(login: LoginAttempt, there: HostState, address: str, addresses: Mapping[str, HostAddresses]) -> Why:
    """The sentence for a login that failed or ended up elsewhere."""
    said = login.said
    where = f"{address} port {there.port}"
    if login.code == 0:
        return _elsewhere(login, there, address)
    other_way = _other_network(address, addresses)
    for pattern, why in (
        (r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed", _host_key(address)),
        (
            r"Permission denied|Too many authentication failures",
            _refused(there, address),
        ),
        (
            r"Could not resolve hostname",
            Why(f"node0 can't resolve {address}", "write an address behind internal= in the hostfile"),
        ),
        (
            r"Connection refused",
            Why(
                f"node0 gets no answer from sshd: {where} refuses connections",
                other_way or f"does sshd listen on {address}? (ss -ltn there; ListenAddress in sshd_config)",
            ),
        ),
        (
            r"timed out|No route to host|Network is unreachable|Operation timed out|timeout",
            Why(
                f"node0 can't reach {where}",
                other_way
                or f"let node0 through the firewall there, or name another network: --iface CIDR, internal="
                f" (tried {address})",
            ),
        ),
        (
            r"Connection (closed|reset)|kex_exchange_identification|Broken pipe",
            Why(
                f"{where} closes the connection before a login",
                "look into sshd's log there: hosts.deny, fail2ban, MaxStartups or a firewall that resets",
            ),
        ),
        (
            r"nologin|System is booting up|not available|account (has )?expired|password (has )?expired",
            Why(f"the account {there.user} may not log in", "log in there by hand and read what it says"),
        ),
    ):
        if re.search(pattern, said, re.IGNORECASE):
            return why
    if login.code == 124:
        return Why(
            f"a login from node0 is not through after 25 s ({where})",
            "how long does an ssh to it take by hand? look at the login shell's start-up files",
        )
    if login.code == 127 and "ssh" in said:
        return Why("node0 has no ssh client", "install openssh-client (openssh-clients) on node0")
    last = [line for line in said.splitlines() if line.strip()]
    return Why(
        f"a login from node0 ended with exit code {login.code}" + (f": {printable(last[-1].strip())}" if last else ""),
        "try it on node0 with ssh -v and our config",
    )


def _elsewhere(login: LoginAttempt, there: HostState, address: str) -> Why:
    if not login.identity:
        return Why(
            "node0 logs in, but no command runs there",
            "a forced command (ForceCommand in sshd_config, command= in authorized_keys) or a restricted shell?",
        )
    user, machine = (*login.identity, "?", "?")[:2]
    if machine != (*there.identity, "?", "?")[1]:
        return Why(
            f"{address} leads node0 to another machine, {printable(machine)}",
            "correct internal= in the hostfile, or name the network the hosts share with --iface CIDR",
        )
    if user != there.user:
        return Why(f"node0 comes in as {printable(user)} instead of {there.user}")
    return Why(
        f"{address} leads node0 to another machine of the same name, {printable(machine)}",
        "correct internal= in the hostfile, or name the network the hosts share with --iface CIDR",
    )


def _host_key(address: str) -> Why:
    return Why(
        f"sshd at {address} shows node0 another host key than it showed us",
        "is that address really this host? compare there: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; only where "
        "it is, and its key was changed since: ipexctl trust",
    )


def _refused(there: HostState, address: str) -> Why:
    """sshd doesn't say why it doesn't take a key; what we have seen makes one cause likelier than another."""
    reason = f"sshd there doesn't take node0's key for {there.user}, though it is in ~/.ssh/authorized_keys"
    too_open = [
        path
        for path, mode in (
            (there.home, there.home_mode),
            (f"{there.home}/.ssh", there.ssh_mode),
            (f"{there.home}/.ssh/authorized_keys", there.keys_mode),
        )
        if mode is not None and mode.open_to_others
    ]
    if too_open:
        return Why(
            f"{reason}: {', '.join(too_open)} can be written to by others, which sshd doesn't accept (StrictModes)",
            f"chmod go-w {' '.join(too_open)}",
        )
    foreign = [
        path
        for path, mode in (
            (there.home, there.home_mode),
            (f"{there.home}/.ssh", there.ssh_mode),
            (f"{there.home}/.ssh/authorized_keys", there.keys_mode),
        )
        if mode is not None and mode.uid not in (there.uid, 0)
    ]
    if foreign:
        return Why(
            f"{reason}: {', '.join(foreign)} belongs to another account, which sshd doesn't accept (StrictModes)",
            f"chown {there.user} {' '.join(foreign)}",
        )
    if there.keys is None:
        return Why(
            f"{reason}: that file wasn't there before, so sshd most likely reads keys elsewhere",
            "ask root there what AuthorizedKeysFile, PubkeyAuthentication and AuthenticationMethods are (sshd -T)",
        )
    if there.user == "root":
        return Why(
            reason,
            "PermitRootLogin must be yes or prohibit-password for node0's address too (sshd -T); or log in as another"
            " user: --user NAME",
        )
    return Why(
        reason,
        f"on the way to {address} node0's address may be changed (NAT), so that from= doesn't fit; or sshd_config"
        " there has AuthorizedKeysFile elsewhere, AllowUsers or Match Address (sshd -T)",
    )


def _other_network(address: str, addresses: Mapping[str, HostAddresses]) -> str:
    """Another network that all hosts share, where the one tried leads nowhere."""
    for network in common_networks(addresses):
        if not any(
            nic.address == address and nic.network == network for host in addresses.values() for nic in host.nics
        ):
            return f"the hosts share {network} too: --iface {network}"
    return ""
