"""ipexctl used by an account without root rights: on one machine, and with hosts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL
from ipexctl.extras.lab.fault_injection import break_host, mend_host
from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import Lab
from lab_run_helpers import Cluster, by_rank, session_dir, small_stack

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
ACCOUNT = "nobody"
AS_ACCOUNT = [
    "setpriv",
    f"--reuid={ACCOUNT}",
    "--regid=nogroup",
    "--clear-groups",
    *(f"--{caps}=-all,+dac_read_search" for caps in ("inh-caps", "ambient-caps", "bounding-set")),
]
"""It may read all files: Python and this checkout may be in a private home."""


class Account(Cluster):
    @property
    def env(self) -> dict[str, str]:
        home = str(self.project.parent)
        plain = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**super().env, **plain, "HOME": home, "USER": ACCOUNT, "LOGNAME": ACCOUNT}


@pytest.fixture
def account(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    account = Account(lab, project, tmp_path / "home" / "state")
    account.write(
        "train.py", "import os, torch\nprint('trained by', os.getuid())\nopen('result.txt', 'w').write('done')\n"
    )
    account.write("data.bin", os.urandom(3_000_000))
    for path in (project.parent, project, *project.iterdir()):
        shutil.chown(path, ACCOUNT, "nogroup")
    monkeypatch.setattr("cli_helpers.IPEXCTL", [*AS_ACCOUNT, *IPEXCTL])
    return account


@pytest.fixture
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    return small_stack(session_dir(tmp_path_factory))


def test_unprivileged_account_on_one_machine(account: Account, wheels: tuple[object, ...]) -> None:
    here = ("--hosts", "localhost")
    account.good("doctor", *here)
    account.good("install", *here, *wheels)
    ran = account.call("run", *here, "-n", "2", "train.py")
    assert (ran.rc, by_rank(ran.out)) == (0, {rank: ["trained by 65534"] for rank in range(2)}), ran.err
    assert json.loads(account.good("why", "last", "--json"))["state"] == "ok"
    account.good("uninstall", *here, "--yes", "--with-results")
    assert not (account.project.parent / ".ipexctl").exists()


def test_unprivileged_account_with_hosts_that_cannot_reach_each_other(
    account: Account, lab: Lab, wheels: tuple[object, ...]
) -> None:
    """Wheels and the project go through the control machine."""
    hosts = ("-H", lab.hostfile)
    account.good("trust", *hosts)
    for host in lab.hosts:
        break_host(host, "firewall")
    try:
        account.good("install", *hosts, *wheels)
        account.good("sync", *hosts)
    finally:
        for host in lab.hosts:
            mend_host(host)
    ran = account.run("train.py")
    assert {rank: len(lines) for rank, lines in by_rank(ran.out).items()} == {0: 1, 1: 1}
    run = json.loads(account.good("ps", "--json"))["runs"][0]
    assert run["state"] == "ok"
    account.good("fetch", f"{run['id']}:result.txt", account.project / "fetched")
    assert (account.project / "fetched").read_text() == "done"
    account.good("uninstall", *hosts, "--yes", "--with-results")
    assert [account.on(index, "ls -A .ipexctl 2>/dev/null || true") for index in range(2)] == ["", ""]
