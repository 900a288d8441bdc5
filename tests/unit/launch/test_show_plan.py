"""The plan that `run --dry-run` prints."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from launch_helpers import IPEX, cpu, eth, machine, plan

from ipexctl.facts.cpu import CpuList, NumaNode
from ipexctl.node.common.run_options import Export
from ipexctl.ui.launch_plan import plan_lines, show_plan
from message_data import missing

SPR = cpu(112, 8, sockets=2)
TWO = (machine(SPR, 1), machine("lab-icelake-sp", 2, nics=(eth("ens3", "10.1.0.2"),)))
MACHINES = {f"node{at}": each.cpu for at, each in enumerate(TWO, 1)}
MIXED = plan(
    *TWO,
    env=IPEX,
    command=("train.py", "--name", "it's 5 o'clock"),
    exports=(Export("TOKEN", "--env-file keys", None), Export("TITLE", "-x", "a\x1b[31m\nb")),
    secrets={"TOKEN": "hunter2"},
)


def words_of(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80, 100])
def test_plan_fits_the_terminal_width(width: int) -> None:
    for line in (*plan_lines(MIXED, width), *plan_lines(MIXED, width, machines=MACHINES)):
        assert len(line) <= width or len(line.strip().removesuffix(" \\").split()) == 1, line


def test_equal_hosts_share_rows() -> None:
    names = [f"node{at}" for at in range(1, 33)]
    many = plan(*(machine(SPR, at) for at in range(1, 33)), ppn=2)
    lines = list(plan_lines(many, machines=dict.fromkeys(names, SPR)))
    assert any(line.startswith("  0  ranks 0,2,4,…,62: ") for line in lines)
    assert len(lines) < 164
    few = plan(*(machine(SPR, at) for at in range(1, 9)), ppn=2)
    lines = list(plan_lines(few, machines=dict.fromkeys(names, SPR)))
    assert any(line.startswith("  node[1-8]: ") for line in lines)
    assert any(line.startswith("  0  ranks 0,2,4,6,8,10,12,14: ") for line in lines)


def test_drawing_says_which_rank_has_each_core() -> None:
    limited = cpu(16, 2, sockets=2, affinity=CpuList.of(range(3, 16)))
    found = plan(machine(limited, 1), machine(limited, 2), env=IPEX)
    machines = dict.fromkeys(("node1", "node2"), limited)
    lines = list(plan_lines(found, machines=machines))
    drawing = [line.split() for line in lines if line.startswith("    NUMA node")]
    assert drawing == [["NUMA", "node", "0", "---0000+"], ["NUMA", "node", "1", "1111+..."]]
    ranks = [line.strip() for line in lines if "threads, memory" in line]
    assert [missing(*each) for each in zip(ranks, ("0,2 3-6 7 4 node 0", "1,3 8-11 12 4 node 1"), strict=True)] == [
        [],
        [],
    ]
    alone = plan(machine(cpu(8, 2)), bind="none", ppn=1)
    text = words_of("\n".join(plan_lines(alone, machines={"node1": cpu(8, 2)})))
    assert "0000 NUMA node 1 0000" in text
    assert "rank 0: not bound, 8 threads, any memory" in text


@pytest.mark.parametrize("ppn", [8, 64])
def test_a_plan_of_large_hosts_lists_few_cores_in_a_line(ppn: int) -> None:
    """Eight sockets of 60 cores, numbered in turn: a rank has every eighth core."""
    nodes = tuple(
        NumaNode(at, CpuList.of(cpu + 480 * thread for thread in range(2) for cpu in range(at, 480, 8)))
        for at in range(8)
    )
    large = cpu(480, sockets=8, packages=tuple(node.cpus for node in nodes), numa=nodes)
    made = plan(*(machine(large, at) for at in range(1, 9)), env=IPEX, backend="ccl", ppn=ppn)
    lines = list(plan_lines(made, machines=dict.fromkeys((f"node{at}" for at in range(1, 9)), large)))
    assert max(map(len, lines)) <= 80
    assert max(len(re.findall(r"\d+", line.partition(" node ")[0])) for line in lines) <= 20
    assert any("(64 numbers, which --json lists)" in line for line in lines) == (ppn == 64)


def test_unbound_ranks_are_marked() -> None:
    assert "binding not bound, 112 threads per rank" in words_of(
        "\n".join(plan_lines(plan(machine(SPR), bind="none", ppn=1)))
    )


def test_secrets_are_not_printed() -> None:
    text = "\n".join(plan_lines(MIXED, machines=MACHINES))
    assert "hunter2" not in text
    assert "TOKEN=(not shown)" in text


def test_printed_commands_can_be_pasted() -> None:
    lines = list(plan_lines(MIXED, machines=MACHINES))

    def typed(heading: str, skip: int = 1) -> list[str]:
        start = next(at for at, line in enumerate(lines) if line.startswith(heading)) + skip
        end = next(at for at in range(start, len(lines)) if not lines[at])
        shown = subprocess.run(
            ["sh", "-c", "printf '%s\\n' " + "\n".join(lines[start:end])], capture_output=True, text=True, check=True
        )
        return shown.stdout.splitlines()

    assert typed("What node0 starts") == list(MIXED.argv)
    assert typed("What each rank executes", 2) == list(MIXED.command)
    assert shlex.quote(MIXED.command[-1]) in "\n".join(lines)


def test_without_v_each_decision_is_a_line_and_no_variable_is_shown() -> None:
    lines = list(plan_lines(MIXED))
    notes = [at for at, line in enumerate(lines) if line.startswith("  note: ")]
    decided = lines[: notes[0]]
    assert len(decided) <= 12, decided
    text = words_of("\n".join(decided))
    for said in (
        "hosts node[1-2] ranks 2 per host",
        "55 cores, 55 threads per rank and 1 core for oneCCL on node1",
        "backend ccl: the environment has oneCCL bindings launcher Intel MPI: ",
        "script train.py --name",
    ):
        assert said in text
    assert not any("=" in line for line in lines)
    assert all(words_of(note) in words_of("\n".join(lines)) for note in MIXED.notes)


def test_a_short_plan_says_what_is_rounded_and_sent() -> None:
    asked = {"fast": True, "fp32_math": "bf16", "wire": "int8", "sync": False}
    text = words_of("\n".join(plan_lines(plan(machine(SPR, 1), machine(SPR, 2), **asked))))
    assert "autocast bf16, fp32 matrices with bf16 inputs, gradients between hosts in int8" in text
    assert "upload nothing: --no-sync" in text


def test_a_pipe_gets_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(MIXED)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert missing(out.splitlines()[0], "4 2 ccl Intel MPI") == []


def test_a_dry_run_keeps_the_placeholder_and_explains_it() -> None:
    made = plan(machine(cpu(8, 2)), command=("train.py", "--output_dir", "out/{run}"))
    rows = [line.split(None, 1) for line in plan_lines(made)]
    assert ["{run}", "id of the run, which it gets when it starts"] in rows
    resumed = made._replace(asked=made.asked._replace(resumed=("train-1", "train-2")))
    assert ["{run}", "train-1"] in [line.split(None, 1) for line in plan_lines(resumed)]
    assert "{run}" not in "".join(plan_lines(plan(machine(cpu(8, 2)), command=("train.py", '{"a": {}}'))))
