"""The installs of one machine: packages added to an environment, a private index, and the stack that all commands name.

Only the wheels of added packages are transferred, the rest is shared, and the old environment is removed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import CommandResult, ipexctl
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_sdist, write_stack, write_torch, write_wheel

PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"


class Machine:
    """This machine with a home of its own, and a directory of wheels as its only index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.wheels, self.home, self.script = directory / "wheels", directory / "home", directory / "train.py"
        self.wheels.mkdir()
        self.script.write_text("print('hello')\n")
        self.env = {
            **{f"XDG_{name}_HOME": str(directory / name) for name in ("CACHE", "CONFIG")},
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }

    def call(self, *args: object) -> CommandResult:
        return ipexctl(args[0], "--hosts", "localhost", "--home", self.home, *args[1:], env=self.env, timeout=120)

    def ask(self, *args: object) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.call(args[0], "--json", *args[1:]).out)
        return document

    def install(self, *args: object) -> dict[str, Any]:
        report = self.ask("install", *args)
        assert {host["status"] for host in report["hosts"]} <= {"ok", "changed"}, report
        return report

    def answers(self) -> dict[str, str | None]:
        """The stack named by each command that queries no index."""
        choice = self.ask("versions")["choice"]
        return {
            "versions": choice and choice["name"],
            "doctor": self.ask("doctor", "--no-network")["recommendation"]["stack"],
            "run": self.ask("run", "--dry-run", self.script).get("stack"),
        }

    @property
    def envs(self) -> set[str]:
        return {path.name for path in (self.home / "envs").iterdir() if not path.is_symlink()}

    @property
    def site(self) -> Path:
        return next((self.home / "envs" / "default").glob("lib/python3*/site-packages"))


@pytest.fixture
def empty(tmp_path: Path) -> Machine:
    """The machine without wheels and environments."""
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Path]:
    """The machine after the only install of the environment that most tests start from, and a copy of its directory."""
    directory = tmp_path_factory.mktemp("machine") / "machine"
    directory.mkdir()
    machine = Machine(directory)
    write_stack(machine.wheels, "2.13.0+cpu", None, None, PYTHON, pad=3_000_000)
    write_wheel(machine.wheels, "tqdm", "4.67.1", files={"tqdm.py": "print('bar')\n"})
    machine.install()
    copy = directory.with_name("kept")
    directory.rename(copy)
    return machine, copy


@pytest.fixture
def machine(kept: tuple[Machine, Path]) -> Iterator[Machine]:
    """The machine with an environment named default, and a package to add. A new copy has the paths of the first."""
    machine, copy = kept
    shutil.copytree(copy, machine.directory, symlinks=True)
    yield machine
    shutil.rmtree(machine.directory)


def test_added_package_needs_only_its_wheel(machine: Machine) -> None:
    (before,) = machine.envs
    pad = os.stat(next(machine.site.glob("torch_pad*")))
    write_stack(machine.wheels, "2.14.1+cpu", None, None, PYTHON)  # a newer stack does not replace the installed one
    write_wheel(machine.wheels, "numpy", "2.4.0")
    for wheel in (machine.home / "wheels").glob("*/torch-2.13*"):
        wheel.unlink()
    report = machine.install("--with", "tqdm")
    assert report["hosts"][0]["status"] == "changed"
    assert report["stack"]["torch"] == "2.13.0+cpu"
    assert report["hosts"][0]["packages"]["numpy"] == "2.3.0"
    assert not list((machine.home / "wheels").glob("*/torch-2.13*"))
    assert os.stat(next(machine.site.glob("torch_pad*"))).st_ino == pad.st_ino
    assert machine.envs == {report["hosts"][0]["env"]} != {before}
    env = machine.home / "envs" / "default"
    assert subprocess.check_output([env / "bin" / "python", "-c", "import torch, tqdm"], text=True) == "bar\n"
    assert before not in (env / "bin" / "f2py").read_text()
    checked = machine.call("envs", "--verify")
    assert checked.rc == 0, checked.err
    again = machine.install("--with", "tqdm")
    assert again["hosts"][0]["status"] == "ok"


def test_environment_with_another_name_shares_what_is_unpacked(machine: Machine) -> None:
    """It is resolved anew; the packages that both have are the same files, and their wheels are not needed."""
    write_wheel(machine.wheels, "numpy", "2.4.0")
    (before,) = machine.envs
    for wheel in (machine.home / "wheels").glob("*/torch-2.13*"):
        wheel.unlink()
    report = machine.install("--env", "other", "--stack", "torch", "--with", "tqdm")
    assert report["hosts"][0]["packages"]["numpy"] == "2.4.0"
    assert machine.envs == {before, report["hosts"][0]["env"]}
    (pad,) = (machine.home / "envs" / "other").glob("lib/python3*/site-packages/torch_pad*")
    assert pad.stat().st_ino == next(machine.site.glob("torch_pad*")).stat().st_ino
    assert not list((machine.home / "wheels").glob("*/torch-2.13*"))


@pytest.mark.parametrize("change", ["nothing", "file", "library", "variable"])
def test_all_reduce_counts_for_an_environment_of_the_same_files(machine: Machine, change: str) -> None:
    """It is made again if a file was changed since, or where an added package could change what it uses."""
    (before,) = machine.envs
    package = "tqdm"
    if change == "file":
        os.utime(machine.site / "torch" / "__init__.py", (time.time() + 60, time.time() + 60))
    elif change == "library":
        package = "fabric"
        write_wheel(machine.wheels, package, "1.0", data={"lib/libnew.so.1": "new"})
    elif change == "variable":
        record = machine.home / "envs" / before / "env.json"
        document = json.loads(record.read_text())
        document["variables"]["FI_PROVIDER"] = "tcp"
        record.write_text(json.dumps(document))
    for _ in range(4):
        machine.call("envs", "--remove", "other")
        host = machine.install("--env", "other", "--stack", "torch", "--with", package)["hosts"][0]
        own, added = (
            {path.name for path in machine.home.glob(f"envs/{env}/verified/*")} for env in (before, host["env"])
        )
        if own & added:
            break
        machine.call("envs", "--verify")  # in a container, a lab that went up or down made it another machine
    assert own & added
    verify = host["verify"]
    assert verify["allreduce_of"] == (before if change == "nothing" else None)
    assert verify["allreduce_ms"]
    assert [phase["name"] for phase in verify["phases"]] == ["torch", f"import {package}", "allreduce"]
    assert before not in (verify["launcher"] or "")


def test_another_version_of_a_package_replaces_only_that_package(machine: Machine) -> None:
    write_wheel(machine.wheels, "numpy", "1.26.4", files={"numpy.py": "__version__ = '1.26.4'\n"})
    report = machine.install("--with", "numpy<2")
    assert report["hosts"][0]["packages"]["numpy"] == "1.26.4"
    assert len(list(machine.site.glob("numpy-*.dist-info"))) == 1


def test_environment_in_use_is_kept(machine: Machine) -> None:
    (before,) = machine.envs
    python = machine.home / "envs" / before / "bin" / "python"
    with subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        report = machine.install("--with", "tqdm")
        assert machine.envs == {before, report["hosts"][0]["env"]}
        assert any(before in note for note in report["notes"])
        process.communicate(b"\n")


def test_damaged_package_alone_comes_from_its_wheel(machine: Machine) -> None:
    """Another environment, and the same one that is built again, take the rest from the damaged one."""
    torch = next(machine.site.glob("torch_pad*"))
    numpy = os.stat(machine.site / "numpy.py")
    torch.unlink()
    with_tqdm = machine.install("--with", "tqdm", "--env", "other")
    assert with_tqdm["hosts"][0]["packages"]["tqdm"] == "4.67.1"
    machine.call("envs", "--remove", "other")
    assert machine.install()["hosts"][0]["status"] == "changed"
    assert os.stat(machine.site / "numpy.py").st_ino == numpy.st_ino
    assert next(machine.site.glob("torch_pad*")).stat().st_size > 0


def test_files_with_other_content_come_from_their_wheel_after_a_failed_verification(machine: Machine) -> None:
    """Their sizes are those of the list, so that only the hashes show it."""
    file = next(machine.site.glob("torch_pad*"))
    good = file.read_bytes()
    assert machine.call("envs", "--verify").rc == 0
    file.write_bytes(bytes(len(good)))
    for verified in (machine.home / "envs" / "default").glob("verified/*.json"):
        verified.write_text('{"ok": false}')
    assert machine.install()["hosts"][0]["status"] == "changed"
    assert next(machine.site.glob("torch_pad*")).read_bytes() == good


def test_run_adds_packages_before_the_start(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tqdm\n")
    machine.call("run", "--with", "tqdm", "--plain", script)
    assert (machine.site / "tqdm.py").exists()
    write_wheel(machine.wheels, "rich", "14.0.0")
    (tmp_path / "needs.txt").write_text("rich==14.0.0\n")
    machine.call("run", "-r", tmp_path / "needs.txt", "--plain", script)
    assert (machine.site / "rich.py").exists()
    refused = machine.call("run", "--with", "tqdm", "--python", sys.executable, script)
    assert (refused.rc, "--python" in refused.err) == (2, True)


DEAD = "http://127.0.0.1:9/simple"


def test_private_index_without_answer_is_an_error(tmp_path: Path) -> None:
    """One that answers takes precedence: test_make_lock.py."""
    public = tmp_path / "public"
    public.mkdir()
    write_stack(public, torch="2.13.0", ipex=None, python=PYTHON)
    write_wheel(public, "acme", "9.9")
    with SimpleIndex(public) as served:
        args = ("--hosts", "localhost", "--home", tmp_path / "home", "--dry-run", "--json", "--stack", "torch-2.13")
        sources = ("--index-url", served.url, "--extra-index-url", DEAD)
        env = {"PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        ran = ipexctl("install", *args, *sources, "--with", "acme", env=env)
    assert ran.rc == 1, ran.err
    text = json.dumps(json.loads(ran.out))
    assert ["acme-9.9" in text, DEAD in text] == [False, True]


@pytest.fixture
def deep(empty: Machine) -> Iterator[tuple[Machine, tuple[str, ...]]]:
    """An index with a wheel of the old version of a package and the source of the newest; the words of an install."""
    write_stack(empty.wheels, "2.13.0+cpu", None, None, PYTHON)
    write_wheel(empty.wheels, "deep", "0.3")
    write_sdist(empty.wheels, "deep", "0.19", before=f"open({str(empty.directory / 'built')!r}, 'a').write('x')")
    with SimpleIndex(empty.wheels) as served:
        empty.env = {**empty.env, "PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""}
        yield empty, ("--stack", "torch", "--index-url", served.url, "--with", "deep")


def test_older_version_with_a_wheel_is_taken_and_a_note_names_the_newest(deep: tuple[Machine, tuple[str, ...]]) -> None:
    machine, words = deep
    taken = machine.install(*words, "--dry-run")
    assert taken["hosts"][0]["packages"]["deep"] == "0.3"
    (note,) = [note for note in taken["notes"] if "deep" in note]
    assert missing(note, "deep 0.19 0.3") == []
    (dry,) = machine.install(*words, "--build", "deep", "--dry-run")["hosts"]
    assert ("torch" in dry["packages"], "deep" in dry["packages"]) == (True, False)
    assert machine.install(*words[:-1], "deep<0.19", "--dry-run")["hosts"][0]["packages"]["deep"] == "0.3"
    absent = machine.ask("install", *words[:-2], "--build", "deep")["refused"]
    assert missing(absent["fix"], "--with deep --build") == []
    assert not (machine.directory / "built").exists()


def test_no_pre_release_is_taken_unasked_and_the_package_without_a_wheel_is_named(
    deep: tuple[Machine, tuple[str, ...]],
) -> None:
    machine, words = deep
    write_sdist(machine.wheels, "antlr", "4.9")
    write_wheel(machine.wheels, "antlr", "4.13")
    write_wheel(machine.wheels, "hydra", "1.3", requires=("antlr==4.9",))
    write_wheel(machine.wheels, "hydra", "1.4rc3")
    write_wheel(machine.wheels, "semantic", "0.66b2")
    write_wheel(machine.wheels, "uses", "1.0", requires=("hydra>=1.3",))
    refused = machine.ask("install", *words[:-1], "uses")["refused"]
    assert missing(refused["reason"], "antlr uses") == []
    assert missing(refused["fix"], "--build antlr") == []
    write_sdist(machine.wheels, "bare", "1.0")
    all_three = machine.ask("install", *words, "--with", "bare", "--with", "uses")["refused"]
    assert missing(all_three["reason"], "bare antlr") == []
    assert missing(all_three["fix"], "--build bare --build antlr") == []
    (host,) = machine.install(*words[:-1], "hydra==1.4rc3", "--with", "semantic", "--dry-run")["hosts"]
    assert (host["packages"]["hydra"], host["packages"]["semantic"]) == ("1.4rc3", "0.66b2")
    write_wheel(machine.wheels, "hydra", "0.11")  # needs no build: uv would go back to it
    write_wheel(machine.wheels, "capped", "0.1")
    write_wheel(machine.wheels, "capped", "2.0", requires=("antlr==4.9", "torch<2"))
    by_name = machine.ask("install", *words[:-1], "hydra", "--with", "capped")["refused"]
    assert missing(by_name["reason"], "antlr hydra") == []
    assert missing(by_name["fix"], "--build antlr") == []
    (host,) = machine.install(*words[:-1], "hydra<1", "--with", "capped", "--dry-run")["hosts"]
    assert (host["packages"]["hydra"], host["packages"]["capped"]) == ("0.11", "0.1")
    # The command that is printed works.
    (host,) = machine.install(*words[:-1], "uses", "--build", "antlr")["hosts"]
    assert (host["packages"]["hydra"], host["packages"]["antlr"]) == ("1.3", "4.9")


def test_named_package_is_built_once_and_installed_by_its_hash(deep: tuple[Machine, tuple[str, ...]]) -> None:
    machine, words = deep
    for status in ("changed", "ok"):
        (host,) = machine.install(*words, "--build", "deep")["hosts"]
        assert (host["status"], host["packages"]["deep"]) == (status, "0.19")
        assert (machine.directory / "built").read_text() == "x"
        assert status == "ok" or "import deep" in [phase["name"] for phase in host["verify"]["phases"]]
    # What was built stays, and is not built again: neither asks for --build.
    write_wheel(machine.wheels, "more", "1.0")
    write_wheel(machine.wheels, "newer", "1.0", requires=("deep>0.19",))
    (host,) = machine.install(*words[:-1], "more")["hosts"]
    assert (host["packages"]["deep"], host["packages"]["more"]) == ("0.19", "1.0")
    assert (machine.directory / "built").read_text() == "x"
    refused = machine.ask("install", *words[:-1], "newer", "--dry-run")["refused"]
    assert missing(refused["reason"], "deep newer") == []
    assert "deep (from --with)" not in refused["reason"]
    write_sdist(machine.wheels, "lost", "1.0", before="import nowhere")
    refused = machine.ask("install", *words[:-1], "lost", "--build", "lost")["refused"]
    assert missing(refused["reason"], "nowhere") == []
    assert "deep has no wheel" not in refused["reason"]


def test_a_line_with_versions_that_can_be_installed_works_as_it_is_printed(
    deep: tuple[Machine, tuple[str, ...]],
) -> None:
    machine, words = deep
    for name, version, *requires in (
        ("more", "1.0"),
        ("more", "2.0"),
        ("needy", "1.0", "more<2"),
        ("stuck", "1.0", "torch<2"),
    ):
        write_wheel(machine.wheels, name, version, requires=requires)
    for packages, printed in (
        (("more[x] > 8, < 9", "deep<0.19"), "--with 'more[x]==2.0' --with 'deep<0.19'"),
        (("needy", "more==2.0"), "--with needy --with more==1.0"),
        (("stuck",), "no version of stuck"),
    ):
        called = machine.call(
            "install", *words[:-2], *(word for name in packages for word in ("--with", name)), "--dry-run"
        )
        assert (called.rc, printed in called.err) == (2, True), called.err
        lines = [line for line in called.err.splitlines() if "ipexctl install" in line]
        for line in lines:
            machine.install(*shlex.split(line.partition("ipexctl install ")[2]), "--dry-run")
        assert bool(lines) == ("--with" in printed)


def test_a_build_gets_what_it_imports_without_declaring_it(deep: tuple[Machine, tuple[str, ...]]) -> None:
    """As extensions of torch do, whose setup imports torch."""
    machine, words = deep
    write_wheel(machine.wheels, "helper", "1.0")
    write_wheel(machine.wheels, "other", "1.0")
    write_sdist(machine.wheels, "lateimport", "1.0", before="import helper, other")
    write_sdist(machine.wheels, "lostimport", "1.0", before="import nowhere")
    refused = machine.ask("install", *words[:-1], "lostimport", "--build", "lostimport")["refused"]
    assert missing(refused["reason"], "nowhere") == []
    unasked = machine.ask("install", *words[:-1], "lateimport", "--build", "lateimport")["refused"]
    assert missing(unasked["reason"], "helper") == [], "anybody may have registered the name of a module"
    own = ("--with", "helper", "--with", "other")
    (host,) = machine.install(*words[:-1], "lateimport", *own, "--build", "lateimport")["hosts"]
    assert host["packages"]["lateimport"] == "1.0"


def test_package_that_cannot_be_imported_fails_the_verification(empty: Machine) -> None:
    write_stack(empty.wheels, "2.13.0+cpu", None, None, PYTHON)
    text = "raise RuntimeError('operator torchvision::nms does not exist')"
    write_wheel(empty.wheels, "torchvision", "0.28", files={"torchvision/__init__.py": text})
    write_wheel(empty.wheels, "other-name", "2.0", files={"tests/__init__.py": "", "other/__init__.py": "1 / 0"})
    for package, said in (("torchvision", "torchvision CUDA"), ("other-name", "other-name ZeroDivisionError")):
        (host,) = empty.ask("install", "--stack", "torch", "--with", package)["hosts"]
        assert (host["status"], missing(host["reason"], said)) == ("failed", [])
        assert not (empty.home / "envs" / "default").exists()
    assert missing(host["fix"], "'other-name<2.0'") == []


@pytest.mark.core
def test_all_commands_name_the_same_stack_from_before_an_index_query_until_after_an_install(empty: Machine) -> None:
    """What decides it: tests/unit/stack/test_expected_stack.py."""

    def named(stack: str | None) -> dict[str, str | None]:
        return {"versions": stack, "doctor": stack, "run": stack}

    versions = [candidate["name"] for candidate in empty.ask("versions")["candidates"]]
    assert len(versions) == 1 and versions[0].startswith("torch-")
    assert empty.answers() == named(versions[0])
    assert versions == empty.ask("doctor", "--no-network")["recommendation"]["candidates"]
    plan = empty.ask("run", "--dry-run", empty.script)
    assert plan["candidates"] == versions
    assert not any("env.json" in setting["reason"] for setting in plan["settings"])
    refused = empty.ask("install", "--dry-run")
    assert refused["stack"] is None
    assert empty.answers() == named(None)
    assert empty.ask("versions")["why"] == refused["refused"]["reason"]
    write_stack(empty.wheels, "2.8.0+cpu", "2.8.0", None, PYTHON)
    write_torch(empty.wheels, "2.13.0+cpu", python=PYTHON)
    assert empty.ask("install", "--dry-run")["stack"]["name"] == "torch-2.13"
    assert empty.answers() == named("torch-2.13")
    assert empty.ask("install", "--stack", "ipex")["hosts"][0]["status"] == "changed"
    again = empty.ask("install")
    assert (again["stack"]["name"], again["hosts"][0]["status"]) == ("ipex-2.8", "ok")
    assert empty.answers() == named("ipex-2.8")
    assert empty.ask("install", "--upgrade", "--dry-run")["stack"]["name"] == "torch-2.13"


def test_mpi_in_bindings_from_a_url_is_named_after_install(empty: Machine) -> None:
    """Before the download it is not known, and the one of impi-rt is named."""
    write_stack(empty.wheels, "2.8.0+cpu", "2.8.0", "2.8.0", PYTHON, impi="2021.18.0")
    with SimpleIndex(empty.wheels) as served:
        empty.env["PIP_FIND_LINKS"] = served.links
        calls = (("--dry-run",), (), ())
        found = [empty.ask("install", "--stack", "ipex-2.8", *options)["stack"]["mpi"] for options in calls]
    assert found == ["2021.18.0", "2021.14", "2021.14"]


def test_an_older_environment_does_not_replace_a_newer_one_without_downgrade(machine: Machine) -> None:
    """The packages of a request for an older environment are lower than those of a later upgrade under its name."""
    write_wheel(machine.wheels, "transformers", "5.17.0")
    requirements = machine.home.parent / "requirements.txt"
    requirements.write_text("transformers\n")
    words = ("--stack", "torch", "-r", requirements)
    machine.install(*words)
    write_wheel(machine.wheels, "transformers", "5.24.0")
    report = machine.install("--upgrade", "--with", "transformers>=5.20")
    assert {"name": "transformers", "from": "5.17.0", "to": "5.24.0"} in report["changes"]
    for more in (("--dry-run",), ()):
        refused = machine.call("install", *words, *more)
        assert refused.rc == 2, refused.err
        assert missing(refused.err, "transformers 5.24.0 5.17.0 --downgrade --env") == []
        assert next(machine.site.glob("transformers-5*")).name.startswith("transformers-5.24.0")
    assert machine.install(*words, "--env", "beside", "--dry-run")["changes"] == []
    lower = {"name": "transformers", "from": "5.24.0", "to": "5.17.0"}
    assert lower in machine.install(*words, "--downgrade")["changes"]
    pinned = machine.install("--upgrade", "--with", "transformers==5.24.0", "--dry-run")
    assert {"name": "transformers", "from": "5.17.0", "to": "5.24.0"} in pinned["changes"]


@pytest.mark.parametrize(
    ("package", "has_new", "version"),
    [("trl", True, "1.16.0"), ("trl", False, "1.13.0"), ("trl<1.14", True, "1.13.0"), ("tqdm", True, "4.67.1")],
)
def test_a_bare_name_gets_a_version_that_ipexctl_can_use_if_an_index_has_one(
    empty: Machine, package: str, has_new: bool, version: str
) -> None:
    """An extra index comes first, and has an older one, which uv would take."""
    first, second = empty.wheels, empty.directory / "second"
    write_stack(first, "2.13.0+cpu", None, None, PYTHON)
    for directory, trl, tqdm in ((first, "1.13.0", "4.67.1"), (second, "1.16.0", "4.68")):
        directory.mkdir(exist_ok=True)
        if directory == first or has_new:
            write_wheel(directory, "trl", trl)
            write_wheel(directory, "tqdm", tqdm, files={"tqdm.py": ""})
    with SimpleIndex(first) as old, SimpleIndex(second) as new:
        empty.env = {**empty.env, "PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""}
        report = empty.install("--with", package, "--index-url", new.url, "--extra-index-url", old.url)
    assert report["hosts"][0]["packages"][package.partition("<")[0]] == version
