"""Homes on nodes are closed to other accounts, with a loose umask on the nodes and on the control machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import Lab
from lab_run_helpers import Cluster, new_cluster, session_dir, small_stack

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
PROJECT = {
    "train.py": "import os\nopen(f'made-{os.environ[\"RANK\"]}', 'w')\nprint('trained')\n",
    "package/module.py": "",
    "my.env": "TOKEN=secret",
    "book.yml": """\
- hosts: all
  tasks:
    - copy: {content: text, dest: /tmp/copied}
    - fetch: {src: /tmp/copied, dest: fetched/}
    - sync:
    - run: {script: train.py, ppn: 1}
""",
}
OF_PROJECT = re.compile(r"code/[^/]+/(?!\.ipexctl(/|$))")
"""The project's files and directories keep their modes, in a directory that is private."""


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = new_cluster(lab, tmp_path_factory.mktemp("private"))
    for name, text in PROJECT.items():
        cluster.write(name, text)
    before = os.umask(0o002)
    try:
        set_umask(cluster, "002")
        yield cluster
    finally:
        os.umask(before)


def set_umask(cluster: Cluster, umask: str) -> None:
    """Set it for this process, and for the logins on every host."""
    os.umask(int(umask, 8))
    for index in range(2):
        lines = (
            f"sed -i '/^umask/d; 1i umask {umask}' $file 2>/dev/null; grep -q umask $file || echo umask {umask} >$file"
        )
        cluster.on(index, f"for file in .bashrc .profile; do {lines}; done")
        assert cluster.on(index, "umask").strip() == f"0{umask}"


def open_paths(listing: str) -> list[str]:
    """Directories that others can open, and files that they can read or write, in lines of `type mode path`."""
    found = []
    for line in listing.splitlines():
        kind, mode, path = line.split(" ", 2)
        allowed = 0o711 if kind == "f" and path.startswith("envs/") else 0o700
        if kind != "l" and int(mode, 8) & ~allowed and not OF_PROJECT.match(path):
            found.append(line)
    return found


def test_files_written_by_commands_are_private(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    own_home = tmp_path_factory.mktemp("home") / "user"
    own_home.mkdir(mode=0o700)
    set_umask(cluster, "000")
    env = {"HOME": str(own_home), "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    env |= dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), "")
    home = "/home/ipex/private/home"
    for command in (
        ("trust",),
        ("install", *small_stack(session_dir(tmp_path_factory))),
        ("sync",),
        ("run", "--ppn", "1", "--env-file", "my.env", "train.py"),
        ("sync",),
        ("play", "book.yml"),
        ("envs", "--prune"),
    ):
        name, *arguments = command
        cluster.good(name, "-H", cluster.lab.hostfile, "--home", home, *arguments, env=env, timeout=240)
    for index in range(2):
        listing = cluster.on(index, f"cd {home} && find . -printf '%y %m %P\\n'")
        assert all(f" {name}" in listing for name in ("envs/", "code/", "runs/", "agent/"))
        assert open_paths(listing) == []
        assert "/package/module.py" in listing
        assert "my.env" not in listing
    paths = [path for path in own_home.rglob("*") if not path.is_symlink()]
    assert [f"{path.stat().st_mode:o} {path}" for path in paths if path.stat().st_mode & 0o077] == []
    assert any(path.parts[-1] == "runs" for path in paths)


def test_home_open_to_others_is_made_private(cluster: Cluster) -> None:
    for index in range(2):
        cluster.on(index, "mkdir -p .ipexctl && chmod 775 .ipexctl")
    cluster.good("sync", "-H", cluster.lab.hostfile)
    assert cluster.on(0, "stat -c %a .ipexctl") == "700\n"
