"""Which commands start a launcher, which each rank would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.projects.own_launches import find_launch
from ipexctl.run.start.start_project import locate_project
from plan_helpers import spec_of

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
