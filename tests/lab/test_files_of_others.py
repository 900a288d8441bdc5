"""Other accounts of the same hosts: their files are not obeyed, what they put in a call's way is not used, and they run
no code as the victim.

What needs no race is played on hosts of a lab, where `nobody` is the stranger, and on this machine. What needs one is
played here, where a program of the stranger's exchanges two entries in a loop; `IPEXCTL_TESTS_CALLS` says how often
each command is called then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL, NO_HOSTS_ENV, CommandResult, begin, ipexctl
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.remote.node_call import _copy_name, agent_zip
from lab_helpers import on_host
from lab_run_helpers import Cluster
from message_data import missing

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(int(os.environ.get("IPEXCTL_TESTS_CALLS", 10)) * 10 + 200)]
ME, OTHER, TEAM = 4711, 4712, 4799
PASSWD = f"root:x:0:0::/root:/bin/sh\nme:x:{ME}:{ME}::/:/bin/sh\nother:x:{OTHER}:{OTHER}::/:/bin/sh\n"
GROUP = f"root:x:0:\nme:x:{ME}:\nother:x:{OTHER}:\nteam:x:{TEAM}:me,other\n"
MOUNT = """\
set -e
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/group" /etc/group
shift
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

    def write(self, path: Path, text: str, uid: int = ME, mode: int = 0o644) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.chown(path, uid, uid)
        path.chmod(mode)

    def call(self, *args: object) -> CommandResult:
        config = str(self.base / "config")
        words = [*AS_ME, *IPEXCTL, *map(str, args)]
        started = time.monotonic()
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(self.base), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.project,
            env={**os.environ, **NO_HOSTS_ENV, "HOME": str(self.base / "home"), "XDG_CONFIG_HOME": config},
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return CommandResult(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


def make_account(base: Path) -> Account:
    (base / "passwd").write_text(PASSWD)
    (base / "group").write_text(GROUP)
    for path in ("home", "config", "config/ipexctl", "work", "work/mine"):
        (base / path).mkdir()
        os.chown(base / path, ME, ME)
    return Account(base)


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


def test_a_call_that_waits_for_a_typed_pipe_ends_with_the_first_signal(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in (("exec", "-H", pipe), ("run", "--accelerate-config", pipe), ("exec", "--config", pipe)):
        process = begin(*words, "--", "true", env=NO_HOSTS_ENV)
        time.sleep(1.0)  # it is waiting now
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) in (-signal.SIGTERM, 143, 130), process.stderr and process.stderr.read()


SECRET = b"the key of a private file\n"
SINCE = 1_700_000_000


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """Its directories are below one that everybody can enter, as those of pytest are not."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    with tempfile.TemporaryDirectory(prefix="ipexctl-tests-") as base:
        Path(base).chmod(0o755)
        yield make_account(Path(base))


@pytest.fixture
def shared(me: Account) -> Path:
    """A directory as /tmp, in which another account may make what it likes."""
    directory = me.base / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    secret = me.base / "home/secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    os.chown(secret, ME, ME)
    os.utime(secret, (SINCE, SINCE))
    return directory


def part_of(name: str) -> str:
    return f".ipexctl-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.part"


def plant(path: Path, content: bytes, uid: int = OTHER) -> Path:
    path.write_bytes(content)
    path.chmod(0o666)
    os.chown(path, uid, uid)
    return path


def fetch(me: Account, dest: Path) -> None:
    ran = me.call("fetch", "--hosts", "localhost", f"localhost:{me.base}/home/secret", dest)
    assert ran.rc == 0, ran.err


def assert_private(path: Path) -> None:
    status = path.lstat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode), status.st_nlink) == (ME, 0o600, 1)
    assert path.read_bytes() == SECRET


@pytest.mark.parametrize("planted", [SECRET[:9], SECRET, b"other", b"x" * 999])
def test_fetch_does_not_go_on_with_a_part_of_another_account(me: Account, shared: Path, planted: bytes) -> None:
    part = plant(shared / part_of("secret"), planted)
    fetch(me, shared)
    assert_private(shared / "secret")
    assert (part.read_bytes(), part.stat().st_uid) == (planted, OTHER)
    assert sorted(path.name for path in shared.iterdir()) == [part.name, "secret"]


def test_fetch_does_not_write_into_a_file_that_a_part_is_a_second_name_of(me: Account, shared: Path) -> None:
    precious = plant(me.base / "home/precious", b"precious", ME)
    os.link(precious, shared / part_of("secret"))
    fetch(me, shared)
    assert_private(shared / "secret")
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_fetch_goes_round_what_else_has_the_name_of_its_part(me: Account, shared: Path, kind: str) -> None:
    part, precious = shared / part_of("secret"), plant(me.base / "home/precious", b"precious", ME)
    if kind == "link":
        part.symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.mkdir()
    os.chown(part, OTHER, OTHER, follow_symlinks=False)
    fetch(me, shared)
    assert_private(shared / "secret")
    assert precious.read_bytes() == b"precious"


def test_fetch_does_not_take_a_file_of_another_account_for_the_same_file(me: Account, shared: Path) -> None:
    planted = plant(shared / "secret", b"X" * len(SECRET))
    os.utime(planted, (SINCE, SINCE))
    ran = me.call("fetch", "--hosts", "localhost", f"localhost:{me.base}/home/secret", shared)
    assert ran.rc == 1
    assert f"{shared}/secret belongs to another account (uid {OTHER})" in ran.err
    assert planted.read_bytes() == b"X" * len(SECRET)


def run_with_summary(me: Account, path: object) -> CommandResult:
    """A run that does not start, as its summary says."""
    me.write(me.project / "train.py", "")
    return me.call("run", "--hosts", "localhost", "--python", "/nosuch", "--summary", path, "train.py")


@pytest.mark.parametrize("kind", ["file", "pipe", "hard link", "link above"])
def test_a_summary_is_written_to_nothing_that_another_account_has_put_there(
    me: Account, shared: Path, kind: str
) -> None:
    path, precious = shared / "summary.json", plant(me.base / "home/precious", b"precious", ME)
    if kind == "file":
        plant(path, b"theirs")
    elif kind == "pipe":
        os.mkfifo(path, 0o666)
        os.chown(path, OTHER, OTHER)
    elif kind == "hard link":
        os.link(precious, path)
    else:
        (shared / "above").symlink_to(me.base / "home")
        os.chown(shared / "above", OTHER, OTHER, follow_symlinks=False)
        path = shared / "above/precious"
    ran = run_with_summary(me, path)
    assert ran.rc == 2, ran.err
    assert "another" in ran.err
    assert precious.read_bytes() == b"precious"
    assert kind != "file" or path.read_bytes() == b"theirs"


def test_a_summary_goes_where_the_account_says(me: Account, shared: Path) -> None:
    for path in (shared / "new.json", plant(shared / "old.json", b"x" * 9999, ME), "relative.json", "../mine/up.json"):
        run_with_summary(me, path)
        assert json.loads((me.project / path).read_bytes())["call"]["exit_code"] == 1


def test_what_root_fetches_is_roots_and_replaces_nothing_of_others(me: Account, shared: Path) -> None:
    """Root may open and replace everything, so that nothing stops it by itself."""
    part = plant(shared / part_of("secret"), SECRET[:9])
    same = plant(shared / "b.pt", b"X" * len(SECRET))
    (me.base / "home/b.pt").write_bytes(SECRET)
    for name, code in (("secret", 0), ("b.pt", 1)):
        path = me.base / "home" / name
        ran = ipexctl("fetch", "--hosts", "localhost", f"localhost:{path}", shared, cwd=me.project)
        assert ran.rc == code, ran.err
    status = (shared / "secret").lstat()
    assert (status.st_uid, status.st_nlink, (shared / "secret").read_bytes()) == (0, 1, SECRET)
    assert (same.read_bytes(), same.stat().st_uid) == (b"X" * len(SECRET), OTHER)
    assert (part.read_bytes(), part.stat().st_uid) == (SECRET[:9], OTHER)


CALLS = int(os.environ.get("IPEXCTL_TESTS_CALLS", 4))
FORGED = "import os; open('{0}/pwned', 'a').write('%d\\n' % os.geteuid())\n"
EXCHANGE = """
import ctypes, sys
libc, at, first, second = ctypes.CDLL(None), -100, *(word.encode() for word in sys.argv[1:])
print("begun", flush=True)
while True:
    libc.syscall(316, at, first, at, second, 2)  # renameat2, RENAME_EXCHANGE
"""


@pytest.fixture
def hidden_python(cluster: Cluster) -> Iterator[None]:
    """As on RHEL 8, node1 has no Python of 3.8 or newer on PATH."""
    cluster.as_root(0, "for python in /usr/bin/python3* /usr/local/bin/python3*; do "
                    "[ ! -f $python ] || [ -h $python ] || mount --bind /dev/null $python; done")  # fmt: skip
    yield
    cluster.as_root(
        0, "for python in /usr/bin/python3* /usr/local/bin/python3*; do umount $python 2>/dev/null; done; :"
    )


@pytest.mark.usefixtures("hidden_python")
def test_a_python_that_a_stranger_has_put_below_a_home_is_not_run(cluster: Cluster) -> None:
    cluster.write("train.py", "print('trained')\n")
    plant = "mkdir -p /tmp/h/envs/x/bin && printf '#!/bin/sh\\nid >>/tmp/pwned\\n' >/tmp/h/envs/x/bin/python"
    cluster.as_root(0, f"{plant} && chmod 755 /tmp/h/envs/x/bin/python && chown -R nobody /tmp/h && chmod 777 /tmp")
    on_node1 = ("-H", cluster.lab.hostfile, "-l", "node1", "--home", "/tmp/h")
    for command in (
        ("sync",), ("sync", "--dry-run"), ("uninstall", "--yes"), ("uninstall", "--dry-run"),
        ("run", "train.py"), ("run", "--dry-run", "train.py"), ("envs",), ("fetch", "node1:/etc/hostname", "out"),
    ):  # fmt: skip
        ran = cluster.call(command[0], *on_node1, *command[1:])
        assert ran.rc != 0, (command, ran.out)
        assert cluster.on(0, "cat /tmp/pwned 2>/dev/null || :") == "", command
    cluster.as_root(0, "chmod 1777 /tmp; rm -rf /tmp/h")


@pytest.mark.core
def test_a_link_of_a_stranger_decides_no_place_of_a_checkpoint(cluster: Cluster) -> None:
    cluster.write("train.py", "import time; time.sleep(1)\n")
    cluster.on(0, "mkdir -m 700 ~/.keep; umask 077; echo key >~/.keep/key")
    for index in (0, 1):
        cluster.as_root(index, "mkdir -m 777 /var/tmp/shared && chown nobody /var/tmp/shared")
    cluster.as_root(0, "ln -s /home/ipex/.keep /var/tmp/shared/ck; chown -h nobody /var/tmp/shared/ck")
    cluster.as_root(1, "mkdir -m 777 /var/tmp/shared/ck; chown nobody /var/tmp/shared/ck")
    run = ("run", "-H", cluster.lab.hostfile, "--python", "/usr/bin/python3", "--launcher", "direct", "--ppn", "1")
    for path in ("/var/tmp/shared/ck", "/var/tmp/shared/ck/more"):
        ran = cluster.call(*run, "--checkpoint", path, "train.py")
        assert ran.rc != 0, ran.out
        assert missing(ran.err, "/var/tmp/shared uid 65534 --checkpoint") == []
        assert cluster.on(1, "find /var/tmp/shared/ck -type f") == ""
        assert cluster.on(0, "ls -A ~/.keep") == "key\n"


def test_a_checkpoint_that_leads_to_another_place_on_one_host_is_refused(cluster: Cluster) -> None:
    cluster.write("train.py", "import time; time.sleep(1)\n")
    cluster.on(0, "mkdir -p ~/ck ~/elsewhere && rmdir ~/ck && ln -s elsewhere ~/ck")
    run = ("run", "-H", cluster.lab.hostfile, "--python", "/usr/bin/python3", "--launcher", "direct", "--ppn", "1")
    ran = cluster.call(*run, "--checkpoint", "/home/ipex/ck", "train.py")
    assert ran.rc != 0
    assert missing(ran.err, "node1 node2 /home/ipex/elsewhere /home/ipex/ck") == []


def made(path: Path, uid: int = ME, mode: int = 0o755) -> Path:
    path.mkdir()
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


def test_a_planted_directory_or_link_above_gets_no_files(me: Account) -> None:
    """push --force, fetch and --summary, in a directory that belongs to the stranger and in one below such a one."""
    everybody = made(me.base / "tmp", 0, 0o1777)
    planted = made(everybody / "out2", OTHER, 0o777)
    private = made(me.base / "home/private", ME, 0o700)
    me.write(private / "a.txt", "precious", mode=0o600)
    source = made(me.project / "src")
    me.write(source / "a.txt", "sent")
    (planted / "link").symlink_to(private)
    os.lchown(planted / "link", OTHER, OTHER)
    (everybody / "a.json").symlink_to(private / "a.txt")
    os.lchown(everybody / "a.json", OTHER, OTHER)
    made(planted / "deep", OTHER, 0o777)
    for call in (
        ("push", "--hosts", "localhost", "--force", source, planted / "link"),
        ("push", "--hosts", "localhost", "--force", source, planted),
        ("fetch", "--hosts", "localhost", f"localhost:{source}/", planted / "link"),
        ("fetch", "--hosts", "localhost", f"localhost:{source}/", planted / "deep"),
        ("fetch", "--hosts", "localhost", f"localhost:{source}/", planted / "mine"),
        ("run", "--hosts", "localhost", "--summary", everybody / "a.json", "src/a.txt"),
        ("run", "--hosts", "localhost", "--summary", planted / "a.json", "src/a.txt"),
    ):
        ran = me.call(*call)
        assert ran.rc != 0, call
        assert missing(ran.out + ran.err, f"{OTHER}") == [], (call, ran.out, ran.err)
        assert sorted(path.name for path in planted.rglob("*")) == ["deep", "link"], call
        assert (private / "a.txt").read_text() == "precious"
        assert [path.name for path in private.iterdir()] == ["a.txt"]


@contextlib.contextmanager
def exchanging(uid: int, first: Path, second: Path) -> Iterator[None]:
    account = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    may_read = [f"--{caps}=-all,+dac_read_search" for caps in ("inh-caps", "ambient-caps", "bounding-set")]
    argv = [*account, *may_read, sys.executable, "-c", EXCHANGE, str(first), str(second)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        try:
            yield
        finally:
            process.kill()


def forge_agents(home: Path, uid: int, evidence: Path) -> None:
    """Copies of the agent, for each command that has one, which leave a trace when they are imported."""
    for folders in (("files",), ("run",), ("env",), ("uninstall",)):
        package = home / "agent" / _copy_name(agent_zip(*folders)) / "ipexctl"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(FORGED.format(evidence))
    (home / ".ipexctl-home").touch()
    for path in (home, *home.rglob("*")):
        os.chown(path, uid, uid)
        path.chmod(0o755)


def fill(home: Path) -> Path:
    """A home of the victim with the marks of copies that are private, as the boot program looks for them."""
    made(home, ME, 0o700)
    made(home / "agent", ME, 0o700)
    for folders in (("files",), ("run",), ("env",), ("uninstall",)):
        made(home / "agent" / _copy_name(agent_zip(*folders)), ME, 0o700)
    me_file = home / ".ipexctl-home"
    me_file.touch()
    os.chown(me_file, ME, ME)
    return home


def called(me: Account, home: Path) -> list[CommandResult]:
    me.write(me.project / "train.py", "print('trained')\n")
    (me.base / "trace").mkdir(exist_ok=True)
    (me.base / "trace").chmod(0o777)
    on_this = ("--hosts", "localhost", "--home", home)
    run = ("run", *on_this, "--python", sys.executable, "-n", "1", "train.py")
    results = [me.call(*words) for _ in range(CALLS) for words in (("sync", *on_this), run)]
    assert not (me.base / "trace/pwned").exists(), (me.base / "trace/pwned").read_text()
    return results


def test_a_stranger_who_exchanges_a_home_in_his_directory_runs_nothing(me: Account) -> None:
    theirs = made(me.base / "theirs", OTHER)
    fill(me.base / "home/real")
    (theirs / "h").symlink_to(me.base / "home/real")
    os.lchown(theirs / "h", OTHER, OTHER)
    forge_agents(theirs / "forged", OTHER, me.base / "trace")
    with exchanging(OTHER, theirs / "h", theirs / "forged"):
        results = called(me, theirs / "h")
    assert {ran.rc for ran in results} == {2}
    assert all(missing(ran.err, f"{theirs} {OTHER}") == [] for ran in results)
