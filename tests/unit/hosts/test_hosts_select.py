"""The source of the hosts when several are possible, and the options that override or limit it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_table import case_table
from hosts_helpers import any_text
from ipexctl.errors import FileError, UserError
from ipexctl.hosts.allocation import allocated_hosts, read_tasks
from ipexctl.hosts.host import Host
from ipexctl.hosts.select import HostRequest, limit_hosts, select_hosts

SLURM = {"SLURM_JOB_ID": "123", "SLURM_JOB_NODELIST": "slurm[1-2]"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("hostfile", "given", "accelerate", "env", "pbs"):
        (tmp_path / name).write_text(f"from-{name}\n")
    return tmp_path


def test_precedence_of_host_sources(here: Path) -> None:
    pbs = {"PBS_NODEFILE": str(here / "pbs"), "PBS_JOBID": "7.server"}
    request = {"hosts": "a", "hostfile": Path("given"), "accelerate_hostfile": Path("accelerate")}
    environ = {**pbs, **SLURM, "IPEXCTL_HOSTFILE": "env"}

    def take() -> tuple[str, str]:
        selection = select_hosts(HostRequest(**request), environ=environ, cwd=here)  # type: ignore[arg-type]
        return selection.hosts[0].name, selection.source.partition(",")[0]

    assert take() == ("a", "--hosts")
    del request["hosts"]
    assert take() == ("from-given", "given")
    del request["hostfile"]
    assert take() == ("from-accelerate", "accelerate")
    del request["accelerate_hostfile"]
    assert take() == ("from-env", "$IPEXCTL_HOSTFILE (env)")
    del environ["IPEXCTL_HOSTFILE"]
    assert take() == ("slurm1", "Slurm job 123")
    del environ["SLURM_JOB_NODELIST"]
    assert take() == ("from-pbs", "PBS job 7.server")
    environ.clear()
    assert take() == ("from-hostfile", "./hostfile")
    (here / "hostfile").unlink()
    assert take() == ("localhost", "this machine alone")
    assert select_hosts(HostRequest(), environ={}, cwd=here).hosts == (Host("localhost", "localhost"),)


def test_hostfile_is_searched_in_cwd_then_in_project_root(tmp_path: Path) -> None:
    here = tmp_path / "src"
    here.mkdir()
    (tmp_path / "hostfile").write_text("of-the-project\n")
    found = select_hosts(HostRequest(), environ={}, cwd=here, project=tmp_path)
    assert (found.hosts[0].name, found.project_hostfile) == ("of-the-project", tmp_path / "hostfile")
    assert found.source.endswith("/hostfile")
    (here / "hostfile").write_text("of-here\n")
    found = select_hosts(HostRequest(), environ={}, cwd=here, project=tmp_path)
    assert (found.hosts[0].name, found.source, found.project_hostfile) == ("of-here", "./hostfile", None)
    (here / "hostfile").unlink()
    (tmp_path / "hostfile").write_text("a known_hosts=/dev/null\n")
    with pytest.raises(FileError) as refused:
        select_hosts(HostRequest(), environ={}, cwd=here, project=tmp_path)
    assert f"-H {tmp_path}/hostfile" in refused.value.fix


def test_empty_variables_and_a_directory_named_hostfile_are_ignored(tmp_path: Path) -> None:
    environ = {"IPEXCTL_HOSTFILE": "", "SLURM_JOB_NODELIST": "", "PBS_NODEFILE": ""}
    (tmp_path / "hostfile").mkdir()
    assert select_hosts(HostRequest(), environ=environ, cwd=tmp_path).source == "this machine alone"


def test_dangling_link_named_hostfile_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hostfile").symlink_to("gone")
    with pytest.raises(UserError, match="hostfile"):
        select_hosts(HostRequest(), environ={}, cwd=tmp_path)


def test_tilde_in_the_hostfile_option_is_expanded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    selection = select_hosts(HostRequest(hostfile=Path("~/given")), environ={}, cwd=Path("/"))
    assert [host.name for host in selection.hosts] == ["from-given"]


def test_the_command_line_wins_over_the_file_for_every_host(here: Path) -> None:
    (here / "given").write_text("me@a port=22 identity=k\nb\n")
    request = HostRequest(
        hostfile=Path("given"),
        user="you",
        port=2222,
        identity=Path("id"),
        known_hosts=Path("/etc/known"),
        ssh_config=Path("none"),
    )
    for host in select_hosts(request, environ={}, cwd=here).hosts:
        assert (host.user, host.port) == ("you", 2222)
        assert (host.identity, host.known_hosts, host.ssh_config) == (
            here / "id",
            Path("/etc/known"),
            Path("/dev/null"),
        )


def test_ssh_config_option_skips_localhost_beside_remote_hosts(tmp_path: Path) -> None:
    config = Path("lab_config")
    mixed = select_hosts(HostRequest(hosts="localhost,node1", ssh_config=config), environ={}, cwd=tmp_path)
    assert [host.ssh_config for host in mixed.hosts] == [None, tmp_path / config]
    alone = select_hosts(HostRequest(hosts="localhost", ssh_config=config), environ={}, cwd=tmp_path)
    assert [host.ssh_config for host in alone.hosts] == [tmp_path / config]


def test_limit_applies_to_hosts_of_an_allocation(here: Path) -> None:
    selection = select_hosts(HostRequest(limit="!slurm1"), environ=SLURM, cwd=here)
    assert [host.name for host in selection.hosts] == ["slurm2"]


# The hosts a Slurm or PBS job has, and the slots it grants


@pytest.mark.parametrize(
    ("text", "tasks"), [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,4(x2)", [1, 4, 4]), ("8(x1)", [8])]
)
def test_slurm_task_counts_are_expanded(text: str, tasks: list[int]) -> None:
    assert read_tasks(text) == tasks


def slots(environ: dict[str, str]) -> tuple[dict[str, int | None], str]:
    allocation = allocated_hosts(environ)
    assert allocation is not None
    return {host.name: host.slots for host in allocation[0]}, allocation[1]


OF_STEP = {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_NODELIST": "n[1-2]"}
STEP = {"SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (
            {"SLURM_JOB_NODELIST": "n[08-10],gpu1", "SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "2(x3),1"},
            {"n08": 2, "n09": 2, "n10": 2, "gpu1": 1},
        ),
        ({"SLURM_NODELIST": "n1"}, {"n1": None}),
        # `salloc -N2 --exclusive` has a task for every core in its environment, and no number of tasks.
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "48(x2)"}, {"n1": None, "n2": None}),
        # `srun -N1 -n1 --pty bash` on one node of an allocation of two.
        ({"SLURM_JOB_NODELIST": "n[1-2]", **OF_STEP, **STEP}, {"n1": None, "n2": None}),
    ],
)
def test_slurm_nodes_have_the_tasks_that_were_asked_for_as_slots(
    environ: dict[str, str], found: dict[str, int | None]
) -> None:
    assert slots(environ) == (found, "Slurm job")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # PBS Pro: select=2:ncpus=4:mpiprocs=2 · select=2:ncpus=4 · Torque: nodes=1:ppn=2+1
        ("b\nb\na\na\n", {"b": 2, "a": 2}),
        ("b.site\na.site\n", {"b.site": None, "a.site": None}),
        ("b\nb\na\n", {"b": 2, "a": 1}),
        ("b\r\nb", {"b": 2}),
    ],
)
def test_repeated_lines_of_a_pbs_nodefile_are_slots(tmp_path: Path, lines: str, found: dict[str, int | None]) -> None:
    path = tmp_path / "7.server"
    path.write_bytes(lines.encode())
    environ = {"PBS_NODEFILE": str(path), "PBS_JOBID": "7.server", "NCPUS": "4", "OMP_NUM_THREADS": "4"}
    assert slots(environ) == (found, "PBS job 7.server")


def test_outside_a_job_there_is_no_allocation() -> None:
    assert allocated_hosts({}) is None


HOSTS = (
    Host("node10", "node10", groups=("big",)),
    Host("node2", "10.0.0.2", groups=("small", "odd-rack")),
    Host("node1", "node1", groups=("small",)),
    Host("gpu1", "gpu1", groups=("big",)),
    Host("fe80::2", "fe80::2"),
)


@case_table
def test_limit_selects_hosts_in_the_order_of_the_file(spec: str, names: str) -> None:
    assert [host.name for host in limit_hosts(HOSTS, spec)] == names.split()


@given(any_text)
def test_any_limit_gives_hosts_or_a_user_error(spec: str) -> None:
    try:
        assert limit_hosts(HOSTS, spec)
    except UserError as error:
        assert error.message.isprintable()


@given(st.lists(st.sampled_from(["node1", "!node2", "node*", "small", "!big", "fe80::2", "all"]), min_size=1))
def test_limited_hosts_keep_the_order_of_the_file(parts: list[str]) -> None:
    try:
        left = limit_hosts(HOSTS, ",".join(parts))
    except UserError:
        return
    assert list(left) == [host for host in HOSTS if host in left]


def test_limit_may_name_a_file_of_hosts(tmp_path: Path) -> None:
    listed = tmp_path / "site.retry"
    listed.write_text("node2\n\nnode1  # slow\n")
    hosts = tuple(Host(f"node{n}", f"10.0.0.{n}") for n in (1, 2, 3))
    assert [host.name for host in limit_hosts(hosts, f"@{listed}")] == ["node1", "node2"]
    assert [host.name for host in limit_hosts(hosts, f"@{listed},!node1")] == ["node2"]
    listed.write_text("# all but one\n!node2\r\n")
    assert [host.name for host in limit_hosts(hosts, f"@{listed}")] == ["node1", "node3"]
    colon = tmp_path / "12:30.retry"
    colon.write_text("node3\n")
    assert [host.name for host in limit_hosts(hosts, f"@{colon}")] == ["node3"]
