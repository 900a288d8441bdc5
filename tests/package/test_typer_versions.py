"""The command line with the oldest and the newest typer that pyproject.toml allows: the tests have one in between."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clean_environment import package_environ

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
CALLS = (
    *("--version", "--help", "run --help", "lab --help", "push --help-all", "lab break --help", "exce", "--hosts"),
    *("exec --hosst x -- true", "exec --hosts", "exec --port 0 -- true", "exec -f x -- true", "doctor --host-keys x"),
    *("config a b", "fetch a", "lab up --hosts x", "config run", "push a b --hosts node[1"),
)
PROGRAM = """
import os, sys
sys.modules["pydantic"] = None  # its import takes as long as the whole start
from ipexctl.__main__ import main
for line in sys.argv[1:]:
    if not (child := os.fork()):
        sys.argv = ["ipexctl", *line.split()]
        main()
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def said(typer: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (typer, str(ROOT)))), "COLUMNS": "80"}
    argv = [sys.executable, "-c", PROGRAM, *CALLS]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_help_and_refusals_are_the_same(tmp_path: Path, resolution: str) -> None:
    (bound,) = re.findall(r'"(typer[^"]*)"', (ROOT / "pyproject.toml").read_text())
    uv = [sys.executable, "-m", "uv", "-q", "pip", "install", "-p", sys.executable, "--target", str(tmp_path)]
    subprocess.run([*uv, "--resolution", resolution, bound], check=True, env=package_environ())
    assert said(str(tmp_path)) == said("")
