"""Real torch on real hosts: sums of ranks over shared memory and `--wire`, what the network costs, counted steps."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import tarfile
from itertools import product
from pathlib import Path

import pytest
from training_lab import Training

from cli_helpers import CommandResult
from ipexctl import inrank
from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.faults import ssh_argv
from lab_helpers import on_host
from lab_run_helpers import by_rank, wheels_from_pypi

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

ALL_REDUCE_CASES = Path(__file__).with_name("all_reduce_cases.py")
COLLECTIVE_CASES = Path(__file__).with_name("collective_cases.py")
GLOO_CASES = Path(__file__).with_name("gloo_cases.py")
STRANGER = Path(__file__).with_name("store_stranger.py")
OWN_CASES = Path(__file__).with_name("torch_own_cases.py")
PAGE = Path(__file__).parents[2] / "docs/allreduce.md"
METER_CASES = Path(__file__).with_name("meter_cases.py")
COUNTED_CASE = {"steps": 6, "samples": 24, "unknown": 0, "is_on": True}
CASES_OF_PYTORCH = (
    *("test_DistributedDataParallelCPU_grad_is_view", "test_accumulate_gradients_no_sync_allreduce_with_then_hook"),
    *("test_all_gather", "test_all_gather_complex", "test_all_gather_full_group", "test_all_gather_object_subgroup"),
    *("test_all_reduce_full_group_max", "test_all_reduce_full_group_sum", "test_all_reduce_min"),
    *("test_all_reduce_sum", "test_all_reduce_sum_async", "test_all_reduce_sum_complex", "test_barrier"),
    *("test_barrier_full_group", "test_broadcast", "test_broadcast_full_group", "test_ddp_create_graph"),
    *("test_gather_object_subgroup", "test_get_future", "test_monitored_barrier_gloo", "test_scatter_object_list"),
    *("test_send_recv_any_source_torch_profiler", "test_static_graph_api_cpu"),
)
MODELS = ("fsdp", "fsdp2", "hsdp", "tp", "ddp", "zero", "compiled")
OTHER_CASES = {
    "accumulation_of_two": {"samples": 48},
    "amp_with_one_skipped_step": {"samples": 28},
    "compiled_step": {"steps": 0, "samples": 0},
    "stream_without_batches": {"samples": 0, "unknown": 4},
    "without_loader": {"samples": 0},
}
"""What differs from COUNTED_CASE."""
RANKS_OF_ONE_HOST = """\
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29533 WORLD_SIZE={ranks} OMP_NUM_THREADS=1 PYTHONPATH=hooks
export IPEXCTL_ALLREDUCE={mode}
cd ~/of-all-reduce
for rank in $(seq {ranks}); do
    flag=$([ $rank = {bare} ] && printf %s -E)
    RANK=$((rank - 1)) LOCAL_RANK=$((rank - 1)) timeout 300 {python} $flag {script} >{mode}.$rank 2>&1 &
done
wait
cat {mode}.*
"""
LEFT_TO_GLOO = {
    *("hook", "hook later", "builtin hook", "join, other divisor", "sparse", "name missing", "subgroup", "small model")
}


def on_one_host(
    training: Training,
    ranks: int,
    script: str,
    mode: str = "backend",
    cases: Path = ALL_REDUCE_CASES,
    *,
    bare: int = 0,
    add: Path | None = None,
) -> str:
    """What ranks print that are started by hand, with the hooks of a run, on the first host. `bare`: number, from 1 on,
    of a rank without hooks."""
    packed = io.BytesIO()
    run, package = (Path(inrank.__file__).parents[depth] for depth in (1, 0))
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(run / "node/run/rank/sitecustomize.py", "hooks/sitecustomize.py")
        archive.add(run / "node/run/rank/rank_hooks.py", "hooks/ipexctl_hooks.py")
        archive.add(package, "hooks/ipexctl_inrank")
        for path in (cases, add) if add else (cases,):
            archive.add(path, path.name)
    host, unpack = (
        training.lab.hosts[0],
        "rm -rf ~/of-all-reduce; mkdir ~/of-all-reduce && tar -C ~/of-all-reduce -xf -",
    )
    subprocess.run([*ssh_argv(host), unpack], input=packed.getvalue(), check=True, timeout=20)
    words = f"{cases.name} {script}"
    values = {"ranks": ranks, "mode": mode, "python": training.python, "script": words, "bare": bare}
    return on_host(host, RANKS_OF_ONE_HOST.format(**values), timeout=310)


def run_all_reduce(training: Training, options: tuple[object, ...], *words: object) -> CommandResult:
    (training.project / ALL_REDUCE_CASES.name).write_bytes(ALL_REDUCE_CASES.read_bytes())
    return training.call("run", *options, ALL_REDUCE_CASES.name, *words, timeout=300)


@pytest.mark.parametrize("ranks", [2, 3])
def test_tensors_are_added_up_with_few_slots_and_ranks_that_pause(training: Training, ranks: int) -> None:
    output = on_one_host(training, ranks, "pieces")
    assert output.splitlines().count("right") == ranks, output


def test_gradients_added_up_in_shared_memory_have_the_bits_of_gloo(training: Training) -> None:
    """However a script trains: two ranks of one host hold the same parameters, on each rank and with either way."""
    found: dict[str, dict[str, set[str]]] = {}
    buckets: dict[str, int] = {}
    for mode in ("shared", "backend"):
        output = on_one_host(training, 2, "ddp", mode)
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        assert len(rows) >= 2 * 28, output
        for row in rows:
            found.setdefault(row["case"], {}).setdefault(mode, set()).add(row["digest"])
            if mode == "shared":
                buckets[row["case"]] = row["buckets"]
    assert {case: len(digests["shared"] | digests["backend"]) for case, digests in found.items()} == dict.fromkeys(
        found, 1
    )
    assert {case for case, count in buckets.items() if not count} == LEFT_TO_GLOO


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_in_shared_memory_have_the_bits_of_gloo(training: Training, ranks: int) -> None:
    output = on_one_host(training, ranks, "bits order groups", "shared", COLLECTIVE_CASES).splitlines()
    assert output.count("right") == ranks, output
    assert [int(line.split()[1]) > 0 for line in output if line.startswith("taken")] == [True] * 3 * ranks, output


@pytest.mark.parametrize(
    ("how", "kind"), [*product(("dies", "stalls"), ("sync", "async")), ("dies", "future"), ("dies", "compiled")]
)
def test_a_collective_ends_as_with_gloo_if_a_rank_dies_or_stalls(training: Training, how: str, kind: str) -> None:
    """gloo's time limit is 6 s there."""
    output = on_one_host(training, 3, f"ends:{how}:{kind}", "shared", COLLECTIVE_CASES).splitlines()
    took = [float(line.split()[2]) for line in output if line.startswith("ended after")]
    assert len(took) == 2, output
    assert max(took) < (3 if how == "dies" else 8), output


def test_collectives_in_shared_memory_keep_what_gloo_promises(training: Training) -> None:
    found = {}
    for mode in ("shared", "backend"):
        output = on_one_host(training, 3, "", mode, GLOO_CASES)
        found[mode] = sorted(line for line in output.splitlines() if line.startswith("case "))
        assert len(found[mode]) == 3 * 14, output
    assert found["shared"] == found["backend"]


def test_an_error_of_torch_in_a_call_ends_the_calls_before_it_and_all_ranks(training: Training) -> None:
    output = on_one_host(training, 3, "'error in start'", "shared", GLOO_CASES)
    found = sorted(json.loads(line.rpartition("start ")[2]) for line in output.splitlines() if "case error in" in line)
    assert found == [[True] * 3, [True] * 3, [True] * 5], output


def test_the_page_says_which_calls_gloo_keeps(training: Training) -> None:
    """With IPEXCTL_GOLDEN=write, this test writes the page's table."""
    output = on_one_host(training, 2, "table", "shared", GLOO_CASES)
    found = [line for line in output.splitlines() if line.startswith("|")]
    before, _, rest = PAGE.read_text().partition("<!-- calls -->\n\n")
    table, _, after = rest.partition("\n\n<!-- end of calls -->")
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        PAGE.write_text("\n\n".join((f"{before}<!-- calls -->", "\n".join(found), f"<!-- end of calls -->{after}")))
    else:
        assert found == table.splitlines(), output


def test_auto_takes_the_sizes_that_gain(training: Training) -> None:
    gained = {"all_gather": 1, "all_gather_into_tensor": 1, "reduce_scatter_tensor": 1, "broadcast": 2, "all_reduce": 3}
    for mode, first in (("shared", dict.fromkeys(gained, 0)), ("auto", gained)):
        output = on_one_host(training, 2, "'taken sizes'", mode, GLOO_CASES)
        rows = [json.loads(line.partition("sizes ")[2]) for line in output.splitlines() if line.startswith("taken s")]
        assert rows == [{name: [at >= least for at in range(3)] for name, least in first.items()}] * 2, output


def test_cases_of_pytorch_pass_in_shared_memory(training: Training, tmp_path: Path) -> None:
    """Those of torch.distributed that use it on CPUs."""
    wheel = next(wheels_from_pypi(tmp_path, "expecttest==0.3.0").glob("expecttest-*.whl"))
    words = f"3 '{'$|'.join(CASES_OF_PYTORCH)}$'"
    output = on_one_host(training, 1, words, "shared", OWN_CASES, add=wheel).splitlines()
    rows = [line.split() for line in output if line.startswith("test_")]
    assert {name: verdict for name, verdict, _ in rows} == dict.fromkeys(CASES_OF_PYTORCH, "pass"), output
    assert all(int(taken) > 0 for _, _, taken in rows), rows


def test_a_rank_without_hooks_is_waited_for_once_and_gloo_keeps_all_groups(training: Training) -> None:
    output = on_one_host(training, 3, "many_groups", "shared", GLOO_CASES, bare=2)
    took = [float(line.split()[1]) for line in output.splitlines() if line.startswith("seconds")]
    assert len(took) == 3, output
    assert 5 < max(took) < 15, output  # PATIENCE for nine groups would be 45 s
    assert "likely a timeout" not in output
    assert "taken 0" in output.splitlines(), output


def test_models_learn_in_shared_memory_what_they_learn_over_gloo(training: Training) -> None:
    found = {}
    for mode in ("shared", "backend"):
        output = on_one_host(training, 2, " ".join(MODELS), mode, COLLECTIVE_CASES).splitlines()
        found[mode] = sorted(line for line in output if line.startswith("losses"))
        taken = [line.split()[1] for line in output if line.startswith("taken")]
        assert [count != "None" and int(count) > 0 for count in taken] == [mode == "shared"] * 2 * len(MODELS)
    assert len(found["shared"]) == 2 * len(MODELS), output
    assert found["shared"] == found["backend"]


def test_sharded_models_learn_on_two_hosts_what_they_learn_over_gloo(training: Training) -> None:
    """Only groups inside a host use shared memory."""
    (training.project / COLLECTIVE_CASES.name).write_bytes(COLLECTIVE_CASES.read_bytes())
    found = {}
    for mode in ("shared", "backend"):
        options = ("-n", 4, "--ppn", 2, "--allreduce", mode)
        ran = training.call("run", *options, COLLECTIVE_CASES.name, "fsdp2", "hsdp", "hsdp2", timeout=300)
        assert ran.rc == 0, ran.err + ran.out
        found[mode] = {
            rank: [line for line in lines if line.startswith("losses")] for rank, lines in by_rank(ran.out).items()
        }
        taken = [[line.split()[1] for line in lines if line.startswith("taken")] for lines in by_rank(ran.out).values()]
        if mode == "shared":
            assert [[int(count) > 0 for count in each] for each in taken] == [[False, True, True]] * 4, taken
    assert found["shared"] == found["backend"]
    assert [len(lines) for lines in found["shared"].values()] == [3] * 4


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("mode", ["bf16", "int8"])
def test_values_between_hosts_are_near_and_equal_on_all_ranks(training: Training, mode: str, hosts: int) -> None:
    """Undefined, tiny and wide ones, of all types; what rounding takes comes in the next steps."""
    ran = run_all_reduce(training, ("-n", hosts, "--ppn", "1", "--wire", mode), "values")
    assert ran.rc == 0, ran.err + ran.out
    assert sorted(line for line in ran.out.splitlines() if "right" in line) == [f"[{r}] right" for r in range(hosts)]


@pytest.mark.parametrize("mode", ["bf16", "int8"])
def test_parameters_are_equal_on_both_hosts_however_a_script_trains(training: Training, mode: str) -> None:
    ran = run_all_reduce(training, ("-n", 2, "--ppn", "1", "--wire", mode), "ddp")
    assert ran.rc == 0, ran.err + ran.out
    rows = [json.loads(line.partition(" ")[2]) for line in ran.out.splitlines() if line[4:5] == "{"]
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["case"], set()).add(row["digest"])
    assert len(rows) == 2 * len(found) >= 2 * 28, ran.out
    assert {case: len(digests) for case, digests in found.items()} == dict.fromkeys(found, 1)
    left = {row["case"] for row in rows if not row["buckets"]}
    assert left == LEFT_TO_GLOO | ({"bfloat16", "float16"} if mode == "bf16" else set())
    reported = [line for line in (ran.out + ran.err).splitlines() if f"--wire {mode} is" in line]
    assert len(reported) == len(set(reported)), reported
    assert f"[0] ipexctl: --wire {mode} is on" in reported
    assert any("is off: the model's process group does not include all ranks" in line for line in reported), reported


def test_ranks_that_get_different_sums_end(training: Training) -> None:
    output = on_one_host(training, 2, "apart", "shared")
    said = (
        "ipexctl: rank 0 and rank 1 got different sums of their gradients at exchange 2, and would train apart; fix: "
    )
    assert sum(line.startswith(said) for line in output.splitlines()) == 2, output


@pytest.mark.parametrize("options", [("--ppn", "2", "--allreduce", "shared"), ("--ppn", "1", "--wire", "int8")])
@pytest.mark.parametrize(
    ("attack", "ends"),
    [
        ("on for the first host alone", ["failed"]),
        ("on for the second host alone", ["failed"]),
        ("no decision", ["left to gloo"]),
        ("types", ["failed", "shared"]),
        ("tables", ["shared"]),
        ("places", ["failed", "shared", "left to gloo"]),
    ],
)
def test_a_stranger_in_the_store_does_not_make_hosts_train_apart(
    training: Training, attack: str, ends: list[str], options: tuple[str, ...]
) -> None:
    """A host that is not in the run writes there while the ranks agree; the second host reads later than the first. On
    a busy machine it may come too late, and a rank may answer too late, which is safe: the attack is tried again."""
    assert any(attacked(training, attack, options) in ends for _ in range(3))


def attacked(training: Training, attack: str, options: tuple[str, ...]) -> str:
    """How a run ended that a stranger attacked, after a check that no ranks trained apart."""
    first, other = training.lab.hosts[0], training.lab.hosts[3]
    port, ranks = 20000 + os.getpid() % 12000, 2 * int(options[1])
    subprocess.run([*ssh_argv(other), "cat >stranger.py"], input=STRANGER.read_bytes(), check=True, timeout=20)
    argv = [training.python, "stranger.py", first.address, str(port), str(ranks), attack]
    with subprocess.Popen([*ssh_argv(other), shlex.join(argv)], stdout=subprocess.PIPE, text=True) as stranger:
        ran = run_all_reduce(training, ("-n", ranks, *options, "--master-port", port), "attacked")
        assert stranger.communicate(timeout=60)[0] == "attacked\n", ran.err
    if ran.rc:
        assert ran.rc == 1, ran.err + ran.out
        assert "; fix: add --allreduce backend" in ran.err
        return "failed"
    rows = [json.loads(line.partition(" ")[2]) for line in ran.out.splitlines() if line[4:5] == "{"]
    assert len(rows) == ranks
    assert len({row["digest"] for row in rows}) == 1, ran.out
    (way,) = {"shared" if row["buckets"] else "left to gloo" for row in rows}
    return way


def test_a_slow_network_is_measured_and_its_advice_shown(training: Training, tmp_path: Path) -> None:
    """That the advice comes true is measured on a machine on which nothing else runs: benchmarks, part `wire`."""
    hosts, summary = training.lab.hosts[:2], tmp_path / "summary.json"
    for host in hosts:
        lab_system.in_host(host, "tc qdisc add dev eth0 root tbf rate 1gbit burst 256kb latency 100ms")
    try:
        options = ("-n", 2, "--ppn", "1", "--omp", "1", "--summary", summary)
        ran = run_all_reduce(training, options, "dense", 30, 64)
    finally:
        for host in hosts:
            lab_system.in_host(host, "tc qdisc del dev eth0 root")
    assert ran.rc == 0, ran.err + ran.out
    network = json.loads(summary.read_text())["network"]
    assert network["share"] > 0.2
    assert network["bytes_per_step"] == pytest.approx(26.2e6, rel=0.05)
    assert network["advice"]["wire"] == "bf16"
    assert f"with --wire bf16 a step would be about {network['advice']['speedup']:.1f}x as fast" in ran.err


def test_steps_and_samples_are_counted_however_a_script_trains(training: Training) -> None:
    (training.project / METER_CASES.name).write_bytes(METER_CASES.read_bytes())
    ran = training.call("run", "-n", 2, "--ppn", "2", METER_CASES.name)
    assert ran.rc == 0, ran.err + ran.out
    for lines in by_rank(ran.out).values():
        found = [json.loads(line) for line in lines if line.startswith("{")]
        rows = {row.pop("case"): row for row in found}
        assert rows == {case: {**COUNTED_CASE, **OTHER_CASES.get(case, {})} for case in rows}
        assert len(rows) == 17
