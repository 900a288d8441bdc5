"""The checks of the nodes of a run before it starts: connections, imports, paths that the call names, hubs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from env_helpers import said, start
from ipexctl.hosts.host import Host
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, SessionPool
from ipexctl.remote.node_call import script_text
from ipexctl.run.start.path_checks import CheckedPaths, check_paths
from ipexctl.run.start.start_request import StartError
from plan_helpers import spec_of
from tls_helpers import serving


def asked(kind: str, *modules: str, source: str = "", **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", script_text("network.imports"), kind, *modules],
        input=source.encode("utf-8", "surrogateescape"),
        env={**os.environ, **environ},
        capture_output=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_missing_modules_are_found_without_importing(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text("raise SystemExit('it was run')")
    modules = ("os", "sys", "__main__", "pytest", "added", "no_such_module")
    ours = asked("own", *modules, PYTHONPATH=str(tmp_path))
    assert ours == {"event": "done", "missing": ["added", "no_such_module"], "fault": None}
    assert asked("other", *modules, PYTHONPATH=str(tmp_path))["missing"] == ["no_such_module"]
    assert asked("own", "os", "sys") == {"event": "done", "missing": [], "fault": None}


def test_a_dotted_module_is_looked_for_in_namespace_packages_alone(tmp_path: Path) -> None:
    """A package with an `__init__.py` may make a module when it runs."""
    for name in ("one/ns/a.py", "two/ns/deep/b.py", "two/whole/__init__.py", "two/ns/inner/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    path = f"{tmp_path}/one:{tmp_path}/two"
    there = ("ns.a", "ns.deep.b", "whole.x", "ns.inner.x", "os.path")
    found = asked("other", *there, "ns.x", "ns.deep.x", "none.x", PYTHONPATH=path)
    assert found["missing"] == ["ns.x", "ns.deep.x", "none.x"]


def test_syntax_errors_are_reported_with_their_line() -> None:
    assert asked("own", source="raise SystemExit('it was run')")["fault"] is None
    fault = asked("own", source="x = 1\nif x\n    pass\n")["fault"]
    assert (fault["kind"], fault["line"]) == ("SyntaxError", 2)
    assert fault["python"] == "{}.{}".format(*sys.version_info[:2])
    assert asked("own", source="def f():\npass\n")["fault"]["kind"] == "IndentationError"
    assert asked("own", source="x = 'a\0b'")["fault"]["kind"] == "SyntaxError"
    assert asked("own", source="name = '\udce9'  # latin-1, and it doesn't say so")["fault"] is not None


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fill(cache: Path, folder: str, ref: str = "main") -> None:
    (cache / folder / "snapshots" / COMMIT).mkdir(parents=True)
    (cache / folder / "refs").mkdir()
    (cache / folder / "refs" / ref).write_text(COMMIT)


class Hub(BaseHTTPRequestHandler):
    status = 200

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        if self.status == 302:
            self.send_header("Location", "http://192.0.2.1/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def look(tmp_path: Path, *, env: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    request = {"home": "~/.ipexctl", "setup": "", "variables": {}, "model": "", "data": "", "directory": "code/p-*"}
    account = {**os.environ, "HF_HOME": "", "HF_HUB_OFFLINE": "", **(env or {})}
    return said(start("hub.hub_check", "query", {**request, "tries": False, **changes}, env=account))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The account's home is that of passwd, so a cache and a home are named by their paths."""
    home = tmp_path / "home"
    fill(home / "hub" / "hub", "models--org--tiny")
    return home


def test_repositories_of_the_own_cache_alone_are_counted(tmp_path: Path, own_home: Path) -> None:
    cache = tmp_path / "own"
    fill(cache / "hub", "datasets--org--d", "v1")
    fill(cache / "hub", "models--org--other")
    (cache / "hub" / "models--a--unfinished").mkdir()
    variables = {"HF_HOME": str(cache)}
    found = look(tmp_path, home=str(own_home), variables=variables)
    assert (found["has_own_cache"], found["others"], found["problem"]) == (True, 2, "")
    assert not look(tmp_path, home=str(own_home), variables={"XDG_CACHE_HOME": str(cache)})["has_own_cache"]


def test_the_tensors_of_a_pushed_model_are_read_unless_another_cache_is_named(tmp_path: Path, own_home: Path) -> None:
    text = b'{"l.q_proj.weight": {"dtype": "F32", "shape": [2, 3]}}'
    for cache in (own_home / "hub" / "hub", tmp_path / "own" / "hub"):
        snapshot = cache / "models--org--tiny" / "snapshots" / "c0ffee"
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
        text = text.replace(b"F32", b"BF16")
    tensors = look(tmp_path, home=str(own_home), model="org/tiny")["tensors"]
    assert tensors == [{"module": "q_proj", "bits": 32, "shape": [2, 3], "copies": 1}]
    other = look(tmp_path, home=str(own_home), model="org/tiny", variables={"HF_HOME": str(tmp_path / "own")})
    assert other["tensors"][0]["bits"] == 16
    none = look(tmp_path, home=str(own_home), model="org/none")
    assert (none["tensors"], none["lacking"]) == ([], ["org/none"])
    assert look(tmp_path, home=str(own_home), model="org/tiny")["lacking"] == []


def test_a_model_and_data_that_earlier_runs_made_are_found_in_the_tree(tmp_path: Path, own_home: Path) -> None:
    asked: dict[str, Any] = {"home": str(own_home), "model": "tiny", "data": "made"}
    assert look(tmp_path, **asked)["lacking"] == ["tiny", "made"]
    (own_home / "code" / "p-.gen2" / "tiny").mkdir(parents=True)
    (own_home / "code" / "p-.gen2" / "made").touch()
    assert look(tmp_path, **asked)["lacking"] == []


@pytest.mark.parametrize(
    ("status", "problem"), [(200, ""), (401, ""), (403, ""), (302, ""), (404, ""), (503, "503"), (407, "407")]
)
def test_any_answer_of_a_hub_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, problem: str) -> None:
    monkeypatch.setattr(Hub, "status", status)
    with serving(Hub) as address:
        found = look(tmp_path, tries=True, variables={"HF_ENDPOINT": f"http://{address}"})["problem"]
        assert bool(found) == bool(problem)
        assert problem in found
        setup = tmp_path / "setup.sh"
        setup.write_text(f"export HF_ENDPOINT=http://{address} HF_HOME=/models\n")
        assert look(tmp_path, tries=True, setup=str(setup))["has_own_cache"]
        for decided, why in (("1", "HF_HUB_OFFLINE is set there"), ("0", "")):
            assert look(tmp_path, tries=True, env={"HF_HUB_OFFLINE": decided})["problem"] == why


def test_hub_that_refuses_connections_is_not_reached(tmp_path: Path) -> None:
    with serving(Hub) as address:
        pass
    assert "refused" in look(tmp_path, tries=True, variables={"HF_ENDPOINT": f"http://{address}"})["problem"]


def test_a_proxy_that_refuses_is_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "status", 403)
    with serving(Hub) as address:
        variables = {"HF_ENDPOINT": "http://192.0.2.1", "http_proxy": f"http://{address}"}
        assert "403" in look(tmp_path, tries=True, variables=variables)["problem"]
        assert look(tmp_path, tries=True, variables={**variables, "no_proxy": "*"})["problem"] != ""


@pytest.fixture
def bindings(tmp_path: Path) -> Path:
    """The package of the bindings with its MPI, below a path with a space."""
    package = tmp_path / "my env" / "oneccl_bindings_for_pytorch"
    programs = package / "opt" / "mpi" / "bin"
    programs.mkdir(parents=True)
    (package / "env").mkdir()
    (package / "env" / "setvars.sh").write_text("export CCL_ROOT=x\n")
    (programs / "mpirun").write_text('#!/bin/sh\nfor _ in 1 2 3; do [ -f $0 ]; done\nmpiexec.hydra "$@"\n')
    version = "Intel(R) MPI Library for Linux* OS, Version 2021.15 Build 20250213"
    (programs / "mpiexec.hydra").write_text(f"#!/bin/sh\n[ $1 = --version ] && echo '{version}'\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    return package


def checked(mpi: Path | str = "auto", **options: Any) -> CheckedPaths:
    spec = spec_of(hosts=(Host("localhost", "localhost"),), mpi=str(mpi), **options)
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=2) as pool:
        found = check_paths(spec, pool)
    assert isinstance(found, CheckedPaths), found
    return found


@pytest.mark.parametrize(("option", "make"), [("data", Path.mkdir), ("setup", Path.touch)])
def test_a_named_path_must_be_on_the_host(tmp_path: Path, option: str, make: Callable[[Path], object]) -> None:
    path = tmp_path / "named"
    given: dict[str, Any] = {option: (str(path),) if option == "data" else str(path)}
    with pytest.raises(StartError) as caught:
        checked(**given)
    assert f"--{option} {path}" in caught.value.failure.reason
    make(path)
    checked(**given)


@pytest.mark.parametrize("path", ["opt/mpi/bin/mpirun", "opt/mpi/bin", "opt/mpi"])
def test_bundled_mpirun_is_found_with_setvars_of_its_bindings(bindings: Path, path: str) -> None:
    found = checked(bindings / path)
    assert found.mpi is not None
    assert found.mpi.path == str(bindings / "opt" / "mpi" / "bin" / "mpirun")
    assert (found.mpi.flavor, found.mpi.version) == ("intel", "2021.15")
    assert found.setvars == str(bindings / "env" / "setvars.sh")


def test_setvars_is_none_without_the_script_or_for_other_mpis(bindings: Path) -> None:
    (bindings / "env" / "setvars.sh").unlink()
    assert checked(bindings / "opt" / "mpi").setvars is None
    elsewhere = bindings.parent / "mpi"
    (bindings / "opt" / "mpi").rename(elsewhere)
    found = checked(elsewhere)
    assert found.mpi is not None
    assert (found.mpi.version, found.setvars) == ("2021.15", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="directories of another account need root")
@pytest.mark.parametrize(
    "is_others", [pytest.param(True, marks=pytest.mark.core), False], ids=["of-another", "for-all"]
)
def test_what_ranks_execute_below_a_directory_of_others_is_noted(tmp_path: Path, *, is_others: bool) -> None:
    """A user's own environment may lie in a tree that a team shares, so it is no refusal."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        place.chmod(0o755)
        shared = place / "shared"
        (shared / "project").mkdir(parents=True)
        (shared / "python").symlink_to(sys.executable)
        (shared / "setup.sh").touch()
        named: dict[str, Any] = {"python": f"{shared}/python", "setup": f"{shared}/setup.sh"}
        project = ProjectLocation(shared, ".", ("project",))
        assert checked(sync=False, project=project, **named).notes == ()
        os.chown(shared, 47001 if is_others else 0, 0)
        shared.chmod(0o755 if is_others else 0o777)
        notes = checked(sync=False, project=project, **named).notes
        assert [note.partition(" on localhost: ")[0] for note in notes] == [
            f"--no-sync {shared}/project",
            f"--setup {shared}/setup.sh",
            f"--python {shared}/python",
        ]
        assert all(str(shared) in note and "another account" in note for note in notes)
        shared.chmod(0o1777)
        os.chown(shared, 0, 0)
        assert checked(sync=False, project=project, **named).notes == ()
    finally:
        shutil.rmtree(place)
