"""An environment is complete or absent, whatever happens during the build."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_helpers import other_pythons, wait_until
from env_helpers import TAG, Home, run_in, said, session_of, start
from ipexctl.node.common.fix import fix_from_json
from tiny_wheels import corrupt, write_oneccl, write_wheel

pytest_plugins = ["run_fixtures"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.below(tmp_path)


@pytest.mark.core
def test_build_is_complete_named_and_leaves_no_temporary_files(home: Home) -> None:
    done = home.build()
    assert done["state"] == "built"
    assert home.env.is_dir()
    assert os.readlink(home.path / "envs" / "default") == home.name
    assert home.envs("check", name="default")["problems"] == []
    assert home.leftovers() == []
    assert home.record["packages"]["torch"] == "2.8.0"
    assert json.loads((home.env / "lock.json").read_text()) == home.lock.to_json()


def test_a_second_build_changes_nothing(home: Home) -> None:
    home.build()
    before = (home.env / "env.json").stat().st_mtime_ns
    assert home.build()["state"] == "there"
    assert home.build(links=["default", "other"])["state"] == "there"
    assert os.readlink(home.path / "envs" / "other") == home.name
    assert (home.env / "env.json").stat().st_mtime_ns == before
    assert home.leftovers() == []


@pytest.mark.parametrize("name", ["home", "a b/home", "long" * 40, "link/home"])
def test_console_scripts_have_the_final_path_below_every_home(tmp_path: Path, name: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    home = Home(tmp_path / name)
    home.add_stack(tmp_path / "source")
    assert home.build()["state"] == "built"
    assert run_in(home.env, "f2py").startswith(f"f2py of {home.env}/")
    for path in [*(home.env / "bin").iterdir(), home.env / "pyvenv.cfg", home.env / "env.json"]:
        if path.is_file() and not path.is_symlink():
            assert not {part for part in (b".build-", b"/disk/") if part in path.read_bytes()}, path
    assert home.envs("check", name="default")["problems"] == []


def test_uv_is_used_from_its_wheel(home: Home, tmp_path: Path) -> None:
    import uv

    wheel = write_wheel(tmp_path, "uv", "0.1", scripts={"uv": f'#!/bin/sh\nexec {uv.find_uv_bin()} "$@"\n'})
    added = home.add(wheel)
    assert home.build(installer={"sha256": added.sha256, "name": added.filename})["state"] == "built"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("failed to write: Disk quota exceeded (os error 122)", "has no room for the environment under the quota"),
        ("failed to write: No space left on device (os error 28)", "has no room for the environment: it takes"),
        ("no wheels with a matching platform tag", "uv ended with exit code 2: no wheels with a matching platform tag"),
    ],
)
def test_uv_errors_are_reported(home: Home, tmp_path: Path, text: str, reason: str) -> None:
    added = home.add(write_wheel(tmp_path, "uv", "0.1", scripts={"uv": f"#!/bin/sh\necho '{text}' >&2\nexit 2\n"}))
    failed = home.build(installer={"sha256": added.sha256, "name": added.filename})
    assert reason in failed["reason"]
    assert home.leftovers() == []


@pytest.mark.parametrize("python", other_pythons())
def test_env_commands_run_under_every_python(home: Home, python: str) -> None:
    assert home.build(python=python)["state"] == "built"
    assert home.envs("check", python=python, name="default")["record"]
    assert home.envs("list", python=python)["envs"][0]["complete"]
    assert home.envs("remove", python=python, names=["default"])["failed"] == {}


@pytest.mark.parametrize("name", ["home", "a b/home"])
def test_ziglang_and_intel_openmp_become_a_compiler(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path / name)
    home.add_stack(tmp_path / "source")
    assert home.build()["state"] == "built"
    assert not (home.env / "compiler").exists()
    shows = {"ziglang/__init__.py": "", "ziglang/__main__.py": "import os, sys; print(sys.argv[1:], dict(os.environ))"}
    home.wheels.append(home.add(write_wheel(tmp_path / "more", "ziglang", "0.17.1", files=shows)))
    assert home.build(name=f"{home.name}2")["state"] == "built"
    env = home.path / "envs" / f"{home.name}2"
    shown = subprocess.run([env / "compiler/c++", "-x", "a b"], capture_output=True, text=True, check=True).stdout
    for word in (
        "'c++', '-target'",
        f"-isystem', '{env}/opt/compiler/include', '-idirafter', '/usr/include', '-L{env}/compiler'",
    ):
        assert word in shown
    assert f"'ZIG_LOCAL_CACHE_DIR': '{env}/compiler/cache'" in shown
    assert (env / "compiler" / "libgomp.so").resolve() == env / "lib" / "libiomp5.so"


@pytest.mark.parametrize("module", ["oneccl_bindings_for_pytorch", "torch_ccl"])
def test_variables_come_from_setvars_of_the_bindings(tmp_path: Path, module: str) -> None:
    home = Home.below(tmp_path, oneccl="2.8.0", module=module)
    home.build(record={"module": module, "backend": "ccl"})
    record = home.record
    package = f"{home.site}/{module}"
    assert record["variables"]["CCL_ROOT"] == package
    assert record["variables"]["I_MPI_ROOT"] == f"{package}/opt/mpi"
    assert record["variables"]["PATH"] == f"{package}/opt/mpi/bin:{home.env}/bin"
    assert record["variables"]["LD_LIBRARY_PATH"] == f"{package}/lib:{package}/opt/mpi/lib"
    assert record["variables"]["CCL_OFI_LIBRARY_PATH"] == f"{package}/opt/mpi/lib/libfabric.so.1"
    assert record["prepended"] == ["LD_LIBRARY_PATH", "PATH"]
    assert record["mpi"] == "2021.14"
    assert not {"MANPATH", "CMAKE_PREFIX_PATH"} & set(record["variables"])


def test_variables_come_from_vars_if_bindings_have_no_mpi(tmp_path: Path) -> None:
    home = Home(tmp_path / "home of tests")
    home.add_stack(tmp_path / "source")
    home.wheels.append(home.add(write_oneccl(tmp_path / "source", "2.8.0", python=TAG, bundled_mpi=False)))
    home.build(record={"module": "oneccl_bindings_for_pytorch", "backend": "ccl"})
    package = f"{home.site}/oneccl_bindings_for_pytorch"
    variables = home.record["variables"]
    assert (variables["CCL_ROOT"], variables["I_MPI_ROOT"]) == (package, str(home.env))
    assert variables["LD_LIBRARY_PATH"] == f"{package}/lib:{home.env}/lib"


def test_variables_are_computed_without_setvars(home: Home) -> None:
    home.build()
    env = str(home.env)
    assert home.record["variables"] == {
        "PATH": f"{env}/bin",
        "LD_LIBRARY_PATH": f"{env}/lib",
        "I_MPI_ROOT": env,
        "FI_PROVIDER_PATH": f"{env}/lib",
    }


def test_wheel_with_wrong_record_passes_the_check(home: Home, tmp_path: Path) -> None:
    import zipfile

    wheel = write_wheel(tmp_path, "odd", "1.0")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tmp_path / "new", "w") as new:
        for entry in old.infolist():
            text = old.read(entry) + (b"Summary: longer\n" if entry.filename.endswith("METADATA") else b"")
            new.writestr(entry, text)
    shutil.move(tmp_path / "new", wheel)
    home.wheels.append(home.add(wheel))
    assert home.build()["state"] == "built"
    assert home.envs("check", name=home.name)["problems"] == []


@pytest.mark.parametrize("seed", range(10))
def test_build_completes_after_sigkill(home: Home, seed: int) -> None:
    child = start("env.build", "build", home.request())
    time.sleep(random.Random(seed).uniform(0.02, 1.2))
    child.kill()
    child.communicate()
    wait_until(lambda: session_of(child.pid) == [])
    if home.env.exists():
        assert home.envs("check", name=home.name)["record"]
    home.build()
    assert home.envs("check", name="default")["record"]
    assert home.leftovers() == []


@pytest.mark.parametrize("how", ["TERM", "closed"])
def test_stopped_build_leaves_no_process_and_no_file(home: Home, how: str) -> None:
    child = start("env.build", "build", home.request())
    assert child.stdout is not None
    for line in child.stdout:
        if b"unpacking" in line:
            break
    if how == "TERM":
        child.send_signal(signal.SIGTERM)
    child.stdout.close()
    assert child.wait(10) in (0, 143)
    assert session_of(child.pid) == []
    assert home.leftovers() == []
    assert child.stderr is not None
    child.stderr.close()


BLIND = "import os\nlink = os.symlink\nos.symlink = lambda to, path: None if path.endswith('.lock') else link(to, path)"
"""Builders that do not see each other's locks, as on a broken filesystem."""


@pytest.mark.parametrize(("count", "first"), [(3, ""), (2, BLIND)])
def test_parallel_builds_create_one_environment(home: Home, count: int, first: str) -> None:
    children = [start("env.build", "build", home.request(), first=first) for _ in range(count)]
    assert sorted(said(child)["state"] for child in children) == ["built", *["there"] * (count - 1)]
    assert home.envs("check", name=home.name)["record"]
    assert home.leftovers() == []


def test_dead_builder_on_another_machine_is_detected_by_heartbeat(home: Home) -> None:
    tmp = home.path / "tmp"
    for token, age in (("aaaaaaaaaaaa", 100), ("bbbbbbbbbbbb", 0)):
        (tmp / f"build-{token}").mkdir(parents=True)
        (tmp / f"owner-{token}").symlink_to(f"elsewhere:1:1:{token}")
        os.utime(tmp / f"owner-{token}", (time.time() - age, time.time() - age), follow_symlinks=False)
        (home.path / "envs" / f".build-{token}").mkdir(parents=True)
    lock = tmp / f"{home.name}.lock"
    lock.symlink_to("elsewhere:1:1:aaaaaaaaaaaa")
    os.utime(lock, (time.time() - 100, time.time() - 100), follow_symlinks=False)
    assert home.build()["state"] == "built"
    assert home.leftovers() == [".build-bbbbbbbbbbbb", "build-bbbbbbbbbbbb", "owner-bbbbbbbbbbbb"]


def test_damaged_environment_is_reported_and_rebuilt(home: Home) -> None:
    home.build()
    (home.site / "torch" / "distributed" / "__init__.py").unlink()
    checked = home.envs("check", name="default")
    assert checked["problems"] == ["torch: torch/distributed/__init__.py is missing"]
    assert home.build()["state"] == "there"
    assert home.build(replace=checked["build"])["state"] == "built"
    assert home.envs("check", name="default")["record"]
    assert home.build(replace=checked["build"])["state"] == "there", "another host has mended it by now"
    assert home.leftovers() == []


def test_environment_with_invalid_record_is_rebuilt(home: Home) -> None:
    home.build()
    (home.env / "env.json").write_text("{")
    assert home.build()["state"] == "built"
    assert home.envs("check", name="default")["record"]


def test_corrupt_wheel_is_named_and_removed_from_the_store(home: Home) -> None:
    torch = home.wheels[0]
    corrupt(home.path / "wheels" / torch.sha256 / torch.filename)
    failed = home.build()
    assert failed["event"] == "failed"
    assert torch.filename in failed["reason"]
    assert not (home.path / "wheels" / torch.sha256).exists()
    assert not home.env.exists()
    assert home.leftovers() == []


def test_directory_with_the_name_of_an_environment_is_kept(home: Home) -> None:
    (home.path / "envs" / "default" / "mine").mkdir(parents=True)
    home.build(links=())
    failed = home.envs("link", name=home.name, link="default")
    assert "is an environment itself" in failed["reason"]
    assert "--env" in fix_from_json(failed["fix"])
    assert (home.path / "envs" / "default" / "mine").is_dir()


def test_python_version_other_than_the_lock_is_refused(home: Home) -> None:
    assert "this environment is for 3.1" in home.build(record={"python": "3.1"})["reason"]


def test_missing_interpreter_is_reported(home: Home) -> None:
    assert home.build()["state"] == "built"
    shutil.rmtree(home.env)
    request = home.request(python="/nowhere/python3")
    assert "/nowhere/python3" in said(start("env.build", "build", request))["reason"]


def test_wheels_are_removed_on_request(home: Home) -> None:
    home.build(drop_wheels=True)
    assert list((home.path / "wheels").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [("size=1m", "has no room"), ("size=200m,noexec", "mounted noexec"), ("size=200m,ro", "read-only")],
)
def test_unsuitable_filesystem_is_reported(
    tmp_path: Path, mounted: Callable[[str], Path], options: str, reason: str
) -> None:
    place = mounted(options.replace(",ro", ""))
    home = Home(place / "home")
    home.add_stack(tmp_path / "source", pad=300_000)
    request = home.request()
    if ",ro" in options:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    failed = said(start("env.build", "build", request))
    assert reason in failed["reason"]
    assert str(place) in failed["reason"]
    assert failed["fix"]
    assert not home.env.exists()
    if "ro" not in options and "noexec" not in options:
        assert home.leftovers() == []


def test_disk_full_during_unpacking_is_reported_with_missing_space(
    tmp_path: Path, mounted: Callable[[str], Path]
) -> None:
    place = mounted("size=60m")
    home = Home(place / "home")
    home.add_stack(tmp_path / "source", pad=20_000_000)
    first = "from ipexctl.node.env import build\nbuild.MARGIN = -(1 << 40)"
    filler = place / "filler"
    with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 16))
    os.truncate(filler, filler.stat().st_size - 8_000_000)
    failed = said(start("env.build", "build", home.request(), first=first))
    assert "has no room" in failed["reason"]
    assert "MB more than is free" in failed["reason"]
    assert home.leftovers() == []
