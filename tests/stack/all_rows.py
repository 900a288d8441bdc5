"""Every row with IPEX, installed from whatever index is in reach, verified, timed and removed again, one after another.

Too long for every day: each row is some 4 GB from PyPI. It uses this machine as the smallest cluster there is, keeps
everything in one directory, and prints the table of docs/rows.md.

    python tests/stack/all_rows.py
    python tests/stack/all_rows.py --rows ipex-1.12,ipex-1.13 --python 3.9 --python-dir ~/.pyenv/versions/3.9.18/bin
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

IPEXCTL = [sys.executable, "-m", "ipexctl"]
HEADER = ("row", "torch", "IPEX", "Python", "wheels MB", "env MB", "install s", "capability", "bf16", "all-reduce")


def main() -> int:
    given = _arguments()
    scratch = Path(tempfile.mkdtemp(prefix="ipexctl-rows-", dir=given.scratch))
    env = {**os.environ, "PATH": os.pathsep.join([*map(str, given.python_dir), os.environ["PATH"]])}
    print(_line(HEADER), _line(["---"] * 4 + ["---:"] * 3 + ["---"] * 3), sep="\n", flush=True)
    failed = 0
    try:
        for row in given.rows or _rows(env):
            cells, well = _walk(row, given.python, scratch / row, env)
            failed += not well
            print(_line(cells), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), metavar="ROW,…", help="default: every IPEX row ≥ 2.0"
    )
    parser.add_argument("--python", default="3.11", metavar="V", help="default 3.11: the one all rows ≥ 2.0 have")
    parser.add_argument("--python-dir", type=lambda text: Path(text).expanduser(), action="append", default=[])
    parser.add_argument("--scratch", type=Path, default=None, help="where to work; 12 GB are needed")
    return parser.parse_args()


def _rows(env: dict[str, str]) -> list[str]:
    """The rows with IPEX from 2.0 on, oldest first, as `ipexctl versions` has them."""
    _, out = _ipexctl(env, "versions", "--json")
    names = [row["name"] for row in json.loads(out)["rows"]]
    numbers = {name: tuple(map(int, re.findall(r"\d+", name))) for name in names if name.startswith("ipex-")}
    return sorted((name for name, number in numbers.items() if number >= (2, 0)), key=numbers.__getitem__)


def _walk(row: str, python: str, home: Path, env: dict[str, str]) -> tuple[list[str], bool]:
    """Install, look, remove: the table's line, and whether all of it went well."""
    there = ("--hosts", "localhost", "--home", str(home))
    begun = time.monotonic()
    code, out = _ipexctl(env, "install", *there, "--stack", row, "--python", python, "--json")
    seconds = time.monotonic() - begun
    report = json.loads(out) if out else {}
    host = (report.get("hosts") or [{}])[0]
    trouble = ""
    size = ""
    if code == 0:
        size = _megabytes(Path(report["path"]))
        code, _ = _ipexctl(env, "envs", *there, "--remove", "default")
        if code != 0 or list((home / "envs").iterdir()):
            trouble = "not removed"
    else:
        trouble = host.get("reason") or (report.get("refused") or {}).get("reason") or f"exit {code}"
    shutil.rmtree(home, ignore_errors=True)
    return _cells(row, report, host.get("verify") or {}, size, seconds, trouble), not trouble


def _ipexctl(env: dict[str, str], *words: str) -> tuple[int, str]:
    """Its exit code and stdout; what it writes to stderr is shown, for these take minutes."""
    argv = [*IPEXCTL, *words]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env, check=False)
    return done.returncode, done.stdout


def _cells(
    row: str, report: dict[str, Any], verify: dict[str, Any], size: str, seconds: float, trouble: str
) -> list[str]:
    stack = report.get("stack") or {}
    return [
        row,
        *(str(stack.get(name) or "") for name in ("torch", "ipex", "python")),
        f"{sum(wheel['size'] or 0 for wheel in report.get('wheels', ())) / 1e6:.0f}",
        size,
        f"{seconds:.0f}",
        *(str(verify.get(name) or "") for name in ("capability", "bf16")),
        f"**{trouble}**".replace("|", "/") if trouble else _allreduce(verify),
    ]


def _allreduce(verify: dict[str, Any]) -> str:
    return f"{verify.get('backend')}, {' / '.join(f'{ms:.2g}' for ms in verify.get('allreduce_ms') or ())} ms"


def _megabytes(directory: Path) -> str:
    said = subprocess.run(["du", "-sLm", str(directory)], capture_output=True, text=True, check=True)
    return said.stdout.split()[0]


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
