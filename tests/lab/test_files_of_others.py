"""An account obeys no file that another account could have written; and a key that is a pipe stops nothing."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL, NO_HOSTS_ENV, CommandResult, begin, ipexctl
from ipexctl.extras.lab.state import Lab
from lab_helpers import on_host

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
ME, OTHER, TEAM = 4711, 4712, 4799
PASSWD = f"root:x:0:0::/root:/bin/sh\nme:x:{ME}:{ME}::/:/bin/sh\nother:x:{OTHER}:{OTHER}::/:/bin/sh\n"
GROUP = f"root:x:0:\nme:x:{ME}:\nother:x:{OTHER}:\nteam:x:{TEAM}:me,other\n"
MOUNT = """\
set -e
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/group" /etc/group
eval "$2"
shift 2
exec "$@"
"""
AS_ME = [
    *("setpriv", f"--reuid={ME}", f"--regid={ME}", f"--groups={TEAM}"),
    *(f"--{caps}=-all,+dac_read_search" for caps in ("inh-caps", "ambient-caps", "bounding-set")),
]
"""It may read all files: Python and this checkout may be in a private home."""


@dataclass(frozen=True)
class Account:
    """An account `me` of this machine with a project; `other` is in its team."""

    base: Path

    @property
    def project(self) -> Path:
        return self.base / "work/mine"

    def write(self, path: Path, text: str, uid: int = ME, mode: int = 0o644, gid: int | None = None) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.chown(path, uid, uid if gid is None else gid)
        path.chmod(mode)

    def call(self, *args: object, cwd: Path | None = None, mounts: str = "") -> CommandResult:
        config = str(self.base / "config")
        words = [*AS_ME, *IPEXCTL, *map(str, args)]
        started = time.monotonic()
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(self.base), mounts, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cwd or self.project,
            env={**os.environ, **NO_HOSTS_ENV, "HOME": str(self.base / "home"), "XDG_CONFIG_HOME": config},
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return CommandResult(done.returncode, done.stdout, done.stderr, time.monotonic() - started)

    def refused(self, *args: object, directory: Path, cwd: Path | None = None, mounts: str = "") -> None:
        """The call is refused, and goes well once the line of its message is in the account's own config.toml."""
        ran = self.call(*args, cwd=cwd, mounts=mounts)
        assert ran.rc == 2, ran.err
        assert ran.out == ""
        line = f'trusted-directories = ["{directory}"]'
        assert line in ran.err
        self.write(self.base / "config/ipexctl/config.toml", f"{line}\n")
        accepted = self.call(*args, cwd=cwd, mounts=mounts)
        assert accepted.rc == 0, accepted.err


def make_account(base: Path) -> Account:
    (base / "passwd").write_text(PASSWD)
    (base / "group").write_text(GROUP)
    for path in ("home", "config", "config/ipexctl", "work", "work/mine"):
        (base / path).mkdir()
        os.chown(base / path, ME, ME)
    return Account(base)


@pytest.fixture
def me(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.delenv("SUDO_UID", raising=False)
    return make_account(tmp_path)


LOCAL = "hosts = 'localhost'\n"
EXEC = ("exec", "--", "true")


def test_a_strangers_toml_above_the_project_sends_nothing(me: Account, lab3: Lab) -> None:
    options = ("--ssh-config", lab3.ssh_config)
    me.write(me.project / "hostfile", "node1\n")
    me.write(me.project / "train.py", "print('mine')\n")
    ran = me.call("exec", *options, "--gather", "--", "hostname")
    assert (ran.rc, "node1" in ran.out) == (0, True), ran.err
    os.chown(me.base / "work", 0, 0)
    (me.base / "work").chmod(0o777)
    key = me.base / "work/key"
    me.write(key, Path(lab3.hosts[0].dir, "../key").resolve().read_text(), OTHER)
    text = f"hosts = 'node2'\nuser = '{lab3.hosts[1].user}'\nidentity = 'key'\n"
    me.write(me.base / "work/ipexctl.toml", text, OTHER)
    home = f"/home/{lab3.hosts[1].user}/of-me"
    for words in (
        ("exec", *options, "--", "touch", "of-me"),
        ("sync", *options, "--home", home),
        ("run", *options, "--home", home, "-x", "TOKEN=secret", "train.py"),
        ("play", *options, "--syntax-check", "preflight"),
    ):
        ran = me.call(*words)
        assert ran.rc == 2, ran.err
        assert f'trusted-directories = ["{me.base}/work"]' in ran.err
        assert f"touch {me.project}/ipexctl.toml" in ran.err
    for host in lab3.hosts:
        assert on_host(host, "ls -d of-me 2>/dev/null || true") == ""
    me.write(me.project / "ipexctl.toml", "")
    ran = me.call("exec", *options, "--gather", "--", "hostname")
    assert (ran.rc, "node1" in ran.out, "node2" in ran.out) == (0, True, False), ran.err


def test_umask_002_with_an_own_group_is_fine(me: Account) -> None:
    me.project.chmod(0o2775)
    me.write(me.project / "ipexctl.toml", "forks = 2\n", mode=0o664)
    me.write(me.project / "hostfile", "localhost\n", mode=0o664)
    me.write(me.base / "config/ipexctl/config.toml", "timeout = 30\n", mode=0o664)
    (me.base / "config/ipexctl").chmod(0o775)
    ran = me.call(*EXEC)
    assert ran.rc == 0, ran.err


def test_a_project_of_a_team_needs_a_line(me: Account) -> None:
    os.chown(me.project, ME, TEAM)
    me.project.chmod(0o2775)
    me.write(me.project / "ipexctl.toml", LOCAL, mode=0o664, gid=TEAM)
    me.refused(*EXEC, directory=me.project)


def test_a_bind_mount_with_another_uid_needs_a_line(me: Account) -> None:
    source = me.base / "source"
    source.mkdir()
    os.chown(source, OTHER, OTHER)
    me.write(source / "hostfile", "localhost\n", OTHER)
    mounted = me.project / "mounted"
    mounted.mkdir()
    mounts = f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(mounted))}; cd {shlex.quote(str(mounted))}"
    me.refused(*EXEC, directory=mounted, cwd=me.project, mounts=mounts)


def test_a_file_system_with_mode_0777_only_needs_a_line(me: Account) -> None:
    disk = me.project / "disk"
    disk.mkdir()
    where = shlex.quote(str(disk))
    mounts = (
        f"mount -t tmpfs -o uid={ME},gid={ME},mode=0777 none {where}; cd {where}; "
        f"echo localhost >hostfile; chown {ME}:{ME} hostfile; chmod 0777 hostfile"
    )
    me.refused(*EXEC, directory=disk, mounts=mounts)


def test_a_file_named_with_config_counts(me: Account) -> None:
    me.write(me.project / "ipexctl.toml", LOCAL, OTHER)
    ran = me.call(*EXEC)
    assert (ran.rc, f"--config {me.project}/ipexctl.toml" in ran.err) == (2, True), ran.err
    ran = me.call("exec", "--config", "ipexctl.toml", "--", "true")
    assert ran.rc == 0, ran.err


@pytest.mark.parametrize("kind", ["fifo", "zero"])
def test_a_key_that_is_no_file_is_that_hosts_failure(kind: str, lab3: Lab, tmp_path: Path) -> None:
    key = tmp_path / "key"
    if kind == "fifo":
        os.mkfifo(key)
    else:
        key.symlink_to("/dev/zero")
    hostfile = tmp_path / "hosts"
    lines = [
        f"{host.name} address={host.address} user={host.user} known_hosts={lab3.dir}/known_hosts identity={identity}\n"
        for host, identity in zip(lab3.hosts, (lab3.dir / "key", key), strict=False)
    ]
    hostfile.write_text("".join(lines))
    env = {**NO_HOSTS_ENV, "SSH_AUTH_SOCK": ""}
    ran = ipexctl("exec", "-H", hostfile, "--timeout", "3", "--", "true", env=env, timeout=20)
    assert ran.rc == 3, ran.err
    assert f"{key}: it is no regular file" in ran.err
    assert ran.seconds < 10


def test_a_call_that_waits_for_a_typed_pipe_ends_with_the_first_signal(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in (("exec", "-H", pipe), ("run", "--accelerate-config", pipe), ("exec", "--config", pipe)):
        process = begin(*words, "--", "true", env=NO_HOSTS_ENV)
        time.sleep(1.0)  # it is waiting now
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) in (-signal.SIGTERM, 143, 130), process.stderr and process.stderr.read()
