"""Asks every generation of accelerate what it sets for its ranks, and writes that down for tests without a network.

    python tests/stack/accelerate_generations.py --python PYTHON    # with torch, numpy, psutil, setuptools<81
    python tests/stack/accelerate_generations.py --python PYTHON 1.16.0    # these alone, shown and not written

The files it asks about stand in `accelerate_generations.json` beside the answers, and stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

RECORD: Final = Path(__file__).resolve().parents[1] / "unit" / "launch" / "accelerate_generations.json"
FIRST: Final = (0, 19)
Answers = dict[str, dict[str, Any]]
"""`bare` and `ipex`: file → variables, or why it was refused."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--wheels", type=Path, help="where wheels of accelerate are, or are to stay")
    parser.add_argument("versions", nargs="*")
    given = parser.parse_args()
    files = json.loads(RECORD.read_text())["files"]
    with tempfile.TemporaryDirectory() as name:
        wheels = given.wheels or Path(name, "wheels")
        answers = {}
        for version in given.versions or generations():
            answers[version] = ask(given.python, wheel_of(version, wheels), files, Path(name, version))
            print(version, file=sys.stderr, flush=True)
    if given.versions:
        print(json.dumps(answers, indent=1))
    else:
        RECORD.write_text(written(files, answers))


def generations() -> list[str]:
    """The last release of each minor version, oldest first."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "accelerate"], capture_output=True, text=True, check=True
    )
    found = re.search(r"Available versions: (.*)", said.stdout)
    assert found is not None, said.stdout
    newest: dict[tuple[int, ...], str] = {}
    for version in found[1].split(", "):
        newest.setdefault(tuple(map(int, version.split(".")[:2])), version)
    return [newest[minor] for minor in sorted(newest) if minor >= FIRST]


def wheel_of(version: str, wheels: Path) -> Path:
    name = f"accelerate-{version}-py3-none-any.whl"
    if not (wheels / name).is_file():
        words = ("download", "-q", "--no-deps", "-d", str(wheels), f"accelerate=={version}")
        subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=170)
    return wheels / name


def ask(python: str, wheel: Path, files: dict[str, str], scratch: Path) -> Answers:
    """A wheel on the path is imported as it is. An mpirun that only says it is Intel's is enough: none is called."""
    scratch.mkdir(parents=True)
    paths = [scratch / f"{name}.yaml" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    mpirun = scratch / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\necho 'Intel(R) MPI Library for Linux* OS'\n")
    mpirun.chmod(0o755)
    said = subprocess.run(
        [python, Path(__file__).with_name("accelerate_launched.py"), scratch / "with-ipex", *paths],
        env={
            **{name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ},
            "HF_HOME": str(scratch / "hf"),
            "PATH": f"{mpirun.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(wheel),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, f"{wheel.name}: {said.stderr}"
    answers: Answers = json.loads(said.stdout.splitlines()[-1])
    return answers


def written(files: dict[str, str], answers: dict[str, Answers]) -> str:
    """Of each file, what it became from which version on: a line each time it changed."""
    said: dict[str, Any] = {}
    for stack in ("bare", "ipex"):
        for name in files:
            lines = said.setdefault(stack, {}).setdefault(name, {})
            for version, each in answers.items():
                if not lines or each[stack][name] != next(reversed(lines.values())):
                    lines[version] = each[stack][name]
    rows = ",\n".join(
        f"  {json.dumps(stack)}: {{\n" + ",\n".join(_changes(name, lines) for name, lines in by_file.items()) + "\n  }"
        for stack, by_file in said.items()
    )
    return (
        f'{{\n "files": {json.dumps(files, indent=2)},\n "versions": {json.dumps(list(answers))},\n'
        f' "ranks": {{\n{rows}\n }}\n}}\n'
    )


def _changes(name: str, lines: dict[str, Any]) -> str:
    inner = ",\n".join(f"    {json.dumps(version)}: {json.dumps(answer)}" for version, answer in lines.items())
    return f"   {json.dumps(name)}: {{\n{inner}\n   }}"


if __name__ == "__main__":
    main()
