"""Ranks that wait for others, from real stacks of PyTorch 2.13 over gloo, three ranks on three nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from known_texts import recorded_dump

from ipexctl.run.hang import Hang, dump_lines, explain_hang
from ipexctl.run.stack_dump import Dump, RankStacks, StackFrame
from ipexctl.ui.stacks_output import as_json, show_stacks
from message_data import missing


def hang_of(name: str) -> Hang:
    hang = explain_hang(recorded_dump(name))
    assert hang is not None
    return hang


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "calls", "is_sure"),
    [
        ("elsewhere", "elsewhere", (1,), [("all_reduce", 51)], True),
        ("objects", "elsewhere", (1,), [("all_gather_object", 36)], True),
        ("ddp", "elsewhere", (1,), [("backward", 50)], True),
        ("rendezvous", "elsewhere", (1,), [("init_process_group", 59)], True),
        ("async", "elsewhere", (1,), [("train", 44)], False),
        ("early", "ended", (1,), [("init_process_group", 63)], True),
        ("mismatch", "mismatch", (1,), [("all_reduce", 51), ("barrier", 22)], True),
        ("ring", "same", (0, 1, 2), [("recv", 46)], True),
        ("no-stack", "no-stack", (1,), [("all_gather_object", 36)], True),
    ],
)
def test_real_stacks_show_who_waits_for_whom(
    name: str, kind: str, ranks: tuple[int, ...], calls: list[tuple[str, int]], is_sure: bool
) -> None:
    hang = hang_of(name)
    assert (hang.kind, hang.ranks, hang.is_sure) == (kind, ranks, is_sure)
    assert [(place.function, place.line) for place in hang.waiting] == calls
    assert {place.file for place in hang.waiting} == {"hang.py"}


def test_sentence_names_rank_host_place_and_function() -> None:
    assert (
        missing(hang_of("elsewhere").sentence, "1 node2 load_batch hang.py:13 0,2 node[1,3] all_reduce hang.py:51")
        == []
    )
    assert missing(hang_of("mismatch").sentence, "0,2 all_reduce hang.py:51 1 node2 barrier hang.py:22") == []
    assert missing(hang_of("early").sentence, "1 node2 0 init_process_group hang.py:63") == []
    assert missing(hang_of("no-stack").sentence, "1 node2 8 all_gather_object") == []


def test_ranks_that_add_gradients_up_in_shared_memory_wait_in_backward(capsys: pytest.CaptureFixture[str]) -> None:
    """The agent's part of a rank is between them and PyTorch, and knows for whom they wait."""
    shim = "/home/ipex/.ipexctl/runs/hang-1124-101010-abcd/hooks"
    inner = (
        StackFrame("sleep", f"{shim}/ipexctl_inrank/segment.py", 119),
        StackFrame("wait_in_all_reduce", f"{shim}/ipexctl_inrank/waiting.py", 78),
        StackFrame("reduce_gradients", f"{shim}/ipexctl_inrank/ddp.py", 77),
    )
    ranks = []
    for rank in recorded_dump("ddp").ranks:
        (process,) = rank.processes
        if rank.rank != 1:
            (main,) = process.threads
            process = replace(process, threads=(replace(main, frames=(*inner, *main.frames)),), waits_for=1)
        ranks.append(replace(rank, processes=(process,)))
    dump = Dump(1005.0, tuple(ranks))
    assert explain_hang(dump) == hang_of("ddp")
    show_stacks(dump, "hang-1124-101010-abcd")
    assert "waits for rank 1 in shared memory" in capsys.readouterr().out
    assert [rank["processes"][0]["waits_for"] for rank in as_json(dump, "")["ranks"]] == [1, None, 1]


def test_models_are_made_by_the_script_and_not_by_the_hook_around_their_constructor() -> None:
    shim = StackFrame("__init__", "/home/ipex/.ipexctl/runs/a/hooks/ipexctl_hooks.py", 226)
    assert shim.is_standard
    assert not StackFrame("__init__", "/home/ipex/hooks/ipexctl_other.py", 2).is_standard


@pytest.mark.parametrize(("state", "kind"), [("S", "mismatch"), ("R", "elsewhere")])
def test_ddp_waits_in_forward_for_the_order_of_its_buckets(state: str, kind: str) -> None:
    ddp = "/h/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"
    frames = (StackFrame("_pre_forward", ddp, 1600), StackFrame("train", "/h/code/p-0c4e0159/train.py", 18))
    resumed, *others = recorded_dump("mismatch").ranks
    (process,) = resumed.processes
    (thread, *_) = process.threads
    process = replace(process, state=state, threads=(replace(thread, frames=frames),))
    hang = explain_hang(Dump(1005.0, (replace(resumed, processes=(process,)), *others)))
    assert hang is not None
    assert hang.kind == kind
    assert ("0 on node1 waits in forward" in hang.sentence) == (kind == "mismatch")


def only(dump: Dump, *ranks: int) -> Dump:
    return Dump(dump.at, tuple(rank for rank in dump.ranks if rank.rank in ranks))


def test_backward_pass_that_computes_is_no_wait() -> None:
    dump = recorded_dump("ddp")
    computing = []
    for rank in dump.ranks:
        (process,) = rank.processes
        computing.append(replace(rank, processes=(replace(process, state="R", wchan=""),)))
    assert explain_hang(Dump(dump.at, tuple(computing))) is None


@pytest.mark.parametrize(
    ("name", "rank"),
    [("elsewhere", 1), ("async", 1), ("async", 0)],  # the last one sleeps in Work.wait, or in a sleep of the script
)
def test_ranks_that_wait_for_no_other_are_not_explained(name: str, rank: int) -> None:
    dump = recorded_dump(name)
    assert explain_hang(only(dump, rank)) is None  # one rank
    (alone,) = only(dump, rank).ranks
    assert explain_hang(Dump(dump.at, tuple(replace(alone, rank=rank) for rank in range(3)))) is None


def test_empty_dump_is_not_explained() -> None:
    assert explain_hang(Dump(1.0, ())) is None
    assert (
        explain_hang(Dump(1.0, tuple(RankStacks(rank, "a", "running", (), "no answer") for rank in range(2)))) is None
    )


def test_many_places_are_cut_in_the_sentence() -> None:
    dump = recorded_dump("elsewhere")
    waits, elsewhere = dump.ranks[0], dump.ranks[1]
    (process,) = elsewhere.processes
    (thread, *_) = process.threads
    ranks = [waits]
    for number in range(1, 9):
        frames = (replace(thread.frames[0], line=number), *thread.frames[1:])
        moved = replace(process, threads=(replace(thread, frames=frames),))
        ranks.append(replace(elsewhere, rank=number, processes=(moved,)))
    hang = explain_hang(Dump(dump.at, tuple(ranks)))
    assert hang is not None
    assert len(hang.causes) == 8
    assert missing(hang.sentence, "rank 1 rank 3 5") == []
    assert "rank 4" not in hang.sentence


def test_dump_and_stall_report_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    dump = recorded_dump("elsewhere")
    sentence = hang_of("elsewhere").sentence
    show_stacks(dump, "train-1")
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert "ipexctl logs train-1 -r 1" in shown.err
    assert dump_lines("train-1", dump)[0] == sentence
    assert dump_lines("train-1", dump, places=False) == [sentence]
    document = as_json(dump, "train-1")["hang"]
    assert (document["kind"], document["causes"][0]["ranks"], document["causes"][0]["hosts"]) == (
        "elsewhere",
        [1],
        ["node2"],
    )
    assert as_json(only(dump, 1), "train-1")["hang"] is None
    assert dump_lines("train-1", only(dump, 1), places=False) == []
