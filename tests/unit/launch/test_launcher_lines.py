"""A pasted line of another launcher is taken apart, and its options are used below those of the call."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from launch_helpers import counts, cpu, machine, plan, software, value

from ipexctl.errors import CommandLineError, UserError
from ipexctl.launch.accelerate_config import AccelerateConfig, options_of
from ipexctl.launch.launchers.line import find_launcher, read_line
from ipexctl.launch.launchers.table import LAUNCHERS, REFUSED
from ipexctl.launch.launchers.unwrap import TypedOptions, UnwrappedCall, config_of, unwrap
from ipexctl.launch.request import Export, LaunchOptions
from message_data import missing

SPR = cpu(64, 2, sockets=2)


def unwrapped(
    line: str,
    options: LaunchOptions | None = None,
    environ: dict[str, str] | None = None,
    config: AccelerateConfig | None = None,
    **call: Any,
) -> UnwrappedCall:
    """The line as a shell divides it; `call`: what the call of run has beside it."""
    words = shlex.split(line.replace("\\\n", " "))
    found = unwrap(words, TypedOptions(options or LaunchOptions(), **call), config, environ or {})
    assert found is not None
    return found


def ranks(found: UnwrappedCall) -> tuple[int | None, int | None]:
    return found.options.n, found.options.ppn


def exports(found: UnwrappedCall) -> dict[str, str]:
    return {export.name: export.value for export in found.options.exports}


def error_of(line: str, **given: Any) -> CommandLineError:
    with pytest.raises(CommandLineError) as caught:
        unwrapped(line, **given)
    return caught.value


def word_at(error: CommandLineError) -> str:
    return error.text[error.column - 1 :].split()[0]


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("torchrun train.py --lr 1", "script", "train.py --lr 1"),
        ("torchrun --nproc-per-node 2 --standalone train.py", "script", "train.py"),
        ("/opt/env/bin/torchrun --nproc_per_node=2 -m pkg.train a", "module", "pkg.train a"),
        ("python -m torch.distributed.run --no-python ./x.sh", "command", "./x.sh"),
        ("python3.11 -u -m torch.distributed.launch --use-env t.py", "script", "t.py"),
        ("accelerate launch t.py --config_file mine", "script", "t.py --config_file mine"),
        ("accelerate launch --cpu --num_processes 4 t.py", "script", "t.py"),
        ("accelerate-launch -m pkg", "module", "pkg"),
        ("python -m accelerate.commands.launch --ipex t.py", "script", "t.py"),
        ("python -m accelerate.commands.accelerate_cli launch --ipex t.py", "script", "t.py"),
        ("accelerate test", "module", "accelerate.test_utils.scripts.test_script"),
        ("mpirun -n 2 python3 -u run_qa.py -n 3", "script", "run_qa.py -n 3"),
        ("mpirun -n 2 python -m pkg.train a", "module", "pkg.train a"),
        ("mpirun -n 2 python -c 'print(1)'", "command", "python -c print(1)"),
        ("mpiexec.hydra -n 2 ./a.out x", "command", "./a.out x"),
        ("mpirun -n 4 accelerate launch --cpu x.py 1", "script", "x.py 1"),
        ("ipexrun cpu --ninstances 2 x.py a", "script", "x.py a"),
        ("ipexrun -m pkg a", "module", "pkg a"),
        ("python -m intel_extension_for_pytorch.cpu.launch --no-python ./x", "command", "./x"),
        ("python -m torch.backends.xeon.run_cpu x.py", "script", "x.py"),
        ("deepspeed --num_gpus 2 x.py --deepspeed", "script", "x.py --deepspeed"),
        ("env CCL_WORKER_COUNT=1 mpirun -n 2 python x.py", "script", "x.py"),
    ],
)
def test_the_command_behind_the_launchers_is_run(line: str, kind: str, words: str) -> None:
    found = unwrapped(line)
    assert (found.kind, " ".join(found.argv)) == (kind, words)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py", "accelerate env", "python -m pip list", "./torchrun.sh", "", "sh -c 'echo rank $RANK'",
        "bash -c 'which mpirun; grep mpirun x'", "numactl -C 0 python x.py", "nohup python x.py", "A=1 python x.py",
    ],
)  # fmt: skip
def test_other_commands_are_left_as_they_are(line: str) -> None:
    assert unwrap(shlex.split(line), TypedOptions(LaunchOptions()), None, {}) is None
    assert find_launcher(shlex.split(line)) == ""


@pytest.mark.parametrize(
    ("line", "kind", "words", "python"),
    [
        ("python3 train.py -n 3", "script", "train.py -n 3", None),
        ("python -u -m pkg.mod a", "module", "pkg.mod a", None),
        ("/opt/venv/bin/python3.11 train.py", "script", "train.py", "/opt/venv/bin/python3.11"),
    ],
)
def test_python_in_place_of_a_script_is_left_out(line: str, kind: str, words: str, python: str | None) -> None:
    found = unwrap(shlex.split(line), TypedOptions(LaunchOptions()), None, {}, is_script=True)
    assert found is not None
    assert (found.kind, " ".join(found.argv), found.run.get("python")) == (kind, words, python)
    assert found.note.startswith(f"{line.split()[0]} is left out")


@pytest.mark.parametrize("line", ["python", "python -c 'print(1)'", "train.py", "python-train.py x"])
def test_other_words_in_place_of_a_script_stay(line: str) -> None:
    assert unwrap(shlex.split(line), TypedOptions(LaunchOptions()), None, {}, is_script=True) is None


@pytest.mark.parametrize("line", ["torchrun", "mpirun -n 2", "accelerate launch --cpu", "ipexrun --ninstances 2"])
def test_a_launcher_with_nothing_to_launch_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="what\\?"):
        unwrapped(line)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-n 16 -ppn 4", (16, 4)),
        ("-np 16 -perhost 4", (16, 4)),
        ("--np 16 -N 4", (16, 4)),
        ("-c 8", (8, None)),
        ("-npernode 2", (None, 2)),
        ("-pernode -n 4", (4, 1)),
        ("--map-by ppr:2:node", (None, 2)),
        ("--map-by ppr:2:node:PE=4 -n 4", (4, 2)),
        ("--map-by socket -n=4", (4, None)),
        ("", (None, None)),
    ],
)
def test_the_ranks_of_mpirun(words: str, expected: tuple[int | None, int | None]) -> None:
    assert ranks(unwrapped(f"mpirun {words} python x.py")) == expected


@pytest.mark.parametrize("option", ["-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile"])
def test_the_hostfile_of_mpirun(option: str) -> None:
    line = f"mpirun {option} my/hosts -n 4 python x.py"
    assert (unwrapped(line).hostfile, unwrapped(line).hosts) == ("my/hosts", None)
    assert unwrapped(line, names_hosts=True).hostfile is None


@pytest.mark.parametrize("option", ["-hosts", "--hosts", "-host", "--host", "-H", "-hostlist", "-machines"])
def test_the_hosts_of_mpirun(option: str) -> None:
    assert unwrapped(f"mpirun {option} a:2,b:2 -n 4 python x.py").hosts == "a:2,b:2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-genv OMP_NUM_THREADS=23", {"OMP_NUM_THREADS": "23"}),
        ("-genv OMP_NUM_THREADS 23", {"OMP_NUM_THREADS": "23"}),
        ("-env A B -genv C=D=E", {"A": "B", "C": "D=E"}),
        ("-x A=B -x HERE", {"A": "B", "HERE": "value"}),
        ("-genvlist HERE,NOT_SET", {"HERE": "value"}),
        ("-genvall -envnone -genvexcl A", {}),
        ("--mca pml ob1", {"OMPI_MCA_pml": "ob1"}),
        ("--gomca pml ob1 --omca btl self", {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}),
        ("--mca hwloc_base_binding_policy none --mca plm_rsh_args '-p 22'", {}),
    ],
)
def test_the_variables_of_mpirun(words: str, expected: dict[str, str]) -> None:
    found = unwrapped(f"mpirun {words} python x.py", environ={"HERE": "value", "OTHER": "x"})
    assert exports(found) == expected
    hidden = [export.name for export in found.options.exports if export.secret]
    assert hidden == (["HERE"] if "HERE" in expected else [])
    assert "value" not in found.note


def test_other_options_of_mpirun() -> None:
    found = unwrapped("mpirun -iface eth1 -bind-to socket --timeout 60 -l -print-rank-map python x.py")
    assert (found.run, found.options.bind, found.options.time_limit) == ({"iface": "eth1"}, "socket", 60)
    assert missing(found.note, "--iface eth1 --bind socket --time-limit 60 -l -print-rank-map") == []
    assert unwrapped("mpirun --mca btl_tcp_if_include eth2 python x.py").run == {"iface": "eth2"}
    assert unwrapped("mpirun --bind-to none python x.py").options.bind == "none"
    assert unwrapped("mpirun -n 2 /opt/venv/bin/python x.py").run == {"python": "/opt/venv/bin/python"}


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("/opt/venv/bin/torchrun --nproc-per-node 2 x.py", "/opt/venv/bin/python3"),
        ("/opt/venv/bin/python -m torch.distributed.run x.py", "/opt/venv/bin/python"),
        ("/opt/venv/bin/accelerate launch -m pkg.x", "/opt/venv/bin/python3"),
        ("/opt/mpi/bin/mpirun -n 2 /opt/venv/bin/accelerate launch x.py", "/opt/venv/bin/python3"),
        ("/opt/mpi/bin/mpirun -n 2 python x.py", None),
        ("torchrun x.py", None),
    ],
)
def test_a_launcher_of_an_environment_names_its_python(line: str, python: str | None) -> None:
    assert unwrapped(line).run.get("python") == python


def test_an_option_of_the_call_wins_over_the_line_and_the_line_over_a_file() -> None:
    line = "mpirun -n 16 -ppn 4 -iface eth1 -genv OMP_NUM_THREADS=23 -genv A=1 python x.py"
    own = LaunchOptions(ppn=2, omp=4, exports=(Export("A", "2"),))
    found = unwrapped(line, own, run={"iface": "eth0"})
    assert (ranks(found), found.options.omp, found.run) == ((None, 2), 4, {})
    assert [(export.name, export.value) for export in found.options.exports] == [("A", "2")]
    assert missing(found.note, "-n -ppn -iface OMP_NUM_THREADS A") == []
    by_file = unwrapped(line, LaunchOptions(n=3, omp=4), defaults=("n", "omp"))
    assert (ranks(by_file), exports(by_file)["OMP_NUM_THREADS"]) == ((16, 4), "23")


def test_threads_of_the_line_are_those_of_the_plan() -> None:
    found = unwrapped("mpirun -n 2 -genv OMP_NUM_THREADS=23 python3 run_qa.py")
    made = plan(machine(SPR), n=found.options.n, exports=found.options.exports)
    assert value(made, "OMP_NUM_THREADS") == "23"
    assert {rank.omp for rank in made.ranks} == {23}


def test_exports_of_the_shell_count_with_a_pasted_line() -> None:
    environ = {"CCL_WORKER_COUNT": "1", "MASTER_ADDR": "127.0.0.1", "CCL_ATL_TRANSPORT": "ofi", "SECRET": "x"}
    line = "mpirun -f hostfile -n 4 -ppn 2 python3 run_qa.py"
    found = unwrapped(line, environ=environ)
    assert exports(found) == {"CCL_WORKER_COUNT": "1", "CCL_ATL_TRANSPORT": "ofi"}
    assert found.options.master_addr == "127.0.0.1"
    assert missing(found.note, "CCL_WORKER_COUNT MASTER_ADDR CCL_ATL_TRANSPORT") == []
    assert exports(unwrapped(line, LaunchOptions(ccl_workers=2), environ)) == {"CCL_ATL_TRANSPORT": "ofi"}
    of_line = unwrapped(line.replace("-n", "-genv CCL_WORKER_COUNT 3 -n"), environ=environ)
    assert exports(of_line)["CCL_WORKER_COUNT"] == "3"


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
    ("line", "place"),
    [
        ("mpirun -n 2 -foo python x.py", "-foo"),
        ("mpirun -n 2 --gtool 'x y' python x.py", "--gtool"),
        ("mpirun -n many python x.py", "-n"),
        ("mpirun -n 0 python x.py", "-n"),
        ("mpirun -n 1 python a.py : -n 1 python b.py", ":"),
        ("mpirun -wdir /x -n 1 python a.py", "-wdir"),
        ("mpirun --map-by ppr:1:socket python a.py", "--map-by"),
        ("mpirun -x NOT_SET python a.py", "-x"),
        ("mpirun -genv 1A=2 python a.py", "-genv"),
        ("mpirun python a.py -n 1 :", ":"),
        ("mpirun -n", "-n"),
        ("mpirun -n 2 torchrun x.py", "torchrun"),
        ("mpirun -n 2 mpirun x.py", "mpirun"),
        ("mpirun -n 2 srun x.py", "srun"),
        ("torchrun --nproc-per-node many t.py", "--nproc-per-node"),
        ("torchrun --nprocs 2 t.py", "--nprocs"),
        ("accelerate launch --multi_gpu t.py", "--multi_gpu"),
        ("accelerate launch --mixed_precison bf16 t.py", "--mixed_precison"),
        ("accelerate config", "accelerate"),
        ("ipexrun --cores-list 0-3 t.py", "--cores-list"),
        ("ipexrun --memory-allocator mimalloc t.py", "--memory-allocator"),
        ("ipexrun --ninstances x t.py", "--ninstances"),
        ("deepspeed --include a t.py", "--include"),
        ("nohup mpirun -n 2 python x.py", "nohup"),
        ("srun -n 4 python x.py", "srun"),
        ("python -m horovod.runner.launch x.py", "horovod.runner.launch"),
    ],
)
def test_what_cannot_be_translated_is_refused_at_its_place(line: str, place: str) -> None:
    error = error_of(line)
    assert word_at(error) == place if place != ":" else error.text[error.column - 1] == ":"
    assert error.fix
    assert find_launcher(shlex.split(line))  # so that a playbook refuses it, too


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("srun -n 2 python train.py --lr 1", "ipexctl run -n 2 train.py --lr 1"),
        ("srun --ntasks=4 --mpi=pmi2 ./train.py", "ipexctl run -n 4 ./train.py"),
        ("srun -N 2 python -m pkg -n 3", "ipexctl run -m pkg -n 3"),
        ("horovodrun -np 8 -H a:4,b:4 /v/bin/python t.py", "ipexctl run -n 8 --python /v/bin/python t.py"),
        ("srun -n many python t.py", "ipexctl run t.py"),
        ("srun -n 2 torchrun t.py", ""),
        ("srun -n 2 python -c 'print(1)'", ""),
        ("mpirun -n 2 srun t.py", ""),
        ("srun -n", ""),
    ],
)
def test_another_launcher_gets_the_call_in_its_place(line: str, call: str) -> None:
    fix = error_of(line).fix
    assert fix.startswith(f"{call}; ") if call else "ipexctl run" not in fix
    assert ("left out" in fix) == any(option in line.partition("python")[0] for option in ("-N ", "--mpi", "-H "))


@pytest.mark.parametrize("flag", ["-I", "-E", "-s"])
def test_a_flag_that_changes_python_stays_in_front_of_the_script(flag: str) -> None:
    assert (found := unwrapped(f"mpirun -n 2 python {flag} x.py")).argv == ("python", flag, "x.py")
    assert found.kind == "command"
    assert unwrapped("mpirun -n 2 python -u -B x.py").argv == ("x.py",)


def test_every_other_launcher_is_refused() -> None:
    for name in ("srun", "horovodrun", "jsrun", "prterun", "prun", "aprun"):
        assert REFUSED[name]
        assert find_launcher([f"/usr/bin/{name}", "-n", "4", "x"]) == name


def test_the_table_says_why() -> None:
    """An option without effect or refused has its reason, and no two launchers have one name."""
    for row in LAUNCHERS:
        for name, option in row.options.items():
            if option.effect in ("ignored", "refused"):
                assert option.reason, (row.name, name)
            assert bool(option.fix) == (option.effect == "refused"), (row.name, name)
    names = [*(command for row in LAUNCHERS for command in row.commands), *((name,) for name in REFUSED)]
    assert len(names) == len(set(names))


def test_two_launchers_in_one_line() -> None:
    config = AccelerateConfig("c.yaml", processes=8, machines=2, main_port=29500, main_ip="36.112.23.24")
    found = unwrapped("mpirun -f hostfile -n 16 -ppn 4 accelerate launch --mixed_precision bf16 x.py", config=config)
    assert found.config is not None
    assert (found.argv, found.hostfile, ranks(found)) == (("x.py",), "hostfile", (16, 4))
    assert (found.config.mixed_precision, found.config.processes) == ("bf16", 8)
    options = options_of(found.config, found.options, 4)
    assert (options.n, options.ppn, options.master_port) == (16, 4, 29500)
    assert missing(found.note, "mpirun accelerate -H hostfile -n 16 --ppn 4 --mixed_precision bf16") == []


_END = "-genv OMP_NUM_THREADS=23 python3 run_qa.py --bf16"


@pytest.mark.parametrize(
    "words",
    [
        [" mpirun -f hostfile -n 4 -ppn 2 \\\n -genv OMP_NUM_THREADS=23 \\\n python3 run_qa.py \\\n --bf16\n"],
        [*(" mpirun", "-f", "hostfile", "-n", "4", "-ppn", "2", " "), *_END.split()],
        ["bash", "-c", "mpirun -f hostfile -n 4 -ppn 2 \\\n-genv OMP_NUM_THREADS=23 python3 run_qa.py --bf16"],
        ["bash", "-lc", "set -e\nmpirun -f hostfile -n 4 -ppn 2 -genv OMP_NUM_THREADS=23 python3 run_qa.py --bf16"],
    ],
)  # fmt: skip
def test_broken_and_quoted_lines_survive_a_paste(words: list[str]) -> None:
    found = unwrap(words, TypedOptions(LaunchOptions()), None, {})
    assert found is not None
    assert (found.kind, found.argv, found.hostfile) == ("script", ("run_qa.py", "--bf16"), "hostfile")
    assert (ranks(found), exports(found)) == ((4, 2), {"OMP_NUM_THREADS": "23"})


def test_a_script_of_a_shell_is_understood() -> None:
    script = "source /opt/intel/setvars.sh --force; export CCL_WORKER_COUNT=1 A=b && mpirun -n 2 python x.py"
    found = unwrapped(f"bash -c {shlex.quote(script)}")
    assert found.run == {"setup": "/opt/intel/setvars.sh"}
    assert missing(found.note, "--force without arguments") == []
    assert (found.argv, exports(found)) == (("x.py",), {"CCL_WORKER_COUNT": "1", "A": "b"})


@pytest.mark.parametrize(
    "script",
    [
        "source $path/env/setvars.sh; mpirun -n 2 python x.py",
        "source env/setvars.sh; mpirun -n 2 python x.py",
        "source; mpirun -n 2 python x.py",
        "mpirun -n 2 python $SCRIPT",
        "mpirun -n 2 python x.py; echo done",
        "mpirun -n 2 python x.py | tee log",
        "mpirun -n 2 python x.py > log",
        "cd /data && mpirun -n 2 python x.py",
        "for i in 1 2; do\nmpirun -n 2 python x.py\ndone",
        "mpirun -n 2 python x.py &",
        "torchrun x.py 'no end",
        "srun -n 2 python x.py",
        "nohup mpirun -n 2 python x.py",
    ],
)
def test_another_script_of_a_shell_is_refused(script: str) -> None:
    for shell in (["bash", "-c"], ["/bin/sh", "-ec"]):
        with pytest.raises(UserError) as caught:
            unwrap([*shell, script], TypedOptions(LaunchOptions()), None, {})
        assert caught.value.fix
        assert find_launcher([*shell, script])


@pytest.mark.parametrize(
    "words",
    [
        ["mpirun -n 4 python x.py --tag run#1 --lr 3"],
        ["bash", "-c", "export A=1  # don't forget\nmpirun -n 4 python x.py --tag run#1 --lr 3"],
        ["bash", "-c", "mpirun -n 4 python x.py --tag 'run#1' --lr 3 # the end"],
    ],
)
def test_a_hash_begins_a_comment_only_where_a_word_begins(words: list[str]) -> None:
    line = read_line(words)
    assert line is not None
    assert line.argv == ("x.py", "--tag", "run#1", "--lr", "3")


@pytest.mark.parametrize(
    "value", ["~/data", "--data=~/data", "\"a's $HOME b's\"", "data/*.txt", "part?", "x.{a,b}", "{1..3}", "`hostname`"]
)
def test_what_only_a_shell_expands_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="only a shell replaces"):
        read_line(["bash", "-c", f"mpirun -n 2 python x.py {value}"])


@pytest.mark.parametrize("value", ["a~", "'~/data'", '"about ~5"', r"\$HOME", "'*.txt'", "[0,1]", "{}", r"x\*"])
def test_what_a_shell_does_not_expand_is_kept(value: str) -> None:
    line = read_line(["bash", "-c", f"mpirun -n 2 python x.py {value}"])
    assert line is not None
    assert line.argv == ("x.py", *shlex.split(value))


@pytest.mark.parametrize("options", ["-W ignore", "-Wignore -u", "-O", "-X faulthandler -OO"])
def test_a_launcher_is_found_behind_options_of_python(options: str) -> None:
    assert unwrapped(f"python {options} -m torch.distributed.run x.py").argv == ("x.py",)


def test_a_program_before_python_may_have_the_name_of_a_launcher_as_an_argument() -> None:
    assert read_line(["nice", "python", "x.py", "--dataset", "ds"]) is None
    assert find_launcher(["env", "-i", "mpirun", "-n", "2", "./a"])
    assert find_launcher(["nice", "python", "-m", "torch.distributed.run", "x.py"])


def test_the_module_of_accelerate_is_read_like_its_command() -> None:
    module = "python -m accelerate.commands.accelerate_cli"
    assert unwrapped(f"{module} launch --num_processes 2 x.py").argv == ("x.py",)
    assert word_at(error_of(f"{module} config")).startswith("accelerate")
    assert read_line(f"{module} env".split()) is None
    assert read_line(module.split()) is None


def test_a_file_of_a_shell_that_starts_a_launcher_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"

    def outcome(text: str, *words: str) -> UnwrappedCall | None:
        file.write_text(text)
        return unwrap(words or (str(file),), TypedOptions(LaunchOptions()), None, {})

    starts = "#!/bin/bash\ncd /data\nif true; then\n  mpirun -n 2 \\\n python x.py | tee log\nfi\n"
    for words in ((), ("bash", str(file), "arg")):
        with pytest.raises(UserError, match="mpirun"):
            outcome(starts, *words)
        assert outcome("#!/bin/bash\n# mpirun is not started\necho mpirun\n", *words) is None
    assert outcome(starts.replace("bash", "python")) is None
    assert outcome(starts.replace("/bin/bash", "/usr/bin/perl")) is None
    for end, mark in (("EOF", "EOF"), ("EOF", "'EOF'"), ("\tEOF", "- EOF")):
        assert outcome(f"#!/bin/sh\ncat <<{mark}\nmpirun -n 2 {file}\n{end}\n./prepare\n") is None
        with pytest.raises(UserError, match="torchrun"):
            outcome(f"#!/bin/sh\ncat <<{mark} | tee x\nmpirun -n 2 {file}\n{end}\ntorchrun x.py\n")
    with pytest.raises(UserError, match="mpirun"):
        outcome("cat <<EOF > x\nmpirun\n")
    assert unwrap(("bash", str(tmp_path / "none.sh")), TypedOptions(LaunchOptions()), None, {}) is None
    assert unwrap(("bash",), TypedOptions(LaunchOptions()), None, {}) is None


def test_torchrun_options_are_used_unless_run_has_its_own() -> None:
    line = "torchrun --nproc-per-node 3 --master-port 4444 --max-restarts 2 t.py"
    port = {"master_port": "torchrun --master-port 4444"}
    sources = {"ranks": "torchrun --nproc-per-node 3", **port}
    found = unwrapped(line, run={"max_restarts": 0})
    assert found.options == LaunchOptions(ppn=3, master_port=4444, sources=sources)
    assert found.run == {"max_restarts": 2}
    assert unwrapped(line, LaunchOptions(n=5)).options == LaunchOptions(n=5, master_port=4444, sources=port)
    assert unwrapped("torchrun --nproc-per-node auto t.py").options == LaunchOptions()


def test_a_number_of_nodes_takes_the_first_hosts() -> None:
    hosts: Any = ("a", "b", "c")
    for line in ("torchrun --nnodes 2 t.py", "torchrun --nnodes 1:2 t.py", "deepspeed --num_nodes 2 t.py"):
        assert unwrapped(line).used_hosts(hosts) == hosts[:2]
    assert unwrapped("torchrun t.py").used_hosts(hosts) == hosts
    with pytest.raises(UserError, match="4"):
        unwrapped("ipexrun --nnodes 4 t.py").used_hosts(hosts)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ("none", 1, None, None)),
        ("--ninstances 2", ("none", 2, None, None)),
        ("--ninstances 4 --ncores-per-instance 8", ("none", 4, 8, None)),
        ("--ncores-per-instance 8", ("none", None, 8, 8)),
        ("--latency-mode", ("none", None, 4, 4)),
        ("--throughput-mode", ("none", None, None, None)),
        ("--ninstances 0", ("none", 1, None, None)),
    ],
)
def test_independent_copies_of_ipexrun(words: str, expected: tuple[str, int | None, int | None, int | None]) -> None:
    for launcher in ("ipexrun", "python -m torch.backends.xeon.run_cpu"):
        options = unwrapped(f"{launcher} {words} x.py").options
        assert (options.backend, options.n, options.omp, options.cores_per_rank) == expected


def test_distributed_ipexrun() -> None:
    line = "ipexrun --nnodes 2 --nprocs-per-node 2 --hostfile hosts --ccl-worker-count 4 --ncores-per-instance 8 x.py"
    found = unwrapped(line)
    options = found.options
    assert (options.backend, found.nodes, options.ppn, found.hostfile) == ("auto", 2, 2, "hosts")
    assert (options.ccl_workers, options.omp, options.cores_per_rank) == (4, 8, None)
    extra = unwrapped("ipexrun --nnodes 1 --extra-mpi-params '-genv A=1 -l' x.py")
    assert exports(extra) == {"A": "1"}
    assert word_at(error_of("ipexrun --nnodes 1 --extra-mpi-params '-genv \"A=1' x.py")) == "--extra-mpi-params"


def test_cores_per_rank_decide_how_many_ranks_a_host_has() -> None:
    assert counts(plan(machine(SPR), cores_per_rank=16, backend="none")) == [4]
    assert counts(plan(machine(SPR), cores_per_rank=1000, backend="none")) == [1]


def test_allocator_and_openmp_of_ipexrun() -> None:
    libraries = {"libtcmalloc": ("/l/libtcmalloc.so.4",), "libjemalloc": ("/l/libjemalloc.so.2",)}
    libraries["libiomp5"] = ("/l/libiomp5.so",)
    full, bare = machine(SPR, software=software(libraries=libraries)), machine(SPR)

    def preload(words: str, facts: Any = full) -> tuple[str | None, list[str]]:
        options = unwrapped(f"ipexrun {words} x.py").options
        made = plan(facts, n=1, backend="none", allocator=options.allocator, openmp=options.openmp)
        return value(made, "LD_PRELOAD"), [note for note in made.notes if "apt" in note or "intel-openmp" in note]

    assert preload("") == ("/l/libiomp5.so:/l/libtcmalloc.so.4", [])
    assert preload("--memory-allocator tcmalloc --omp-runtime intel") == ("/l/libiomp5.so:/l/libtcmalloc.so.4", [])
    assert preload("--memory-allocator jemalloc --omp-runtime default") == ("/l/libjemalloc.so.2", [])
    assert preload("--memory-allocator default") == ("/l/libiomp5.so", [])
    assert preload("--use-default-allocator --disable-iomp") == (None, [])
    assert preload("", bare) == (None, [])
    assert len(preload("--memory-allocator tcmalloc --omp-runtime intel", bare)[1]) == 2


def test_independent_copies_have_no_process_group() -> None:
    made = plan(machine(SPR, 1), machine(SPR, 2), ppn=2, backend="none")
    names = {setting.name for setting in made.settings if setting.value is not None}
    assert not names & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "FI_PROVIDER"}
    assert {value(made, "IPEXCTL_BACKEND"), value(made, "IPEXCTL_WORLD_SIZE")} == {"none", "4"}
    assert [s.value for s in made.settings if s.name == "IPEXCTL_RANK"] == ["0", "1", "2", "3"]
    assert made.connection == "without a process group"


def test_one_process_of_accelerate_without_distribution_has_no_process_group() -> None:
    alone = AccelerateConfig("c.yaml", processes=1, is_distributed=False)
    assert options_of(alone, LaunchOptions(), 1).backend == "none"
    assert options_of(alone, LaunchOptions(n=2), 1).backend == "auto"
    assert options_of(alone, LaunchOptions(backend="gloo"), 1).backend == "gloo"
    assert options_of(AccelerateConfig("c.yaml", processes=1), LaunchOptions(), 1).backend == "auto"
    assert (
        options_of(AccelerateConfig("c.yaml", processes=2, is_distributed=False), LaunchOptions(), 1).backend == "auto"
    )


def test_accelerate_options_override_its_config_file() -> None:
    file = AccelerateConfig("c.yaml", processes=2, mixed_precision="bf16", dynamo={"backend": "INDUCTOR"}, ipex=True)
    found = unwrapped("accelerate launch --num_processes 6 --mixed_precision no --mpirun_ccl 2 t.py", config=file)
    config = found.config
    assert config is not None
    assert (config.processes, config.mixed_precision, config.ccl_workers) == (6, "no", 2)
    assert (config.ipex, config.dynamo) == (True, {"backend": "INDUCTOR"})
    assert config_of({}, file) is file


def test_ipex_options_of_accelerate_name_the_key_in_the_file() -> None:
    found = unwrapped("accelerate launch --ipex_enabled --ipex_fusion_enabled t.py")
    assert found.config is not None
    assert found.config.ipex_enabled is True
    assert found.note.count("ipex_config: {ipex: true}") == 2


def test_named_accelerate_config_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 8\n")
    for words in (f"launch --config_file {file} t.py", f"test --config_file {file}"):
        found = unwrapped(f"accelerate {words}")
        assert found.config is not None
        assert found.config.processes == 8
        assert missing(found.note, "accelerate") == []
    with pytest.raises(UserError, match="No such file"):
        unwrapped("accelerate launch --config_file /none t.py")


def test_default_accelerate_config_is_read_unless_cpu_is_given(tmp_path: Path) -> None:
    place = tmp_path / "hf" / "accelerate"
    place.mkdir(parents=True)
    (place / "default_config.json").write_text('{"distributed_type": "MULTI_CPU", "num_processes": 3}')
    environ = {"HF_HOME": str(tmp_path / "hf")}
    read = unwrapped("accelerate launch t.py", environ=environ)
    assert read.config is not None
    assert (read.config.processes, read.config.path) == (3, str(place / "default_config.json"))
    told = unwrapped("accelerate launch --cpu t.py", environ=environ)
    assert told.config is not None
    assert told.config.processes is None


def test_hostfile_of_the_default_accelerate_config_counts_as_found(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.write_text("distributed_type: MULTI_CPU\nmpirun_config: {mpirun_hostfile: hosts}\n")

    def found(words: str) -> tuple[str | None, bool]:
        asked = unwrapped(f"accelerate launch {words} t.py", environ={"HF_HOME": str(tmp_path)})
        assert asked.config is not None
        return asked.config.hostfile, asked.config.hostfile_found

    assert found("") == ("hosts", True)
    assert found(f"--config_file {file}") == ("hosts", False)
    assert found("--mpirun_hostfile mine") == ("mine", False)
    by_mpirun = unwrapped("mpirun -f own accelerate launch t.py", environ={"HF_HOME": str(tmp_path)})
    assert by_mpirun.config is not None
    assert (by_mpirun.hostfile, by_mpirun.config.hostfile) == ("own", None)


def test_accelerate_threads_option_sets_omp() -> None:
    line = "accelerate launch --num_cpu_threads_per_process 3 t.py --cpu"
    assert (unwrapped(line).options.omp, unwrapped(line).argv) == (3, ("t.py", "--cpu"))
    assert unwrapped(line, LaunchOptions(omp=2)).options.omp == 2
    assert word_at(error_of(line.replace("3", "some"))) == "--num_cpu_threads_per_process"


def test_a_line_is_read_once_for_each_launcher() -> None:
    line = read_line(shlex.split("mpirun -n 2 accelerate launch --cpu x.py"))
    assert line is not None
    assert [call.row.name for call in line.calls] == ["mpirun", "accelerate launch"]


def test_numbers_of_a_launcher_on_both_sides_of_the_limit() -> None:
    assert ranks(unwrapped("mpirun -n 10000000 python x.py")) == (10_000_000, None)
    assert word_at(error_of("mpirun -n 10000001 python x.py")) == "-n"
