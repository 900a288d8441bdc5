"""Each command once on real hosts, from a control machine that is no Linux; `foreign_control.py` makes it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv

from agent_helpers import wait_until
from clean_environment import package_environ
from cli_helpers import processes_with
from doc_blocks import ROOT, blocks
from doc_shell import FILES
from foreign_control import ForeignMachine, foreign_machine
from install_helpers import PYTHON
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import on_host
from lab_run_helpers import WAIT_SCRIPT
from tiny_wheels import write_stack, write_wheel

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
RUN = ("--launcher", "direct", "--omp", 1, "--ppn", 1)
PACKAGE = ROOT / "ipexctl"
EXECUTE = ROOT / "tests/stand_ins/notebook/execute.py"
SCRIPT = """\
import os, pathlib, sys, time
print("rank", os.environ["RANK"], "of", os.uname().sysname, flush=True)
out = pathlib.Path(os.environ["IPEXCTL_RUN_DIR"])
for name in ("Model", "log"):
    (out / name).write_text(name)
if "wait" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def mac(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> ForeignMachine:
    machine = foreign_machine(tmp_path_factory.mktemp("mac"))
    project = machine.disk / "My Project"
    project.mkdir()
    for name, text in {"train.py": SCRIPT, "café.txt": "", "._train.py": "", ".DS_Store": ""}.items():
        (project / name).write_text(text)
    wheels = machine.root / "My Wheels"
    write_stack(wheels, torch="2.13.0", ipex=None, impi=None, python=PYTHON)
    _write_uv(wheels)
    return machine


def _write_uv(wheels: Path) -> None:
    """The wheel for Linux, as an index has it."""
    made = write_wheel(wheels, "uv", "99.0", tag="py3-none-manylinux_2_17_x86_64", scripts={"uv": ""})
    made.unlink()
    with zipfile.ZipFile(made, "w") as archive:
        archive.write(uv.find_uv_bin(), "uv-99.0.data/scripts/uv")


@pytest.fixture
def hosts(lab: Lab) -> tuple[str, object]:
    return "-H", lab.hostfile


def test_it_is_no_linux(mac: ForeignMachine) -> None:
    """Else the others would show nothing."""
    code = (
        "import os, platform, resource, socket, sys; print(sys.platform, platform.system(), platform.machine(),"
        " os.listdir('/proc'), hasattr(os, 'memfd_create'), hasattr(socket, 'TCP_KEEPIDLE'),"
        " resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    for options in ((), ("-I", "-S")):
        argv = mac.python(*options, "-c", code)
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert shown.split() == ["darwin", "Darwin", "arm64", "[]", "False", "False", "256"]


def test_doctor_and_install(mac: ForeignMachine, lab: Lab, hosts: tuple[str, object]) -> None:
    found = json.loads(mac.call("doctor", *hosts, "--json", rc=None).out)
    assert all(host["facts"]["cpu"]["arch"] == "x86_64" for host in found["hosts"]), found["hosts"]
    report = json.loads(
        mac.call(
            "install", *hosts, "--wheelhouse", mac.root / "My Wheels", "--offline", "--stack", "torch", "--json"
        ).out
    )
    assert {host["status"] for host in report["hosts"]} == {"changed"}
    assert not any((mac.root / "private/var/T").iterdir()), "the agent's file is removed"


def test_sync_sends_what_linux_would(mac: ForeignMachine, lab: Lab, hosts: tuple[str, object]) -> None:
    assert "2 files uploaded" in mac.call("sync", *hosts, mac.disk / "My Project").out
    names = on_host(lab.hosts[0], "ls -A .ipexctl/code/*/").split()
    assert {"train.py", "café.txt"} <= set(names)
    assert not {"._train.py", ".DS_Store"} & set(names)


def test_run_attach_logs_why_and_fetch(mac: ForeignMachine, lab: Lab, hosts: tuple[str, object]) -> None:
    project = mac.disk / "My Project"
    ran = mac.call("run", *hosts, *RUN, "train.py", cwd=project)
    assert {f"[{rank}] rank {rank} of Linux" in ran.out for rank in (0, 1)} == {True}
    assert "rank 1 of Linux" in mac.call("attach", "last", cwd=project).out
    mac.call("fetch", "last", project / "out", "--results", cwd=project)
    assert {path.read_text() for path in (project / "out").rglob("Model")} == {"Model"}
    assert len([*(project / "out").rglob("log")]) == 2
    break_host(lab.hosts[0], "sshd-dead")
    try:
        assert "rank 1 of Linux" in mac.call("logs", "last", cwd=project, rc=None).out
        assert "copy on the control machine" in mac.call("why", "last", cwd=project, rc=None).out
    finally:
        mend_host(lab.hosts[0])


@pytest.mark.signals
def test_ctrl_c_stops_a_run(mac: ForeignMachine, lab: Lab, hosts: tuple[str, object], tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        call = mac.begin("run", *hosts, *RUN, "--cwd", ".", "My Project/train.py", "wait", stdout=out, stderr=out)
    said = tmp_path / "out"
    wait_until(lambda: said.read_text().count("of Linux") == 2, 30, said.read_text)
    os.killpg(call.pid, signal.SIGINT)
    assert call.wait(30) == 130
    wait_until(lambda: not processes_with(lab, "train.py"), 20, lambda: processes_with(lab, "train.py"))


def test_push_and_play(mac: ForeignMachine, lab: Lab, hosts: tuple[str, object]) -> None:
    data = mac.disk / "data"
    (data / "Sub dir").mkdir(parents=True)
    (data / "Sub dir/x").write_bytes(os.urandom(1 << 20))
    mac.call("push", data, "/home/ipex/data", *hosts)
    (mac.disk / "site.yml").write_text(
        "- hosts: all\n  tasks:\n"
        "    - copy: {content: 'of {{ inventory_hostname }}', dest: '~/played'}\n"
        "    - shell: cat ~/played\n      register: shown\n"
        "    - debug: {msg: '{{ shown.stdout | upper }}'}\n"
    )
    assert "OF NODE2" in mac.call("play", "site.yml", *hosts).out
    for host in lab.hosts:
        assert on_host(host, "cat played; ls data/*") == f"of {host.name}x\n"


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the packages that `tests/notebook.txt` names."""
    place = tmp_path_factory.mktemp("jupyter")
    lock = ROOT / "tests/notebook.txt"
    argv = [uv.find_uv_bin(), "-q", "pip", "install", "--target", str(place), "--require-hashes", "-r", str(lock)]
    done = subprocess.run(
        [*argv, "-p", sys.executable], stderr=subprocess.PIPE, text=True, env=package_environ(), check=False
    )
    if done.returncode:
        pytest.skip(f"the packages of {lock.name} can't be had: {done.stderr.strip().splitlines()[-1:]}")
    return place


def test_a_notebook_sweeps_and_its_interrupt_leaves_a_run_or_stops_it(
    mac: ForeignMachine, lab: Lab, jupyter: Path
) -> None:
    """The sweep of docs/python.md as it stands, and the cells that its section about notebooks promises."""
    project = mac.disk / "My Notebooks"
    project.mkdir()
    shutil.copy(FILES / "train.py", project)
    (project / "wait.py").write_text(WAIT_SCRIPT)
    hostfile = repr(str(lab.hostfile))
    wheels = {"stack": "torch", "wheelhouse": str(mac.root / "My Wheels"), "offline": True}
    (sweep, *_) = (block.text for block in blocks(ROOT / "docs/python.md") if block.language == "python")
    cells = {
        "open": f"import asyncio, ipexctl\nhosts = ipexctl.Cluster.from_hostfile({hostfile}, on_line=print)",
        "install": f"hosts.install(**{wheels}).exit_code",
        "loop": "(await asyncio.to_thread(hosts.exec, 'id -u')).exit_code + hosts.exec('id -u').exit_code",
        "sweep": sweep.replace('"hostfile"', hostfile),
        "detach": "run = hosts.run('wait.py', ppn=1)\nprint('now')\nrun.wait()",
        "detached": "run.wait(timeout=1).is_over",
        "stop": "print('now')\nrun.wait(on_interrupt='stop')",
        "stopped": "run.wait(timeout=1).is_over",
        "wrong": "hosts.run('absent.py')",
    }
    empty: dict[str, object] = {"cell_type": "code", "execution_count": None, "outputs": []}
    notebook = {
        "cells": [
            {**empty, "id": name, "source": text, "metadata": {"interrupt_at": "now"} if "'now'" in text else {}}
            for name, text in cells.items()
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (project / "sweep.ipynb").write_text(json.dumps(notebook))
    argv = mac.python(EXECUTE, "sweep.ipynb", "done.ipynb", cwd=project, packages=jupyter)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    printed, values, errors = dict[str, list[str]](), dict[str, str](), dict[str, list[str]]()
    for cell in json.loads((project / "done.ipynb").read_text())["cells"]:
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                assert output["name"] == "stdout", output["text"]
                printed.setdefault(cell["id"], []).extend("".join(output["text"]).splitlines())
            elif output["output_type"] == "execute_result":
                values[cell["id"]] = "".join(output["data"]["text/plain"])
            else:
                errors[cell["id"]] = [output["ename"], *output["traceback"]]
    assert values == {"install": "0", "loop": "0", "detached": "False", "stopped": "True"}, errors
    rates = ("0.1", "0.05", "0.02", "0.01", "0.005", "0.002", "0.001", "0.0005")
    assert printed["sweep"] == [f"lr {rate}: exit code 0" for rate in rates]
    assert len([*(project / "sweep").rglob("last.pt")]) == len(rates)
    assert any("2 ranks on 2 hosts" in line for line in printed["detach"])
    assert not [line for lines in printed.values() for line in lines if not line.isprintable()], "plain lines"
    assert {name: lines[0] for name, lines in errors.items()} == {
        "detach": "KeyboardInterrupt", "stop": "KeyboardInterrupt", "wrong": "UserError"
    }  # fmt: skip
    assert str(PACKAGE) not in str(errors["wrong"])
    assert errors["wrong"][-1] == "did you mean 'wait.py'?"


@pytest.mark.parametrize(
    ("call", "rc"),
    [(("run", "--hosts", "localhost", "x.py"), 3), (("doctor",), 3), (("exec", "id"), 3), (("lab", "up"), 2)],
)
def test_what_needs_linux_is_refused_in_one_line_with_what_to_do(
    mac: ForeignMachine, call: tuple[str, ...], rc: int
) -> None:
    (mac.disk / "x.py").touch()
    refused = mac.call(*call, rc=rc)
    shown = (refused.out + refused.err).splitlines()
    assert len([line for line in shown if "Linux" in line]) == 2, shown
    assert "hosts run Linux" in str(shown) or "a lab needs Linux" in str(shown)
