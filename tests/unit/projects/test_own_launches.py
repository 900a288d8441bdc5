"""Which calls of a script start ranks, and what is proposed for them."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.errors import UserError
from ipexctl.projects.own_launches import Spawner, find_launch, find_spawner
from ipexctl.projects.script_file import ScriptFile
from ipexctl.run.start.start_notes import spawner_notes
from ipexctl.run.start.start_project import locate_project
from plan_helpers import spec_of

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
        ("import ray\nray.init()", (2, "Ray")),
        ("from ray import tune as t\nt.Tuner(f).fit()", (2, "Ray")),
        ("import multiprocessing as mp\nmp.set_start_method('spawn')", None),
        ("import os\nos.system(f'torchrun --nproc_per_node {n} train.py')", (2, "")),
        ("import subprocess\nif args.launcher == 'torchrun': subprocess.run(['ls'])", None),
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
        ("Ray", 2, True, "driver of Ray"),
        ("Ray", 1, True, ""),
    ],
)
def test_what_is_proposed_for_them(strategy: str, ranks: int, has_group: bool, proposed: str) -> None:
    script = ScriptFile("train.py", spawner=Spawner("train.py", 8, strategy))
    context: Any = SimpleNamespace(spec=SimpleNamespace(project=SimpleNamespace(script=script)))
    plan: Any = SimpleNamespace(world_size=ranks, backend="gloo" if has_group else "none")
    note = "".join(spawner_notes(context, plan))
    assert bool(note) == bool(proposed)
    assert proposed in note


STARTS = "from subprocess import run\nimport os, subprocess, sys\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run(['torchrun', '--nproc_per_node', n, 'train.py'])", ("torchrun", ("train.py",))),
        ("cmd = ['accelerate', 'launch']\ncmd += ['-m', 'tool.train']\nos.execvp(cmd[0], cmd)",
         ("accelerate launch", ("-m tool.train",))),
        ("class A:\n def f(self):\n  self.c.extend(['-m', 'torch.distributed.run'])\n  run(self.c)", ("torchrun", ())),
        ("def line(): return f'torchrun -m tool.train {x}'\nrun(line().split())", ("torchrun", ("-m tool.train",))),
        ("def start(c): subprocess.Popen(c)\nstart('cd x && torchrun y.py')", ("torchrun", ("y.py",))),
        ("from torch.distributed.run import main\nmain(['x.py'])", ("torchrun", ())),
        ("from accelerate.commands.launch import launch_command_parser\np = launch_command_parser()", None),
        ("if args.launcher == 'torchrun': run(['ls'])", None),
        ("run(['srun'] if launcher == 'torchrun' else ['ls'])", None),
        ("run(['which', 'torchrun'])", None),
        ("'Use: torchrun x.py'\nparser.add_argument('--launcher', choices=['torchrun', 'slurm'])\nrun('ls')", None),
    ],
)  # fmt: skip
def test_a_launch_is_a_call_that_starts_a_process(
    tmp_path: Path, text: str, expected: tuple[str, tuple[str, ...]] | None
) -> None:
    (tmp_path / "cli.py").write_text(STARTS + text)
    found = find_launch("cli", [tmp_path])
    assert (found and (found.launcher, found.targets)) == expected


def test_a_command_that_launches_is_refused_however_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'tool'\n[project.scripts]\ntool = 'tool.cli:main'\n")
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool/cli.py").write_text("import subprocess\ndef main(): subprocess.run(['torchrun', 'train.py'])\n")
    for kind in ("script", "command"):
        with pytest.raises(UserError) as refusal:
            locate_project(spec_of(kind, ("tool", "x")), tmp_path)
        assert refusal.value.fix == "ipexctl run -n 1 --backend none -- tool x"
        assert locate_project(spec_of(kind, ("tool", "x"), n=1), tmp_path).entry == "tool.cli:main"
    (tmp_path / "train.py").touch()
    with pytest.raises(UserError) as refusal:
        locate_project(spec_of("command", ("tool", "x")), tmp_path)
    assert refusal.value.fix == "ipexctl run train.py x"
