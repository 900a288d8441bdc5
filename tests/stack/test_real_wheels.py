"""The real wheels, from PyPI and wherever this machine's pip looks, installed and verified on real hosts.

Gigabytes and minutes: `tests/run.sh` runs these last, in a call of their own. Where they can't be run they are left out
with the reason; IPEXCTL_TESTS_STACK=required makes that a failure. They use one lab, in the order they are in.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from real_helpers import SHORT, examples_in, leave_out, losses, oneccl_wheels, require_lab, require_package

from cli_helpers import ipexctl
from ipexctl.lab import LabSpec, down, up
from lab_helpers import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_helpers import Ran
    from ipexctl.lab import Lab
    from ipexctl.lab.state import LabHost

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

DISK_NEEDED = 32e9
IPEX = ("--stack", "ipex-2.8")
STOCK = ("--stack", "torch", "--torch", "2.13", "--env", "stock")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two plain hosts with disks large enough, gone at the end with all that was put there."""
    require_lab()
    shelf = next(path for path in (Path("/var/lib/ipexctl/labs"), Path("/var/lib")) if path.exists())
    free = shutil.disk_usage(shelf).free
    if free < DISK_NEEDED:
        pytest.skip(f"{free / 1e9:.0f} GB are free in {shelf}; {DISK_NEEDED / 1e9:.0f} are needed")
    require_package("impi-rt")
    name = f"stack-{os.getpid()}"
    made = up(LabSpec(hosts=2, name=name))
    yield made
    down(name)


@dataclass(frozen=True)
class Installed:
    report: dict[str, Any]
    rc: int
    crossed: int
    """Bytes this machine sent to the hosts meanwhile."""
    seconds: float

    @property
    def statuses(self) -> dict[str, str]:
        return {host["name"]: host["status"] for host in self.report["hosts"]}

    @property
    def reasons(self) -> list[str]:
        return [host["reason"] for host in self.report["hosts"] if host["reason"]]

    @property
    def wheels(self) -> int:
        return sum(wheel["size"] for wheel in self.report["wheels"])


def install(lab: Lab, *words: str) -> Installed:
    before = sent(lab)
    ran = ipexctl("install", "-H", lab.hostfile, *words, "--json", timeout=1100)
    assert ran.out, ran.err
    report = json.loads(ran.out)
    print(f"ipexctl install {' '.join(words)}: {ran.seconds:.0f} s", file=sys.stderr)
    return Installed(report, ran.rc, sent(lab) - before, ran.seconds)


def sent(lab: Lab) -> int:
    return int(Path(f"/sys/class/net/{lab.uplink}/statistics/tx_bytes").read_text())


def on_host(host: LabHost, command: str) -> str:
    said = ask(host, command, timeout=120)
    assert said.rc == 0, said.err
    return said.out.strip()


@pytest.fixture(scope="module")
def ipex(lab: Lab) -> Installed:
    return install(lab, *IPEX)


def test_torch_with_ipex_is_verified_on_every_host(ipex: Installed) -> None:
    assert (ipex.rc, ipex.statuses) == (0, {"node1": "changed", "node2": "changed"}), ipex.report
    assert ipex.report["stack"]["name"] == "ipex-2.8"
    assert ipex.report["stack"]["retired"] is True
    for host in ipex.report["hosts"]:
        verified = host["verify"]
        assert verified["ok"] is True, host
        assert verified["capability"], host
        assert verified["bf16"], host
        assert verified["allreduce_ms"], host
        assert host["packages"]["torch"].startswith("2.8.")
        assert host["packages"]["intel-extension-for-pytorch"].startswith("2.8.")


def test_every_wheel_crossed_to_the_hosts_once(ipex: Installed) -> None:
    """Beside the wheels: what they are unpacked with, the protocol, acknowledgements of what came back."""
    assert ipex.wheels > 0
    assert ipex.wheels <= ipex.crossed < 1.03 * ipex.wheels + 80e6


def test_a_rank_of_that_environment_trains(lab: Lab, ipex: Installed) -> None:
    code = (
        "import torch, intel_extension_for_pytorch as ipex; m = torch.nn.Linear(64, 64); "
        "o = torch.optim.SGD(m.parameters(), 0.1); m, o = ipex.optimize(m, optimizer=o, dtype=torch.bfloat16)\n"
        "with torch.autocast('cpu', torch.bfloat16): loss = m(torch.randn(8, 64)).float().pow(2).mean()\n"
        "loss.backward(); o.step(); print(ipex.__version__)"
    )
    for host in lab.hosts:
        assert on_host(host, f'{ipex.report["path"]}/bin/python -c "{code}"').endswith("2.8.0+cpu")


def train(lab: Lab, project: Path, *words: str, dtype: str = "fp32", aborts: bool = False) -> Ran:
    """`aborts`: a rank may be ended by std::terminate at its exit, as with oneCCL 2021.15 in one run of seven."""
    options = ("-H", lab.hostfile, "--plain", *words)
    ran = ipexctl(
        *("run", *options, "train_digits.py", "--fresh", *SHORT, "--dtype", dtype),
        cwd=project,
        env={"XDG_STATE_HOME": str(project.parent / "state")},
        timeout=240,
    )
    aborted = ran.rc == 128 + signal.SIGABRT and "terminate called without an active exception" in ran.err
    assert ran.rc == 0 or (aborts and aborted), ran.err + ran.out
    assert f"{dtype} with IPEX" in ran.out
    return ran


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples_in(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def alone(lab: Lab, ipex: Installed, project: Path) -> dict[tuple[int, int], float]:
    """The losses of one rank, in fp32."""
    ran = train(lab, project, "-n", "1", "--ppn", "1")
    assert "[0] ranks: 1, over gloo" in ran.out
    found = losses(ran.out)
    assert len(found) == 10
    assert found[2, 10] < found[1, 2] - 0.1, "it learns nothing, so that like losses say nothing"
    return found


def test_two_hosts_train_the_example_in_bfloat16_with_ipex_and_learn_what_one_does_in_fp32(
    lab: Lab, project: Path, alone: dict[tuple[int, int], float]
) -> None:
    try:
        assert ipexctl("trust", "-H", lab.hostfile).rc == 0
        ran = train(lab, project, "-n", "2", "--ppn", "1", dtype="bf16")
    finally:
        ipexctl("trust", "-H", lab.hostfile, "--revoke")
        for host in lab.hosts:
            on_host(host, "rm -rf ~/.ipexctl/code ~/.ipexctl/runs ~/.ipexctl/ssh")
    assert "[0] ranks: 2, over gloo" in ran.out
    found = losses(ran.out)
    assert all(math.isfinite(loss) for loss in found.values())
    assert found == pytest.approx(alone, abs=0.08)
    assert found != alone


def test_the_second_install_changes_and_sends_nothing(lab: Lab, ipex: Installed) -> None:
    again = install(lab, *IPEX)
    assert (again.rc, again.statuses) == (0, {"node1": "ok", "node2": "ok"}), again.report
    assert again.report["path"] == ipex.report["path"]
    assert again.crossed < 1e6


def test_only_node0_keeps_the_wheels(lab: Lab, ipex: Installed) -> None:
    kept = [on_host(host, "find ~/.ipexctl/wheels -name '*.whl' 2>/dev/null | wc -l") for host in lab.hosts]
    assert int(kept[0]) >= len(ipex.report["wheels"])
    assert kept[1] == "0"


def test_the_maintained_row_is_stock_pytorch_over_gloo(lab: Lab, ipex: Installed) -> None:
    planned = install(lab, *STOCK, "--dry-run")
    assert planned.rc == 0, planned.report
    if any(wheel["name"].startswith("nvidia-") for wheel in planned.report["wheels"]):
        leave_out("no index in reach has torch 2.13's CPU wheel; its CUDA build is several GB")
    stock = install(lab, *STOCK)
    assert (stock.rc, stock.statuses) == (0, {"node1": "changed", "node2": "changed"}), stock.report
    assert (stock.report["stack"]["name"], stock.report["stack"]["backend"]) == ("torch-2.13", "gloo")
    assert stock.report["stack"]["ipex"] is None
    for host in stock.report["hosts"]:
        assert host["verify"]["ok"] is True, host
        assert host["verify"]["allreduce_ms"], host
        assert host["packages"]["torch"].startswith("2.13.")
    assert stock.wheels <= stock.crossed + ipex.wheels
    assert stock.crossed < 1.03 * stock.wheels + 80e6


@pytest.fixture(scope="module")
def bindings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return oneccl_wheels(tmp_path_factory.mktemp("oneccl"))


def test_the_bindings_of_oneccl_are_verified_and_two_ranks_learn_over_them_what_one_does(
    bindings: Path, lab: Lab, alone: dict[tuple[int, int], float], project: Path
) -> None:
    """In place of the environment that was there: for two of torch's CUDA build a host's disk is too small."""
    only = ("-l", "node1")
    assert ipexctl("envs", "-H", lab.hostfile, *only, "--remove", "default", timeout=300).rc == 0
    ccl = install(lab, *IPEX, *only, "--find-links", str(bindings), "--require-oneccl")
    assert (ccl.rc, ccl.statuses) == (0, {"node1": "changed"}), ccl.report
    assert (ccl.report["stack"]["name"], ccl.report["stack"]["backend"]) == ("ipex-2.8", "ccl")
    assert ccl.crossed < 200e6, "node1 has all other wheels"
    verified = ccl.report["hosts"][0]["verify"]
    assert (verified["ok"], verified["backend"]) == (True, "ccl"), verified
    assert verified["oneccl"].startswith("2.8.0")
    assert verified["launcher"].endswith("/oneccl_bindings_for_pytorch/opt/mpi/bin/mpiexec.hydra")
    assert verified["allreduce_ms"]
    try:
        ran = train(lab, project, *only, "-n", "2", "--ppn", "2", "--backend", "ccl", aborts=True)
    finally:
        on_host(lab.hosts[0], "rm -rf ~/.ipexctl/code ~/.ipexctl/runs")
    assert "[0] ranks: 2, over ccl" in ran.out
    assert losses(ran.out) == pytest.approx(alone, abs=0.0015)


def test_taking_everything_away_leaves_nothing_behind(lab: Lab, ipex: Installed) -> None:
    for name in ("stock", "default"):
        ran = ipexctl("envs", "-H", lab.hostfile, "--remove", name, timeout=300)
        assert ran.rc == 0, ran.err
    for host in lab.hosts:
        assert on_host(host, "find ~/.ipexctl/envs ~/.ipexctl/tmp -mindepth 1 2>/dev/null | head") == ""
    assert ipexctl("envs", "-H", lab.hostfile, "--prune", timeout=300).rc == 0
    for host in lab.hosts:
        assert on_host(host, "find ~/.ipexctl -type f -not -path '*/.ipexctl/agent/*' | head") == ""
