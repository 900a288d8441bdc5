"""Runs pytest in a clean environment, and the files of failed tests again, alone: real hosts can fail a busy machine.

In: pytest's arguments. With `--once` in front, nothing is run again. The rule: the second call runs the tests of a file
in their company and order, so a test that fails because of those before it fails again. Each test that passes then is
printed as `flaky: NAME`. The first call does not rewrite asserts, which costs each worker half a minute in a fresh
clone; the second one shows their values. The exit code is pytest's; 0 where all passed the second time; 130 after
Ctrl-C, 143 and 129 after SIGTERM and SIGHUP.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import clean_environment
from pytest_session import Interrupted, run_pytest

FAILED = 1
"""pytest's exit code when tests ran and some failed."""
MOST = 25
"""More failures than that have one cause; running them again would only take long."""


def run(cache: str, *args: str) -> int:
    return run_pytest(["-o", f"cache_dir={cache}", *args])


def failed_tests(cache: str) -> list[str]:
    try:
        found = json.loads((Path(cache) / "v/cache/lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(found)


def run_and_rerun(args: list[str]) -> int:
    with tempfile.TemporaryDirectory() as cache:
        code = run(cache, "--assert=plain", *args)
        failed = failed_tests(cache)
        if code != FAILED or not 0 < len(failed) <= MOST:
            return code
        files = list(dict.fromkeys(name.partition("::")[0] for name in failed))
        print(f"\n{len(failed)} failed: the tests of {len(files)} files once more, one after the other", flush=True)
        code = run(cache, "-p", "no:xdist", *selecting(args), *files)
        still = set(failed_tests(cache)) if code else set()
    for name in failed:
        if name not in still:
            print(f"flaky: {name}")
    return code


def selecting(args: list[str]) -> list[str]:
    """The options among these that choose tests, with their values."""
    pairs = zip(args, [*args[1:], ""], strict=True)
    return [
        part
        for option, value in pairs
        if option in ("-m", "-k", "--whole", "--after-plain")
        for part in (option, value)
    ]


def main(args: list[str]) -> int:
    if args[:1] == ["--once"]:
        return run_pytest(args[1:])
    return run_and_rerun(args)


if __name__ == "__main__":
    home = clean_environment.apply()
    try:
        sys.exit(main(sys.argv[1:]))
    except Interrupted as interrupted:
        sys.exit(interrupted.code)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if home:
            shutil.rmtree(home, ignore_errors=True)
