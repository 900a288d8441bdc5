"""`ipexctl fetch` over real connections: after SIGKILL, over lost connections, and for any rank."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_helpers import wait_until
from cli_helpers import begin, ipexctl, processes_with
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.detect import read_hosts_file
from lab_helpers import ask
from record_helpers import run_record

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    lab = make_lab(LabSpec(hosts=2))
    for index, host in enumerate(lab.hosts):
        made = f"mkdir -p work/ck && head -c 200000000 /dev/urandom >work/ck/big.pt && echo {index} >work/ck/of"
        assert ask(host, made, timeout=100).rc == 0
    return lab


class FetchRun:
    """The control machine's record of a run that was on both hosts. No rank ran there, so fetch needs --force."""

    def __init__(self, lab: Lab, base: Path) -> None:
        self.lab = lab
        self.out = base / "out"
        self.env = {"XDG_STATE_HOME": str(base / "state")}
        self.hosts = tuple(read_hosts_file(lab.hostfile))
        home = lab.hosts[0].home
        self.record = run_record(
            "train-1120-120000-abcd",
            self.hosts[0],
            f"{home}/.ipexctl",
            "",
            started=time.time(),
            world_size=2,
            hosts=tuple(host.name for host in self.hosts),
            nodes=self.hosts,
            project=str(Path.cwd()),
            ranks=tuple(host.name for host in self.hosts),
            cwd=f"{home}/work",
        )
        RunRegistry(base / "state/ipexctl/runs").save(self.record)

    def digest(self, path: str, index: int = 0) -> str:
        return ask(self.lab.hosts[index], f"sha256sum < {path}").out.split()[0]

    def begin(self, *args: object) -> subprocess.Popen[str]:
        return begin("fetch", "--force", *args, env=self.env)

    def wait_for_part(self, size: int) -> None:
        """Until so much of what is on its way is here."""
        wait_until(lambda: any(part.stat().st_size > size for part in self.out.glob(".ipexctl-*.part")), 60)


@pytest.fixture
def context(lab: Lab, tmp_path: Path) -> FetchRun:
    return FetchRun(lab, tmp_path)


def local_digest(path: Path) -> str:
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]


def test_ctrl_c_keeps_partial_file_and_ends_the_sender(context: FetchRun) -> None:
    stopped = context.begin("last:ck/big.pt", f"{context.out}/")
    context.wait_for_part(20_000_000)
    stopped.send_signal(signal.SIGINT)
    out, err = stopped.communicate(timeout=30)
    assert stopped.returncode == 130
    assert "Traceback" not in err
    assert out == ""
    assert processes_with(context.lab, "file_sender") == []
    (part,) = context.out.iterdir()
    assert part.stat().st_size > 20_000_000


def test_lost_connection_is_opened_again(context: FetchRun) -> None:
    # 300 Mbit/s: the rest takes four seconds, so that the cut comes before its end.
    break_host(context.lab.hosts[0], "slow-link", ["300mbit"])
    try:
        fetching = context.begin("last:ck/big.pt", f"{context.out}/", "--json")
        context.wait_for_part(20_000_000)
        # The sshd of this one connection: its children are the sessions. The brackets keep this shell out.
        cut = "kill -9 $(ps -o ppid= -p $(pgrep -f '[f]ile_sender' | head -1) | tr -d ' ')"
        assert ask(context.lab.hosts[0], cut, as_root=True).rc == 0
    finally:
        mend_host(context.lab.hosts[0])
    out, err = fetching.communicate(timeout=60)
    assert fetching.returncode == 0, err
    said = json.loads(out)
    assert said["resumed"] == ["big.pt"]
    assert said["received_bytes"] == 200_000_000
    assert local_digest(context.out / "big.pt") == context.digest("work/ck/big.pt")


@pytest.mark.core
def test_fetch_from_node_of_a_rank_or_from_a_named_host(context: FetchRun) -> None:
    for index, words in enumerate((["last:ck/of"], ["last:ck/of", "-r", "1"], ["last:ck/of", "--from", "node2"])):
        ran = ipexctl("fetch", "--force", *words, f"{context.out}{index}", env=context.env)
        assert ran.rc == 0, ran.err
    ran = ipexctl("fetch", "-H", context.lab.hostfile, "node2:work/ck/o*", f"{context.out}3/", env=context.env)
    assert ran.rc == 0, ran.err
    read = [Path(f"{context.out}{index}").read_text() for index in range(3)]
    assert read == ["0\n", "1\n", "1\n"]
    assert Path(f"{context.out}3/of").read_text() == "1\n"


def test_fetch_ends_at_its_timeout(context: FetchRun) -> None:
    break_host(context.lab.hosts[0], "slow-link", ["300mbit"])
    try:
        ran = ipexctl("fetch", "--force", "last:ck/big.pt", f"{context.out}/", "--timeout", 1, env=context.env)
    finally:
        mend_host(context.lab.hosts[0])
    assert ran.rc == 1
    assert "timed out after" in ran.err


def test_fetch_errors_have_a_fix(context: FetchRun) -> None:
    ran = ipexctl("fetch", "last:chekpoints/", context.out, env=context.env)
    assert ran.rc == 1
    assert "there is no" in ran.err
    assert "there is: ck" in ran.err
    ran = ipexctl("fetch", "nosuch:x", context.out, env=context.env)
    assert ran.rc == 2
    assert "--hosts nosuch" in ran.err
    ran = ipexctl("fetch", "--hosts", "10.77.255.254", "10.77.255.254:x", context.out, "--connect-timeout", 1, "--json")
    assert ran.rc == 3
    assert json.loads(ran.out)["status"] == "unreachable"
    assert not context.out.exists()
