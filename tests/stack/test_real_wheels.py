"""The real wheels, from PyPI and wherever this machine's pip looks, installed and verified on real hosts.

Gigabytes and minutes: `tests/run.sh` runs these last, in a call of their own. Where they can't be run they are left out
with the reason; IPEXCTL_TESTS_STACK=required makes that a failure. They use one lab, in the order they are in; the one
with stock PyTorch has its own.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ccl_endings import Ends
from real_helpers import (
    ABORT,
    NEEDS_BF16_OF_IPEX,
    SHORT,
    examples_in,
    leave_out,
    loss_lines,
    losses,
    mpirun_config,
    oneccl_wheels,
    real_lab,
    require_bindings,
    trainer_losses,
    upload_examples,
)

from cli_helpers import CommandResult, ipexctl
from doc_shell import Shell
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.facts.software import has_gloo_overflow
from lab_helpers import ask, on_host
from lab_run_helpers import by_rank
from message_data import missing
from page_scenes import REAL_CCL, Scene, play, scenes
from slurm_helpers import NEEDS_SLURM, without_sshd

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

DISK_NEEDED = 20e9
IPEX = ("--stack", "ipex-2.8")
GUIDES = ("--with", "transformers==4.56.2", "--with", "accelerate==1.12.0")
"""The last transformers with --use_ipex wants accelerate 1.10 or later; 1.12 is the last that knows IPEX and oneCCL."""
ACCELERATE = """\
import accelerate_train
from accelerate import PartialState
from torch.distributed import get_backend, is_initialized

PartialState(cpu=True)
print("over", get_backend() if is_initialized() else "nothing")
accelerate_train.main()
"""
"""The example, which says what its ranks talk over."""
STOCK = ("--stack", "torch", "--torch", "2.13", "--env", "stock")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts with one home: torch's CUDA build is unpacked once, not on every host."""
    shelf = next(path for path in (Path("/var/lib/ipexctl/labs"), Path("/var/lib")) if path.exists())
    free = shutil.disk_usage(shelf).free
    if free < DISK_NEEDED:
        pytest.skip(f"{free / 1e9:.0f} GB are free in {shelf}; {DISK_NEEDED / 1e9:.0f} are needed")
    with real_lab("stack", 3, shared_home=True, slurm=True) as made:
        yield made


@pytest.fixture
def plain_lab() -> Iterator[Lab]:
    """Two hosts with a home each."""
    with real_lab("plain", 2) as made:
        yield made


@dataclass(frozen=True)
class Installed:
    report: dict[str, Any]
    rc: int | None
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


def install(lab: Lab, *words: str, env: Mapping[str, str] | None = None) -> Installed:
    before = sent(lab)
    ran = ipexctl("install", "-H", lab.hostfile, *words, "--json", env=env, timeout=1100)
    assert ran.out, ran.err
    report = json.loads(ran.out)
    print(f"ipexctl install {' '.join(words)}: {ran.seconds:.0f} s", file=sys.stderr)
    return Installed(report, ran.rc, sent(lab) - before, ran.seconds)


def sent(lab: Lab) -> int:
    return int(Path(f"/sys/class/net/{lab.uplink}/statistics/tx_bytes").read_text())


@pytest.fixture(scope="module")
def bindings(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return oneccl_wheels(tmp_path_factory.mktemp("oneccl"))


@pytest.fixture(scope="module")
def words(bindings: Path | None) -> tuple[str, ...]:
    """The options of the one installation of IPEX: with the bindings where there are wheels of them."""
    return (*IPEX, "--find-links", str(bindings / "bundled"), "--require-oneccl") if bindings else IPEX


@pytest.fixture(scope="module")
def ipex(lab: Lab, words: tuple[str, ...]) -> Installed:
    return install(lab, *words)


def test_torch_with_ipex_is_verified_on_every_host(ipex: Installed) -> None:
    assert (ipex.rc, ipex.statuses) == (0, dict.fromkeys(("node1", "node2", "node3"), "changed")), ipex.report
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


def crossed_once(installed: Installed) -> bool:
    """Beside the wheels: what they are unpacked with, the protocol, acknowledgements of what came back."""
    return 0 < installed.wheels <= installed.crossed < 1.03 * installed.wheels + 80e6


def test_every_wheel_is_uploaded_once(ipex: Installed) -> None:
    assert crossed_once(ipex), ipex


def clear(lab: Lab) -> None:
    """What runs have left; the environment stays."""
    for host in lab.hosts:
        on_host(host, "rm -rf ~/.ipexctl/code ~/.ipexctl/runs ~/.ipexctl/ssh")


def run(project: Path, *words: object, aborts: bool = False, env: Mapping[str, str] | None = None) -> CommandResult:
    """`aborts`: as for `check_end`."""
    env = {"XDG_STATE_HOME": str(project.parent / "state"), **(env or {})}
    ran = ipexctl("run", "--plain", *words, cwd=project, env=env, timeout=240)
    check_end(ran, aborts=aborts)
    return ran


def check_end(ran: CommandResult, *, aborts: bool) -> None:
    """`aborts`: a rank may be ended by std::terminate at its exit."""
    aborted = ran.rc == 128 + signal.SIGABRT and ABORT in ran.err
    assert ran.rc == 0 or (aborts and aborted), ran.err + ran.out


def train(lab: Lab, project: Path, *words: str, dtype: str = "fp32", aborts: bool = False) -> CommandResult:
    script = ("train_digits.py", "--fresh", *SHORT, "--dtype", dtype)
    ran = run(project, "-H", lab.hostfile, *words, *script, aborts=aborts)
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


@NEEDS_BF16_OF_IPEX
def test_bf16_losses_with_ipex_on_two_hosts_are_close_to_fp32(
    lab: Lab, project: Path, alone: dict[tuple[int, int], float]
) -> None:
    try:
        ran = train(lab, project, "-n", "2", "--ppn", "1", "--backend", "gloo", dtype="bf16")
    finally:
        clear(lab)
    assert "[0] ranks: 2, over gloo" in ran.out
    found = losses(ran.out)
    assert all(math.isfinite(loss) for loss in found.values())
    assert found == pytest.approx(alone, abs=0.08)
    assert found != alone


def test_maintained_stack_is_stock_pytorch_with_gloo(plain_lab: Lab) -> None:
    planned = install(plain_lab, *STOCK, "--dry-run")
    assert planned.rc == 0, planned.report
    if any(wheel["name"].startswith("nvidia-") for wheel in planned.report["wheels"]):
        leave_out("no index in reach has torch 2.13's CPU wheel; its CUDA build is several GB")
    stock = install(plain_lab, *STOCK)
    assert (stock.rc, stock.statuses) == (0, {"node1": "changed", "node2": "changed"}), stock.report
    assert (stock.report["stack"]["name"], stock.report["stack"]["backend"]) == ("torch-2.13", "gloo")
    assert stock.report["stack"]["ipex"] is None
    for host in stock.report["hosts"]:
        assert host["verify"]["ok"] is True, host
        assert host["verify"]["allreduce_ms"], host
        assert host["packages"]["torch"].startswith("2.13.")
    assert crossed_once(stock), stock
    gloo = "~/.ipexctl/envs/stock/lib/python3*/site-packages/torch/lib/libtorch_cpu.so"
    sums = on_host(plain_lab.hosts[0], f"grep -c 'roffset + op.preamble.length <=' {gloo} || true").strip()
    assert (sums != "0") == has_gloo_overflow(stock.report["stack"]["torch"]), (
        "the check that wraps around, in the wheel"
    )
    kept = [on_host(host, "find ~/.ipexctl/wheels -name '*.whl' 2>/dev/null | wc -l") for host in plain_lab.hosts]
    assert int(kept[0]) >= len(stock.report["wheels"])
    assert int(kept[1]) == 0
    assert ipexctl("envs", "-H", plain_lab.hostfile, "--remove", "stock", timeout=300).rc == 0
    check_nothing_left(plain_lab)


def check_nothing_left(lab: Lab) -> None:
    """After the last environment was removed."""
    for host in lab.hosts:
        assert on_host(host, "find ~/.ipexctl/envs ~/.ipexctl/tmp -mindepth 1 2>/dev/null | head") == ""
    assert ipexctl("envs", "-H", lab.hostfile, "--prune", timeout=300).rc == 0
    for host in lab.hosts:
        left = "find ~/.ipexctl -type f -not -path '*/.ipexctl/agent/*' -not -name .ipexctl-home | head"  # but its mark
        assert on_host(host, left) == ""


def check_ccl(report: dict[str, Any]) -> None:
    assert (report["stack"]["name"], report["stack"]["backend"]) == ("ipex-2.8", "ccl")
    for host in report["hosts"]:
        verified = host["verify"]
        assert (verified["ok"], verified["backend"]) == (True, "ccl"), verified
        assert verified["oneccl"].startswith("2.8.0")
        assert verified["allreduce_ms"]


def test_mpi_inside_the_bindings_is_the_only_one_and_starts_the_ranks(bindings: Path | None, ipex: Installed) -> None:
    require_bindings(bindings)
    check_ccl(ipex.report)
    assert ipex.report["stack"]["mpi"] == "2021.15"
    for host in ipex.report["hosts"]:
        assert host["verify"]["launcher"].endswith("/oneccl_bindings_for_pytorch/opt/mpi/bin/mpiexec.hydra")
        assert "impi-rt" not in host["packages"]


@scenes(REAL_CCL)
def test_ccl_page_works_on_two_hosts(
    context: Scene, bindings: Path | None, ipex: Installed, lab: Lab, tmp_path: Path
) -> None:
    """Its install finds what is there."""
    wheels = require_bindings(bindings)
    env = {"IPEXCTL_HOSTFILE": str(lab.hostfile), "BINDINGS": str(wheels / "bundled")}
    try:
        assert play(context, Shell(tmp_path, env, lab=lab.name)) == []
    finally:
        clear(lab)


def test_losses_of_two_ranks_over_ccl_equal_those_of_one(
    bindings: Path | None, lab: Lab, alone: dict[tuple[int, int], float], project: Path
) -> None:
    require_bindings(bindings)
    try:
        ran = train(lab, project, "-l", "node1", "-n", "2", "--ppn", "2", "--backend", "ccl", aborts=True)
    finally:
        on_host(lab.hosts[0], "rm -rf ~/.ipexctl/code ~/.ipexctl/runs")
    assert "[0] ranks: 2, over ccl" in ran.out
    assert losses(ran.out) == pytest.approx(alone, abs=0.0015)


@pytest.fixture(scope="class")
def trusted(lab: Lab, ipex: Installed) -> Iterator[Lab]:
    """The lab, whose node0 may log in to the others; nothing of that is left after the last test of the class."""
    yield lab
    clear(lab)


@pytest.fixture
def ends(trusted: Lab, tmp_path: Path) -> Iterator[Ends]:
    """Runs over ccl, after which nothing of them is left on any host."""
    ends = Ends(trusted, tmp_path)
    yield ends
    ends.check_nothing_left(10)


class TestThreeHostsOverCcl:
    @pytest.mark.parametrize(
        ("dtype", "difference"), [("fp32", 0.0015), pytest.param("bf16", 0.08, marks=NEEDS_BF16_OF_IPEX)]
    )
    def test_losses_of_three_hosts_over_ccl_equal_those_of_one_rank(
        self,
        bindings: Path | None,
        trusted: Lab,
        alone: dict[tuple[int, int], float],
        project: Path,
        dtype: str,
        difference: float,
    ) -> None:
        require_bindings(bindings)
        ran = train(trusted, project, "-n", "3", "--ppn", "1", "--backend", "ccl", dtype=dtype, aborts=True)
        assert "[0] ranks: 3, over ccl" in ran.out
        assert "I_MPI_THREAD_SPLIT" not in ran.err + ran.out
        assert losses(ran.out) == pytest.approx(alone, abs=difference)

    @NEEDS_SLURM
    def test_losses_over_ccl_and_srun_equal_those_over_ssh(
        self, bindings: Path | None, trusted: Lab, project: Path
    ) -> None:
        """The daemons of the MPI inside the bindings are started by srun: no other way leads to the two nodes."""
        require_bindings(bindings)
        words = ("--ppn", "1", "--omp", "1", "--backend", "ccl")
        over_ssh = train(trusted, project, "-n", "2", *words, aborts=True)
        upload_examples(trusted.hosts[0])
        line = ("salloc --quiet --exclusive -N2 ipexctl run -v", *words, "train_digits.py", "--fresh", *SHORT)
        with without_sshd(trusted):
            ran = ask(trusted.hosts[0], f"cd examples && {' '.join(line)}", timeout=150)
        print(f"over ccl and srun: {ran.seconds:.1f} s; over ssh: {over_ssh.seconds:.1f} s", file=sys.stderr)
        check_end(ran, aborts=True)
        assert "[0] ranks: 2, over ccl" in ran.out
        assert loss_lines(ran.out) == loss_lines(over_ssh.out)
        assert missing(ran.err, "srun 2 ranks hosts ccl Intel MPI") == []

    @pytest.mark.parametrize(
        ("end", "rc", "named"),
        [("kill", 137, "1 node2 SIGKILL"), ("raise", 1, "1 node2 RuntimeError on purpose"), ("exit", 3, "1 node2 3")],
    )
    def test_failed_rank_over_ccl_ends_the_run_and_is_named(
        self, bindings: Path | None, ends: Ends, end: str, rc: int, named: str
    ) -> None:
        """Over MPI, a rank that raises or calls sys.exit waits in MPI_Finalize for the others."""
        require_bindings(bindings)
        ran = ends.run(end)
        assert (ran.rc, missing(ran.err, named)) == (rc, []), ran.err + ran.out

    def test_run_over_ccl_is_restarted(self, bindings: Path | None, ends: Ends) -> None:
        require_bindings(bindings)
        ran = ends.run("kill once", "--max-restarts", "1")
        assert ran.rc == 0, ran.err + ran.out
        assert ran.out.count("has trained") == 6
        assert ran.out.count("is done") == 3


@pytest.fixture(scope="class")
def guides(bindings: Path | None, trusted: Lab, project: Path) -> tuple[str, ...]:
    """The packages of the guides in the environment, their hostfile in the project, and how to log in to its hosts."""
    added = install(trusted, "--find-links", str(require_bindings(bindings) / "bundled"), *GUIDES)
    assert added.rc == 0, added.report
    assert added.crossed < 300e6, "the hosts have all other packages"
    addresses = [host.address for host in trusted.hosts]
    (project / "machines").write_text("".join(f"{address} #node{at} ip\n" for at, address in enumerate(addresses)))
    (project / "config.yaml").write_text(mpirun_config(addresses[0], machines=3, processes=3))
    (project / "talk.py").write_text(ACCELERATE)
    return ("--user", "ipex", "--identity", str(trusted.key), "--known-hosts", str(trusted.known_hosts))


class TestTheLinesOfTheGuidesOverCcl:
    @NEEDS_BF16_OF_IPEX
    def test_losses_with_trainer_guide_flags_equal_those_of_one_process(
        self, bindings: Path | None, project: Path, guides: tuple[str, ...]
    ) -> None:
        """IPEX in bf16, oneCCL over libfabric."""
        require_bindings(bindings)
        flags = ("--no_cuda", "--use_ipex", "--bf16", "--ddp_backend", "ccl", "--per_device_train_batch_size")
        steps = ("--max_steps", "8", "--logging_steps", "2", "--learning_rate", "2e-3")
        where = ("-H", project / "machines", *guides, "--ppn", "1")
        exports = ("-x", "CCL_WORKER_COUNT=1", "-x", "CCL_ATL_TRANSPORT=ofi")
        ran = run(project, *where, *exports, "-n", "3", "trainer_bert.py", *flags, "8", *steps, aborts=True)
        lines = by_rank(ran.out)[0]
        assert any(line.startswith("ranks: 3, over ccl; accuracy ") for line in lines), ran.out
        assert not any(line.startswith("--") for line in lines), "all flags are obeyed"
        assert "fallback to MPI transport" not in ran.err + ran.out
        alone = run(project, *where, "-n", "1", "trainer_bert.py", *flags, "24", *steps)
        found, wanted = trainer_losses(lines), trainer_losses(by_rank(alone.out)[0])
        assert len(wanted) == 4
        assert wanted[-1] < wanted[0], "it learns nothing"
        assert found == pytest.approx(wanted, abs=0.02)

    def test_losses_with_accelerate_config_equal_those_of_one_process(
        self, bindings: Path | None, project: Path, guides: tuple[str, ...]
    ) -> None:
        require_bindings(bindings)
        script = ("talk.py", "--epochs", "1", "--batch", "126")
        ran = run(project, *guides, "--", "accelerate", "launch", "--config_file", "config.yaml", *script, aborts=True)
        lines = by_rank(ran.out)[0]
        assert "over ccl" in lines, ran.out
        assert "DistributedType.MULTI_CPU, ranks: 3, cpu:0" in lines
        alone = run(project, "-H", project / "machines", *guides, "-n", "1", "--ppn", "1", *script)
        found, wanted = (
            [float(loss) for loss in re.findall(r"^\[0\] epoch .* loss (\S+)", text, re.MULTILINE)]
            for text in (ran.out, alone.out)
        )
        assert len(wanted) == 4
        assert wanted[-1] < wanted[0] - 0.1, "it learns nothing"
        assert found == pytest.approx(wanted, abs=0.0015)


def test_bindings_without_oneccl_use_packages_of_the_user_stack(
    bindings: Path | None, ipex: Installed, lab: Lab, tmp_path: Path
) -> None:
    """In place of the environment there: for two of torch's CUDA build the disk is too small."""
    wheels = require_bindings(bindings)
    assert ipexctl("envs", "-H", lab.hostfile, "--remove", "default", timeout=300).rc == 0
    rows = [{"name": "ipex-2.8", "requires": ["oneccl==2021.15.*", "impi-rt==2021.15.*"]}]
    (tmp_path / "ipexctl").mkdir()
    (tmp_path / "ipexctl" / "rows.json").write_text(json.dumps(rows))
    found = ("--find-links", str(wheels / "system"), "--require-oneccl")
    ccl = install(lab, *IPEX, *found, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert (ccl.rc, ccl.statuses) == (0, dict.fromkeys(("node1", "node2", "node3"), "changed")), ccl.report
    assert ccl.crossed < 300e6, "the hosts have all other wheels"
    check_ccl(ccl.report)
    host = ccl.report["hosts"][0]
    assert host["verify"]["launcher"].endswith(f"/envs/{host['env']}/bin/mpiexec.hydra")
    assert ccl.report["stack"]["mpi"] == host["packages"]["impi-rt"]
    assert host["packages"]["impi-rt"].startswith("2021.15.")
    assert host["packages"]["oneccl"].startswith("2021.15.")
    assert "intel-openmp" in host["packages"], "what a user's row requires is added"


def test_removal_leaves_no_files(lab: Lab, ipex: Installed) -> None:
    ran = ipexctl("envs", "-H", lab.hostfile, "--remove", "default", timeout=300)
    assert ran.rc == 0, ran.err
    check_nothing_left(lab)
