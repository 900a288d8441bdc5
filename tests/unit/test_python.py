"""`import ipexctl`: what a call refuses before a host is touched, Ctrl-C, and what an import costs."""

from __future__ import annotations

import ast
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import ipexctl
from import_graph import ROOT, statements
from ipexctl.api.interruptible import interruptible
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from linux_tests import THIS_MACHINE
from record_helpers import run_record

_TOUCHING = (
    "ipexctl.doctor.doctor_run",
    "ipexctl.facts.gather",
    "ipexctl.files.push_files",
    "ipexctl.remote.fanout",
    "ipexctl.remote.connector",
    "ipexctl.run.stack_dump",
    "ipexctl.run.stop",
    "ipexctl.homes.uninstall_hosts",
    "ipexctl.run.why.why",
    "ipexctl.stack.env.staging",
    "ipexctl.stack.env.envs",
    "ipexctl.stack.install_stack",
    "ipexctl.sync.project_sync",
)
"""Modules that touch hosts."""
UNTYPED: Any = ipexctl
RECORD = run_record("run1", Host("here", "127.0.0.1"), "/nowhere", sys.executable)
_FOLLOWING = {("ipexctl/commands/watch.py", "ipexctl.run.stop"), ("ipexctl/commands/watch.py", "ipexctl.run.why.why")}
"""`watch.py` decides what a signal means for a run: it stops it, and reads the cause from the copy."""


def test_commands_reach_hosts_through_api_alone() -> None:
    found = {
        (str(path.relative_to(ROOT)), node.module)
        for path in (ROOT / "ipexctl/commands").rglob("*.py")
        for node in statements(ast.parse(path.read_text()), with_types=False)
        if isinstance(node, ast.ImportFrom) and node.module in _TOUCHING
        if any(name.name[0].islower() for name in node.names)  # a function; a class is named as a type
    }
    assert found == _FOLLOWING
    assert all((ROOT / module.replace(".", "/")).with_suffix(".py").is_file() for module in _TOUCHING)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_wrong_run_has_its_fix_in_the_traceback_and_exit_code_2(project: Path) -> None:
    with pytest.raises(ipexctl.UserError) as caught:
        UNTYPED.Cluster(["nowhere.invalid"]).run("train.py", ppn=0)
    assert (caught.value.__notes__, caught.value.exit_code) == ([caught.value.fix], 2)


def test_a_program_reads_no_hosts_of_the_command_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "hostfile").write_text("node1\nnode2\n")
    monkeypatch.setenv("IPEXCTL_HOSTFILE", str(project / "hostfile"))
    assert [host.name for host in ipexctl.Cluster().hosts] == ["localhost"]
    assert [host.name for host in ipexctl.Cluster.from_hostfile("hostfile", limit="node2").hosts] == ["node2"]


@pytest.mark.skipif(sys.platform != "linux", reason=THIS_MACHINE)
def test_output_of_each_host_is_in_the_report() -> None:
    (host,) = ipexctl.Cluster().exec("echo out; echo err >&2; exit 3").hosts
    assert (host.stdout, host.stderr, host.rc, host.status) == ("out\n", "err\n", 3, "failed")


@pytest.mark.signals
def test_ctrl_c_cancels_the_work_and_waits_for_its_end() -> None:
    ended: list[str] = []

    def work(cancel: Cancel) -> None:
        main = threading.main_thread().ident or 0
        threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
        try:
            cancel.sleep(20)
        finally:
            ended.append("work")

    with pytest.raises(KeyboardInterrupt):
        interruptible(work, lambda: ended.append("after"))
    assert ended == ["work", "after"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clutser'"):
        getattr(ipexctl, "Clutser")  # noqa: B009  # a type checker would refuse it
    assert set(ipexctl.__all__) <= set(dir(ipexctl))
