"""The versions that a user leaves open, the newest release among archives, and the install to type."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from ipexctl.node.env.replies import AvailableWheel
from ipexctl.stack.install_context import InstallRequest, install_request
from ipexctl.stack.lock.pipeline import install_line, open_projects
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest


def test_open_projects_are_those_named_without_one_version() -> None:
    extras = ("Deep>=0.3", "torch", "pinned==1.0", "series==1.*", "gone", "url @ https://h/url-1-py3-none-any.whl")
    packages = dict.fromkeys(("deep", "torch", "pinned", "series", "url"), "1.0")
    found = open_projects(extras, ("torch==2.13.0", "deep<2"), packages)
    assert found == {"deep": SpecifierSet(">=0.3,<2"), "series": SpecifierSet("==1.*")}


@pytest.mark.parametrize(
    ("specifier", "python", "newest"), [("", "3.11", "0.19"), ("<0.19", "3.11", "0.5"), ("", "3.8", "0.5")]
)
def test_newest_release_may_be_a_source(specifier: str, python: str, newest: str) -> None:
    files = [
        AvailableWheel("deep", "0.5", "deep-0.5-py3-none-any.whl", "s"),
        AvailableWheel("deep", "0.19", "deep-0.19.tar.gz", "s", requires_python=">=3.9"),
        AvailableWheel("deep", "0.20", "deep-0.20.tar.gz", "s", yanked=True),
        AvailableWheel("deep", "1.0rc1", "deep-1.0rc1.tar.gz", "s"),
    ]
    found = Availability({"deep": tuple(files)}).newest("deep", SpecifierSet(specifier), python)
    assert str(found) == newest


def test_line_repeats_the_call_without_secrets() -> None:
    request = InstallRequest(
        EnvRequest(StackRequest(torch="2.13", require_oneccl=True), ("tqdm", "peft")),
        Sources("https://me:secret@host/simple"),
        (),
        {"peft": "requirements.txt:1"},
        named_files=(Path("requirements.txt"),),
        name="mine",
    )
    words = shlex.split(install_line(request, builds=["antlr4"]))
    expected = "--require-oneccl -r requirements.txt --torch 2.13 --env mine --with tqdm --build antlr4"
    assert words == ["ipexctl", "install", *expected.split(), "--index-url", "https://host/simple"]
    assert install_line(replace(request, builds=("b",))).count("--build b") == 1


def test_build_takes_names() -> None:
    assert install_request(StackRequest(), (), (), Sources(), "default", {}, ("Hydra_Core",)).builds == ("hydra-core",)
