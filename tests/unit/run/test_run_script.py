"""Checks of the script before a run starts: no Python, wrong syntax, missing modules."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_rules_helpers import healthy

from ipexctl.errors import UserError
from ipexctl.facts.gather import HostFacts
from ipexctl.hosts.host import Host
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import ipexctl_command, read_command
from ipexctl.option_declaration import CallOptions, install_command
from ipexctl.projects.layout import read_layout
from ipexctl.projects.modules import Import
from ipexctl.projects.requirement_files import find_requirement_files
from ipexctl.projects.script_file import ScriptFile
from ipexctl.run.start.context import complete_facts
from ipexctl.run.start.script_imports import check_imports, check_own_modules, install_by_run, with_sent_files
from ipexctl.run.start.script_reading import project_module, project_script, read_script
from ipexctl.run.start.start_project import locate_project
from ipexctl.run.start.start_request import StartError, StartFailure
from message_data import missing
from plan_helpers import spec_of

TRAIN = """\
import os, torch.nn as nn
from torch.utils.data import DataLoader
from tqdm import tqdm
from . import sibling
import of_two_minds

if os.environ.get("FAST"):
    import fast
try:
    import wandb, of_two_minds
except ImportError:
    wandb = None

def later():
    import plots, tqdm
"""


@pytest.mark.parametrize(
    "data",
    [
        b"#!/usr/bin/env python3\nimport os\n",
        b"#!/usr/bin/env -S uv run --script\nimport os\n",
        b"#!/bin/sh\n''''exec python3 \"$0\" \"$@\" # '''\nimport os\n",
        b"\xef\xbb\xbfimport os\n",
        b"# -*- coding: latin-1 -*-\nimport os; name = '\xe9'\n",
    ],
)
def test_python_files_are_recognized(data: bytes) -> None:
    assert [each.module for each in read_script("train.py", data)[0].imports] == ["os"]


def test_archives_and_newer_syntax_are_left_to_the_hosts() -> None:
    assert read_script("app.pyz", b"PK\x03\x04\0\0\0") == (ScriptFile("app.pyz"), None)
    newer, tree = read_script("train.py", b"import tqdm\nsome syntax of the future\n")
    assert (newer.imports, tree) == ((), None)
    assert newer.text is not None


def test_only_unconditional_imports_are_required() -> None:
    needed = read_script("train.py", TRAIN.encode())[0].imports
    assert needed == (Import("os", 1), Import("torch", 1), Import("tqdm", 3))


def test_pip_in_a_docstring_does_not_put_the_check_in_doubt() -> None:
    text = '"""Needs: pip install tqdm."""\nimport tqdm, sys\nsys.exit(0)\n'
    assert read_script("train.py", text.encode())[0].doubt == ""


def failure_of(script: ScriptFile, lacking: dict[str, list[str]]) -> StartFailure:
    with pytest.raises(StartError) as caught:
        check_imports(script, lacking)
    return caught.value.failure


def test_modules_of_the_project_are_not_required(tmp_path: Path) -> None:
    for name in ("beside.py", "ext.cpython-311-x86_64-linux-gnu.so", "pkg/__init__.py", "scripts/own.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "beside.py").write_text("import rich")
    (tmp_path / "train.py").write_text("import beside, ext, pkg.deep, tqdm, wandb")
    (tmp_path / "wandb/run-1").mkdir(parents=True)  # results, and no Python
    layout = read_layout(tmp_path, tmp_path)
    script = project_script("train.py", tmp_path / "train.py", layout)
    assert [(each.module, each.file) for each in script.imports] == [("tqdm", ""), ("wandb", ""), ("rich", "beside.py")]
    below = tmp_path / "scripts" / "train.py"
    below.write_text("import own, beside")
    found = project_script("scripts/train.py", below, layout)
    assert [each.module for each in found.imports] == ["rich"]


@pytest.mark.parametrize(
    "code",
    [
        "from torch.utils.tensorboard import X",
        "from torch.utils.tensorboard.writer import SummaryWriter",
        "from torch.utils import data, tensorboard",
        "import torch.utils.tensorboard",
    ],
)
def test_a_module_of_torch_that_needs_another_package_is_required_with_it(tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{code}\n")
    script = project_script("train.py", tmp_path / "train.py", read_layout(tmp_path, tmp_path))
    assert script.imports == (Import("torch", 1), Import("tensorboard", 2))


def test_own_modules_that_sync_leaves_out_are_required(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "load.py").touch()
    (tmp_path / "model.py").touch()
    (tmp_path / "train.py").write_text("import data.load, model")
    script = project_script("train.py", tmp_path / "train.py", read_layout(tmp_path, tmp_path))
    assert with_sent_files(script, ["train.py", "model.py", "data/load.py"]).imports == ()
    assert [each.module for each in with_sent_files(script, ["train.py", "model.py"]).imports] == ["data"]


def test_module_is_read_from_the_project_or_required_on_hosts(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import pkg.data, tqdm")
    layout = read_layout(tmp_path, tmp_path)
    ours = project_module(("pkg.train",), tmp_path, layout)
    assert ours is not None
    assert (ours.name, [each.module for each in ours.imports]) == ("pkg/train.py", ["pkg.data", "tqdm"])
    theirs = project_module(("torch.distributed.run",), tmp_path, layout)
    assert theirs is not None
    said = failure_of(theirs, {"a": ["torch"]})
    assert missing(said.reason, "a torch -m") == []
    assert project_module(("pkg.made_later",), tmp_path, layout) is None


@pytest.mark.parametrize(
    ("code", "place", "is_certain"),
    [
        ("import os\nfrom mpi4py import MPI", "train.py, line 2", True),
        ("import horovod.torch as hvd", "train.py, line 1", True),
        ("try:\n    from mpi4py import MPI\nexcept ImportError:\n    MPI = None", "train.py, line 2", False),
        ("def main():\n    import mpi4py", "train.py, line 2", False),
        ("import torch  # and no mpi4py", "", False),
    ],
)
def test_imports_that_need_mpirun_are_found(tmp_path: Path, code: str, place: str, is_certain: bool) -> None:
    (tmp_path / "train.py").write_text(code)
    (tmp_path / ".git").mkdir()
    for spec in (spec_of(), spec_of("module", ("train",))):
        location = locate_project(spec, tmp_path)
        found = location.mpi_import
        assert (found.place if found else "", found is not None and found.is_certain) == (place, is_certain)
    if place:
        of_module = locate_project(spec_of("module", ("mpi4py", "train.py")), tmp_path).mpi_import
        assert of_module is not None
        assert of_module.is_certain
        for module in ("mpi4py", "horovod"):
            (tmp_path / f"{module}.py").touch()
        found = locate_project(spec_of(), tmp_path).mpi_import
        assert found is None or not found.is_certain


def test_module_of_a_directory_above_is_found_with_the_line_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "my project"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "train.py").touch()
    below = root / "sub" / "deep"
    below.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(below)
    request = spec_of("module", ("pkg.train", "--lr", "1e-3"))
    script = locate_project(request, below).script
    assert script is not None
    failure = failure_of(script, {"a": ["pkg"]})
    line = f"cd '{root}' && ipexctl run -m pkg.train --lr 1e-3"
    assert failure.fix.endswith(line)
    assert "PyPI" not in failure.fix
    assert (
        f"ipexctl run -H '{below}/hostfile' -l a --python /opt/py/bin/python -m pkg.train"
        in failure.with_call_options(CallOptions(" -H hostfile -l a", " --python /opt/py/bin/python")).fix
    )
    (root / ".git").mkdir()
    found = locate_project(request, below)
    assert (found.root, found.subdirectory) == (root, "sub/deep")
    assert found.script is not None
    assert found.script.name == "../../pkg/train.py"
    elsewhere = locate_project(spec_of("module", ("outside",)), below).script
    assert elsewhere is not None  # not beyond the repository
    assert "no package is known" in failure_of(elsewhere, {"a": ["outside"]}).fix


@pytest.mark.parametrize("module", ["sympy", "yaml", "ruamel", "PIL", "helper"])
def test_module_that_the_environment_had_means_a_damaged_environment(module: str) -> None:
    install = read_command("ipexctl install --stack torch --with helper")
    packages = frozenset({"sympy", "pyyaml", "ruamel-yaml", "pillow", "helper", "torch"})
    said = failure_of(needs("tqdm", module, install=install, packages=packages), {"a": ["tqdm", module]})
    assert said.fix.endswith(f": {install}")
    assert "--with tqdm" not in said.fix
    assert missing(said.fix, module) == []
    added = failure_of(needs("tqdm", install=install, packages=packages), {"a": ["tqdm"]})
    assert added.fix.endswith(f"{install} --with tqdm")


def needs(*modules: str, **more: Any) -> ScriptFile:
    imports = tuple(Import(module, line) for line, module in enumerate(modules, 4))
    return ScriptFile("train.py", imports=imports, **more)


def test_fix_names_the_file_of_the_project_that_has_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text("TQDM>=4\nsentence_transformers\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "own"\n[dependency-groups]\nplots = ["matplotlib"]\n')
    monkeypatch.chdir(tmp_path)
    layout = read_layout(tmp_path, tmp_path)
    files = find_requirement_files(layout, tmp_path)
    by_run = "ipexctl run --install train.py"
    for modules, fix, by_run_fix in (
        (("tqdm", "sentence_transformers"), "ipexctl install -r requirements.txt", by_run),
        (("tqdm", "peft"), "ipexctl install --with tqdm --with peft", by_run),  # tqdm may bring peft
        (("matplotlib",), "ipexctl install --with matplotlib", "ipexctl run --install --group plots train.py"),
        (
            ("tqdm", "matplotlib"),
            "ipexctl install --with tqdm --with matplotlib",
            "ipexctl run --install --group plots train.py",
        ),
        (("peft",), "ipexctl install --with peft", "ipexctl run --install --with peft train.py"),
        (("nobody_knows",), "if you know one, add it with --with", by_run),
    ):
        script = needs(*modules, requirements=files, layout=layout)
        missing_there = {"a": list(modules)}
        assert failure_of(script, missing_there).fix.endswith(fix)
        assert failure_of(replace(script, install_by_run=read_command(by_run)), missing_there).fix == by_run_fix
        done = replace(script, install_by_run=read_command(by_run), is_installed_by_run=True)
        assert failure_of(done, missing_there).fix != by_run  # which has just run


@pytest.mark.parametrize(
    ("modules", "option"),
    [
        (("pytest",), "--extra dev"),
        (("pytest", "brought_by_pytest"), "--extra dev"),  # a name that nobody knows takes no extra away
        (("wandb", "pytest"), "--extra dev --extra log"),
        (("mlflow", "wandb"), "--extra log"),  # one that has more comes first
        (("wandb", "mlflow", "lightning_utilities"), "--extra log"),  # known, and brought by another
        (("cv2",), "-r pyproject.toml -r requirements/vision.txt"),
        (("peft",), "-r pyproject.toml -r environment.yaml"),
        (("wandb", "cv2"), ""),  # --extra and -r exclude each other
        (("cv2", "peft"), ""),  # two lists may disagree
        (("timm", "pytest"), ""),  # no list has timm
    ],
)
def test_extras_and_lists_that_nobody_takes_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], option: str
) -> None:
    extras = "a = ['mlflow']\ndev = ['pytest']\nlog = ['wandb>=0.1', 'mlflow']\n"
    project = f"[project]\nname = 'x'\ndependencies = ['rich']\n[project.optional-dependencies]\n{extras}"
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "environment.yaml").write_text("dependencies:\n  - peft\n")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "vision.txt").write_text("opencv-python==4.5\n")
    monkeypatch.chdir(tmp_path)
    layout = read_layout(tmp_path, tmp_path)
    files = find_requirement_files(layout, tmp_path)
    by_run = read_command("ipexctl run --install train.py")
    script = needs(*modules, install_by_run=by_run, requirements=files, layout=layout)
    fix = failure_of(script, {"a": list(modules)}).fix
    assert fix.partition(" train.py")[0].startswith(f"ipexctl run --install {option or '--with'}")
    beside_others = failure_of(replace(script, names_packages=True), {"a": list(modules)}).fix
    assert "--extra" not in beside_others, "which -r and --with exclude"


def test_a_list_that_only_a_build_reads_may_bring_any_module_until_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setup.py").write_text("setup(install_requires=read())\n")
    monkeypatch.chdir(tmp_path)
    layout = read_layout(tmp_path, tmp_path)
    files = find_requirement_files(layout, tmp_path)
    by_run = read_command("ipexctl run --install train.py")
    script = needs("peft", install_by_run=by_run, requirements=files, layout=layout)
    assert failure_of(script, {"a": ["peft"]}).fix == "ipexctl run --install train.py"
    script = replace(script, is_installed_by_run=True)
    assert failure_of(script, {"a": ["peft"]}).fix == "ipexctl run --install --with peft train.py"


def test_a_module_is_of_the_package_that_the_project_names(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("opencv-python\n")
    layout = read_layout(tmp_path, tmp_path)
    script = needs("cv2", "tqdm", requirements=find_requirement_files(layout, tmp_path), layout=layout)
    assert failure_of(script, {"a": ["cv2", "tqdm"]}).fix == "ipexctl install --with opencv-python --with tqdm"


def test_a_module_that_only_other_versions_have_does_not_mean_a_damaged_environment() -> None:
    script = needs("pkg_resources", packages=frozenset({"setuptools", "torch"}))
    assert failure_of(script, {"a": ["pkg_resources"]}).fix == "ipexctl install --with 'setuptools<81'"


def test_a_refusal_names_a_few_files() -> None:
    imports = tuple(Import(f"module{number}", number, f"pk/file{number}.py") for number in range(1, 7))
    reason = failure_of(ScriptFile("train.py", imports=imports), {"a": [entry.module for entry in imports]}).reason
    assert reason.endswith("pk/file3.py imports (line 3) and 3 more files import")


def test_no_command_has_a_guessed_name(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "tinylm"\n')
    (tmp_path / "src" / "tinylm").mkdir(parents=True)
    (tmp_path / "src" / "tinylm" / "train.py").touch()
    layout = read_layout(tmp_path, tmp_path)

    def fix_for(module: str, **more: Any) -> str:
        return failure_of(needs(module, layout=layout, **more), {"a": [module]}).fix

    assert fix_for("frobnicate").endswith("; if you know one, add it with --with")
    pip = read_command("ipexctl exec -- py -m pip install")
    assert fix_for("frobnicate", own=False, install=pip).endswith("; if you know one, install it")
    assert fix_for("torch", own=False, install=pip).endswith(
        "pip install --index-url https://download.pytorch.org/whl/cpu torch"
    )
    assert "tinylm" not in fix_for("tinylm").partition("ipexctl")[2]


@pytest.mark.parametrize(
    ("module", "package"), [("hydra", "hydra-core"), ("ignite", "pytorch-ignite"), ("cv2", "opencv")]
)
def test_package_of_another_name_is_known_or_not_claimed(module: str, package: str) -> None:
    assert failure_of(needs(module), {"a": [module]}).fix.startswith(f"ipexctl install --with {package}")
    assert "no package is known" in failure_of(needs("frobnicate"), {"a": ["frobnicate"]}).fix


def test_modules_installed_on_all_hosts_are_no_failure() -> None:
    assert check_imports(needs("tqdm"), {"n1": [], "n2": []}) == ""


def test_fix_for_a_module_of_another_python_names_python() -> None:
    module = "tomllib" if sys.version_info >= (3, 11) else "distutils"
    assert "Python" in failure_of(needs(module), {"a": [module]}).fix


def test_install_command_names_the_environment_and_none_of_its_packages() -> None:
    assert str(install_command("default")) == "ipexctl install"
    assert str(install_command("a b")) == "ipexctl install --env 'a b'"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (spec_of("script", ("train.py", "--lr", "1 2"), takes_own_requirements=True), "train.py --lr '1 2'"),
        (spec_of("module", ("pkg.train",), takes_own_requirements=True), "-m pkg.train"),
        (spec_of(takes_own_requirements=True, install=True), "train.py"),
        (spec_of(takes_own_requirements=True, extra=("dev",)), ""),
        (spec_of(), ""),
    ],
)
def test_call_that_installs_what_the_project_names(spec: RunSpec, said: str) -> None:
    assert str(install_by_run(spec) or "") == (f"ipexctl run --install {said}" if said else "")


def test_facts_are_in_the_order_of_the_hosts() -> None:
    hosts = [Host(name=name, address=name) for name in ("node1", "node2", "node3")]
    answers = [HostFacts(host, "ok", facts=healthy()) for host in hosts]
    found = complete_facts(hosts, reversed(answers))
    assert list(found) == ["node1", "node2", "node3"]


def test_all_hosts_that_do_not_answer_are_named_in_one_call() -> None:
    hosts = [Host(name=name, address=name) for name in ("node1", "nodx", "nody", "node9")]
    answers = [HostFacts(hosts[0], "ok", facts=healthy())]
    answers += [HostFacts(host, "unreachable", "its name can't be resolved") for host in hosts[1:3]]
    answers += [HostFacts(hosts[3], "failed", "OTHER")]
    with pytest.raises(StartError) as raised:
        complete_facts(hosts, answers)
    failure = raised.value.failure
    assert failure.reason == "nod[x-y]: its name can't be resolved; node9: OTHER".replace("nod[x-y]", "nodx,nody")
    assert (failure.hosts, failure.exit_code) == (("nodx", "nody", "node9"), 3)
    assert "-l '!nodx,!nody,!node9'" in failure.fix


def test_directory_of_the_project_does_not_hide_a_package_of_its_name(tmp_path: Path) -> None:
    for name in ("gym/play.py", "shapes/round.py", "tqdm/__init__.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    script = script_in(tmp_path, "import gym\nimport shapes\nimport tqdm\n")
    assert [entry.module for entry in script.imports] == ["gym"]
    assert script_in(tmp_path, "import gym.play\n").imports == ()


def test_compiled_module_of_an_own_package_is_among_its_files(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("__init__.py", "core.cpython-311-x86_64-linux-gnu.so", "plain.so", "core2.so"):
        (tmp_path / "pkg" / name).touch()
    script = script_in(tmp_path, "import pkg.core\nfrom pkg import plain\n")
    files = {"pkg/__init__.py", "pkg/core.cpython-311-x86_64-linux-gnu.so", "pkg/plain.so"}
    assert set(script.own_files) == files


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nope.sh", "nope.sh' does not exist"),
        ("bash -x strat.sh --lr 1", "ipexctl run bash -x start.sh --lr 1"),
        ("./strat.sh", "ipexctl run start.sh"),
    ],
)
def test_shell_script_that_is_not_there_is_refused(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "start.sh").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        locate_project(
            spec_of("command", tuple(line.split()), sync=True, is_behind_dashes=False), tmp_path, ipexctl_command("run")
        )
    assert words in f"{raised.value.message}\n{raised.value.fix}"
    dashes = spec_of("command", tuple(line.split()), sync=True, is_behind_dashes=True)
    assert locate_project(dashes, tmp_path).shell_script == ""


def test_a_script_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()

    def denied(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ipexctl.run.start.script_reading.read_regular", denied)
    with pytest.raises(UserError, match=r"train\.py.*Permission denied"):
        project_script("train.py", tmp_path / "train.py", read_layout(tmp_path, tmp_path))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_script_that_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(tmp_path / "train.py")
    else:
        (tmp_path / "train.py").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"train\.py"):
        project_script("train.py", tmp_path / "train.py", read_layout(tmp_path, tmp_path))


@pytest.mark.parametrize("name", ["pkg.train", "a.py"])
def test_a_module_whose_name_ends_as_a_file_does_is_one(tmp_path: Path, name: str) -> None:
    for path in ("pkg/train.py", "a/py.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    locate_project(spec_of("module", (name,)), tmp_path)


def script_in(root: Path, text: str) -> ScriptFile:
    (root / "train.py").write_text(text)
    return project_script("train.py", root / "train.py", read_layout(root, root))


def test_a_namespace_package_is_all_of_its_directories_and_hosts_are_asked_for_the_rest(tmp_path: Path) -> None:
    """A namespace package makes no names when it runs, unlike a package with an `__init__.py`."""
    for name in ("ns/a.py", "src/ns/b.py", "src/ns/deep/c.py", "datasets/load.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import tqdm" if name.endswith("c.py") else "")
    script = script_in(
        tmp_path,
        "import ns.a, ns.b, ns.deep.c\nfrom ns.deep import c\nfrom ns import b\nimport ns.other.x\n"
        "from datasets import load, load_dataset\n",
    )
    assert [each.module for each in script.imports] == ["ns.other", "datasets", "tqdm"]
    assert {"ns/a.py", "src/ns/b.py", "src/ns/deep/c.py", "datasets/load.py"} == {*script.own_files}
    with pytest.raises(StartError) as refusal:
        check_imports(script, {"n1": ["ns.other"]})
    assert missing(refusal.value.failure.reason + refusal.value.failure.fix, "ns.other n1 train.py") == []
    assert "no package is known" not in refusal.value.failure.fix


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (
            "import glob\nmodules = glob.glob('*.py')\n__all__ = [basename(f)[:-3] for f in modules]\n",
            ["torch_scatter"],
        ),
        ("__all__ = ['f']\n", []),
        ("", []),
    ],
)
def test_a_star_imports_each_module_of_a_package_that_lists_its_directory(
    tmp_path: Path, names: str, found: list[str]
) -> None:
    (tmp_path / "pkg" / "act").mkdir(parents=True)
    (tmp_path / "pkg/__init__.py").write_text("from .act import *\n")
    (tmp_path / "pkg/act/__init__.py").write_text(names)
    (tmp_path / "pkg/act/pool.py").write_text("import torch_scatter\n")
    script = script_in(tmp_path, "import pkg\n")
    assert [each.module for each in script.imports if each.module == "torch_scatter"] == found


@pytest.mark.parametrize(
    ("text", "files", "fix"),
    [
        ("import pkg.made", {}, "python -m pip install -e ."),
        ("from pkg import x_pb2_grpc, y", {}, None),
        ("import pkg.x_pb2_grpc", {"pkg/x.proto": ""}, "install -e ."),
        ("from pkg import _C", {"setup.py": "ext(name='pkg._C')\next = 1"}, None),
        ("from pkg import _C", {"setup.py": "setup(name='pkg', ext_modules=[CppExtension('pkg._C', f)])"}, "--build ."),
        ("from pkg.empty import f", {"pkg/empty/README": ""}, "python -m pip install -e ."),
        ("import pkg.made", {"pkg/__init__.py": "import sys\nsys.modules['pkg.made'] = sys"}, None),
        ("import sys, pkg.made\nsys.path.insert(0, 'lib')", {"lib/pkg/made.py": ""}, None),
        ("import sys, pkg.made\nsys.path.insert(0, 'lib')", {"lib/other.py": "sys.modules['x']"}, "install -e ."),
        ("import pkg.other", {"pkg/__init__.py": "import pkg.deep.x", "pkg/deep/__init__.py": ""}, "install -e ."),
    ],
)
def test_an_own_module_that_no_file_has_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, files: dict[str, str], fix: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in {"setup.py": "setup(name='pkg')", "pkg/__init__.py": "", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    script = script_in(tmp_path, text)
    if fix is None:
        check_own_modules(script, ())
        return
    with pytest.raises(StartError) as refusal:
        check_own_modules(script, ())
    assert fix in refusal.value.failure.fix
    assert refusal.value.failure.exit_code == 2
    check_own_modules(script, ("pkg",))  # the environment has it as a wheel


def test_a_top_level_extension_is_built_and_not_looked_for_on_an_index(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("setup(name='pkg', ext_modules=[CUDAExtension(name='fast_ops', sources=[])])")
    with pytest.raises(StartError) as refusal:
        check_imports(script_in(tmp_path, "import fast_ops"), {"n1": ["fast_ops"]})
    assert "ipexctl install --build" in refusal.value.failure.fix


def test_an_own_module_may_change_where_python_looks(tmp_path: Path) -> None:
    for name, text in {"util.py": "import sys\nsys.path.insert(0, 'sub')\nimport inner", "sub/inner.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert "util.py" in check_imports(script_in(tmp_path, "import util"), {"n1": ["inner"]})
    with pytest.raises(StartError):
        check_imports(script_in(tmp_path, "import util, elsewhere"), {"n1": ["inner", "elsewhere"]})


@pytest.mark.parametrize(
    ("script", "requirements", "backend", "use"),
    [
        ("import torch\n", "", "auto", ""),
        ("import torch\nimport intel_extension_for_pytorch as ipex\n", "", "auto", "train.py line 2"),
        ("import helper\n", "", "auto", "helper.py line 1"),
        ("def later():\n    import intel_extension_for_pytorch\n", "", "auto", ""),
        ("import torch\n", "intel-extension-for-pytorch==2.7.0\n", "auto", "requires intel-extension-for-pytorch"),
        ("import torch\n", "", "ccl", "--backend ccl"),
    ],
)
def test_where_a_run_uses_ipex(tmp_path: Path, script: str, requirements: str, backend: str, use: str) -> None:
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "helper.py").write_text("import oneccl_bindings_for_pytorch\n")
    (tmp_path / "requirements.txt").write_text(requirements)
    spec = spec_of(backend=backend)
    found = replace(spec, project=locate_project(spec, tmp_path)).ipex_use
    assert bool(found) == bool(use)
    assert missing(found, use) == []


def test_a_directory_is_not_proposed_as_the_script(tmp_path: Path) -> None:
    package = tmp_path / "src" / "zoo"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "zoo"\n')

    def fix_for(name: str) -> str:
        with pytest.raises(UserError) as caught:
            locate_project(spec_of("script", (name, "--lr", "1")), tmp_path, ipexctl_command("run", "-n", "2"))
        return caught.value.fix

    spec = spec_of("script", ("zoo", "--lr", "1"))
    assert locate_project(spec, tmp_path, ipexctl_command("run")).is_tool  # the environment may have one
    assert not fix_for("src/zoo").startswith("ipexctl run")
    (package / "__main__.py").touch()
    assert fix_for("zoo") == fix_for("src/zoo") == "ipexctl run -n 2 -m zoo --lr 1"
