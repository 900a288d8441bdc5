"""`ipexctl play` beside Ansible: the same playbook on the same hosts has the same recap and leaves the same files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from clean_environment import package_environ
from cli_helpers import ipexctl
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import ask

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

BOOKS = Path(__file__).parent / "beside_ansible"
FIELDS = ("ok", "changed", "failed", "unreachable", "skipped", "rescued", "ignored")
VERSION = "ansible-core>=2.17,<2.20"
LISTED = "cd t && find . -type f -exec stat -c '%n %a' {} + | sort && find . -type f -exec sha256sum {} + | sort"


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ansible-playbook of $IPEXCTL_TESTS_ANSIBLE, else installed from PyPI; skipped if PyPI cannot be reached."""
    if given := os.environ.get("IPEXCTL_TESTS_ANSIBLE"):
        return Path(given)
    directory = tmp_path_factory.mktemp("ansible")
    venv.create(directory)
    # Without a pip of its own, and only what is used is compiled: two seconds in place of seven.
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
    argv = [*pip, "install", "-q", "--no-compile", VERSION]
    said = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=250, check=False, env=package_environ()
    )
    if said.returncode:
        reason = f"{VERSION} can't be had from PyPI: {said.stderr.strip().splitlines()[-1:]}"
        (pytest.fail if os.environ.get("IPEXCTL_TESTS_STACK") == "required" else pytest.skip)(reason)
    return directory / "bin" / "ansible-playbook"


def inventory(lab: Lab, directory: Path, count: int) -> Path:
    """The first hosts of the lab's inventory, with variables that the play overrides."""
    path = directory / "inventory.ini"
    unused = tuple(f"{host.name} " for host in lab.hosts[count:])
    lines = [line for line in lab.inventory.read_text().splitlines() if not line.startswith(unused)]
    more = [f"{line} inv=own a=inventory f=inventory" if line.startswith("node") else line for line in lines]
    path.write_text("\n".join(more) + "\n")
    return path


def after(lab: Lab, out: str, directory: Path) -> tuple[dict[str, dict[str, int]], list[str]]:
    """The recap, and all files on the hosts and on the control machine."""
    recap = {}
    for name, counts in re.findall(r"^(node\d) *: (ok=.*)", out, re.MULTILINE):
        found = dict(re.findall(r"(\w+)=(\d+)", counts))
        recap[name] = {field: int(found.get(field, 0)) for field in FIELDS}
    files = [ask(host, LISTED).out for host in lab.hosts]
    brought = sorted(path for path in (directory / "brought").rglob("*") if path.is_file())
    return recap, [*files, *(f"{path.relative_to(directory)}: {path.read_text()}" for path in brought)]


@pytest.mark.parametrize(
    ("name", "count"), [("files", 2), ("control", 3), ("vars", 3), ("waits", 2), ("tags", 2), ("words", 3)]
)
def test_playbook_has_the_same_result_as_with_ansible(
    lab3: Lab, ansible: Path, tmp_path: Path, name: str, count: int
) -> None:
    ends = []
    for who in ("ansible", "ipexctl"):
        directory = tmp_path / who
        shutil.copytree(BOOKS, directory)
        for host in lab3.hosts:
            assert ask(host, "rm -rf t && mkdir t").rc == 0
        words = (f"{name}.yml", "-e", f"base=/home/{lab3.hosts[0].user}/t")
        hosts = inventory(lab3, directory, count)
        if who == "ansible":
            env = {**os.environ, "ANSIBLE_PIPELINING": "1", "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp")}
            argv = [str(ansible), "-i", str(hosts), *words]
            out = subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, check=False).stdout
        else:
            state = {"XDG_STATE_HOME": str(tmp_path / "state")}
            known = ("-H", hosts, "--known-hosts", lab3.known_hosts)
            out = ipexctl("play", *words, *known, cwd=directory, env=state, timeout=120).out
        ends.append(after(lab3, out, directory))
    assert len(ends[0][0]) == count
    assert ends[1] == ends[0]
    for host in lab3.hosts:
        ask(host, "rm -rf t")
