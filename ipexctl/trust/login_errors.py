"""Explains failed logins from node0, with a fix, from ssh's output. Pure. A login prints which machine it reached. sshd
gives no reason for a rejected key, so the likely reason comes from the probe: file modes and owners, another file that
sshd reads, or a login as root.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ipexctl.hosts.internal_addresses import HostAddresses, common_networks
from ipexctl.limits import TRUST_LOGIN
from ipexctl.remote.outcome import HostError
from ipexctl.text import printable
from ipexctl.trust.host_steps import HostState, LoginAttempt


def explain(login: LoginAttempt, node: HostState, address: str, addresses: Mapping[str, HostAddresses]) -> HostError:
    output = login.output
    endpoint = f"{address} port {node.port}"
    if login.code == 0:
        return _wrong_host(login, node, address)
    other_network = _other_network(address, addresses)
    if re.search("REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed", output, re.IGNORECASE):
        return HostError(
            f"node0 gets a different host key from {address} than the control machine",
            "check that the address belongs to this host, by its key: ssh-keygen -lf "
            "/etc/ssh/ssh_host_ed25519_key.pub; only if it does, and its key has changed: ipexctl trust",
        )
    if re.search("Permission denied|Too many authentication failures", output, re.IGNORECASE):
        return _rejected_key(node, address)
    for pattern, reason, fix in (
        (
            "Could not resolve hostname",
            f"node0 can't resolve {address}",
            "add internal=ADDRESS to its line in the hostfile",
        ),
        (
            "Connection refused",
            f"{endpoint} refuses connections from node0",
            other_network
            or f"check there whether sshd listens on {address}: ss -ltn, and ListenAddress in sshd_config",
        ),
        (
            "timed out|No route to host|Network is unreachable|Operation timed out|timeout",
            f"node0 can't reach {endpoint}",
            other_network
            or f"allow node0 in the firewall of that host, or choose another network: --iface CIDR, internal="
            f" (tried {address})",
        ),
        (
            "Connection (closed|reset)|kex_exchange_identification|Broken pipe",
            f"{endpoint} closes the connection before a login",
            "check sshd's log there; likely causes: hosts.deny, fail2ban, MaxStartups, a firewall",
        ),
        (
            "nologin|System is booting up|not available|account (has )?expired|password (has )?expired",
            f"the account {node.user} may not log in",
            "log in there yourself and read the message",
        ),
    ):
        if re.search(pattern, output, re.IGNORECASE):
            return HostError(reason, fix)
    if login.code == 124:
        return HostError(
            f"a login from node0 takes longer than {TRUST_LOGIN} s ({endpoint})",
            "log in yourself to see what takes so long; check the login shell's startup files",
        )
    if login.code == 127 and "ssh" in output:
        return HostError("node0 has no ssh client", "install openssh-client (openssh-clients) on node0")
    lines = [line for line in output.splitlines() if line.strip()]
    return HostError(
        f"a login from node0 ended with exit code {login.code}"
        + (f": {printable(lines[-1].strip())}" if lines else ""),
        "try it on node0 with ssh -v -F ~/.ipexctl/ssh/config and the name of the host",
    )


def _wrong_host(login: LoginAttempt, node: HostState, address: str) -> HostError:
    if not login.identity:
        return HostError(
            "node0 logs in, but no command runs there",
            "check there for a forced command (ForceCommand in sshd_config, command= in authorized_keys) or a "
            "restricted shell",
        )
    user, machine = (*login.identity, "?", "?")[:2]
    has_its_name = machine == (*node.identity, "?", "?")[1]
    if has_its_name and user != node.user:
        return HostError(
            f"at {address}, node0 gets the account {printable(user)} instead of {node.user}",
            f"run getent passwd on {address} to see whether two accounts have the same uid; or it is another machine",
        )
    return HostError(
        f"{address} leads node0 to another machine{' of the same name' * has_its_name}, {printable(machine)}",
        "correct internal= in the hostfile, or choose the hosts' network: --iface CIDR",
    )


def _rejected_key(node: HostState, address: str) -> HostError:
    reason = f"sshd at {address} rejects node0's key for {node.user}, although it is in ~/.ssh/authorized_keys"
    modes = {
        node.home: node.home_mode,
        f"{node.home}/.ssh": node.ssh_mode,
        f"{node.home}/.ssh/authorized_keys": node.keys_mode,
    }
    too_open = [path for path, mode in modes.items() if mode is not None and mode.open_to_others]
    if too_open:
        return HostError(
            f"{reason}: {', '.join(too_open)} is writable by others, which sshd rejects (StrictModes)",
            f"if no other account needs to write there (ls -ld {' '.join(too_open)}): chmod go-w {' '.join(too_open)}",
        )
    foreign_owned = [path for path, mode in modes.items() if mode is not None and mode.uid not in (node.uid, 0)]
    if foreign_owned:
        return HostError(
            f"{reason}: {', '.join(foreign_owned)} belongs to another account, which sshd rejects (StrictModes)",
            f"find out why (ls -ld {' '.join(foreign_owned)}): its owner can let anyone log in as {node.user}; if "
            f"that is a mistake, as root: chown {node.user} {' '.join(foreign_owned)}",
        )
    if node.keys is None:
        return HostError(
            f"{reason}: ipexctl created that file, so sshd probably reads another one",
            "ask root there for the values of AuthorizedKeysFile, PubkeyAuthentication and AuthenticationMethods "
            "(sshd -T)",
        )
    if node.user == "root":
        return HostError(
            reason,
            "PermitRootLogin must be yes or prohibit-password for node0's address too (sshd -T); or log in as another"
            " user: --user NAME",
        )
    return HostError(
        reason,
        f"on {address}, as root, see sshd's reason: journalctl -u ssh -u sshd -n 30; if it names another address than "
        "node0's, NAT changes it and from= doesn't match; else see what limits logins: sshd -T | grep -iE "
        "'AuthorizedKeysFile|AllowUsers|AllowGroups|Deny'",
    )


def _other_network(address: str, addresses: Mapping[str, HostAddresses]) -> str:
    for network in common_networks(addresses):
        if not any(
            nic.address == address and nic.network == network for host in addresses.values() for nic in host.nics
        ):
            return f"the hosts also share {network}: --iface {network}"
    return ""
