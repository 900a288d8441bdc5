"""Which calls of a script start ranks, and what is proposed for them."""

from __future__ import annotations

import ast

import pytest

from ipexctl.projects.own_launches import Spawner, find_spawner
from ipexctl.run.start.start_notes import spawner_note

LIGHTNING = "import lightning as L\nt = L.Trainer(accelerator='cpu', strategy='{}', devices=2)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)", (2, "")),
        (
            "import ignite.distributed as idist\nwith idist.Parallel(backend='gloo', nproc_per_node=2) as p: pass",
            (2, ""),
        ),
        ("import ignite.distributed as idist\nwith idist.Parallel(backend='gloo') as p: pass", None),
        ("from detectron2.engine import launch\nlaunch(main, 8)", (2, "")),
        (LIGHTNING.format("ddp_spawn"), (2, "ddp_spawn")),
        (LIGHTNING.format("ddp"), None),
        ("import multiprocessing as mp\nmp.set_start_method('spawn')", None),
    ],
)
def test_calls_that_start_ranks(text: str, expected: tuple[int, str] | None) -> None:
    found = find_spawner(ast.parse(text), text, "train.py")
    assert found == (Spawner("train.py", *expected) if expected else None)


@pytest.mark.parametrize(
    ("strategy", "ranks", "has_group", "proposed"),
    [
        ("", 2, True, "-n 1"),
        ("", 1, True, ""),
        ("ddp_spawn", 2, True, "strategy='ddp'"),
        ("ddp_spawn", 1, True, "--backend none -n 1"),  # torchrun's variables make each spawned process rank 0 of 1
        ("ddp_spawn", 1, False, ""),
    ],
)
def test_what_is_proposed_for_them(strategy: str, ranks: int, has_group: bool, proposed: str) -> None:
    note = spawner_note(Spawner("train.py", 8, strategy), ranks, has_group=has_group)
    assert bool(note) == bool(proposed)
    assert proposed in note
