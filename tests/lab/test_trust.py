"""`ipexctl trust` on real hosts: node0 gets in everywhere, nobody else's line is touched, revoke leaves no trace."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli_helpers import IPEXCTL, ipexctl
from ipexctl.lab import LabSpec, break_host, mend_host
from ipexctl.lab.inside import in_host
from lab_helpers import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli_helpers import Ran
    from ipexctl.lab import Lab, LabHost

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

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
    ran: Ran
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


def gets_in(lab: Lab) -> dict[str, str]:
    """Which host and account answers node0 under each name, asked with the plain client and our config."""
    names = " ".join(host.name for host in lab.hosts)
    one = f'{SSH} $n "hostname; whoami" 2>/dev/null </dev/null | tail -n 2 | xargs echo $n'
    said = ask(lab.hosts[0], f"sh -c 'for n in {names}; do ({one}) & done; wait'", timeout=40)
    answers = [line.partition(" ") for line in said.out.splitlines()]
    return {name: answer for name, _, answer in answers if name.startswith("node")}


def everyone(lab: Lab) -> dict[str, str]:
    return {host.name: f"{host.name} {host.user}" for host in lab.hosts}


def keys_of(host: LabHost) -> str:
    return in_host(host, 'cat "$HOME_DIR/.ssh/authorized_keys"')


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    return make_lab(LabSpec(hosts=4, name=f"trust-{os.getpid()}"))


@pytest.fixture
def clean(lab: Lab) -> Iterator[Lab]:
    """The lab as it was, and a check that it is so again once trust is revoked."""
    before = {host.name: snapshot(host) for host in lab.hosts}
    yield lab
    for host in lab.hosts:
        mend_host(host)
    assert ipexctl("trust", "-H", lab.hostfile, "--revoke").rc == 0
    for host in lab.hosts:
        assert snapshot(host) == before[host.name]


def test_node0_reaches_all_and_the_second_time_nothing_changes(clean: Lab) -> None:
    first = trust(clean.hostfile)
    assert first.ran.rc == 0, first.ran
    assert first.document["schema"] == "ipexctl.trust/1"
    assert first.document["config"] == "/home/ipex/.ipexctl/ssh/config"
    assert first.document["summary"] == {"ok": 0, "changed": 4, "failed": 0, "unreachable": 0}
    assert gets_in(clean) == everyone(clean)
    node0 = clean.hosts[0]
    assert ask(node0, f"{SSH} {clean.hosts[2].address} hostname").out == "node3\n", "by its address too"
    assert ask(node0, "stat -c %a .ipexctl/ssh .ipexctl/ssh/id_ed25519").out == "700\n600\n"
    assert keys_of(clean.hosts[3]).splitlines()[1].startswith(f'restrict,from="{node0.address},')
    files = {host.name: (snapshot(host), in_host(host, 'stat -c %Y.%i "$HOME_DIR/.ssh/"*')) for host in clean.hosts}
    second = trust(clean.hostfile)
    assert (second.ran.rc, second.statuses) == (0, {"ok"})
    assert files == {h.name: (snapshot(h), in_host(h, 'stat -c %Y.%i "$HOME_DIR/.ssh/"*')) for h in clean.hosts}
    said = ipexctl("trust", "-H", clean.hostfile)
    assert said.out == "node[1-4]: ok\n"
    assert "nothing changed" in said.err


def test_the_key_opens_nothing_but_commands_and_from_nowhere_else(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    one, two, three = clean.hosts[:3]
    key = in_host(one, 'cat "$HOME_DIR/.ipexctl/ssh/id_ed25519"')
    in_host(three, f"umask 077; cat >/tmp/stolen <<'E'\n{key}E\nchown $LOGIN /tmp/stolen")
    options = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
    stolen = ask(three, f"ssh {options} -i /tmp/stolen {two.address} true")
    in_host(three, "rm /tmp/stolen")
    assert "Permission denied" in stolen.err
    forward = ask(one, f"timeout 3 {SSH} -W {two.address}:22 node2 </dev/null")
    assert (forward.out, forward.rc) == ("", 255)


def test_dry_run_tells_and_changes_nothing(clean: Lab) -> None:
    before = [snapshot(host) for host in clean.hosts]
    told = trust(clean.hostfile, "--dry-run")
    assert told.ran.rc == 0
    assert told.statuses == {"changed"}
    assert told.host("node2")["reason"] == "a line added to ~/.ssh/authorized_keys"
    assert [snapshot(host) for host in clean.hosts] == before


_ODD = (
    b"%s",  # no newline at the end
    b"# keys\r\n%s\r\n",
    b"# keys\r\n%s",
    b"\n\n# mine\n%s\n\n\n# end\n\n",
    b"\xff\xfe\x00 \x80\n%s\n\x00\x00",
    b"  \t \n   %s   \n \t",
    b'command="echo \\"a b\\"",no-pty ssh-rsa AAAA x y\n%s\nipexctl: not ours\n',
    b"# " + b"x" * 70000 + b"\n%s\n",
)


def test_whatever_was_in_authorized_keys_is_there_again_byte_for_byte(clean: Lab) -> None:
    key = clean.key.with_name("key.pub").read_bytes().strip()
    odd = iter([text.replace(b"%s", key) for text in _ODD])
    try:
        for _ in range(2):
            wanted = {host.name: next(odd) for host in clean.hosts}
            for host in clean.hosts:
                put_keys(clean, host, wanted[host.name])
                in_host(host, 'chmod 644 "$HOME_DIR/.ssh/authorized_keys"')
            before = [snapshot(host) for host in clean.hosts]
            assert trust(clean.hostfile).statuses == {"changed"}
            assert gets_in(clean) == everyone(clean)
            assert trust(clean.hostfile, "--revoke").ran.rc == 0
            assert [snapshot(host) for host in clean.hosts] == before
            assert {host.name: get_keys(clean, host) for host in clean.hosts} == wanted
    finally:
        for host in clean.hosts:
            put_keys(clean, host, key + b"\n")
            in_host(host, 'chmod 600 "$HOME_DIR/.ssh/authorized_keys"')


def put_keys(lab: Lab, host: LabHost, content: bytes) -> None:
    octal = "".join(f"\\0{byte:03o}" for byte in content)
    path = lab.dir / "octal"
    path.write_text(octal)
    command = ["nsenter", "-t", pid_of(host), "-m", "-r", "-w", "--", "sh", "-c"]
    with path.open("rb") as source:
        subprocess.run(
            [*command, f'printf %b "$(cat)" >{host.home}/.ssh/authorized_keys'], stdin=source, check=True, timeout=10
        )
    path.unlink()


def get_keys(lab: Lab, host: LabHost) -> bytes:
    command = ["nsenter", "-t", pid_of(host), "-m", "-r", "-w", "--", "cat", f"{host.home}/.ssh/authorized_keys"]
    return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout


def pid_of(host: LabHost) -> str:
    from ipexctl.lab import processes

    pid = processes.init_of(host.netns)
    assert pid
    return str(pid)


def test_a_key_added_since_stays_and_one_written_behind_ours_too(clean: Lab) -> None:
    node = clean.hosts[2]
    original = keys_of(node)
    put_keys(clean, node, original.rstrip("\n").encode())
    try:
        assert trust(clean.hostfile).ran.rc == 0
        in_host(node, 'echo "ssh-ed25519 AAAAadded later" >>"$HOME_DIR/.ssh/authorized_keys"')
        assert trust(clean.hostfile).statuses == {"ok"}
        assert trust(clean.hostfile, "--revoke").ran.rc == 0
        assert keys_of(node) == original + "ssh-ed25519 AAAAadded later\n"
    finally:
        put_keys(clean, node, original.encode())


def test_a_linked_authorized_keys_stays_a_link(clean: Lab) -> None:
    node = clean.hosts[1]
    in_host(node, 'cd "$HOME_DIR/.ssh"; mkdir ../keys; mv authorized_keys ../keys/mine; chown $LOGIN ../keys')
    in_host(node, 'cd "$HOME_DIR/.ssh"; ln -s ../keys/mine authorized_keys')
    before = snapshot(node)
    try:
        assert trust(clean.hostfile).ran.rc == 0
        assert gets_in(clean) == everyone(clean)
        assert "|l|../keys/mine" in snapshot(node)
        assert trust(clean.hostfile, "--revoke").ran.rc == 0
        assert snapshot(node) == before
    finally:
        in_host(node, 'cd "$HOME_DIR/.ssh"; rm authorized_keys; mv ../keys/mine authorized_keys; rmdir ../keys')


@pytest.fixture
def keys_elsewhere(clean: Lab) -> Iterator[LabHost]:
    """A host that lets us in by a key of the system's, with no ~/.ssh at all."""
    node = clean.hosts[3]
    in_host(node, 'cp "$HOME_DIR/.ssh/authorized_keys" /etc/ssh/lab_keys; chmod 644 /etc/ssh/lab_keys')
    in_host(node, 'mv "$HOME_DIR/.ssh" "$HOME_DIR/../kept"; cp /etc/ssh/sshd_config /etc/ssh/before')
    sshd(node, "AuthorizedKeysFile /etc/ssh/lab_keys .ssh/authorized_keys")
    yield node
    trust(clean.hostfile, "--revoke")
    in_host(node, 'mv "$HOME_DIR/../kept" "$HOME_DIR/.ssh"')
    sshd(node, None)
    in_host(node, "rm /etc/ssh/before /etc/ssh/lab_keys")


def sshd(node: LabHost, line: str | None) -> None:
    """Put a line before all others of sshd's configuration, or have it as it was."""
    if line is None:
        in_host(node, "cat /etc/ssh/before >/etc/ssh/sshd_config; kill -HUP $(cat /run/sshd.pid)")
    else:
        script = '{ echo "$1"; cat /etc/ssh/before; } >/etc/ssh/sshd_config; kill -HUP $(cat /run/sshd.pid)'
        in_host(node, script, [line])
    deadline = time.monotonic() + 10
    while ask(node, "true").rc not in (0, None) and time.monotonic() < deadline:
        time.sleep(0.05)


def test_where_there_was_no_ssh_directory_there_is_none_again(clean: Lab, keys_elsewhere: LabHost) -> None:
    before = snapshot(keys_elsewhere)
    assert ".ssh" not in before
    assert trust(clean.hostfile).ran.rc == 0
    assert gets_in(clean) == everyone(clean)
    assert in_host(keys_elsewhere, 'cd "$HOME_DIR"; stat -c "%a %U" .ssh .ssh/*') == "700 ipex\n600 ipex\n"
    assert trust(clean.hostfile, "--revoke").ran.rc == 0
    assert snapshot(keys_elsewhere) == before
    trust(clean.hostfile)
    in_host(keys_elsewhere, 'cd "$HOME_DIR/.ssh"; echo mine >known_hosts')
    assert trust(clean.hostfile, "--revoke").ran.rc == 0
    assert in_host(keys_elsewhere, 'ls -A "$HOME_DIR/.ssh"; rm -r "$HOME_DIR/.ssh"') == "known_hosts\n"


def test_a_sshd_that_reads_keys_elsewhere_is_named_as_the_cause(clean: Lab, keys_elsewhere: LabHost) -> None:
    sshd(keys_elsewhere, "AuthorizedKeysFile /etc/ssh/lab_keys")
    done = trust(clean.hostfile)
    assert done.ran.rc == 1
    assert (done.status("node4"), done.status("node3")) == ("failed", "changed")
    assert "AuthorizedKeysFile" in done.host("node4")["fix"]


def test_a_read_only_file_is_left_alone(clean: Lab) -> None:
    node = clean.hosts[1]
    in_host(node, 'chmod 400 "$HOME_DIR/.ssh/authorized_keys"')
    before = snapshot(node)
    try:
        done = trust(clean.hostfile)
        assert snapshot(node) == before
    finally:
        in_host(node, 'chmod 600 "$HOME_DIR/.ssh/authorized_keys"')
    assert (done.ran.rc, done.status("node2"), done.status("node3")) == (1, "failed", "changed")
    assert done.host("node2")["reason"] == "/home/ipex/.ssh/authorized_keys is read-only"


@pytest.mark.parametrize(
    ("fault", "word"), [("read-only-home", "Read-only file system"), ("full-disk", "No space left")]
)
@pytest.mark.parametrize("number", [0, 2])
def test_a_home_that_cannot_be_written_to(clean: Lab, fault: str, word: str, number: int) -> None:
    node = clean.hosts[number]
    before = snapshot(node)
    break_host(node, fault)
    done = trust(clean.hostfile)
    mend_host(node)
    assert done.ran.rc == 1
    assert done.status(node.name) == "failed"
    assert word in done.host(node.name)["reason"], done.document
    assert done.host(node.name)["fix"]
    assert snapshot(node) == before
    if number == 0:
        assert done.statuses == {"failed"}
        assert "node0 (node1) failed" in done.host("node2")["reason"]
    else:
        assert done.status("node2") == "changed"


@pytest.mark.parametrize(
    "faults",
    [
        (("csh-shell", "noisy-rc"), ("fish-shell",), ("firewall", "no-python"), ("noisy-rc", "no-names")),
        (("fish-shell", "noisy-rc", "no-names"), ("csh-shell", "firewall"), ("no-names",), ("csh-shell", "noisy-rc")),
    ],
    ids=["csh-node0", "fish-node0"],
)
def test_odd_but_healthy_hosts(clean: Lab, faults: tuple[tuple[str, ...], ...]) -> None:
    for host, broken in zip(clean.hosts, faults, strict=True):
        for fault in broken:
            break_host(host, fault)
    before = {host.name: snapshot(host) for host in clean.hosts}
    done = trust(clean.hostfile)
    assert done.ran.rc == 0, done.document
    assert gets_in(clean) == everyone(clean)
    assert trust(clean.hostfile).statuses == {"ok"}
    assert trust(clean.hostfile, "--revoke").ran.rc == 0
    assert {host.name: snapshot(host) for host in clean.hosts} == before


def test_a_host_that_is_down_is_done_when_it_is_back_and_undone_too(clean: Lab) -> None:
    node = clean.hosts[2]
    break_host(node, "sshd-dead")
    done = trust(clean.hostfile)
    assert done.ran.rc == 3
    assert (done.status("node3"), done.status("node2"), done.host("node3")["fix"] != "") == (
        "unreachable",
        "changed",
        True,
    )
    mend_host(node)
    again = trust(clean.hostfile)
    assert (again.ran.rc, again.status("node3"), again.status("node2")) == (0, "changed", "ok")
    break_host(node, "sshd-dead")
    revoked = ipexctl("trust", "-H", clean.hostfile, "--revoke")
    assert revoked.rc == 3
    assert "when they are well again: ipexctl trust --revoke" in revoked.err
    mend_host(node)
    assert "ipexctl:" in keys_of(node)
    assert trust(clean.hostfile, "--revoke").status("node3") == "changed"
    assert "ipexctl:" not in keys_of(node)


def test_a_host_that_is_left_out_keeps_its_place(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    assert trust(clean.hostfile, "-l", "node[1-2]").statuses == {"ok"}
    assert gets_in(clean) == everyone(clean)
    revoked = ipexctl("trust", "-H", clean.hostfile, "-l", "!node4", "--revoke")
    assert "node4: not among these hosts" in revoked.err
    assert trust(clean.hostfile, "--revoke").status("node4") == "changed"


def test_a_node0_that_is_down_or_gone_is_no_reason_to_keep_its_line(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    break_host(clean.hosts[0], "sshd-dead")
    done = trust(clean.hostfile, "--revoke")
    assert (done.ran.rc, done.status("node1"), done.status("node2")) == (3, "unreachable", "changed")
    assert "ipexctl:" not in keys_of(clean.hosts[1])
    assert trust(clean.hostfile).statuses == {"unreachable", "failed"}


def test_a_changed_host_key_is_refused_by_node0(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    break_host(clean.hosts[1], "changed-host-key")
    said = ask(clean.hosts[0], f"{SSH} node2 true")
    assert said.rc == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in said.err
    done = trust(clean.hostfile)
    assert (done.ran.rc, done.status("node2")) == (3, "unreachable")
    assert "CHANGED" in done.host("node2")["reason"]


def test_where_node0_gets_in_already_nothing_is_changed(clean: Lab) -> None:
    node0 = clean.hosts[0]
    known = clean.known_hosts.read_text()
    in_host(node0, 'cd "$HOME_DIR/.ssh"; ssh-keygen -q -t ed25519 -N "" -f id_ed25519; chown $LOGIN id_ed25519*')
    in_host(node0, f"cat >\"$HOME_DIR/.ssh/known_hosts\" <<'E'\n{known}E")
    public = in_host(node0, 'cat "$HOME_DIR/.ssh/id_ed25519.pub"').strip()
    for host in clean.hosts:
        in_host(host, f'echo "{public}" >>"$HOME_DIR/.ssh/authorized_keys"')
    before = {host.name: snapshot(host) for host in clean.hosts}
    try:
        done = trust(clean.hostfile)
        said = ipexctl("trust", "-H", clean.hostfile)
        assert {host.name: snapshot(host) for host in clean.hosts} == before
    finally:
        for host in clean.hosts:
            in_host(host, 'f="$HOME_DIR/.ssh/authorized_keys"; head -n 1 $f >/tmp/k; cat /tmp/k >$f')
        in_host(node0, 'cd "$HOME_DIR/.ssh"; rm id_ed25519 id_ed25519.pub known_hosts')
    assert (done.ran.rc, done.statuses, done.document["by"], done.document["config"]) == (0, {"ok"}, "own", None)
    assert "already reaches every node" in said.err


def test_killed_at_any_moment_and_run_again_it_ends_whole(clean: Lab) -> None:
    args = [*IPEXCTL, "trust", "-H", str(clean.hostfile)]
    for moment in range(5):
        process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.2, 2.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if moment == 2:
            ipexctl("trust", "-H", clean.hostfile, "--revoke")
    assert trust(clean.hostfile).ran.rc == 0
    assert gets_in(clean) == everyone(clean)
    assert all(keys_of(host).count("ipexctl:") == 1 for host in clean.hosts)


def test_an_interrupt_is_130_and_leaves_nothing_half_done(clean: Lab) -> None:
    for wait in (0.6, 1.0, 1.4):
        process = subprocess.Popen(
            [*IPEXCTL, "trust", "-H", str(clean.hostfile), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert process.returncode in (0, 130)
        assert json.loads(out)["schema"] == "ipexctl.trust/1"
        if process.returncode == 0:
            break
    assert trust(clean.hostfile).ran.rc == 0
    assert gets_in(clean) == everyone(clean)


def test_what_a_crash_left_behind_is_cleared_away(clean: Lab) -> None:
    node = clean.hosts[1]
    lock = '"$HOME_DIR/.ssh/.ipexctl-trust"'
    script = (
        f'mkdir {lock}; echo "$(uname -n) $(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/1/ns/pid) 999999"'
    )
    in_host(node, f"{script} >{lock}/holder; echo half >{lock}/next; chown -R $LOGIN {lock}")
    started = time.monotonic()
    assert trust(clean.hostfile).ran.rc == 0
    assert time.monotonic() - started < 10, "a holder on the same machine is asked after"
    in_host(node, f"mkdir {lock}; echo half >{lock}/next; chown -R $LOGIN {lock}")
    assert trust(clean.hostfile).ran.rc == 0, "one of which nothing is known is waited for"
    assert ".ipexctl-trust" not in snapshot(node)


def test_two_at_once_leave_one_line(clean: Lab) -> None:
    args = [*IPEXCTL, "trust", "-H", str(clean.hostfile)]
    both = [subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0, 0], said
    assert all(keys_of(host).count("ipexctl:") == 1 for host in clean.hosts)
    assert gets_in(clean) == everyone(clean)


def test_a_home_of_its_own_for_our_files(clean: Lab) -> None:
    in_host(clean.hosts[0], "mkdir -m 1777 /scratch")
    done = trust(clean.hostfile, env={"IPEXCTL_HOME": "/scratch/my files/ipexctl"})
    assert done.ran.rc == 0, done.document
    assert done.document["config"] == "/scratch/my files/ipexctl/ssh/config"
    assert ask(clean.hosts[0], "ssh -F '/scratch/my files/ipexctl/ssh/config' node2 hostname").out == "node2\n"
    assert trust(clean.hostfile, "--home", "/scratch/my files/ipexctl", "--revoke").ran.rc == 0
    assert in_host(clean.hosts[0], "ls -A /scratch; rmdir /scratch") == ""
    wrong = ipexctl("trust", "-H", clean.hostfile, "--home", "here")
    assert (wrong.rc, wrong.out) == (2, "")


def test_this_machine_as_node0(lab: Lab, tmp_path: Path) -> None:
    """In a mount namespace where root's home is another, as this machine's own files are not for a test to edit."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    passwd = tmp_path / "passwd"
    lines = Path("/etc/passwd").read_text().splitlines()
    passwd.write_text("".join(f"{x.replace(':/root:', f':{home}:') if x.startswith('root:') else x}\n" for x in lines))
    hosts = tmp_path / "hosts"
    keys = f"identity={lab.key} known_hosts={lab.known_hosts}"
    hosts.write_text(f"localhost\n{lab.hosts[0].address} user=ipex {keys}\n{lab.hosts[1].address} user=ipex {keys}\n")
    before = snapshot(lab.hosts[0])

    def here(*args: str) -> tuple[int, dict[str, Any], str]:
        argv = ["unshare", "-m", "sh", "-c", f'mount --bind {passwd} /etc/passwd; exec "$@"', "sh", *IPEXCTL, "trust"]
        done = subprocess.run(
            [*argv, "-H", str(hosts), "--json", *args],
            env={**os.environ, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    rc, document, err = here()
    assert rc == 0, (document, err)
    assert [host["internal"] for host in document["hosts"]] == [
        f"10.77.{lab.block}.1",
        *(h.address for h in lab.hosts[:2]),
    ]
    config = home / ".ipexctl" / "ssh" / "config"
    reached = subprocess.run(
        ["ssh", "-F", str(config), lab.hosts[1].address, "hostname"], capture_output=True, text=True
    )
    assert reached.stdout == "node2\n", reached.stderr
    assert here()[0] == 0
    rc, document, err = here("--revoke")
    assert rc == 0
    assert list(home.iterdir()) == []
    assert snapshot(lab.hosts[0]) == before


def test_different_accounts_homes_and_ports(make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    lab = make_lab(
        LabSpec(hosts=4, users=("alice", "bob", "root"), homes=("/home", "/scratch"), name=f"trust-u{os.getpid()}")
    )
    before = [snapshot(host) for host in lab.hosts]
    done = trust(lab.hostfile)
    assert done.ran.rc == 0, done.document
    assert gets_in(lab) == everyone(lab)
    assert trust(lab.hostfile).statuses == {"ok"}
    assert trust(lab.hostfile, "--revoke").ran.rc == 0
    assert [snapshot(host) for host in lab.hosts] == before

    two = lab.hosts[1]
    in_host(two, "/usr/sbin/sshd -p 2222 -o PidFile=/run/second.pid")
    in_host(two, "iptables -I INPUT -p tcp --dport 22 -j REJECT")
    try:
        lines = lab.hostfile.read_text().splitlines()
        hosts = lab.dir / "ports"
        hosts.write_text("\n".join(f"{x} port=2222" if x.startswith("node2 ") else x for x in lines) + "\n")
        args = ["--host-keys", "accept-new", "--known-hosts", str(tmp_path / "known")]
        done = trust(hosts, *args)
        assert done.ran.rc == 0, done.document
        assert gets_in(lab) == everyone(lab)
        assert trust(hosts, *args, "--revoke").ran.rc == 0
        assert [snapshot(host) for host in lab.hosts] == before
    finally:
        in_host(two, "kill $(cat /run/second.pid); iptables -D INPUT -p tcp --dport 22 -j REJECT")


def test_a_shared_home_gets_the_line_once(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=4, shared_home=True, name=f"trust-s{os.getpid()}"))
    before = snapshot(lab.hosts[0])
    done = trust(lab.hostfile)
    assert done.ran.rc == 0, done.document
    assert gets_in(lab) == everyone(lab)
    assert keys_of(lab.hosts[2]).count("ipexctl:") == 1
    assert [host["status"] for host in done.document["hosts"]] == ["changed", "ok", "ok", "ok"]
    assert done.host("node3")["reason"] == "shares the home of node1"
    assert trust(lab.hostfile).statuses == {"ok"}
    assert trust(lab.hostfile, "--revoke").ran.rc == 0
    assert snapshot(lab.hosts[0]) == before


def test_a_network_among_the_nodes(make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    lab = make_lab(LabSpec(hosts=3, internal=True, names=False, name=f"trust-i{os.getpid()}"))
    done = trust(lab.hostfile)
    assert done.ran.rc == 0, done.document
    assert [host["internal"] for host in done.document["hosts"]] == [host.internal for host in lab.hosts]
    assert gets_in(lab) == everyone(lab)
    assert f'from="{lab.hosts[0].internal},' in keys_of(lab.hosts[1])
    assert trust(lab.hostfile, "--revoke").ran.rc == 0
    lines = [line.split(" internal=")[0] for line in lab.hostfile.read_text().splitlines()]
    hosts = lab.dir / "without"
    hosts.write_text("\n".join(lines) + "\n")
    done = trust(hosts)
    assert done.ran.rc == 1
    network = f"10.78.{lab.block}.0/24"
    assert done.host("node2")["fix"] == f"the hosts share {network} too: --iface {network}", done.document
    assert trust(hosts, "--iface", network).ran.rc == 0
    assert gets_in(lab) == everyone(lab)
    assert trust(hosts, "--iface", "eth1").statuses == {"ok"}
    refused = trust(hosts, "--iface", "eth7")
    assert (refused.ran.rc, refused.statuses) == (1, {"failed"})
    assert ipexctl("trust", "-H", hosts, "--iface", "10.78.0.0/99").rc == 2
    assert trust(hosts, "--revoke").ran.rc == 0
