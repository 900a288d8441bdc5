"""Logins in detail: questions, ports, ssh configs, bastions, host keys. test_login_matrix.py has all ways to log in."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from case_table import case_table
from cli_helpers import IPEXCTL, CommandResult, ipexctl
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec, ipv6
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import more_sshds
from message_data import missing
from terminals import TerminalProgram

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("transport")]

NO_AGENT = {"SSH_AUTH_SOCK": ""}
WITHOUT_PROGRAM = pytest.mark.parametrize("transport", ["auto"], indirect=True)
"""The ssh program asks for a passphrase in its own words, for each host."""


@pytest.fixture
def locked_key(lab3: Lab, tmp_path: Path) -> Path:
    """The lab's key, encrypted with the passphrase `sesame`."""
    key = tmp_path / "locked"
    key.write_bytes(lab3.key.read_bytes())
    key.chmod(0o600)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "sesame", "-f", str(key)], check=True, capture_output=True
    )
    return key


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    while not os.path.exists(path):
        time.sleep(0.01)
    yield path
    process.terminate()
    process.wait()


def make_key(path: Path, *kind: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", *kind, "-N", "", "-f", str(path)], check=True)


def add_key(agent: str, key: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(key)], env={**os.environ, "SSH_AUTH_SOCK": agent}, check=True)


def hosts_of(lab: Lab) -> list[str]:
    return ["--hosts", ",".join(host.address for host in lab.hosts), "--user", lab.hosts[0].user]


def login_with(key: Path, lab: Lab, command: str) -> list[str]:
    """The arguments of a command on all hosts with this key only."""
    known = ("--known-hosts", str(lab.known_hosts))
    return ["exec", *hosts_of(lab), *known, "--identity", str(key), "--", command]


def run_on_terminal(args: list[str], answers: dict[str, str]) -> tuple[int | None, str]:
    """Run the CLI on a terminal and type each answer after its question appears."""
    shown = TerminalProgram([*IPEXCTL, *args], NO_AGENT)
    try:
        for question, answer in answers.items():
            assert shown.until_seen(question.encode()), shown.seen
            shown.type(answer.encode())
        return shown.until_gone(), shown.seen.decode(errors="replace")
    finally:
        shown.close()


@WITHOUT_PROGRAM
def test_passphrase_is_requested_once_for_all_hosts(lab3: Lab, locked_key: Path) -> None:
    args = login_with(locked_key, lab3, "hostname")
    rc, screen = run_on_terminal(args, {"Passphrase for": "sesame\n"})
    assert rc == 0, screen
    assert screen.count("Passphrase for") == 1
    assert "sesame" not in screen
    assert len(re.findall(r"node[123]\r\n", screen)) == 3


@WITHOUT_PROGRAM
def test_wrong_passphrase_is_requested_again(lab3: Lab, locked_key: Path) -> None:
    args = login_with(locked_key, lab3, "hostname")
    rc, screen = run_on_terminal(args, {"Passphrase for": "nonsense\n", "wrong, try again": "sesame\n"})
    assert rc == 0, screen


@WITHOUT_PROGRAM
def test_ctrl_c_ends_the_passphrase_prompt(lab3: Lab, locked_key: Path) -> None:
    args = login_with(locked_key, lab3, "hostname")
    rc, screen = run_on_terminal(args, {"Passphrase for": "\x03"})
    assert rc == 130, screen


@WITHOUT_PROGRAM
def test_encrypted_key_without_terminal_or_agent_is_an_error(lab3: Lab, locked_key: Path) -> None:
    args = login_with(locked_key, lab3, "true")
    ran = ipexctl(*args, env=NO_AGENT)
    assert ran.rc == 3
    assert f"ssh-add {locked_key}" in ran.err


def test_rejected_key_is_named(lab3: Lab, tmp_path: Path) -> None:
    key = tmp_path / "mine"
    make_key(key, "rsa", "-b", "2048")
    args = login_with(key, lab3, "true")
    ran = ipexctl(*args, env=NO_AGENT)
    assert missing(ran.err, f"ipex {key}") == []
    assert ran.rc == 3


@pytest.mark.parametrize("kind", [["rsa", "-b", "3072"], ["ecdsa"], ["ed25519"]])
def test_every_key_type_is_accepted(lab3: Lab, tmp_path: Path, kind: list[str]) -> None:
    key = tmp_path / "mine"
    make_key(key, *kind)
    public = key.with_name("mine.pub").read_text().strip()
    node1 = ("exec", "-H", lab3.hostfile, "-l", "node1", "--shell")
    add = f"cp .ssh/authorized_keys .ssh/before; echo '{public}' >> .ssh/authorized_keys"
    assert ipexctl(*node1, add).rc == 0
    host = ("--hosts", f"ipex@{lab3.hosts[0].address}", "--known-hosts", lab3.known_hosts)
    ran = ipexctl("exec", *host, "--identity", key, "--", "whoami", env=NO_AGENT)
    ipexctl(*node1, "mv .ssh/before .ssh/authorized_keys")
    assert ran.out.endswith(": ipex\n"), ran.err


def test_port_option_is_used_for_login_and_host_key(lab3: Lab, tmp_path: Path) -> None:
    host = lab3.hosts[0]
    rule = ["PREROUTING", "-t", "nat", "-p", "tcp", "--dport", "2222", "-j", "REDIRECT", "--to-ports", "22"]
    inside = ["ip", "netns", "exec", host.netns, "iptables"]
    subprocess.run([*inside, "-A", *rule], check=True)
    try:
        keys = lab3.known_hosts.read_text()
        (tmp_path / "known").write_text(re.sub(r"(?m)^\S+", f"[{host.address}]:2222", keys.splitlines()[0]) + "\n")
        args = ["exec", "--hosts", f"ipex@{host.address}", "--port", "2222", "--identity", lab3.key, "--", "hostname"]
        assert ipexctl(*args[:-2], "--known-hosts", tmp_path / "known", *args[-2:]).out.endswith(": node1\n")
        unknown = ipexctl(*args[:-2], "--known-hosts", tmp_path / "none", *args[-2:])
        assert re.search(rf"ssh-keyscan (-H )?-p 2222 {re.escape(host.address)} >>", unknown.err)
    finally:
        subprocess.run([*inside, "-D", *rule], check=True)


def test_login_over_ipv6(lab3: Lab, tmp_path: Path) -> None:
    address = ipv6(lab3.hosts[0].address)
    (tmp_path / "hosts").write_text(f"[{address}] user=ipex identity={lab3.key}\n")
    args = ["exec", "-H", tmp_path / "hosts", "--known-hosts", tmp_path / "known"]
    ran = ipexctl(*args, "--host-keys", "accept-new", "--", "hostname")
    assert ran.out == f"{address}: node1\n", ran.err
    assert ipexctl(*args, "--", "hostname").rc == 0


@pytest.mark.core
def test_accept_new_saves_new_keys_and_refuses_changed_ones(lab3: Lab, tmp_path: Path) -> None:
    known = tmp_path / "ssh" / "known"
    args = ["exec", *hosts_of(lab3), "--known-hosts", known, "--identity", lab3.key]
    refused = ipexctl(*args, "--", "true")
    assert refused.rc == 3
    assert refused.err.count(" is unknown") == 3
    assert not known.exists()
    assert ipexctl(*args, "--host-keys", "accept-new", "--", "true").rc == 0
    assert len(known.read_text().splitlines()) == 3
    assert ipexctl(*args, "--", "true").rc == 0
    break_host(lab3.hosts[2], "changed-host-key")
    try:
        for policy in ("accept-new", "strict"):
            ran = ipexctl(*args, "--host-keys", policy, "--", "true")
            assert (ran.rc, ran.err.count("CHANGED")) == (3, 1)
        assert ipexctl(*args, "--host-keys", "off", "--", "true").rc == 0
    finally:
        mend_host(lab3.hosts[2])


KEY_TYPES = {"E": "ed25519", "C": "ecdsa", "R": "rsa", "A": "ed25519", "e": "ed25519", "c": "ecdsa"}
"""Host keys by a letter. No host has A, e and c."""


@pytest.fixture(scope="module")
def extra_sshds(lab3: Lab) -> Iterator[dict[str, str]]:
    """An sshd on node1 for each of some sets of host keys, on its own port. Gives the public keys by their letters."""
    ports = {2201: "C", 2202: "EC", 2204: "CR"}
    settings = {port: [f"HostKey /run/more/{name}" for name in names] for port, names in ports.items()}
    with more_sshds(lab3.hosts[0], KEY_TYPES, settings) as keys:
        yield dict(zip(KEY_TYPES, keys, strict=True))


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
@pytest.mark.core
def test_host_key_of_another_type_than_known_is_refused(
    lab3: Lab, extra_sshds: dict[str, str], tmp_path: Path, policy: str
) -> None:
    address, known = lab3.hosts[0].address, tmp_path / "known"
    known.write_text(f"[{address}]:2201 {extra_sshds['E']}\n")
    args = ["exec", "--hosts", f"ipex@{address}", "--port", "2201", "--identity", lab3.key, "--known-hosts", known]
    ran = ipexctl(*args, "--host-keys", policy, "--", "hostname")
    assert (ran.rc, ran.out) == (3, "")
    assert known.read_text() == f"[{address}]:2201 {extra_sshds['E']}\n"
    assert re.search(r"CHANGED.* ecdsa-sha2-nistp256 SHA256:\S+, .* ssh-ed25519 SHA256:", ran.err)
    assert not re.search("accept-new|keyscan", ran.err)
    command = re.search(r"ssh-keygen -R \S+ -f \S+", ran.err)
    assert command
    subprocess.run(["sh", "-c", command[0]], check=True, capture_output=True, timeout=20)
    assert known.read_text() == ""


@case_table
def test_host_key_check_matches_openssh(
    lab3: Lab, extra_sshds: dict[str, str], tmp_path: Path, port: int, lines: list[str], config: str, expected: str
) -> None:
    """With accept-new the exit code and the files tell a known, a new and a refused key apart."""
    address = lab3.hosts[0].address
    names = {"PORT": f"[{address}]:{port}", "BARE": address}
    texts = ["", ""]
    for line in lines:
        *words, key = line.removeprefix("2 ").split()
        texts[line.startswith("2 ")] += " ".join([*(names.get(word, word) for word in words), extra_sshds[key]]) + "\n"
    files, ssh_config = [tmp_path / "known", tmp_path / "known2"], tmp_path / "config"
    ssh_config.write_text(
        f"Host *\n  User ipex\n  Port {port}\n  IdentityFile {lab3.key}\n  IdentitiesOnly yes\n  {config}\n"
        f"  UserKnownHostsFile {files[0]} {files[1]}\n  GlobalKnownHostsFile /dev/null\n  UpdateHostKeys no\n"
        "  StrictHostKeyChecking accept-new\n  BatchMode yes\n"
    )

    def outcome(argv: list[str | Path]) -> str:
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        refused = subprocess.run(argv, check=False, capture_output=True, timeout=30).returncode != 0
        written = [file.read_text() for file in files] != texts
        return {(0, 0): "known", (0, 1): "new", (1, 0): "refused"}[refused, written]

    assert outcome(["ssh", "-F", ssh_config, address, "true"]) == expected
    assert outcome([*IPEXCTL, "exec", "--hosts", address, "--ssh-config", ssh_config, "--", "true"]) == expected


def test_suggested_keyscan_command_accepts_the_key(lab3: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known"
    host = ("--hosts", f"ipex@{lab3.hosts[0].address}", "--known-hosts", known)
    args = ["exec", *host, "--identity", lab3.key, "--", "true"]
    command = re.search(r"then: (ssh-keyscan .*? >> \S+)", ipexctl(*args).err)
    assert command
    subprocess.run(["sh", "-c", command[1]], check=True, capture_output=True, timeout=20)
    assert ipexctl(*args).rc == 0


def test_ssh_config_include_match_and_alias_are_supported(lab3: Lab, tmp_path: Path) -> None:
    one, two, three = lab3.hosts
    (tmp_path / "more").write_text(
        f"Host first\n  HostName {one.address}\nHost third\n  HostName {three.address}\n  HostKeyAlias node3\n"
    )
    (tmp_path / "config").write_text(
        f"Include {tmp_path}/more\nMatch originalhost second\n  HostName {two.address}\n"
        f"Host *\n  User ipex\n  IdentityFile {lab3.key}\n  UserKnownHostsFile {lab3.known_hosts}\n"
    )
    ran = ipexctl(
        "exec", "--hosts", "first,second,third", "--ssh-config", tmp_path / "config", "--", "hostname", env=NO_AGENT
    )
    assert ran.lines == ["first: node1", "second: node2", "third: node3"], ran.err


def test_configured_keys_are_tried_before_other_agent_keys(lab3: Lab, agent: str, tmp_path: Path) -> None:
    """sshd disconnects after six rejected keys."""
    environ = {"SSH_AUTH_SOCK": agent}
    for index in range(6):
        other = tmp_path / f"other{index}"
        make_key(other, "ed25519")
        add_key(agent, other)
    add_key(agent, lab3.key)
    public = tmp_path / "mine.pub"
    public.write_bytes(lab3.key.with_name("key.pub").read_bytes())
    (tmp_path / "config").write_text(f"Host *\n  IdentityFile {public}\n")
    files = ("--known-hosts", lab3.known_hosts, "--ssh-config", tmp_path / "config")
    assert ipexctl("exec", *hosts_of(lab3), *files, "--", "true", env=environ).rc == 0


def test_closed_control_master_is_not_opened(bastion_lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host bastion\n  ControlPath {tmp_path}/cm\n  ControlMaster auto\n\n{bastion_lab.ssh_config.read_text()}"
    )
    before = control_masters()
    for _ in range(3):
        ran = ipexctl("exec", "--hosts", "node[1-4]", "-f", "2", "--ssh-config", config, "--", "hostname")
        assert ran.lines == [f"node{i}: node{i}" for i in (1, 2, 3, 4)], ran.err
    assert control_masters() == before


@pytest.fixture(scope="module")
def bastion_lab(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    return make_lab(LabSpec(hosts=4, bastion=True))


def control_masters() -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "ControlPath=" in line or "ControlPersist" in line]


def test_bastion_login_is_shared_and_closed_at_the_end(bastion_lab: Lab) -> None:
    before = control_masters()
    ran = ipexctl("exec", "-H", bastion_lab.hostfile, "--", "hostname")
    assert ran.lines == [f"node{i}: node{i}" for i in (1, 2, 3, 4)], ran.err
    logins = ipexctl("exec", "-H", bastion_lab.hostfile, "--gather", "--shell", "set -- $SSH_CONNECTION; echo $1")
    assert len(logins.out.splitlines()) == 2
    assert control_masters() == before


@pytest.mark.core
def test_dead_host_and_dead_bastion_have_different_errors(bastion_lab: Lab) -> None:
    assert bastion_lab.bastion
    break_host(bastion_lab.hosts[1], "sshd-dead")
    ran = ipexctl("exec", "-H", bastion_lab.hostfile, "--", "hostname")
    assert ran.lines == [f"node{i}: node{i}" for i in (1, 3, 4)]
    assert missing(ran.err.splitlines()[0], "node2 unreachable bastion") == []
    mend_host(bastion_lab.hosts[1])
    break_host(bastion_lab.bastion, "sshd-dead")
    try:
        ran = ipexctl("exec", "-H", bastion_lab.hostfile, "--", "hostname")
    finally:
        mend_host(bastion_lab.bastion)
    assert missing(ran.err.splitlines()[0], "node[1-4] unreachable bastion") == []
    assert ran.rc == 3


def test_open_control_master_of_the_user_is_used(bastion_lab: Lab, tmp_path: Path) -> None:
    """As with two-factor logins: the bastion accepts no new login, but a connection is open."""
    assert bastion_lab.bastion
    config = tmp_path / "config"
    text = bastion_lab.ssh_config.read_text()
    config.write_text(f"Host bastion\n  ControlPath {tmp_path}/cm\n  ControlMaster auto\n\n{text}")
    ssh = ["ssh", "-F", str(config)]
    subprocess.run([*ssh, "-f", "-N", "-M", "bastion"], check=True, timeout=20, stderr=subprocess.DEVNULL)
    break_host(bastion_lab.bastion, "firewall")
    inside = ["ip", "netns", "exec", bastion_lab.bastion.netns, "iptables"]
    closed = ["INPUT", "-p", "tcp", "--dport", "22", "--syn", "-j", "REJECT"]
    subprocess.run([*inside, "-I", *closed], check=True)
    try:
        ran: CommandResult = ipexctl("exec", "--hosts", "node[1-4]", "--ssh-config", config, "--", "hostname")
        assert ran.lines == [f"node{i}: node{i}" for i in (1, 2, 3, 4)], ran.err
    finally:
        subprocess.run([*inside, "-D", *closed], check=True)
        mend_host(bastion_lab.bastion)
        subprocess.run([*ssh, "-O", "exit", "bastion"], check=False, capture_output=True, timeout=20)


SETTINGS = {
    2301: ["Ciphers aes128-cbc,3des-cbc"],
    2302: ["MACs hmac-sha1,hmac-md5", "Ciphers aes128-ctr"],
    2303: ["Ciphers aes128-cbc,aes256-ctr", "MACs hmac-sha1,hmac-sha2-256"],
}


@pytest.fixture(scope="module")
def host_key(lab3: Lab) -> Iterator[str]:
    """An RSA key of 2048 bits; an sshd on node1 with it for each of SETTINGS."""
    settings = {port: ["HostKey /run/settings/key", *lines] for port, lines in SETTINGS.items()}
    with more_sshds(lab3.hosts[0], {"key": "rsa -b 2048"}, settings, "/run/settings") as (key,):
        yield key


def log_in(lab: Lab, tmp_path: Path, host_key: str, port: int, *lines: str) -> CommandResult:
    address, known, config = lab.hosts[0].address, tmp_path / "known", tmp_path / "config"
    known.write_text(f"[{address}]:{port} {host_key}\n")
    config.write_text("\n  ".join(["Host *", f"UserKnownHostsFile {known}", *lines]) + "\n")
    at = ["--hosts", f"ipex@{address}", "--port", str(port), "--identity", lab.key, "--ssh-config", config]
    return ipexctl("exec", *at, "--", "echo", "logged in")


@pytest.mark.parametrize("port", [2301, 2302])
def test_sshd_with_only_weak_algorithms_is_refused(lab3: Lab, host_key: str, tmp_path: Path, port: int) -> None:
    ran = log_in(lab3, tmp_path, host_key, port)
    assert (ran.rc, ran.out) == (3, "")


@case_table
def test_security_settings_of_the_ssh_config_are_applied(
    lab3: Lab, host_key: str, tmp_path: Path, lines: list[str], code: int, named: str
) -> None:
    (tmp_path / "revoked").write_text(f"{host_key}\n")
    (tmp_path / "others").write_text("")
    ran = log_in(lab3, tmp_path, host_key, 2303, *(line.replace("DIRECTORY", str(tmp_path)) for line in lines))
    assert (ran.rc, ran.out) == (code, "" if code else ran.out)
    assert named in ran.err
    assert ("logged in" in ran.out) == (code == 0)
