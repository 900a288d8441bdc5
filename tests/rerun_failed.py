"""Runs pytest, and runs failed tests once more, alone: tests on real hosts can fail on a busy machine.

Each test that needed it is printed as `flaky: NAME`. The exit code is pytest's; 0 where all passed the second time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FAILED = 1
"""pytest's exit code when tests ran and some failed."""
MOST = 25
"""More failures than that have one cause; running them again would only take long."""


def run(cache: str, *args: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *args], check=False).returncode


def failed_tests(cache: str) -> list[str]:
    try:
        found = json.loads((Path(cache) / "v/cache/lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(found)


def main(args: list[str]) -> int:
    with tempfile.TemporaryDirectory() as cache:
        code = run(cache, *args)
        failed = failed_tests(cache)
        if code != FAILED or not 0 < len(failed) <= MOST:
            return code
        print(f"\n{len(failed)} failed: once more, one after the other", flush=True)
        code = run(cache, "-p", "no:xdist", *failed)
        still = set(failed_tests(cache)) if code else set()
    for name in failed:
        if name not in still:
            print(f"flaky: {name}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
