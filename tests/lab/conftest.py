"""Labs for tests: each file makes its own, which its tests share by spec; they are removed at the file's end.

A lab takes half a second, so no file sees what another one left on a host: files pass in any order and company. The
environment with a real MPI, which takes twenty seconds, is installed once in a session and unpacked in later labs
(`lab_run_helpers.py: lab_with_mpi`). Labs are temporary: what a session leaves that was killed is removed by the next
one, or by `ipexctl lab down NAME`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from install_helpers import PYTHON, Target
from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.down import down, remove_abandoned
from ipexctl.addons.lab.faults import mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.up import up
from ipexctl.errors import UserError
from lab_play_helpers import Site
from lab_run_helpers import Cluster, lab_with_mpi, new_cluster, session_dir
from page_fixtures import own_lab, page_hosts, slurm_programs, small_wheels, wheel_dir  # noqa: F401  (fixtures)
from printed_lines import ELSEWHERE, PRINTED, summary
from slurm_helpers import use_ssh
from tiny_wheels import write_stack

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def type_printed_lines(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the program prints is typed, except in files whose `TYPES_PRINTED_LINES` says why not."""
    PRINTED.off = getattr(request.module, "TYPES_PRINTED_LINES", "")
    yield
    PRINTED.end_test()
    PRINTED.off = ELSEWHERE


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["printed"] = PRINTED.lines


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    PRINTED.add(getattr(node, "workeroutput", {}).get("printed", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if PRINTED.lines:
        for line in summary(PRINTED.lines, with_lines=terminalreporter.verbosity > 0):
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def make_lab() -> Iterator[Callable[[LabSpec], Lab]]:
    """Create a lab of this spec, or return that of this file. All are removed at the end of the file."""
    try:
        lab_system.require()
    except UserError as missing:
        pytest.skip(f"needs a lab: {missing.message} (fix: {missing.fix})")
    remove_abandoned()
    labs: dict[LabSpec, Lab] = {}

    def make(spec: LabSpec) -> Lab:
        if spec not in labs:
            # A name no person's lab has, so that only ours is removed.
            name = spec.name or f"test-{os.getpid()}-{next(_numbers)}"
            labs[spec] = up(replace(spec, name=name, temporary=True))
        return labs[spec]

    yield make
    for lab in labs.values():
        down(lab.name)


@pytest.fixture(scope="module")
def lab(
    request: pytest.FixtureRequest, make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory
) -> Lab:
    """The lab of a module's `LAB`; one of `MPI_LAB` has an environment with a real MPI on all its hosts, and no
    host can log in to another.

    In one with a Slurm, these are the compute nodes, with sshd.
    """
    spec = getattr(request.module, "MPI_LAB", None)
    if spec is None:
        return make_lab(request.module.LAB)
    lab = use_ssh(make_lab(spec)) if spec.slurm else make_lab(spec)
    return lab_with_mpi(lab, session_dir(tmp_path_factory))


@pytest.fixture(params=["auto", "openssh"])
def transport(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test as users do, and once more with the ssh program forced."""
    way = str(request.param)
    if way != "auto":
        config = tmp_path / ".config/ipexctl/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'transport = "{way}"\n')
        monkeypatch.setenv("HOME", str(tmp_path))
    return way


@pytest.fixture(scope="module")
def lab3(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    """Three plain hosts that the tests of a file share: every test restores them."""
    return make_lab(LabSpec(hosts=3))


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Iterator[Cluster]:
    """The module's own lab with an empty project, and no runs yet; every fault is mended after the test."""
    yield new_cluster(lab, tmp_path)
    for host in lab.hosts:
        mend_host(host)


@pytest.fixture
def target(lab: Lab) -> Iterator[Target]:
    """The module's own lab, and a home on it that one test has to itself; every fault is mended after the test."""
    yield Target(lab, f"/home/ipex/ours{next(_numbers)}")
    for host in lab.hosts:
        mend_host(host)


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    """A complete stack of small wheels."""
    write_stack(tmp_path, python=PYTHON)
    return tmp_path


@pytest.fixture(scope="module")
def home_with_an_environment(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A home on the module's own lab in which the stack of `wheelhouse` is installed; see `installed`."""
    target = Target(lab, "/home/ipex/installed")
    write_stack(wheels := tmp_path_factory.mktemp("installed"), python=PYTHON)
    target.report("--wheelhouse", wheels, "--offline")
    for index in range(len(lab.hosts)):
        target.on(index, "cp -a $HOME_OF_OURS $HOME_OF_OURS.kept")
    return target


@pytest.fixture
def installed(home_with_an_environment: Target) -> Iterator[Target]:
    """That home as the file's only install left it: one takes three seconds, and a copy none."""
    target = home_with_an_environment
    yield target
    for index, host in enumerate(target.hosts):
        mend_host(host)
        target.on(index, "rm -rf $HOME_OF_OURS && cp -a $HOME_OF_OURS.kept $HOME_OF_OURS")


@pytest.fixture
def node(lab3: Lab) -> Iterator[LabHost]:
    """One host to break; every fault of it is mended after the test."""
    yield lab3.hosts[0]
    mend_host(lab3.hosts[0])


@pytest.fixture
def site(lab3: Lab, tmp_path: Path) -> Iterator[Site]:
    """A directory of playbooks, and three hosts for them."""
    found = Site(lab3, tmp_path, f"/home/{lab3.hosts[0].user}/play-{tmp_path.name}")
    yield found
    for index in range(3):
        found.on(index, "chmod -R u+w PLACE 2>/dev/null; rm -rf PLACE")
