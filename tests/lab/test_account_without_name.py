"""An account that no passwd knows, as in a container that was started with a number: with a home, and without."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL, NO_HOSTS_ENV
from test_files_of_others import AS_ME, ME

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
LOCAL = ("--hosts", "localhost")


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ipexctl-tests-") as base:
        for path in (Path(base), Path(base, "project")):
            path.mkdir(exist_ok=True)
            os.chown(path, ME, ME)
        Path(base, "project/train.py").write_text("")
        yield Path(base)


def call(base: Path, *words: str, home: bool) -> tuple[int, str]:
    """Exit code, and what is printed."""
    environ = {**os.environ, **NO_HOSTS_ENV, "HOME": str(base)}
    left_out = {"USER", "LOGNAME", "LNAME", "USERNAME", *(() if home else ("HOME",))}
    left_out |= {name for name in environ if name.startswith("XDG_")}
    done = subprocess.run(
        [*AS_ME, *IPEXCTL, *words],
        env={name: value for name, value in environ.items() if name not in left_out},
        cwd=base / "project",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert "did not expect" not in said, said
    return done.returncode, said


def test_it_works_on_this_machine(base: Path) -> None:
    for words in (
        ("doctor", "--no-network", *LOCAL),
        ("exec", *LOCAL, "--", "id"),
        ("ps",),
        ("uninstall", "--dry-run"),
    ):
        code, said = call(base, *words, home=True)
        assert code == 0, said
    assert call(base, "run", *LOCAL, "--dry-run", "--backend", "none", "train.py", home=True)[0] in (0, 1)


@pytest.mark.parametrize("hosts", ["me@localhost", "127.0.0.9", "me@127.0.0.9"])
def test_ssh_needs_an_entry_and_the_message_has_the_line_to_type(base: Path, hosts: str) -> None:
    port = () if hosts == "me@localhost" else ("--port", "1")
    code, said = call(base, "doctor", "--hosts", hosts, *port, "--connect-timeout", "5", home=True)
    assert code == 3, said
    assert f"echo user:x:{ME}:{ME}::{base}:/bin/sh >> /etc/passwd" in said


@pytest.mark.parametrize(
    "words", [("ps",), ("run", *LOCAL, "train.py"), ("doctor", *LOCAL), ("sync", *LOCAL), ("why",)]
)
def test_without_a_home_it_is_told_to_name_one(base: Path, words: tuple[str, ...]) -> None:
    code, said = call(base, *words, home=False)
    assert code == 2, said
    assert f"this account (uid {ME}) has no home directory" in said
    assert "set HOME" in said
