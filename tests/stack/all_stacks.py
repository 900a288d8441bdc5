"""Every row with IPEX, installed from whatever index is in reach, verified, timed and removed again, one after another.

Too long for every day: each row is some 4 GB from PyPI. It uses this machine as the smallest cluster there is, keeps
everything in one directory, and prints the table of docs/rows.md.

    python tests/stack/all_stacks.py
    python tests/stack/all_stacks.py --rows ipex-1.12,ipex-1.13 --python 3.9 --python-dir ~/.pyenv/versions/3.9.18/bin
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HEADER = ("row", "torch", "IPEX", "Python", "wheels MB", "env MB", "install s", "capability", "bf16", "all-reduce")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", metavar="ROW,…", help="default: every IPEX row ≥ 2.0")
    parser.add_argument("--python", default="3.11", metavar="V", help="default 3.11: the one all rows ≥ 2.0 have")
    parser.add_argument("--python-dir", action="append", default=[])
    parser.add_argument("--scratch", help="where to work; 12 GB are needed")
    given = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join([*map(os.path.expanduser, given.python_dir), os.environ["PATH"]])
    known = [row["name"] for row in reversed(ipexctl("versions")[1]["rows"])]
    rows = given.rows.split(",") if given.rows else [name for name in known if name.startswith("ipex-2.")]
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * 4}{' ---: |' * 3}{' --- |' * 3}", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ipexctl-rows-", dir=given.scratch) as scratch:
        for row in rows:
            cells, well = walk(row, given.python, Path(scratch, row))
            failed += not well
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 1 if failed else 0


def ipexctl(*words: str) -> tuple[int, dict[str, Any]]:
    """Its exit code and its document; what it writes to stderr is shown, for these take minutes."""
    argv = [sys.executable, "-m", "ipexctl", *words, "--json"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout or "{}")


def walk(row: str, python: str, home: Path) -> tuple[list[object], bool]:
    """Install, look, remove: the table's line, and whether all of it went well."""
    there = ("--hosts", "localhost", "--home", str(home))
    begun = time.monotonic()
    code, report = ipexctl("install", *there, "--stack", row, "--python", python)
    seconds = time.monotonic() - begun
    host = (report.get("hosts") or [{}])[0]
    size = trouble = ""
    if code == 0:
        size = subprocess.run(["du", "-sLm", report["path"]], stdout=subprocess.PIPE, text=True, check=True).stdout
        code, _ = ipexctl("envs", *there, "--remove", "default")
        trouble = "not removed" if code or list((home / "envs").iterdir()) else ""
    else:
        trouble = host.get("reason") or (report.get("refused") or {}).get("reason") or f"exit {code}"
    shutil.rmtree(home, ignore_errors=True)
    stack, verify = report.get("stack") or {}, host.get("verify") or {}
    times = " / ".join(f"{ms:.2g}" for ms in verify.get("allreduce_ms") or ())
    return [
        row,
        *(stack.get(name) or "" for name in ("torch", "ipex", "python")),
        f"{sum(wheel['size'] or 0 for wheel in report.get('wheels', ())) / 1e6:.0f}",
        size.partition("\t")[0],
        f"{seconds:.0f}",
        *(verify.get(name) or "" for name in ("capability", "bf16")),
        f"**{trouble}**".replace("|", "/") if trouble else f"{verify.get('backend')}, {times} ms",
    ], not trouble


if __name__ == "__main__":
    sys.exit(main())
