"""The C++ compiler of `--with-compiler` runs nothing of the directory in which it is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ipexctl.node.env.build import COMPILER_TEXT


def test_a_module_in_the_working_directory_does_not_take_the_compilers_place(tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    compiler = tmp_path / "env/c++"
    compiler.write_text(COMPILER_TEXT.format(env=tmp_path / "env", machine="x86_64"))
    (tmp_path / "ziglang.py").write_text("print('ran')\n")
    done = subprocess.run(["sh", str(compiler), "x.cpp"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ran" not in done.stdout
    assert "ziglang" in done.stderr
