"""The mpirun command of each MPI, its files, and the choice of the MPI."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import ENV, IPEX, RUN, STOCK, cpu, eth, machine, plan, refusal, software, value, variables

from ipexctl.errors import Refusal
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Env, Mpi
from ipexctl.launch.run_context import RankEnv
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.run_options import Export
from ipexctl.projects.script_file import MpiImport
from message_data import missing

SPR = cpu(64, 2)
RANK = f"{ENV}/bin/python -IS {RUN}/agent.zip run.rank {RUN}/job.json"
BARE = RankEnv("/opt/conda/bin/python", "/opt/conda")
INTEL = Mpi("/opt/intel/oneapi/mpi/latest/bin/mpirun", "intel", "2021.15", on_path=True)
OPEN = Mpi("/usr/bin/mpirun", "openmpi", "4.1.4", on_path=True)


def with_package(name: str, version: str = "5.0.11") -> RankEnv:
    return replace(STOCK, packages={name: version}, variables={"PATH": f"{ENV}/bin"}, prepended=("PATH",))


def two(*, names: tuple[str, str] = ("eth0", "eth0"), **options: Any) -> Plan:
    nics = [(eth(name, f"10.1.0.{at}"),) for at, name in enumerate(names, 1)]
    return plan(machine(SPR, 1, nics=nics[0]), machine(SPR, 2, nics=nics[1]), **options)


def line(found: Plan) -> str:
    return " ".join(found.argv)


def test_intel_mpi_uses_a_machinefile_and_does_not_pin() -> None:
    found = two(slots=(2, 3))
    assert line(found) == (
        f"{ENV}/bin/mpiexec.hydra -genvnone -genv I_MPI_PIN 0 -iface eth0 -machinefile {RUN}/hostfile -n 5 {RANK}"
    )
    assert found.hostfile == "10.1.0.1:2\nnode2:3\n"
    assert {one.name: one.value for one in found.launcher_env} == {
        "I_MPI_ROOT": ENV,
        "I_MPI_PIN": "0",
        "I_MPI_JOB_STARTUP_TIMEOUT": "120",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": f"{RUN}/ssh.sh",
        "I_MPI_HYDRA_BRANCH_COUNT": "2",
    }


def test_launcher_env_has_the_variables_for_mpirun() -> None:
    site = variables(I_MPI_PORT_RANGE="50000:50100", I_MPI_PIN="1")
    found = plan(machine(SPR, 1, environment=site), machine(SPR, 2, environment=site))
    own = {one.name: one.value for one in found.launcher_env}
    assert (own["I_MPI_PORT_RANGE"], own["I_MPI_PIN"]) == ("50000:50100", "0")
    mine = (
        Export("I_MPI_PORT_RANGE", "-x", "4:5"),
        Export("I_MPI_JOB_STARTUP_TIMEOUT", "-x", "9"),
        Export("I_MPI_KEY", "-x", None),
    )
    found = plan(machine(SPR, 1, environment=site), machine(SPR, 2), exports=mine, secrets={"I_MPI_KEY": "hunter2"})
    names = [one.name for one in found.launcher_env]
    assert len(names) == len(set(names))
    own = {one.name: one.value for one in found.launcher_env}
    assert (own["I_MPI_PORT_RANGE"], own["I_MPI_JOB_STARTUP_TIMEOUT"]) == ("4:5", "9")
    assert "hunter2" not in repr(found)


def test_mpich_gets_its_ssh_as_an_argument() -> None:
    found = two(env=with_package("mpich"))
    assert line(found) == (
        f"{ENV}/bin/mpiexec.hydra -genvnone -launcher ssh -launcher-exec {RUN}/ssh.sh -iface eth0 "
        f"-f {RUN}/hostfile -n 4 {RANK}"
    )
    assert found.flavor == "mpich"
    assert found.launcher_env == ()


def test_open_mpi_binds_nothing_and_fills_slots_in_order() -> None:
    found = two(env=with_package("openmpi"))
    assert line(found) == (
        f"{ENV}/bin/mpirun --allow-run-as-root --bind-to none --map-by slot --hostfile {RUN}/hostfile "
        f"--prtemca plm ssh --prtemca ras ^slurm --prtemca plm_ssh_agent {RUN}/ssh.sh "
        "--prtemca plm_ssh_assume_same_shell 1 --prtemca plm_ssh_no_tree_spawn 1 --prtemca prte_if_include eth0 "
        f"-n 4 {RANK}"
    )
    assert found.hostfile == "10.1.0.1 slots=2\nnode2 slots=2\n"
    everywhere = {file.name: file.is_everywhere for file in found.files}
    assert everywhere == {"hostfile": False, "ssh.sh": True}, "its daemons look for the script on every node"
    assert "spaces" in refused_for_space().reason


def refused_for_space() -> Refusal:
    return refusal(machine(SPR, 1), machine(SPR, 2), env=with_package("openmpi"), home_there="/scratch/my home")


def test_open_mpi_4_uses_mca_options() -> None:
    both = software(mpis=(OPEN,))
    found = plan(machine(SPR, 1, software=both), machine(SPR, 2, software=both), env=BARE)
    assert "--prtemca" not in found.argv
    assert "--mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include eth0" in line(found)


def test_different_interface_names_use_the_address_of_node0() -> None:
    words = line(two(names=("eth0", "ens3"), env=with_package("mpich")))
    assert "-localhost 10.1.0.1" in words
    assert "-iface" not in words
    intel = two(names=("eth0", "ens3"))
    assert "-iface" not in line(intel)
    assert intel.hostfile.startswith("10.1.0.1:")


def test_open_mpi_gets_no_interface_that_only_one_host_has() -> None:
    assert "if_include" not in line(two(names=("eth0", "ens3"), env=with_package("openmpi")))


def test_srun_starts_ranks_over_gloo_where_the_plan_has_them_and_binds_nothing() -> None:
    found = two(slots=(1, 2), transport="srun")
    words = found.argv[: found.argv.index(f"{ENV}/bin/python")]
    assert (found.flavor, found.hostfile) == ("srun", "node1\nnode2\nnode2\n")
    assert {"--overlap", "--nodes=2", "--ntasks=3", "--distribution=arbitrary", f"--nodelist={RUN}/hostfile"} < set(
        words
    )
    assert {"--cpu-bind=none", "--mem=0", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"} < set(words)
    assert (words[0], line(found).endswith(RANK), found.launcher_env) == ("srun", True, ())
    assert [file.name for file in found.files] == ["hostfile", "ssh.sh"], "by it node0 asks for lost wrappers"
    assert all(rank.cores for rank in found.ranks), "the wrappers bind"


@pytest.mark.parametrize(("ranks", "is_crowded"), [(2, False), (3, True)])
def test_more_ranks_than_cores_are_asked_of_slurm(ranks: int, is_crowded: bool) -> None:
    small = machine(cpu(2, 1), 1)
    assert ("--overcommit" in plan(small, small, ppn=ranks, transport="srun").argv) == is_crowded


def test_one_host_and_a_named_mpi_need_no_srun() -> None:
    assert plan(machine(SPR, 1), ppn=2, transport="srun").flavor == "intel"
    assert plan(machine(SPR, 1), ppn=1, transport="srun").flavor == "none"
    assert two(transport="srun", mpi="intel").flavor == "intel"


def test_one_host_uses_no_ssh() -> None:
    found = plan(machine(SPR))
    assert line(found) == f"{ENV}/bin/mpiexec.hydra -genvnone -machinefile {RUN}/hostfile -n 2 {RANK}"
    assert {one.name: one.value for one in found.launcher_env}["I_MPI_HYDRA_BOOTSTRAP"] == "fork"
    assert found.hostfile == "127.0.0.1:2\n"
    assert [file.name for file in found.files] == ["hostfile"]
    assert "-launcher fork" in line(plan(machine(SPR), env=with_package("mpich")))
    assert "ssh" not in line(plan(machine(SPR), env=with_package("openmpi")))


def test_mpirun_reaches_hosts_through_their_starters() -> None:
    found = two(home_there="/scratch/my home")
    script = next(file for file in found.files if file.name == "ssh.sh")
    assert (found.has_starters, found.is_direct, found.shell) == (True, False, ())
    assert (script.mode, script.is_everywhere) == (0o700, False)
    run = f"'/scratch/my home/runs/{found.id}"
    assert f"\nexec {ENV}/bin/python -IS {run}/agent.zip' run.host_starter.remote_shell {run}' \"$@\"\n" in script.text
    assert not plan(machine(SPR), n=2).has_starters
    over_srun = two(transport="srun", mpi="intel")
    assert (over_srun.has_starters, over_srun.shell) == (False, (f"{RUN}/ssh.sh",))


def test_node0_is_named_by_address_and_other_nodes_by_name() -> None:
    assert [host.word for host in two().hosts] == ["10.1.0.1", "node2"]


def test_ipv6_addresses_become_names_for_hydra() -> None:
    six = {"node1": "fd00::1", "node2": "fd00::2"}
    assert two(internal=six).hostfile == "node1:2\nnode2:2\n"


def test_mpi_of_the_environment_is_preferred_to_that_of_the_host() -> None:
    both = software(mpis=(INTEL, OPEN))
    hosts = [machine(SPR, at, software=both) for at in (1, 2)]
    assert plan(*hosts).launcher.path == f"{ENV}/bin/mpiexec.hydra"
    assert plan(*hosts, env=BARE).launcher.path == "/opt/intel/oneapi/mpi/latest/bin/mpiexec.hydra"
    assert plan(*hosts, mpi="openmpi").launcher.path == "/usr/bin/mpirun"
    assert plan(*hosts, mpi="/usr/bin/mpirun").flavor == "openmpi"
    assert plan(*hosts, mpi="/opt/intel/oneapi/mpi/latest/bin").launcher.path.endswith("latest/bin/mpiexec.hydra")


def test_an_mpi_counts_only_if_every_host_has_the_same_one_at_its_path() -> None:
    open_here = Mpi("/opt/mpi/bin/mpirun", "openmpi", "4.1")
    mpich_there = Mpi("/opt/mpi/bin/mpirun", "mpich", "4.2")
    hosts = [machine(SPR, at, software=software(mpis=(each,))) for at, each in ((1, open_here), (2, mpich_there))]
    assert plan(*hosts, env=BARE).flavor == "none"
    same = [machine(SPR, at, software=software(mpis=(open_here,))) for at in (1, 2)]
    assert plan(*same, env=BARE).launcher.path == "/opt/mpi/bin/mpirun"


def test_of_two_mpis_of_an_environment_intel_mpi_is_taken() -> None:
    both = RankEnv("/e/bin/python", "/e", packages={"impi-rt": "2021.18.0", "openmpi": "5.0.11", "mpich": "5.0.2"})
    assert plan(machine(SPR), env=both).flavor == "intel"


def test_an_environment_that_is_planned_will_have_its_mpi() -> None:
    planned = RankEnv("/e/bin/python", "/e", "e", packages={"impi-rt": ""}, is_installed=False)
    found = plan(machine(SPR, 1), machine(SPR, 2), env=planned).launcher
    assert (found.path, found.reason) == ("/e/bin/mpiexec.hydra", "the environment e will have it")


def test_a_bundled_intel_mpi_is_found_by_its_root() -> None:
    root = f"{ENV}/lib/python3.11/site-packages/oneccl_bindings_for_pytorch/opt/mpi"
    env = replace(IPEX, packages={"torch": "2.8.0"}, variables={"I_MPI_ROOT": root})
    assert two(env=env).launcher.path == f"{root}/bin/mpiexec.hydra"


def test_fix_names_the_mpi_of_an_installed_environment() -> None:
    def host(number: int, *paths: str) -> Facts:
        envs = tuple(Env(path[-3:], path, "3.11", packages={"impi-rt": "2021.18.1"}) for path in paths)
        return machine(SPR, number, software=software(envs=envs))

    found = refusal(host(1, "/h/one", "/h/two"), host(2, "/h/two"), env=BARE, launcher="mpirun")
    assert missing(found.fix, "two --mpi /h/two/bin/mpirun") == []
    for other in (host(2), host(2, "/h/six")):
        assert "/bin/mpirun" not in refusal(host(1, "/h/one"), other, env=BARE, launcher="mpirun").fix
    assert "/bin/mpirun" not in refusal(host(1, "/h/one"), env=BARE, mpi="openmpi").fix


MPI = machine(SPR, 1), machine(SPR, 2)
"""Their environment has one."""
NO_MPI = {"env": BARE}
NEEDS_MPI = {"mpi_import": MpiImport("mpi4py", "train.py, line 3", is_certain=True)}
MAY_NEED_MPI = {"mpi_import": MpiImport("horovod", "train.py, line 4", is_certain=False)}


@pytest.mark.parametrize(
    ("options", "mode", "why"),
    [
        ({}, "mpirun", "environment"),
        ({"launcher": "mpirun"}, "mpirun", "environment"),
        ({"launcher": "direct"}, "direct", "--launcher"),
        ({"launcher": "direct", "backend": "none"}, "direct", "--launcher"),
        ({"launcher": "direct", "env": IPEX, "backend": "gloo"}, "direct", "--launcher"),
        (NO_MPI, "direct", "mpirun one path"),
        ({**NO_MPI, "backend": "none"}, "direct", "mpirun one path"),
        (NEEDS_MPI, "mpirun", "environment"),
        ({**MAY_NEED_MPI, "transport": "srun"}, "mpirun", "environment"),
        ({**MAY_NEED_MPI, **NO_MPI}, "direct", "mpirun one path"),
    ],
)
def test_ranks_are_started_directly_where_asked_or_where_no_mpirun_could(
    options: dict[str, Any], mode: str, why: str
) -> None:
    found = plan(*MPI, **options)
    assert (found.launcher.mode, missing(found.launcher.reason, why)) == (mode, [])
    if mode == "direct":
        assert (found.flavor, found.files, " ".join(found.argv)) == (
            "none",
            (),
            f"{found.python} {RANK.split(' ', 1)[1]}",
        )
        assert any(not missing(choice, why) for choice in found.choices)


def test_ranks_that_may_each_be_alone_are_a_note() -> None:
    def notes(**options: Any) -> list[str]:
        return [note for note in plan(*MPI, **options).notes if "horovod" in note]

    (note,) = notes(**MAY_NEED_MPI, launcher="direct")
    assert missing(note, "train.py, line 4 --launcher mpirun") == []
    assert notes(**MAY_NEED_MPI) == notes(**MAY_NEED_MPI, launcher="direct", n=1) == []
    assert plan(*MPI, **NEEDS_MPI, **NO_MPI, n=1).launcher.mode == "direct"


def test_several_ranks_on_node0_alone_need_no_other_host() -> None:
    found = plan(machine(SPR), env=BARE, n=2, transport="srun")
    assert (found.flavor, found.world_size) == ("none", 2)


def test_note_names_an_mpirun_outside_the_environment() -> None:
    of_host = plan(machine(SPR, software=software(mpis=(OPEN,))), env=BARE, n=2)
    assert any(not missing(note, OPEN.path) for note in of_host.notes)
    assert not any("/bin/" in note for note in plan(machine(SPR), n=2).notes)


def test_mpi_given_by_path_is_identified_by_its_version_output() -> None:
    seen = Mpi("/opt/x/bin/mpirun", "mpich", "4.2")
    assert plan(machine(SPR), mpi="/opt/x/bin/mpirun", mpi_seen=seen).launcher.path == "/opt/x/bin/mpiexec.hydra"


def test_oneccl_without_intel_mpirun_uses_libfabric() -> None:
    found = two(env=replace(IPEX, packages={"openmpi": "5.0.11"}, variables={}))
    assert (value(found, "CCL_ATL_TRANSPORT"), value(found, "CCL_PROCESS_LAUNCHER")) == ("ofi", "none")
    numbers = [(one.host, one.rank, one.value) for one in found.settings if one.name == "CCL_LOCAL_RANK"]
    assert numbers == [("node1", 0, "0"), ("node1", 1, "1"), ("node2", 2, "0"), ("node2", 3, "1")]
    assert value(two(env=IPEX), "CCL_ATL_TRANSPORT") == "mpi"


@pytest.mark.parametrize(
    ("kind", "words", "expected"),
    [
        ("script", ("train.py", "-x"), (f"{ENV}/bin/python", "train.py", "-x")),
        ("module", ("pkg.train",), (f"{ENV}/bin/python", "-m", "pkg.train")),
        ("command", ("IMB-MPI1", "allreduce"), ("IMB-MPI1", "allreduce")),
    ],
)
def test_command_of_a_rank(kind: str, words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert plan(machine(SPR), kind=kind, command=words).command == expected


def test_backend_follows_the_environment() -> None:
    assert (plan(machine(SPR)).backend, plan(machine(SPR), env=IPEX).backend) == ("gloo", "ccl")
    assert plan(machine(SPR), env=IPEX, backend="gloo").backend == "gloo"
    own = replace(STOCK, mpi_backend=None, name=None)
    assert plan(machine(SPR), env=own, backend="mpi").backend == "mpi"
    assert value(plan(machine(SPR), env=own, backend="mpi"), "IPEXCTL_BACKEND") == "mpi"


def test_single_rank_starts_without_mpirun_unless_mpi_is_given() -> None:
    bare = replace(STOCK, packages={"torch": "2.13.0"}, variables={})
    for env in (bare, STOCK, replace(IPEX, variables={})):
        found = plan(machine(SPR), env=env, n=1)
        assert (found.flavor, " ".join(found.argv)) == ("none", RANK)
        assert (found.launcher_env, found.files, value(found, "I_MPI_PIN")) == ((), (), None)
        assert (value(found, "RANK"), value(found, "WORLD_SIZE"), found.ranks[0].omp) == ("0", "1", 64)
    over_ccl = plan(machine(SPR), env=IPEX, n=1, backend="ccl")
    assert (over_ccl.flavor, value(over_ccl, "CCL_ATL_TRANSPORT")) == ("none", "ofi")
    assert plan(machine(SPR), env=STOCK, n=1, mpi="intel").flavor == "intel"
    mpi_backend = replace(STOCK, mpi_backend=True)
    assert plan(machine(SPR), env=mpi_backend, n=1, backend="mpi").flavor == "intel"
