"""ipexctl used by an account without root rights on one machine, and by one that no passwd knows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL, NO_HOSTS_ENV
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import Cluster, by_rank, session_dir, small_stack
from test_files_of_others import AS_ME, ME

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
ACCOUNT = "nobody"
AS_ACCOUNT = [
    "setpriv",
    f"--reuid={ACCOUNT}",
    "--regid=nogroup",
    "--clear-groups",
    *(f"--{caps}=-all,+dac_read_search" for caps in ("inh-caps", "ambient-caps", "bounding-set")),
]
"""It may read all files: Python and this checkout may be in a private home."""


class Account(Cluster):
    @property
    def env(self) -> dict[str, str]:
        home = str(self.project.parent)
        plain = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**super().env, **plain, "HOME": home, "USER": ACCOUNT, "LOGNAME": ACCOUNT}


@pytest.fixture
def account(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    account = Account(lab, project, tmp_path / "home" / "state")
    account.write(
        "train.py", "import os, torch\nprint('trained by', os.getuid())\nopen('result.txt', 'w').write('done')\n"
    )
    account.write("data.bin", os.urandom(3_000_000))
    for path in (project.parent, project, *project.iterdir()):
        shutil.chown(path, ACCOUNT, "nogroup")
    monkeypatch.setattr("cli_helpers.IPEXCTL", [*AS_ACCOUNT, *IPEXCTL])
    return account


@pytest.fixture
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    return small_stack(session_dir(tmp_path_factory))


def test_unprivileged_account_on_one_machine(account: Account, wheels: tuple[object, ...]) -> None:
    here = ("--hosts", "localhost")
    account.good("doctor", *here)
    account.good("install", *here, *wheels)
    ran = account.call("run", *here, "-n", "2", "train.py")
    assert (ran.rc, by_rank(ran.out)) == (0, {rank: ["trained by 65534"] for rank in range(2)}), ran.err
    assert json.loads(account.good("why", "last", "--json"))["run"]["state"] == "ok"
    account.good("uninstall", *here, "--yes", "--with-results")
    assert not (account.project.parent / ".ipexctl").exists()


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
