"""The bundled playbooks on real SSH hosts, with small wheels and a real MPI."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import CommandResult, processes_with
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_play_helpers import Site
from lab_run_helpers import IMPI, PYTHON, Cluster, session_dir, stack_with, wheels_from_pypi
from message_data import missing
from tiny_wheels import write_stack

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

TRAIN = """\
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:])
if os.environ["RANK"] == "0":
    os.makedirs("checkpoints", exist_ok=True)
    open("checkpoints/last.pt", "w").write("learnt")
"""


class Books(Site):
    """A project's directory, a wheelhouse in it, and hosts with a home of this test's own."""

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}

    def play(self, tasks: str, *args: object, **more: Any) -> CommandResult:
        """A book by its name."""
        return self.call(tasks, "--home", self.place, *args, timeout=240, **more)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stacks to choose from."""
    base = session_dir(tmp_path_factory)
    directory = stack_with(wheels_from_pypi(base, IMPI), base / "two-stacks")
    write_stack(directory, torch="2.12.1", ipex=None, impi=None, python=PYTHON)
    return directory


@pytest.fixture
def books(lab: Lab, house: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Books:
    (tmp_path / "house").symlink_to(house)
    return Books(lab, tmp_path, f"/home/{lab.hosts[0].user}/{request.node.name[5:25]}")


@dataclass(frozen=True)
class Bootstrapped:
    """A home on new hosts after the first `ipexctl play bootstrap`, which several tests use."""

    place: str
    planned: dict[str, Any]
    left_by_the_plan: str
    first: dict[str, Any]


@pytest.fixture(scope="module")
def bootstrapped(lab: Lab, house: Path, tmp_path_factory: pytest.TempPathFactory) -> Bootstrapped:
    books = Books(lab, tmp_path_factory.mktemp("bootstrap"), f"/home/{lab.hosts[0].user}/bootstrapped")
    (books.directory / "house").symlink_to(house)
    planned = books.report("bootstrap", *OFFLINE, "-e", "stack=torch-2.13", "--check")
    left = books.on(0, "ls -A PLACE 2>/dev/null | wc -l").strip()
    return Bootstrapped(books.place, planned, left, books.report("bootstrap", *OFFLINE, "-e", "stack=torch-2.13"))


@pytest.fixture
def ready(books: Books, bootstrapped: Bootstrapped) -> Books:
    """A project for hosts that have been bootstrapped."""
    return replace(books, place=bootstrapped.place)


PAGE = Path(__file__).parents[2] / "docs" / "playbooks.md"
OFFLINE = ("-e", "wheelhouse=house", "-e", "offline=true")


def task(report: dict[str, Any], name: str) -> dict[str, Any]:
    """The hosts of that task."""
    return next(dict(each["hosts"]) for each in report["tasks"] if each["name"] == name)


def test_bootstrap_prepares_new_hosts_and_is_idempotent(bootstrapped: Bootstrapped, ready: Books) -> None:
    """New hosts: checked, trusted and installed by one call."""
    assert bootstrapped.planned["recap"]["node1"]["failed"] == 0
    assert bootstrapped.left_by_the_plan == "0"
    assert {host["status"] for host in task(bootstrapped.first, "one stack on all of them").values()} == {"changed"}
    assert ready.on(1, "PLACE/envs/default/bin/python -c 'import torch; print(torch.__version__)'") == "2.13.0\n"
    second = ready.report("bootstrap", *OFFLINE, "-e", "stack=torch-2.13")
    assert [row["changed"] for row in second["recap"].values()] == [0, 0]


def test_playbook_of_the_page_works_on_new_hosts_and_is_idempotent(books: Books) -> None:
    """From end to end, and once more."""
    found = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    brought = books.directory.parent / f"{books.directory.name}-brought"
    for ours, here in (
        ("require: avx512_bf16}", "require: avx2}"),
        ("tar -xf /nfs/data.tar -C /scratch/me", f"mkdir -p {books.place}-data"),
        ("/scratch/me/data", f"{books.place}-data"),
        ("with: [transformers]", "wheelhouse: house, offline: true"),
        ("~/trained", str(brought)),
    ):
        assert ours in text
        text = text.replace(ours, here)
    (books.directory / "site.yml").write_text(text)
    (books.directory / "train.py").write_text(TRAIN)
    (books.directory / "train.toml.j2").write_text("nodes = {{ groups.all | length }}\n")
    planned = books.report("site.yml", "--check")
    assert [row["failed"] for row in planned["recap"].values()] == [0, 0]
    first = books.report("site.yml")
    assert {host["status"] for host in task(first, "train").values()} == {"changed"}
    assert (brought / "last.pt").read_text() == "learnt"
    second = books.report("site.yml")
    assert [row["changed"] for row in second["recap"].values()] == [0, 0]
    assert {host["status"] for host in task(second, "bring it here").values()} == {"skipped"}


def test_failed_script_fails_the_playbook_with_a_next_command(ready: Books) -> None:
    """The exit code comes from a rank on a host."""
    books = ready
    (books.directory / "train.py").write_text("raise SystemExit(7)\n")
    ran = books.play("train", *OFFLINE, "-e", "script=train.py", "-e", "stack=torch-2.13", rc=1)
    assert "failed with exit code 7" in ran.err
    assert "ipexctl why train-" in ran.err
    assert "bring the checkpoint here" not in ran.out
    missing = books.play("train", *OFFLINE, "-e", "stack=torch-2.13", "--start-at", "there is a script to run", rc=1)
    assert "which script? -e script=train.py" in missing.err


def test_ctrl_c_stops_the_followed_run(ready: Books) -> None:
    """No rank stays on any host."""
    books = ready
    (books.directory / "train.py").write_text("import time\nprint('at it', flush=True)\ntime.sleep(611)\n")
    (books.directory / "site.yml").write_text("- hosts: all\n  tasks:\n    - run: train.py\n")
    cluster = Cluster(books.lab, books.directory, books.directory / "state")
    running = cluster.begin_call("play", "site.yml", "-H", books.lab.hostfile, "--home", books.place)
    running.wait_for("at it", times=2)
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130, running.said()
    (run,) = cluster.runs()
    assert run["state"] == "stopped"
    assert processes_with(books.lab, "train.py") == []


def test_preflight_accepts_only_suitable_hosts(ready: Books) -> None:
    """What the hosts are decides, and they stay as they were."""
    books = ready
    listing = "ls -lA PLACE"
    before = books.on(0, listing)
    assert books.report("preflight", "-e", "require=avx2")["exit_code"] == 0
    ran = books.play("preflight", "-e", "min_memory_gb=100000", rc=1)
    assert missing(ran.err, "GB memory disk") == []
    lacking = books.play("preflight", "-e", "env=nothere", rc=1)
    assert missing(lacking.err, "environment nothere") == []
    assert books.on(0, listing) == before


def test_upgrade_keeps_the_old_environment_for_rollback(ready: Books) -> None:
    """Another stack than that of the first bootstrap, and back again."""
    version = "PLACE/envs/{}/bin/python -c 'import torch; print(torch.__version__)'"
    ready.play("upgrade-stack", *OFFLINE, "-e", "stack=torch-2.12")
    assert [ready.on(n, version.format(name)) for n in (0, 1) for name in ("default", "previous")] == [
        "2.12.1\n",
        "2.13.0\n",
    ] * 2
    again = ready.report("upgrade-stack", *OFFLINE, "-e", "stack=torch-2.12")
    assert [row["changed"] for row in again["recap"].values()] == [0, 0]
    assert ready.on(0, version.format("previous")) == "2.13.0\n"
    ready.play("upgrade-stack", "-e", "rollback=true")
    assert ready.on(1, version.format("default")) == "2.13.0\n"


def test_tune_changes_nothing_without_root_and_can_be_undone(books: Books) -> None:
    """Settings of a kernel, as an account and as root."""
    settings = ("-e", '{"thp": null, "governor": null, "sysctl": {"net.core.somaxconn": 3333}}')
    books.play("tune-xeon", *settings)
    assert books.on(0, "cat /proc/sys/net/core/somaxconn") != "3333\n"
    settings = ("-e", '{"sysctl": {"net.core.somaxconn": 3333}}')
    kept = (
        "-e",
        "root=true",
        "--user",
        "root",
        "-e",
        f"thp={books.on(0, 'cat /sys/kernel/mm/transparent_hugepage/enabled').split('[')[1].split(']')[0]}",
    )
    was = books.on(0, "cat /proc/sys/net/core/somaxconn")
    shown = books.play("tune-xeon", *settings, *kept, "--check", "--diff")
    assert "+ net.core.somaxconn = 3333" in shown.out
    assert books.on(0, "cat /proc/sys/net/core/somaxconn") == was
    books.play("tune-xeon", *settings, *kept)
    again = books.report("tune-xeon", *settings, *kept)
    assert [row["changed"] for row in again["recap"].values()] == [0, 0]
    assert books.on(1, "cat /proc/sys/net/core/somaxconn") == "3333\n"
    books.play("tune-xeon", *settings, *kept, "-e", "undo=true")
    assert books.on(1, "cat /proc/sys/net/core/somaxconn") == was
