"""Whatever `ssh` accepts, ipexctl accepts: one row for each way to log in, each against a real sshd of its own.

A way that needs a package the machine lacks (krb5-kdc, softhsm2, openssh-tests) is skipped.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from agent_helpers import wait_until
from cli_helpers import IPEXCTL, begin, processes_with
from ipexctl.addons.lab.lab_plan import LabSpec, ipv6
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.lab_system import in_host
from ipexctl.remote import mux
from ipexctl.remote.local import source_towards
from lab_helpers import more_sshds
from message_data import missing
from needs import find, require
from terminals import TerminalProgram

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

FILES = "/run/ways"
"""Directory on node1 with what is made here for its sshds."""
FIDO = "/usr/lib/openssh/regress/misc/sk-dummy/sk-dummy.so"
PKCS11 = "/usr/lib/softhsm/libsofthsm2.so"
KEYS_ONLY = ("PasswordAuthentication no", "PubkeyAuthentication yes")
PASSWORD_ONLY = ("PasswordAuthentication yes", "PubkeyAuthentication no")
OLD = ("HostKeyAlgorithms ssh-rsa", "KexAlgorithms diffie-hellman-group14-sha1")
SSHDS: dict[str, tuple[str, ...]] = {
    "plain": KEYS_ONLY,
    "certified": (*KEYS_ONLY, f"HostCertificate {FILES}/host-cert.pub"),
    "user-ca": (*KEYS_ONLY, "AuthorizedKeysFile none", f"TrustedUserCAKeys {FILES}/ca.pub"),
    "fido": (*KEYS_ONLY, f"AuthorizedKeysFile {FILES}/fido.pub"),
    "card": (*KEYS_ONLY, f"AuthorizedKeysFile {FILES}/card.pub"),
    "kerberos": ("GSSAPIAuthentication yes", "GSSAPIStrictAcceptorCheck no", "PubkeyAuthentication no"),
    "hostbased": (
        *("HostbasedAuthentication yes", "HostbasedUsesNameFromPacketOnly yes", "IgnoreRhosts no"),
        *("IgnoreUserKnownHosts no", "PubkeyAuthentication no"),
    ),
    "password": PASSWORD_ONLY,
    "second-factor": ("PasswordAuthentication yes", "AuthenticationMethods publickey,password"),
    "two-keys": (*KEYS_ONLY, "AuthenticationMethods publickey,publickey", f"AuthorizedKeysFile {FILES}/both.pub"),
    "chacha": (*KEYS_ONLY, "Ciphers chacha20-poly1305@openssh.com"),
    "quantum": (*KEYS_ONLY, "KexAlgorithms sntrup761x25519-sha512@openssh.com"),
    "centos7": (
        *(*KEYS_ONLY, "HostKeyAlgorithms rsa-sha2-256", "Ciphers aes128-ctr"),
        *("MACs hmac-sha2-256", "KexAlgorithms diffie-hellman-group-exchange-sha256"),
    ),
    "centos6": (*KEYS_ONLY, *OLD, "Ciphers aes128-cbc", "MACs hmac-sha1"),
    "one-session": (*KEYS_ONLY, "MaxSessions 1"),
    "forced": (*KEYS_ONLY, 'ForceCommand sh -c "$SSH_ORIGINAL_COMMAND"'),
    "other": (*KEYS_ONLY, "ForceCommand echo something else"),
    "environment": (*KEYS_ONLY, "AcceptEnv WAY"),
}


class Way(NamedTuple):
    name: str
    sshd: str = "plain"
    config: str = ""
    """Lines of the ssh config, separated by `;`. KEY, FILES, ADDRESS, PORT stand for those of the test."""
    asks: bool = False
    """True if only a person, or SSH_ASKPASS, can answer."""
    accepts: bool = True
    ours: bool | None = None
    """False if ipexctl promises to refuse what ssh accepts."""
    says: str = ""
    """Words that ipexctl prints, with the way that it took."""
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    master: bool = False
    """True if the user has opened a ControlMaster."""


KEY = "IdentityFile KEY"
NO_KEY = "IdentityFile none"
MUX = "ControlPath FILES/cm-%C"
PROGRAM = "by the ssh program"
OLD_CLIENT = "HostKeyAlgorithms +ssh-rsa;KexAlgorithms +diffie-hellman-group14-sha1;Ciphers +aes128-cbc;MACs +hmac-sha1"
WAYS = (
    Way("key file", config=KEY),
    Way("key in the agent", config=NO_KEY, env={"SSH_AUTH_SOCK": "FILES/agent"}),
    Way("encrypted key in the agent", config="IdentityFile FILES/locked", env={"SSH_AUTH_SOCK": "FILES/agent"}),
    Way("IdentityAgent", config=f"{NO_KEY};IdentityAgent FILES/agent"),
    Way("encrypted key", config="IdentityFile FILES/locked", asks=True, says=PROGRAM),
    Way("certificate beside the key", "user-ca", "IdentityFile FILES/signed"),
    Way(
        "certificate elsewhere", "user-ca", "IdentityFile FILES/elsewhere;CertificateFile FILES/there.pub", says=PROGRAM
    ),
    Way("certified host key", "certified", f"{KEY};UserKnownHostsFile FILES/authority", says=PROGRAM),
    Way("hostbased", "hostbased", f"{NO_KEY};HostbasedAuthentication yes;EnableSSHKeysign yes", says=PROGRAM),
    Way("Kerberos", "kerberos", f"{NO_KEY};GSSAPIAuthentication yes", says=PROGRAM, needs=("krb5kdc", "kinit")),
    Way("smart card", "card", f"{NO_KEY};PKCS11Provider {PKCS11}", asks=True, says=PROGRAM, needs=("softhsm2-util",)),
    Way("FIDO key", "fido", f"IdentityFile FILES/fido;SecurityKeyProvider {FIDO}", says=PROGRAM, needs=("sk-dummy",)),
    Way("password", "password", NO_KEY, asks=True, says=PROGRAM),
    Way("password, open master", "password", f"{NO_KEY};{MUX}", master=True, says="open ControlMaster"),
    Way("second factor", "second-factor", KEY, asks=True, says=PROGRAM),
    Way("second factor, open master", "second-factor", f"{KEY};{MUX}", master=True, says="open ControlMaster"),
    Way("second factor, no master", "second-factor", f"{KEY};{MUX}", accepts=False, says="second factor"),
    Way("two keys", "two-keys", f"{KEY};IdentityFile FILES/second", says=PROGRAM),
    Way("ProxyJump", config=f"{KEY};ProxyJump gate"),
    Way("ProxyJump over two", config=f"{KEY};ProxyJump gate,gate2"),
    Way("ProxyCommand", config=f"{KEY};ProxyCommand ssh -F CONFIG -W %h:%p gate"),
    Way(
        "ProxyUseFdpass",
        config=f"{KEY};ProxyUseFdpass yes;ProxyCommand {sys.executable} FILES/pass.py %h %p",
        says=PROGRAM,
    ),
    Way("dead ProxyCommand", config=f"{KEY};ProxyCommand false", accepts=False, says="ProxyCommand"),
    Way("Match exec", config=f"Match originalhost way exec true;{KEY}"),
    Way("IPv6", config=f"{KEY};HostName IPV6;HostKeyAlias way"),
    Way("HostKeyAlias", config=f"{KEY};HostKeyAlias way"),
    Way(
        "KnownHostsCommand",
        config=f"{KEY};UserKnownHostsFile none;KnownHostsCommand /bin/cat FILES/known",
        says=PROGRAM,
    ),
    Way("only chacha20", "chacha", KEY, says=PROGRAM),
    Way("only sntrup761", "quantum", KEY, says=PROGRAM),
    Way("as CentOS 7", "centos7", KEY),
    Way("as CentOS 6", "centos6", f"{KEY};{OLD_CLIENT}", ours=False),
    Way("one session", "one-session", KEY),
    Way("RemoteCommand", config=f"{KEY};RequestTTY force;RemoteCommand uptime", accepts=False, ours=True),
    Way("forced shell", "forced", KEY),
    Way("forced command", "other", KEY, ours=False, says="never ran the command"),
    Way("BindAddress", config=f"{KEY};BindAddress SOURCE", says=PROGRAM),
    Way("SetEnv", "environment", f"{KEY};SetEnv WAY=here", says=PROGRAM),
    Way("revoked key", config=f"{KEY};RevokedHostKeys FILES/krl", accepts=False, says="FILES/krl"),
    Way("RequiredRSASize", "centos7", f"{KEY};RequiredRSASize 4096", accepts=False, says="RequiredRSASize"),
    Way("unknown key", config=f"{KEY};UserKnownHostsFile none", accepts=False, says="is unknown"),
    Way("changed key", config=f"{KEY};UserKnownHostsFile FILES/changed", accepts=False, says="CHANGED"),
    Way("refused port", config=f"{KEY};Port 9", accepts=False, says="port 9 refuses connections"),
    Way("no key", config=NO_KEY, accepts=False, says="ssh-copy-id"),
)


class Site(NamedTuple):
    lab: Lab
    files: Path
    ports: Mapping[str, int]
    env: Mapping[str, str]

    def config(self, way: Way) -> Path:
        """The ssh config of `way`, with the bastions `gate` and `gate2`."""
        first, *gates = self.lab.hosts
        words = {
            "FILES": self.files, "KEY": self.lab.key, "IPV6": ipv6(first.address), "CONFIG": self.files / "config",
            "SOURCE": source_towards(first.address),
        }  # fmt: skip
        lines = [
            "Host way",
            *way.config.split(";"),
            "Host way",
            f"HostName {first.address}",
            f"Port {self.ports[way.sshd]}",
        ]
        for name, gate in zip(("gate", "gate2"), gates, strict=True):
            lines += [f"Host {name}", f"HostName {gate.address}", f"IdentityFile {self.lab.key}"]
        lines += ["Host *", "User ipex", f"UserKnownHostsFile {self.files}/known", "GlobalKnownHostsFile /dev/null"]
        text = re.sub(r"\b(FILES|KEY|IPV6|CONFIG|SOURCE)\b", lambda found: str(words[found[0]]), "\n".join(lines))
        (self.files / "config").write_text(text + "\n")
        return self.files / "config"

    def run(self, way: Way, *argv: object) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "SSH_AUTH_SOCK": "", **self.env, **way.env}
        env = {name: value.replace("FILES", str(self.files)) for name, value in env.items()}
        if way.asks:
            env |= {"SSH_ASKPASS": f"{self.files}/askpass", "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
        here: list[object] = []
        if way.name == "hostbased":  # ssh-keysign reads the machine's own files
            here = ["unshare", "-m", "sh", "-c", f'mount --bind {self.files}/etc /etc/ssh && exec "$@"', "sh"]
        return subprocess.run(
            [*map(str, [*here, *argv])], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=60,
            check=False, start_new_session=True,
        )  # fmt: skip


def run(*argv: object, stdin: str = "", env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, argv)], input=stdin, check=True, capture_output=True, text=True, timeout=60,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    return done.stdout


def keygen(*words: object) -> None:
    run("ssh-keygen", "-q", *words)


def make_keys(files: Path, lab: Lab) -> None:
    """Keys, certificates and lists of known hosts, for both ends."""
    host = lab.hosts[0].address
    for key in ("ed25519", "ca", "signed", "elsewhere", "second"):
        keygen("-t", "ed25519", "-N", "", "-f", files / key)
    keygen("-t", "rsa", "-b", "3072", "-N", "", "-f", files / "rsa")
    (files / "locked").write_bytes(lab.key.read_bytes())
    (files / "locked.pub").write_bytes(lab.key.with_name("key.pub").read_bytes())
    (files / "locked").chmod(0o600)
    keygen("-p", "-P", "", "-N", "sesame", "-f", files / "locked")
    keygen("-s", files / "ca", "-I", "me", "-n", "ipex", files / "signed.pub", files / "elsewhere.pub")
    (files / "elsewhere-cert.pub").rename(files / "there.pub")
    keygen("-s", files / "ca", "-I", "host", "-h", "-n", host, files / "ed25519.pub")
    (files / "ed25519-cert.pub").rename(files / "host-cert.pub")
    keygen("-k", "-f", files / "krl", files / "ed25519.pub")
    public = {key: (files / f"{key}.pub").read_text() for key in ("ed25519", "rsa", "ca", "second")}
    known = "".join(f"{host},{ipv6(host)},way,[{host}]:* {public[key]}" for key in ("ed25519", "rsa"))
    (files / "known").write_text(known + lab.known_hosts.read_text())
    (files / "authority").write_text(f"@cert-authority * {public['ca']}")
    (files / "changed").write_text(f"[{host}]:* {public['second']}")
    (files / "both.pub").write_text(lab.key.with_name("key.pub").read_text() + public["second"])
    (files / "askpass").write_text("#!/bin/sh\necho sesame\n")
    (files / "askpass").chmod(0o700)
    (files / "pass.py").write_text(
        "import socket, sys\nto = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "socket.send_fds(socket.socket(fileno=1), [b'x'], [to.fileno()])\n"
    )
    (files / "etc").mkdir()  # of this machine, for hostbased
    (files / "etc/ssh_config").write_text("EnableSSHKeysign yes\n")
    keygen("-t", "ed25519", "-N", "", "-f", files / "etc/ssh_host_ed25519_key")
    own = (files / "etc/ssh_host_ed25519_key.pub").read_text()
    (files / "clients").write_text(f"{socket.gethostname()} {own}")


def make_fido(files: Path) -> None:
    if Path(FIDO).exists():
        keygen("-t", "ed25519-sk", "-w", FIDO, "-N", "", "-f", files / "fido")


def make_card(files: Path) -> dict[str, str]:
    if not find("softhsm2-util"):
        return {}
    env = {"SOFTHSM2_CONF": f"{files}/softhsm"}
    (files / "softhsm").write_text(f"directories.tokendir = {files}/tokens\n")
    (files / "tokens").mkdir()
    keygen("-t", "rsa", "-b", "2048", "-N", "", "-m", "PKCS8", "-f", files / "in-card")
    run("softhsm2-util", "--init-token", "--free", "--label", "way", "--pin", "sesame", "--so-pin", "sesame", env=env)
    key = ("--import", files / "in-card", "--token", "way", "--label", "key", "--id", "01", "--pin", "sesame")
    run("softhsm2-util", *key, env=env)
    (files / "in-card.pub").rename(files / "card.pub")
    return env


@contextmanager
def kerberos(files: Path, host: str) -> Iterator[dict[str, str]]:
    """A realm with the account and node1, and a ticket."""
    if not (find("krb5kdc") and find("kinit")):
        yield {}
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (files / "krb5.conf").write_text(
        "[libdefaults]\ndefault_realm = LAB\ndns_canonicalize_hostname = false\nrdns = false\n"
        f"dns_lookup_kdc = false\n[realms]\nLAB = {{\nkdc = 127.0.0.1:{port}\n}}\n"
    )
    (files / "kdc.conf").write_text(
        f"[kdcdefaults]\nkdc_listen = {port}\nkdc_tcp_listen = {port}\n[realms]\nLAB = {{\n"
        f"database_name = {files}/kdb\nkey_stash_file = {files}/stash\nacl_file = {files}/acl\n}}\n"
    )
    names = {"KRB5_CONFIG": "krb5.conf", "KRB5_KDC_PROFILE": "kdc.conf", "KRB5CCNAME": "ticket"}
    env = {name: f"{files}/{file}" for name, file in names.items()}
    run(find("kdb5_util"), "create", "-s", "-r", "LAB", "-P", "sesame", env=env)
    for query in ("addprinc -pw sesame ipex", f"addprinc -randkey host/{host}", f"ktadd -k {files}/keytab host/{host}"):
        run(find("kadmin.local"), "-r", "LAB", "-q", query, env=env)
    with subprocess.Popen([str(find("krb5kdc")), "-n"], env={**os.environ, **env}, stderr=subprocess.DEVNULL) as kdc:
        try:
            wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
            run("kinit", "ipex", stdin="sesame\n", env=env)
            yield env
        finally:
            kdc.terminate()


@pytest.fixture(scope="module")
def site(make_lab: Callable[[LabSpec], Lab]) -> Iterator[Site]:
    lab = make_lab(LabSpec(hosts=3))
    node = lab.hosts[0]
    ports = {name: 2401 + index for index, name in enumerate(SSHDS)}
    with tempfile.TemporaryDirectory(prefix="ways-") as directory, contextlib.ExitStack() as held:
        files = Path(directory)  # short, for sockets
        make_keys(files, lab)
        make_fido(files)
        env = {**make_card(files), **held.enter_context(kerberos(files, node.address))}
        packed = subprocess.run(["tar", "-C", directory, "-cf", "-", "."], check=True, capture_output=True).stdout
        for start in range(0, len(text := base64.b64encode(packed).decode()), 100_000):
            in_host(node, f'mkdir -p {FILES}; printf %s "$1" >>{FILES}/tar', [text[start : start + 100_000]])
        in_host(
            node,
            f"cd {FILES}; base64 -d tar | tar -xf -; echo ipex:sesame | chpasswd; cp clients /etc/ssh/ssh_known_hosts;"
            "[ ! -e keytab ] || { cp krb5.conf /etc; cp keytab /etc/krb5.keytab; };"
            f"echo {socket.gethostname()} root >$HOME_DIR/.shosts; chown ipex $HOME_DIR/.shosts; chmod 755 {FILES}",
        )
        common = [f"HostKey {FILES}/ed25519", f"HostKey {FILES}/rsa", "StrictModes no"]
        settings = {ports[name]: [*lines, *common] for name, lines in SSHDS.items()}
        held.enter_context(more_sshds(node, {"unused": "ed25519"}, settings))
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", f"{directory}/agent"], stdout=subprocess.DEVNULL)
        held.callback(agent.wait)
        held.callback(agent.terminate)
        wait_until(lambda: (files / "agent").exists())
        run("ssh-add", "-q", lab.key, env={"SSH_AUTH_SOCK": f"{directory}/agent"})
        yield Site(lab, files, ports, env)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_ipexctl_logs_in_where_ssh_does(site: Site, way: Way) -> None:
    if way.needs != ("sk-dummy",):
        require(*way.needs)
    elif not Path(FIDO).exists():
        pytest.skip("needs openssh-tests")
    config = site.config(way)
    ssh = ("ssh", "-F", config, "-o", f"BatchMode={'no' if way.asks else 'yes'}")
    if way.master:
        assert site.run(way._replace(asks=True), "ssh", "-F", config, "-MNf", "way").returncode == 0
    try:
        by_ssh = site.run(way, *ssh, "way", "true")
        assert (by_ssh.returncode == 0) == way.accepts, by_ssh.stderr
        patient = ("--connect-timeout", "30")  # a group exchange costs seconds on a busy machine
        for transport in ("auto", "openssh"):
            done = site.run(
                way,
                *IPEXCTL,
                "exec",
                "--hosts",
                "way",
                "--ssh-config",
                config,
                "--transport",
                transport,
                *patient,
                "--",
                "echo",
                "hello",
            )
            accepts = way.accepts if way.ours is None else way.ours
            assert (done.returncode == 0, done.stdout) == (accepts, "way: hello\n" if accepts else done.stdout), (
                done.stderr
            )
            if transport == "auto":
                assert missing(done.stderr, way.says.replace("FILES", str(site.files))) == [], done.stderr
                assert (PROGRAM in done.stderr) == (way.says == PROGRAM or way.master), done.stderr
    finally:
        if way.master:
            site.run(way, "ssh", "-F", config, "-O", "exit", "way")


@pytest.mark.parametrize(("typed", "rc"), [("sesame\n", 0), ("wrong\n", 3), ("\x03", 130)])
def test_a_password_is_asked_for_once_on_a_terminal(site: Site, typed: str, rc: int) -> None:
    config = site.config(Way("", "password", NO_KEY))
    argv = [*IPEXCTL, "exec", "--hosts", "way", "--ssh-config", str(config), "--", "echo", "hello"]
    shown = TerminalProgram(argv, {"SSH_AUTH_SOCK": "", "NO_COLOR": "1"})
    try:
        assert shown.until_seen(b"password:"), shown.seen
        shown.type(typed.encode())
        assert shown.until_gone() == rc, shown.seen
        assert shown.seen.count(b"password:") == 1
        assert (b"way: hello" in shown.seen) == (rc == 0)
    finally:
        shown.close()


def left_over(directory: Path) -> list[str]:
    """What a call with this directory for temporary files has left."""
    listed = run("ps", "-eo", "args=").splitlines()
    return [line for line in listed if f"{directory}/" in line] + [str(path) for path in directory.glob("ipexctl-*")]


@pytest.mark.parametrize(
    ("sshd", "ends_by"), [("plain", 2), ("plain", 9), ("plain", 0), ("one-session", 2), ("one-session", 0)]
)
def test_no_master_outlives_its_call(site: Site, sshd: str, ends_by: int) -> None:
    with tempfile.TemporaryDirectory(prefix="left-") as name:
        directory = Path(name)
        options = ("--ssh-config", site.config(Way("", sshd, KEY)), "--transport", "openssh")
        limit = () if ends_by else ("--timeout", "3")
        line = f"echo ready; exec sleep {7800 + ends_by}"
        call = begin("exec", "--hosts", "way", *options, *limit, "--shell", line, env={"TMPDIR": name})
        assert call.stdout is not None
        assert call.stdout.readline() == "way: ready\n", call.stderr and call.stderr.read()
        assert left_over(directory)
        if ends_by:
            call.send_signal(ends_by)
        call.communicate(timeout=30)
        assert call.returncode == {2: 130, 9: -9, 0: 1}[ends_by]
        if ends_by == 9:
            wait_until(lambda: not left_over(directory))
        else:
            assert processes_with(site.lab, f"sleep {7800 + ends_by}") == []
        assert left_over(directory) == []


def test_a_master_of_ssh_runs_commands_and_survives_garbage(site: Site) -> None:
    way = Way("", config=f"{KEY};ControlPath FILES/real")
    path = str(site.files / "real")
    assert site.run(way, "ssh", "-F", site.config(way), "-MNf", "way").returncode == 0
    process = mux.MuxProcess(path, "cat; echo oops >&2; exit 7", has_stdin=True)
    assert process.stdin is not None
    for garbage in (b"", b"\0\0\0\1x", b"\xff" * 8, b"\0\0\0\4\x10\0\0\2", bytes(1 << 16)):
        with socket.socket(socket.AF_UNIX) as other, contextlib.suppress(OSError):
            other.connect(path)
            other.sendall(garbage)
    process.stdin.write(b"hello")
    process.stdin.close()
    assert (process.stdout.read(), process.stderr.read()) == (b"hello", b"oops\n")
    wait_until(lambda: process.poll() is not None)
    assert (process.wait(), process.is_refused) == (7, False)
    process.close()
    assert mux.is_alive(path)
    mux.end(path)
    assert not mux.is_alive(path)
