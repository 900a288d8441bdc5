"""The roads by which a stranger on the same hosts has run code as the victim, or taken its private files.

Those without a race are played on hosts of a lab, where `nobody` is the stranger. Those with one are played on this
machine, where a program of the stranger's exchanges two entries in a loop; `IPEXCTL_TESTS_CALLS` says how often each
command is called then.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_helpers import CommandResult
from ipexctl.extras.lab.plan import LabSpec
from ipexctl.remote.node_call import _copy_name, agent_zip
from lab_run_helpers import Cluster
from message_data import missing
from test_files_of_others import ME, OTHER, Account, make_account

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(int(os.environ.get("IPEXCTL_TESTS_CALLS", 10)) * 10 + 200)]
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


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """Its directories are below one that everybody can enter, as those of pytest are not."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    with tempfile.TemporaryDirectory(prefix="ipexctl-tests-") as base:
        Path(base).chmod(0o755)
        yield make_account(Path(base))


def made(path: Path, uid: int = ME, mode: int = 0o755, gid: int | None = None) -> Path:
    path.mkdir()
    os.chown(path, uid, uid if gid is None else gid)
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
def exchanging(uid: int, gid: int, first: Path, second: Path) -> Iterator[None]:
    account = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
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
    with exchanging(OTHER, OTHER, theirs / "h", theirs / "forged"):
        results = called(me, theirs / "h")
    assert {ran.rc for ran in results} == {2}
    assert all(missing(ran.err, f"{theirs} {OTHER}") == [] for ran in results)


def test_an_account_with_the_victims_primary_group_runs_nothing(me: Account) -> None:
    """Its directory is writable by a group that only looks private."""
    (me.base / "passwd").write_text((me.base / "passwd").read_text() + f"svc:x:4713:{ME}::/:/bin/sh\n")
    data = made(me.base / "data", ME, 0o775)
    fill(data / "h")
    forge_agents(data / "forged", 4713, me.base / "trace")
    with exchanging(4713, ME, data / "h", data / "forged"):
        results = called(me, data / "h")
    assert {ran.rc for ran in results} == {2}
    assert all(missing(ran.err, f"{data} group") == [] for ran in results)
