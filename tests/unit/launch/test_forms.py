"""One line, one reading: each form of a call becomes the same program, project, checks and lists."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from test_printed_lines import printed, spec_of_call

from ipexctl.node.common.run_options import RunOptions
from ipexctl.run.start.script_imports import install_by_run
from plan_helpers import changed

SCRIPT = """
train.py --lr 1
-- train.py --lr 1
python train.py --lr 1
-- python train.py --lr 1
python3.11 -u train.py --lr 1
-- python -u -B train.py --lr 1
A=1 python train.py --lr 1
A=1 -- python train.py --lr 1
env A=1 python train.py --lr 1
numactl -C 0-3 python train.py --lr 1
-- nohup python -u train.py --lr 1
torchrun --nproc_per_node 2 train.py --lr 1
-- torchrun train.py --lr 1
-m torch.distributed.run train.py --lr 1
accelerate launch train.py --lr 1
mpirun -n 2 python -u train.py --lr 1
uv run train.py --lr 1
-- uv run python train.py --lr 1
bash train.sh
./train.sh
bash -c 'torchrun train.py --lr 1'
"""
MODULE = """
-m pkg.mod --lr 1
python -m pkg.mod --lr 1
-- python -m pkg.mod --lr 1
-- python3 -u -m pkg.mod --lr 1
A=1 python -m pkg.mod --lr 1
torchrun -m pkg.mod --lr 1
-- mpirun -n 1 python -m pkg.mod --lr 1
uv run -m pkg.mod --lr 1
sh mod.sh
"""
KEPT = """
-- nice -n 10 python -O train.py --lr 1
nice -n 10 python -O train.py --lr 1
nice -n 10 python -u -O train.py --lr 1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for path in ("train.py", "pkg/mod.py"):
        (tmp_path / path).write_text("import peft\n")
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "train.sh").write_text("#!/bin/bash\npython train.py --lr 1\n")
    (tmp_path / "mod.sh").write_text("python3 -m pkg.mod --lr 1\n")
    (tmp_path / "requirements.txt").write_text("peft==0.17\n")
    return tmp_path


def value_of(asked: RunOptions) -> tuple[object, ...]:
    return asked.kind, asked.argv, asked.in_front, asked.python_flags


@pytest.mark.parametrize(
    ("line", "value"),
    [
        *((line, ("script", ("train.py", "--lr", "1"), (), ())) for line in SCRIPT.strip().splitlines()),
        *((line, ("module", ("pkg.mod", "--lr", "1"), (), ())) for line in MODULE.strip().splitlines()),
        *(
            (line, ("script", ("train.py", "--lr", "1"), ("nice", "-n", "10"), ("-O",)))
            for line in KEPT.strip().splitlines()
        ),
    ],
)
def test_each_form_is_one_program(
    line: str, value: tuple[object, ...], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line)
    spec = spec_of_call(["run", "--dry-run", *words], monkeypatch)
    assert value_of(spec.asked) == value
    script = spec.project.script
    assert script is not None
    assert [entry.module for entry in script.imports] == ["peft"]
    assert spec.project.requirements.files == ("requirements.txt",)
    command = install_by_run(changed(spec, takes_own_requirements=True))
    assert command is not None
    assert sorted(printed(spec, command)) == sorted(["run", "--install", "--dry-run", *words])


def test_what_is_typed_for_each_rank_stays(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands in a shell's file, code, and numactl where ipexctl binds nothing."""
    del project
    Path("two.sh").write_text("python train.py\npython -m pkg.mod\n")
    for line, kind, argv in (
        ("bash two.sh", "command", ("bash", "two.sh")),
        ("./two.sh", "command", ("./two.sh",)),
        ("-- bash train.sh", "command", ("bash", "train.sh")),
        ("python -c 'import peft'", "command", ("python", "-c", "import peft")),
    ):
        spec = spec_of_call(["run", "--dry-run", *shlex.split(line)], monkeypatch)
        assert (spec.asked.kind, spec.asked.argv) == (kind, argv)
    bound = spec_of_call(["run", "--bind", "none", "--", "numactl", "-C", "0", "python", "train.py"], monkeypatch)
    assert bound.asked.in_front == ("numactl", "-C", "0")
