"""A pasted line of another launcher is taken apart, and its options are used below those of the call."""

from __future__ import annotations

import contextlib
import resource
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launch_helpers import cpu, machine, plan, request, software, value

from case_table import case_table, literals_of
from ipexctl.errors import UserError
from ipexctl.launch.accelerate_config import with_config
from ipexctl.launch.launchers.launcher_options import LAUNCHERS
from ipexctl.launch.launchers.shell_script import find_launcher
from ipexctl.launch.launchers.unwrap import UnwrappedCall, unwrap
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.spec import AccelerateConfig, RunSpec
from ipexctl.node.common.plan import Plan, command_of
from ipexctl.node.common.run_options import CommandKind, Export
from ipexctl.projects.script_file import ScriptFile
from message_data import missing
from plan_helpers import changed, small_plan, spec_of

SPR = cpu(64, 2, sockets=2)
CALL = spec_of()


def unwrapped(
    line: str | list[str],
    options: RunSpec = CALL,
    environ: dict[str, str] | None = None,
    config: AccelerateConfig | None = None,
    given: tuple[str, ...] = (),
    kind: CommandKind = "command",
) -> UnwrappedCall:
    """The line as a shell divides it; `given`: options that the call of run has beside it."""
    words = shlex.split(line.replace("\\\n", " ")) if isinstance(line, str) else line
    spec = changed(options, kind=kind, argv=tuple(words), is_behind_dashes=kind == "command")
    found = unwrap(spec, given, config, environ or {})
    assert found is not None
    return found


def ranks(found: UnwrappedCall) -> tuple[int | None, int | None]:
    return found.spec.asked.n, found.spec.asked.ppn


def of_run(found: UnwrappedCall) -> dict[str, Any]:
    """The options beside those of the ranks that the line sets."""
    names = ("iface", "python", "max_restarts")
    return {name: value for name in names if (value := getattr(found.spec.asked, name)) != getattr(CALL.asked, name)}


def exports(found: UnwrappedCall) -> dict[str, str]:
    return found.spec.variables


@case_table
def test_the_command_behind_the_launchers_is_run(kind: str, line: str, words: str) -> None:
    found = unwrapped(line)
    assert (found.spec.asked.kind, " ".join(found.spec.asked.argv)) == (kind, words)


@case_table
def test_other_commands_are_left_as_they_are(line: str) -> None:
    assert unwrap(spec_of("command", tuple(shlex.split(line))), (), None, {}) is None
    assert find_launcher(shlex.split(line)) == ""


def test_the_environment_of_a_line_is_named_and_its_packages_are_taken_over() -> None:
    found = unwrapped("uv run --with tqdm --with 'rich,peft>=0.1' --extra train x.py")
    assert found.spec.asked.install
    assert found.spec.asked.packages == ("tqdm", "rich", "peft>=0.1")
    assert missing(found.note, "uv --with tqdm 'peft>=0.1' -r 'uv.lock[train]'") == []
    for line, named in (("uv run x.py", "-r uv.lock"), ("conda run -n E python x.py", "--python PATH")):
        assert named in unwrapped(line).note
    assert unwrapped("uv run torchrun --nproc_per_node 2 x.py").spec.asked.ppn == 2


def test_an_environment_inside_of_a_rank_is_no_launcher() -> None:
    """A playbook or a script of a shell may start it: it starts no ranks."""
    assert find_launcher(["conda", "run", "-n", "E", "python", "x.py"]) == ""
    assert unwrap(spec_of("command", ("bash", "-c", "cd x; uv run x.py")), (), None, {}) is None


def test_python_in_place_of_a_script_is_left_out() -> None:
    for line, kind, words, run in (
        ("python3 train.py -n 3", "script", ("train.py", "-n", "3"), {}),
        ("python -u -m pkg.mod", "module", ("pkg.mod",), {}),
        ("/opt/venv/bin/python3.11 train.py", "script", ("train.py",), {"python": "/opt/venv/bin/python3.11"}),
    ):
        found = unwrapped(line, kind="script")
        assert (found.spec.asked.kind, found.spec.asked.argv, of_run(found)) == (kind, words, run)
        assert found.note.startswith(f"{line.split()[0]} is left out")
    for other in ("python", "python-train.py x"):
        assert unwrap(spec_of("script", tuple(shlex.split(other))), (), None, {}) is None


def test_the_number_of_ranks() -> None:
    for line, *expected in (
        ("mpirun -n 16 -ppn 4 x", 16, 4), ("mpirun --np 16 -N 4 x", 16, 4), ("mpirun -n=4 x", 4, None),
        ("torchrun --nproc-per-node 3 x.py", None, 3), ("deepspeed --num_gpus 2 x.py", None, 2),
    ):  # fmt: skip
        assert [*ranks(unwrapped(line))] == expected


def test_the_hosts_of_a_line() -> None:
    for option in ("-f", "-hostfile", "--hostfile", "-machinefile"):
        line = f"mpirun {option} my/hosts -hosts a -n 4 python x.py"
        assert unwrapped(line).hosts == {"hostfile": Path("my/hosts")}
        assert unwrapped(line, given=("hosts",)).hosts == {}
    for option in ("-hosts", "--host", "-H"):
        assert unwrapped(f"mpirun {option} a:2,b:2 -n 4 python x.py").hosts == {"hosts": "a:2,b:2"}


def test_the_variables_of_mpirun() -> None:
    for words, expected, hidden in (
        ("-genv OMP_NUM_THREADS=23", {"OMP_NUM_THREADS": "23"}, []),
        ("-genv OMP_NUM_THREADS 23 -env A B -genv C=D=E", {"OMP_NUM_THREADS": "23", "A": "B", "C": "D=E"}, []),
        ("-x A=B -x HERE -x n=3", {"A": "B", "HERE": "value", "n": "3"}, ["HERE"]),
    ):
        found = unwrapped(f"mpirun {words} python x.py", environ={"HERE": "value", "OTHER": "x"})
        assert (exports(found), found.spec.asked.n) == (expected, None)
        assert [export.name for export in found.spec.asked.exports if export.value is None] == hidden
        assert "value" not in found.note


def test_the_python_and_the_interface_of_a_line() -> None:
    for line, run in (
        ("/opt/venv/bin/torchrun --nproc-per-node 2 x.py", {"python": "/opt/venv/bin/python3"}),
        ("/opt/venv/bin/python -m torch.distributed.run x.py", {"python": "/opt/venv/bin/python"}),
        ("/opt/mpi/bin/mpirun -n 2 /opt/venv/bin/accelerate launch x.py", {"python": "/opt/venv/bin/python3"}),
        ("/opt/mpi/bin/mpirun -iface eth1 python x.py", {"iface": "eth1"}),
        ("torchrun --max-restarts 2 x.py", {"max_restarts": 2}),
    ):
        assert of_run(unwrapped(line)) == run


def test_an_option_of_the_call_wins_over_the_line_and_the_line_over_a_file() -> None:
    line = "mpirun -n 16 -ppn 4 -iface eth1 -genv OMP_NUM_THREADS=23 -genv A=1 python x.py"
    own = spec_of(ppn=2, omp=4, exports=(Export("A", "-x", "2"),))
    found = unwrapped(line, own, given=("ppn", "omp", "iface"))
    assert (ranks(found), found.spec.asked.omp, of_run(found)) == ((None, 2), 4, {})
    assert [(export.name, export.value) for export in found.spec.asked.exports] == [("A", "2")]
    assert missing(found.note, "-n -ppn -iface OMP_NUM_THREADS A") == []
    by_file = unwrapped(line.replace("-ppn 4", ""), spec_of(n=3, ppn=5, omp=4))
    assert (ranks(by_file), exports(by_file)["OMP_NUM_THREADS"]) == ((16, None), "23")
    port = unwrapped("torchrun --nproc-per-node 3 --master-port 4444 t.py", spec_of(n=5), given=("n",))
    assert (ranks(port), port.spec.asked.master_port) == ((5, None), 4444)
    assert port.spec.asked.sources["master_port"] == "torchrun --master-port 4444"


def test_the_plan_has_the_threads_of_the_line() -> None:
    found = unwrapped("mpirun -n 2 -genv OMP_NUM_THREADS=23 python3 run_qa.py")
    made = plan(machine(SPR), n=found.spec.asked.n, exports=found.spec.asked.exports)
    assert (value(made, "OMP_NUM_THREADS"), {rank.omp for rank in made.ranks}) == ("23", {23})


def test_exports_of_the_shell_count_with_a_pasted_line() -> None:
    environ = {"CCL_WORKER_COUNT": "1", "MASTER_ADDR": "127.0.0.1", "CCL_ATL_TRANSPORT": "ofi", "SECRET": "x"}
    line = "mpirun -f hostfile -n 4 -ppn 2 python3 run_qa.py"
    found = unwrapped(line, environ=environ)
    assert exports(found) == {"CCL_WORKER_COUNT": "1", "CCL_ATL_TRANSPORT": "ofi"}
    assert found.spec.asked.master_addr == "127.0.0.1"
    assert missing(found.note, "CCL_WORKER_COUNT MASTER_ADDR CCL_ATL_TRANSPORT") == []
    by_call = unwrapped(line, spec_of(ccl_workers=2), environ, given=("ccl_workers",))
    assert exports(by_call) == {"CCL_ATL_TRANSPORT": "ofi"}
    of_line = unwrapped(line.replace("-n", "-genv CCL_WORKER_COUNT 3 -n"), environ=environ)
    assert exports(of_line)["CCL_WORKER_COUNT"] == "3"
    by_ipexrun = unwrapped("ipexrun --nnodes 1 --ccl-worker-count 4 x.py", environ=environ)
    assert (exports(by_ipexrun), by_ipexrun.spec.asked.ccl_workers) == ({"CCL_ATL_TRANSPORT": "ofi"}, 4)
    for port, expected in (("0", None), ("65535", 65535), ("65536", None), ("x", None)):
        assert unwrapped(line, environ={"MASTER_PORT": port}).spec.asked.master_port == expected


def test_a_foreign_master_address_is_not_used() -> None:
    def planned(address: str, *numbers: int) -> tuple[str, list[str]]:
        made = plan(*(machine(SPR, number) for number in numbers), master_addr=address)
        assert value(made, "MASTER_ADDR") == made.master_addr
        return made.master_addr, [note for note in made.notes if address in note]

    assert planned("127.0.0.1", 1) == ("127.0.0.1", [])
    assert planned("10.1.0.1", 1) == ("127.0.0.1", [])
    assert planned("10.1.0.1", 1, 2) == ("10.1.0.1", [])
    assert planned("node1", 1, 2) == ("10.1.0.1", [])
    for other in ("127.0.0.1", "10.9.9.9"):
        address, notes = planned(other, 1, 2)
        assert (address, len(notes)) == ("10.1.0.1", 1)
        assert missing(notes[0], "node1 10.1.0.1") == []


@pytest.mark.parametrize(
    ("text", "hosts", "found"),
    [
        ('os.environ["MASTER_ADDR"] = "10.9.9.9"', 2, "10.9.9.9"),
        ('os.environ["MASTER_ADDR"] = "10.9.9.9"', 1, "10.9.9.9"),
        ("    os.environ['MASTER_ADDR']='localhost'", 2, "localhost"),
        ("    os.environ['MASTER_ADDR']='localhost'", 1, ""),
        ('os.environ["MASTER_ADDR"] = "10.1.0.1"', 2, ""),
        ('dist.init_process_group("gloo", init_method="tcp://10.9.9.9:29500")', 2, "10.9.9.9"),
        ('parser.add_argument("--dist-url", default="tcp://224.66.41.62:23456")', 2, ""),
        ('# os.environ["MASTER_ADDR"] = "10.9.9.9"', 2, ""),
        ('os.environ.setdefault("MASTER_ADDR", "10.9.9.9")', 2, ""),
        ('if "MASTER_ADDR" not in os.environ:\n    os.environ["MASTER_ADDR"] = "127.0.0.1"', 2, ""),
        ('os.environ["MASTER_ADDR"] = sys.argv[1]', 2, ""),
    ],
)
def test_a_script_that_looks_for_rank_0_elsewhere_is_noted_before_the_start(text: str, hosts: int, found: str) -> None:
    made = plan(*(machine(SPR, number + 1) for number in range(hosts)), text=f"import os\n{text}\n")
    notes = [note for note in made.notes if "MASTER_ADDR" in note]
    assert len(notes) == bool(found)
    assert not found or missing(notes[0], f"{found} {made.master_addr} init_method") == []


REFUSED_LINES = literals_of(__file__, "refused_lines")
SHELL_SCRIPTS = literals_of(__file__, "shell_scripts")


def test_a_launcher_is_found_in_what_is_refused() -> None:
    """So that a playbook refuses it, too."""
    scripts = [[*shell, script] for shell in (["bash", "-c"], ["/bin/sh", "-ec"]) for script in SHELL_SCRIPTS]
    for words in (*map(shlex.split, REFUSED_LINES), *scripts):
        assert find_launcher(words), words


def test_what_a_shell_only_says_before_a_launcher_is_left_out() -> None:
    for script in ("set -e\nmpirun -n 2 python x.py", "echo \"it's\" # don't\nmpirun -n 2 python x.py"):
        assert unwrapped(["bash", "-c", script]).spec.asked.argv == ("x.py",)


@pytest.mark.parametrize(
    ("script", "is_named"),
    [
        ("mpirun -n 2 python x.py &", True),
        ("nohup mpirun -n 2 python x.py > log 2>&1 & echo $!\nwait", True),
        ("nohup mpirun -n 2 python x.py &> log &", True),
        ("mpirun -n 2 python x.py &> log", False),
        ("mpirun -n 2 python x.py 2>&1 && echo 'a & b'", False),
    ],
)
def test_a_note_names_the_background_of_a_shells_line(
    script: str, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.sh").write_text(script)
    for words in (["bash", "-c", script], ["bash", "x.sh"]):
        found = unwrapped(words)
        assert found.spec.asked.argv == ("x.py",)
        assert ("without its &" in found.note) is is_named, found.note


@case_table
def test_options_that_ipexctl_has_are_taken_over(line: str, values: dict[str, Any]) -> None:
    found = unwrapped(line)
    taken = {name: taken.value for name, taken in found.values.items() if not name.startswith("$")}
    assert taken == values
    assert missing(found.note, " ".join(f"--{name.replace('_', '-')}" for name in values if name == "limit")) == []


def test_fabric_is_told_what_its_launcher_would_tell_it() -> None:
    found = exports(unwrapped("fabric run --accelerator gpu --strategy ddp --devices 2 --precision bf16-mixed x.py"))
    wanted = "LT_CLI_USED=1 LT_ACCELERATOR=cpu LT_DEVICES=2 LT_STRATEGY=ddp LT_PRECISION=bf16-mixed"
    assert {f"{name}={value}" for name, value in found.items()} == set(wanted.split())


def test_trl_has_the_configuration_of_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 4\n")
    found = unwrapped(f"trl grpo --lr 1 --accelerate_config {tmp_path}/c.yaml --mixed_precision=bf16 --use_cpu True")
    assert found.spec.asked.argv == ("trl.scripts.grpo", "--lr", "1", "--use_cpu", "True")
    assert found.config is not None
    assert (found.config.processes, found.config.mixed_precision) == (4, "bf16")


def test_no_two_launchers_have_one_name() -> None:
    names = [command for row in LAUNCHERS for command in row.commands]
    assert len(names) == len(set(names))
    for command, name in (("/usr/bin/srun -n 4 x", "srun"), ("/v/python -m torch.distributed.run x", "torchrun")):
        assert find_launcher(command.split()) == name


def test_two_launchers_in_one_line() -> None:
    config = AccelerateConfig("c.yaml", "h", processes=8, machines=2, main_port=29500, main_ip="36.112.23.24")
    found = unwrapped("mpirun -f hostfile -n 16 -ppn 4 accelerate launch --mixed_precision bf16 x.py", config=config)
    assert found.config is not None
    assert (found.spec.asked.argv, found.hosts, ranks(found)) == (("x.py",), {"hostfile": Path("hostfile")}, (16, 4))
    assert (found.config.mixed_precision, found.config.processes, found.config.hostfile) == ("bf16", 8, None)
    options = with_config(found.spec, found.config, 4)
    assert (options.asked.n, options.asked.ppn, options.asked.master_port) == (16, 4, 29500)
    assert missing(found.note, "mpirun accelerate --hostfile hostfile -n 16 --ppn 4 --mixed_precision bf16") == []


_END = "-genv OMP_NUM_THREADS=23 python3 run_qa.py --bf16"


@pytest.mark.parametrize(
    "words",
    [
        [" mpirun -f hostfile -n 4 -ppn 2 \\\n -genv OMP_NUM_THREADS=23 \\\n python3 run_qa.py \\\n --bf16\n"],
        [*(" mpirun", "-f", "hostfile", "-n", "4", "-ppn", "2", " "), *_END.split()],
        ["bash", "-lc", "mpirun -f hostfile -n 4 -ppn 2 \\\n-genv OMP_NUM_THREADS=23 python3 run_qa.py '--bf16'"],
    ],
)  # fmt: skip
def test_broken_and_quoted_lines_survive_a_paste(words: list[str]) -> None:
    found = unwrapped(words)
    assert (found.spec.asked.kind, found.spec.asked.argv, found.hosts) == (
        "script",
        ("run_qa.py", "--bf16"),
        {"hostfile": Path("hostfile")},
    )
    assert (ranks(found), exports(found)) == ((4, 2), {"OMP_NUM_THREADS": "23"})


def test_a_program_in_front_is_left_out_with_a_word() -> None:
    for line, kind in (
        ("numactl -C 0-3 torchrun x.py", "command"), ("numactl -C 0-3 python x.py", "script"),
        ("numactl -C 0-3 x.py --lr 1", "script"),
    ):  # fmt: skip
        found = unwrapped(line, kind=kind)  # type: ignore[arg-type]
        assert (found.spec.asked.argv[0], "numactl -C 0-3" in found.note) == ("x.py", True)


def test_parameters_of_an_mpi_library_become_variables() -> None:
    found = unwrapped("mpirun --mca pml ob1 -mca btl tcp,self --mca plm_rsh_agent ssh -n 2 python x.py")
    assert exports(found) == {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    assert missing(found.note, "OMPI_MCA_pml=ob1 plm_rsh_agent") == []


def test_a_variable_that_may_be_a_secret_is_not_shown() -> None:
    note = unwrapped("WANDB_API_KEY=abc LEVEL=info torchrun x.py").note
    assert missing(note, "WANDB_API_KEY LEVEL=info") == []
    assert "abc" not in note


ONE_LINE = """#!/bin/bash
# Starts the training.
set -euo pipefail
export OMP_NUM_THREADS=${2:-3} MODE=fast LEVEL
export PATH=/opt/bin:$PATH
source venv/bin/activate
GPUS=$1
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$HERE"
echo "it starts $GPUS"
CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node $GPUS \\
    --nnodes=${NODES} train.py --out $HERE/out "${@:3}" 2>&1 | tee log.txt
"""


@pytest.mark.parametrize(
    ("text", "words", "runs"),
    [
        ("export A=1\nsource venv\npython train.py $1", "bash x.sh 5", "script train.py 5"),
        ("export A=$(id)\nexec python train.py", "bash x.sh", "command bash x.sh"),
        ("python train.py", "-- bash x.sh", "command bash x.sh"),
        (
            "cd $(dirname $0)/..\nmpirun python `dirname $0`/t.py > log 2>&1 &\nwait",
            "sh in/x.sh",
            "script in/t.py",
        ),
        ('uv sync\nuv run torchrun "$(dirname "$0")"/t.py "$@"', "bash in/x.sh 1 2", "script in/t.py 1 2"),
        ("sh in/y.sh 7", "bash x.sh", "script t.py 7"),
        ('A="--lr 1 \\\n  --x"\ncmd="torchrun t.py $A"\necho $cmd\neval $cmd', "sh x.sh", "script t.py --lr 1 --x"),
        ('cmd="python t.py"\neval "eval $cmd"', "sh x.sh", "script t.py"),
        ('CMD="torchrun t.py"\nbash -c "$CMD 1" > log', "sh x.sh", "script t.py 1"),
        (
            "# It's\nP=$(id) # x\n# u.sh \\\ntorchrun --nproc_per_node auto --master_port $P t.py $1",
            "sh x.sh",
            "script t.py",
        ),
        ("PYTHONPATH=src:$PYTHONPATH torchrun t.py", "bash x.sh", "script t.py"),
        ("python a.py\npython b.py", "bash x.sh a", "command bash x.sh a"),
        ("for i in 1 2; do\npython a.py $i\ndone", "sh -x x.sh", "command sh -x x.sh"),
        ("python -c 'print(1)'", "sh x.sh", "command python -c print(1)"),
        ("python a.py $UNKNOWN", "sh x.sh", "command sh x.sh"),
    ],
)
def test_what_a_shell_script_starts_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str, runs: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in ("x.sh", "in/x.sh"):
        (tmp_path / name).write_text(text)
    (tmp_path / "in/y.sh").write_text("torchrun t.py $1")
    if words.startswith("-- "):  # a command that is to run as it is typed
        assert unwrap(spec_of("command", tuple(words.split()[1:])), (), None, {}) is None
        return
    asked = unwrapped(words, kind="script").spec.asked
    assert f"{asked.kind} {' '.join(asked.argv)}" == runs


def test_a_script_is_planned_with_its_variables_and_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text(ONE_LINE.replace("${NODES}", "2"))
    found = unwrapped("LEVEL=info bash x.sh 4 8 last", kind="script")
    assert (found.spec.asked.argv, ranks(found)) == (("train.py", "--out", "./out", "last"), (None, 4))
    assert exports(found) == {"OMP_NUM_THREADS": "8", "MODE": "fast", "LEVEL": "info"}
    assert missing(found.note, "x.sh PATH venv/bin/activate") == []
    assert ["CUDA_VISIBLE_DEVICES" in note for note in found.other_notes] == [True]


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("cd sub\ntorchrun t.py", "cd sub && ipexctl run torchrun t.py"),
        ("python prepare.py\ntorchrun t.py", "ipexctl run torchrun t.py"),
        ("torchrun t.py\nmpirun -n 2 u.py", "ipexctl run torchrun t.py"),
        ("A=1\nwhile [ $1 ]; do\n  A=$1\ndone\ntorchrun t.py $A", "ipexctl run torchrun t.py 1"),
        (
            "PYTHONPATH=a:$PYTHONPATH srun -p $P \\\n  python t.py",
            "in a job of Slurm it takes the hosts of the allocation",
        ),
        ("if [ $1 ]; then torchrun t.py; fi", "ipexctl run torchrun t.py"),
        ("torchrun t.py --data ~/data/x", "ipexctl run torchrun t.py --data ~/data/x"),
        ("torchrun t.py ~/$(id)", "line 1 of x.sh, and paste the line behind ipexctl run"),
        ("torchrun t.py $DATA", 'ipexctl run torchrun t.py "${DATA}"'),
        ("torchrun t.py ${1%.py} *.txt", "line 1 of x.sh, and paste the line behind ipexctl run"),
        ("uv run accelerate launch t.py; uv run eval.py", "ipexctl run uv run accelerate launch t.py"),
        ("LOG=$(torchrun t.py)", "ipexctl run torchrun t.py"),
        ("torchrun t.py 'no end", "ipexctl run torchrun t.py"),
        ("torchrun t.py" + " --a 1" * 1000, "line 1 of x.sh, and paste the line behind ipexctl run"),
    ],
)
def test_a_script_that_starts_more_than_a_launcher_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text(text)
    with pytest.raises(UserError) as refusal:
        unwrapped("sh x.sh", kind="script")
    assert refusal.value.fix.endswith(fix)


@pytest.mark.parametrize(("text", "runs"), [("numactl -C 0-3 torchrun t.py", True), ("sudo torchrun t.py", False)])
def test_a_launcher_behind_another_program_is_found_in_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, runs: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text(text)
    with contextlib.nullcontext() if runs else pytest.raises(UserError):
        assert unwrapped("sh x.sh", kind="script").spec.asked.argv == ("t.py",)


MAKEFILE = """.PHONY: train
ARGS ?= --lr 1 # usual
all: train
train: data
\t@echo start
\tcd src && python train.py $(ARGS)
both:
\ttorchrun --nproc_per_node 2 t.py
other:
\t$(SHELL) x.sh
"""


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("make train", "cd src && ipexctl run python train.py --lr 1"),
        ("make train ARGS=-x", "cd src && ipexctl run python train.py -x"),
        ("/usr/bin/make -s both", "ipexctl run torchrun --nproc_per_node 2 t.py"),
        ("make", "sets a variable"),
        ("make other", "sets a variable"),
        ("make -C sub both", "sets a variable"),
        ("just train", "sets a variable"),
    ],
)
def test_a_recipe_is_not_run_once_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, fix: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    for kind in ("script", "command"):
        with pytest.raises(UserError) as refusal:
            unwrapped(line, kind=kind)
        assert refusal.value.fix.rstrip("`").endswith(fix)
    assert unwrap(changed(CALL, kind="command", argv=tuple(line.split()), n=1), (), None, {}) is None


def test_a_value_that_may_come_from_the_arguments_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text("M=a\nwhile [ $1 ]; do\n  shift\n  M=$1\ndone\ntorchrun t.py $M")
    for words, fix in (("sh x.sh", "paste its line: ipexctl run torchrun t.py a"), ("sh x.sh -m b", "set M in this")):
        with pytest.raises(UserError) as refusal:
            unwrapped(words, kind="script")
        assert fix in refusal.value.fix


def test_a_file_of_a_shell_that_starts_a_launcher_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"

    def outcome(text: str, *words: str) -> UnwrappedCall | None:
        file.write_text(text)
        return unwrap(spec_of("command", words or (str(file),)), (), None, {})

    starts = "#!/bin/bash\ncd /data\nif true; then\n  mpirun -n 2 \\\n python x.py | tee log\nfi\n"
    for words in ((), ("bash", str(file), "arg")):
        with pytest.raises(UserError, match="mpirun"):
            outcome(starts, *words)
        assert outcome("#!/bin/bash\n# mpirun is not started\necho mpirun\n", *words) is None
    assert outcome(starts.replace("/bin/bash", "/usr/bin/perl")) is None
    for end, mark in (("EOF", "EOF"), ("EOF", "'EOF'"), ("\tEOF", "- EOF")):
        assert outcome(f"#!/bin/sh\ncat <<{mark}\nmpirun -n 2 {file}\n{end}\n./prepare\n") is None
        with pytest.raises(UserError, match="torchrun"):
            outcome(f"#!/bin/sh\ncat <<{mark} | tee x\nmpirun -n 2 {file}\n{end}\ntorchrun x.py\n")
    assert unwrap(spec_of("command", ("bash", str(tmp_path / "none.sh"))), (), None, {}) is None


def test_a_number_of_nodes_takes_the_first_hosts() -> None:
    hosts: Any = ("a", "b", "c")
    for line in ("torchrun --nnodes 2 t.py", "deepspeed --num_nodes 2 t.py"):
        assert unwrapped(line).used_hosts(hosts) == hosts[:2]
    assert unwrapped("torchrun t.py").used_hosts(hosts) == hosts
    with pytest.raises(UserError, match="4"):
        unwrapped("ipexrun --nnodes 4 t.py").used_hosts(hosts)


IPEX_LAUNCH = "intel_extension_for_pytorch.cpu.launch"


def test_independent_copies_and_distributed_ranks_of_ipexrun() -> None:
    for words, expected in (
        ("", ("none", 1, None)),
        ("--ninstances 2", ("none", 2, None)),
        ("--ninstances 4 --ncores-per-instance 8", ("none", 4, 8)),
        ("--nnodes 2 --nprocs-per-node 2 --ncores-per-instance 8", ("auto", None, 8)),
    ):
        for launcher in ("ipexrun", "python -m torch.backends.xeon.run_cpu", f"python -m {IPEX_LAUNCH}"):
            options = unwrapped(f"{launcher} {words} x.py").spec
            assert (options.asked.backend, options.asked.n, options.asked.omp) == expected
    assert unwrapped("ipexrun x.py", spec_of(backend="gloo", ppn=2), given=("backend",)).spec.asked.backend == "gloo"


def test_allocator_and_openmp_of_ipexrun() -> None:
    libraries = {"libtcmalloc": ("/l/libtcmalloc.so.4",), "libjemalloc": ("/l/libjemalloc.so.2",)}
    libraries["libiomp5"] = ("/l/libiomp5.so",)
    full, bare = machine(SPR, software=software(libraries=libraries)), machine(SPR)

    def preload(words: str, facts: Any = full) -> tuple[str | None, list[str]]:
        options = unwrapped(f"ipexrun {words} x.py").spec
        made = plan(facts, n=1, backend="none", allocator=options.asked.allocator, openmp=options.asked.openmp)
        return value(made, "LD_PRELOAD"), [note for note in made.notes if "apt" in note or "intel-openmp" in note]

    assert preload("--memory-allocator tcmalloc --omp-runtime intel") == ("/l/libiomp5.so:/l/libtcmalloc.so.4", [])
    assert preload("--memory-allocator jemalloc --omp-runtime default") == ("/l/libjemalloc.so.2", [])
    assert preload("--memory-allocator default") == ("/l/libiomp5.so", [])
    assert preload("", bare) == (None, [])
    assert len(preload("--memory-allocator tcmalloc --omp-runtime intel", bare)[1]) == 2


def test_independent_copies_have_no_process_group() -> None:
    made = plan(machine(SPR, 1), machine(SPR, 2), ppn=2, backend="none")
    names = {setting.name for setting in made.settings if setting.value is not None}
    assert not names & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "FI_PROVIDER"}
    assert {value(made, "IPEXCTL_BACKEND"), value(made, "IPEXCTL_WORLD_SIZE")} == {"none", "4"}
    numbers = [(s.host, s.rank, s.value) for s in made.settings if s.name == "IPEXCTL_RANK"]
    assert numbers == [("node1", 0, "0"), ("node1", 1, "1"), ("node2", 2, "2"), ("node2", 3, "3")]
    assert made.connection == "without a process group"


def test_one_process_of_accelerate_without_distribution_has_no_process_group() -> None:
    alone, two = (AccelerateConfig("c.yaml", processes=count, is_distributed=False) for count in (1, 2))
    assert with_config(spec_of(), alone, 1).asked.backend == "none"
    assert with_config(spec_of(n=2), alone, 1).asked.backend == "auto"
    assert with_config(spec_of(backend="gloo"), alone, 1).asked.backend == "gloo"
    assert with_config(spec_of(), AccelerateConfig("c.yaml", processes=1), 1).asked.backend == "auto"
    assert with_config(spec_of(), two, 1).asked.backend == "auto"


def test_accelerate_options_override_its_config_file(tmp_path: Path) -> None:
    text = "distributed_type: MULTI_CPU\nnum_processes: 2\nnum_machines: 4\nmixed_precision: bf16\nipex: true\n"
    (tmp_path / "c.yaml").write_text(text)
    line = f"accelerate launch --config_file {tmp_path}/c.yaml"
    file = unwrapped(f"{line} t.py").config
    assert file is not None
    assert (file.processes, file.mixed_precision, file.ipex) == (2, "bf16", True)
    told = "--num_processes 6 --num_machines 1 --mixed_precision no --mpirun_ccl 2 --num_cpu_threads_per_process 3"
    found = unwrapped(f"{line} {told} t.py")
    config = found.config
    assert config is not None
    assert (config.processes, config.machines, config.mixed_precision, config.ccl_workers) == (6, 1, "no", 2)
    assert (config.ipex, found.spec.asked.omp) == (True, 3)
    assert unwrapped(f"accelerate test --config_file {tmp_path}/c.yaml").config == file
    own = AccelerateConfig("own.yaml")
    assert unwrapped(f"{line} t.py", config=own, given=("accelerate_config",)).config is own
    assert unwrapped(f"{line} t.py", config=own).config == file  # the own one is of a file of defaults
    with pytest.raises(UserError, match="No such file"):
        unwrapped("accelerate launch --config_file /none t.py")
    keys = unwrapped("accelerate launch --ipex_enabled --ipex_fusion_enabled t.py")
    assert keys.config is not None
    assert (keys.config.ipex_enabled, "ipex_config: {ipex: true}" in keys.note) == (True, True)


def test_default_accelerate_config_is_read_unless_cpu_is_given(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 3\nmpirun_config: {mpirun_hostfile: hosts}\n")

    def found(words: str) -> tuple[int | None, str | None, bool]:
        config = unwrapped(f"{words} t.py", environ={"HF_HOME": str(tmp_path)}).config
        assert config is not None
        return config.processes, config.hostfile, config.hostfile_found

    assert found("accelerate launch") == (3, "hosts", True)
    assert found("accelerate launch --cpu") == (None, None, False)
    assert found(f"accelerate launch --config_file {file}") == (3, "hosts", False)
    assert found("accelerate launch --mpirun_hostfile mine") == (3, "mine", False)
    assert found("mpirun -f own accelerate launch")[1] is None


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("python -m torch.distributed.launch --nproc_per_node=2 t.py --lr 1", "--local-rank"),
        ("python -m torch.distributed.launch --use_env t.py", ""),
        ("deepspeed --num_accelerators 2 --bind_cores_to_rank t.py", "--local_rank"),
        ("torchrun --nproc_per_node=2 --log-dir /tmp/x --tee 3 t.py", ""),
    ],
)
def test_each_rank_gets_its_local_rank_as_the_launcher_gives_it(line: str, option: str) -> None:
    assert unwrapped(line).spec.asked.local_rank == option
    command = ("python", "t.py", "--lr", "1")
    plan = small_plan(command=command, local_rank=option, asked={"argv": command[1:]})
    rank = plan.ranks[0]._replace(local_rank=1)
    assert command_of(plan, rank, None, 1) == ("python", "t.py", *([f"{option}=1"] if option else []), "--lr", "1")
    module = command_of(plan._replace(command=("python", "-O", "-m", "pkg.t", "x", "y")), rank, None, 1)
    assert module == ("python", "-O", "-m", "pkg.t", *([f"{option}=1"] if option else []), "x", "y")


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ('add_argument("--local_rank")', "--local_rank"),
        ('add_argument("--local_rank", "--local-rank")', "--local-rank"),
        ("parse_args()", "--local-rank"),
    ],
)
def test_the_local_rank_is_spelled_as_the_script_has_it(text: str, option: str) -> None:
    """torch 2's torch.distributed.launch passes `--local-rank`, which scripts for torch 1 reject."""
    context = request(machine(SPR), local_rank="--local-rank")
    project = replace(context.spec.project, script=ScriptFile("t.py", text=text))
    found = plan_launch(replace(context, spec=replace(context.spec, project=project)), "r-1")
    assert isinstance(found, Plan)
    assert found.local_rank == option


def test_elastic_nodes_standalone_and_the_binding_of_an_mpirun() -> None:
    for line, restarts in (
        ("--nnodes=1:3 --max-restarts 2", 2),
        ("--max-restarts 2 --nnodes=1:3", 2),
        ("--nnodes=1:3", 3),
    ):
        elastic = unwrapped(f"torchrun {line} t.py")
        assert (elastic.spec.asked.min_hosts, elastic.values["nodes"].value, elastic.spec.asked.max_restarts) == (
            1,
            3,
            restarts,
        )
    assert unwrapped("torchrun --standalone --nproc_per_node=4 t.py").values["nodes"].value == 1
    several = unwrapped("torchrun --nproc_per_node=4 t.py")
    assert ("12 ranks" in several.note_on(3), several.note_on(1)) == (True, several.note)
    assert unwrapped("mpirun --bind-to core --map-by socket -n 2 python t.py").spec.asked.bind == "cores"


_CALLED: dict[str, str] = {"called.sh": "x a b\n" * 40_000}


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("cat <<A\n" * 31_000, {}),
        ("B=aaaaaaaaaa\n" + 'B="$B$B$B$B"\n' * 20 + "torchrun $B t.py\n", {}),
        ("A=" * 130_000, {}),
        ("x $((1)) $(a) `b`\n" * 14_000, {}),
        ("sh called.sh\n" * 15_000, _CALLED),
    ],
    ids=["documents without an end", "values that grow", "one long word", "what a shell computes", "scripts in it"],
)
def test_a_hostile_shell_script_is_read_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, others: dict[str, str]
) -> None:
    """Of the size that is read."""
    monkeypatch.chdir(tmp_path)
    for name, content in {"x.sh": text, **others}.items():
        (tmp_path / name).write_text(content)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(UserError):
        unwrapped("bash x.sh", kind="script")
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000


def test_a_shell_script_that_is_too_large_is_refused_and_behind_dashes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text("torchrun x.py\n" + "# more\n" * 40_000)
    for words in (["bash", "-x", "x.sh", "4"], ["./x.sh", "4"]):
        with pytest.raises(UserError) as refused:
            unwrapped(words, kind="script")
        assert missing(refused.value.message + refused.value.fix, f"256 ipexctl run -- {' '.join(words)}") == []
        assert unwrap(spec_of("command", tuple(words)), (), None, {}) is None
    (tmp_path / "python3").write_text("\x7fELF" + "x" * 300_000)
    assert unwrapped("./python3 t.py", kind="script").spec.asked.argv == ("t.py",)
