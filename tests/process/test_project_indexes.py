"""Packages with an index of their own, by the files of uv, poetry, pdm and pip. PyPI's stand-in has a stranger's
package of each name, newer than one's own, which no call may install."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli_helpers import CommandResult, ipexctl
from ipexctl.stack.lock.wheel_lock import uv_here
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_stack, write_wheel

PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
DEAD = "http://127.0.0.1:9/simple"


OWN = ("six", "lib", "user", "leaf")


class Site(NamedTuple):
    directory: Path
    public: SimpleIndex
    corp: SimpleIndex

    @property
    def project(self) -> Path:
        return self.directory / "project"

    def write(self, text: str, name: str = "pyproject.toml") -> None:
        """A file of the project, in which CORP and PUBLIC stand for the indexes."""
        corp = self.corp.url_with_login if self.corp.behaviour.login else self.corp.url
        (self.project / name).write_text(text.replace("CORP", corp).replace("PUBLIC", self.public.url))

    def call(self, command: str, *words: str) -> CommandResult:
        env = {f"XDG_{name}_HOME": str(self.directory / name) for name in ("CACHE", "CONFIG", "STATE")}
        env |= {"PIP_INDEX_URL": self.public.url, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
        place = ["--hosts", "localhost", "--home", str(self.directory / "home")]
        words = tuple(word.replace("CORP", self.corp.url) for word in words)
        return ipexctl(command, *place, *words, cwd=self.project, env=env, timeout=120)

    def install(self, *words: str) -> tuple[dict[str, str], CommandResult]:
        """Versions that a dry run would install, without those of the stack."""
        done = self.call("install", "--dry-run", "--json", *words)
        report: dict[str, Any] = json.loads(done.out) if done.out else {}
        found = {each["name"]: each["version"] for each in report.get("wheels", ()) if each["name"] in OWN}
        return found, done

    def uv(self, *words: str) -> str:
        env = {**os.environ, "UV_DEFAULT_INDEX": self.public.url, "UV_CACHE_DIR": str(self.directory / "uv cache")}
        done = subprocess.run([str(uv_here()), *words], cwd=self.project, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    public, corp = tmp_path / "public", tmp_path / "corp"
    write_stack(public, "2.13.0+cpu", None, None, PYTHON)
    for name in ("six", "lib", "leaf"):
        write_wheel(public, name, "9.9")
    write_wheel(public, "user", "1.0", requires=["six", "leaf"])
    write_wheel(corp, "six", "1.0")
    write_wheel(corp, "lib", "1.0", requires=["leaf"])
    (tmp_path / "project").mkdir()
    with SimpleIndex(public) as first, SimpleIndex(corp) as second:
        yield Site(tmp_path, first, second)


HEAD = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.8"\ndependencies = ["user", "six"]\n'
EXPLICIT = (
    '[[tool.uv.index]]\nname = "corp"\nurl = "CORP"\nexplicit = true\n[tool.uv.sources]\nsix = {index = "corp"}\n'
)
POETRY = '[[tool.poetry.source]]\nname = "corp"\nurl = "CORP"\n'
FORMATS = {
    "uv explicit": EXPLICIT,
    "uv by platform": '[[tool.uv.index]]\nname = "corp"\nurl = "CORP"\nexplicit = true\n[tool.uv.sources]\nSix = ['
    '{index = "corp", marker = "sys_platform == \'linux\'"}, {index = "other", marker = "sys_platform == \'win32\'"}]\n'
    '[[tool.uv.index]]\nname = "other"\nurl = "PUBLIC"\nexplicit = true\n',
    "uv first": '[[tool.uv.index]]\nurl = "CORP/"\n',
    "uv extra": '[tool.uv]\nextra-index-url = ["CORP"]\n',
    "poetry explicit": POETRY + 'priority = "explicit"\n[tool.poetry.dependencies]\nsix = {source = "corp"}\n',
    "poetry supplemental": POETRY + 'priority = "supplemental"\n',
    "poetry primary": POETRY + '[[tool.poetry.source]]\nname = "PyPI"\n',
    "pdm": '[[tool.pdm.source]]\nname = "corp"\nurl = "CORP"\n',
    "pdm packages": '[[tool.pdm.source]]\nname = "corp"\nurl = "CORP"\ninclude_packages = ["s*"]\n',
}


@pytest.mark.parametrize("text", FORMATS.values(), ids=FORMATS)
def test_a_named_file_gives_packages_their_index(site: Site, text: str) -> None:
    site.write(HEAD + text)
    assert site.install("-r", "pyproject.toml")[0] == {"user": "1.0", "six": "1.0", "leaf": "9.9"}
    if "tool.uv" in text:  # the judge
        assert "six==1.0" in site.uv("export", "--no-hashes", "--no-emit-project")


@pytest.mark.parametrize("text", [EXPLICIT, FORMATS["uv first"], FORMATS["poetry explicit"], FORMATS["pdm"]])
@pytest.mark.parametrize("words", ["--group more", "--with six", "-r list.txt", "--with user"])
def test_an_index_that_the_call_does_not_name_is_not_asked(site: Site, text: str, words: str) -> None:
    site.write(HEAD + text + '[dependency-groups]\nmore = ["six"]\n')
    site.write("six\n", "list.txt")
    found, done = site.install(*words.split())
    assert (found, done.rc, site.corp.requests) == ({}, 2, {})
    fix = "-r pyproject.toml[group:more]" if "--group" in words else f"{words} --extra-index-url {site.corp.url}"
    assert missing(done.err.replace("'", ""), f"{site.corp.url} ipexctl install {fix}") == []


def test_the_advised_line_installs_from_that_index(site: Site) -> None:
    site.write(HEAD + EXPLICIT)
    words = site.install("--with", "user")[1].err.partition("ipexctl install ")[2].split()
    assert site.install(*words)[0] == {"user": "1.0", "six": "1.0", "leaf": "9.9"}


@pytest.mark.parametrize("text", [EXPLICIT, FORMATS["uv first"], "[[tool.uv.index]]\nurl = 'CORP'\ndefault = true\n"])
def test_an_index_without_answer_is_replaced_by_no_other(site: Site, text: str) -> None:
    site.write(HEAD + text.replace("CORP", DEAD))
    found, done = site.install("-r", "pyproject.toml")
    assert (found, done.rc, DEAD in done.out) == ({}, 1, True)


@pytest.mark.parametrize("lines", ["six>=2\n", "lib==9.9\n"])
@pytest.mark.parametrize("text", [EXPLICIT.replace("six =", "lib = {index = 'corp'}\nsix ="), FORMATS["uv first"]])
def test_a_version_that_the_index_lacks_is_not_taken_from_another(site: Site, text: str, lines: str) -> None:
    site.write(HEAD.replace('"six"', json.dumps(lines.strip())) + text)
    found, done = site.install("-r", "pyproject.toml")
    assert (found, done.rc in (1, 2)) == ({}, True)


def test_a_default_index_replaces_pypi(site: Site) -> None:
    write_stack(site.corp.directory, "2.13.0+cpu", None, None, PYTHON)
    write_wheel(site.corp.directory, "leaf", "1.0")
    site.write('[[index]]\nurl = "CORP"\ndefault = true\n', "uv.toml")
    site.write(HEAD.replace('"user"', '"lib"'))
    assert site.install("-r", "pyproject.toml")[0] == {"lib": "1.0", "six": "1.0", "leaf": "1.0"}
    site.public.forget()
    site.write(HEAD)  # of which the index lacks one
    assert site.install("-r", "pyproject.toml")[0] == {}
    assert site.public.asked("/user") == 0


def test_a_login_of_an_index_is_used_and_not_shown(site: Site) -> None:
    site.corp.behaviour.login = ("me", "s3cret/pw")
    site.write(HEAD + EXPLICIT)
    found, done = site.install("-r", "pyproject.toml")
    assert found["six"] == "1.0"
    shown = done.out + done.err + site.install("--with", "six")[1].err
    assert ["s3cret" in shown, "me:" in shown] == [False, False]


def test_a_wheel_by_url_is_the_one_of_the_project(site: Site) -> None:
    url = site.corp.file_url("six-1.0-py3-none-any.whl")
    site.write(f'{HEAD}[tool.uv.sources]\nsix = {{url = "{url}"}}\n')
    assert site.install("-r", "pyproject.toml")[0] == {"user": "1.0", "six": "1.0", "leaf": "9.9"}


@pytest.fixture
def locked(site: Site) -> Site:
    """With a lock of uv; the public index stands for PyPI in it, too."""
    site.write(HEAD + EXPLICIT)
    site.uv("lock")
    lock = site.project / "uv.lock"
    lock.write_text(lock.read_text().replace(site.public.url, "https://pypi.org/simple"))
    return site


def test_a_lock_has_its_registries(locked: Site) -> None:
    locked.write(HEAD)  # the lock alone has the index
    assert locked.install("-r", "uv.lock")[0] == {"user": "1.0", "six": "1.0", "leaf": "9.9"}


@pytest.mark.parametrize("name", ["six", "leaf"])
@pytest.mark.parametrize("file", ["uv.lock", "list.txt"])
def test_a_file_with_another_hash_is_refused(locked: Site, name: str, file: str) -> None:
    locked.write(locked.uv("export", "--frozen", "--no-emit-project"), "list.txt")
    served = next((locked.corp if name == "six" else locked.public).directory.glob(f"{name}-*.whl"))
    write_wheel(served.parent, name, served.name.split("-")[1], files={f"{name}.py": "stranger = True\n"})
    words = () if file == "uv.lock" else ("--extra-index-url", "CORP")
    found, done = locked.install("-r", file, *words)
    assert (found, name in done.out, "sha256" in done.out) == ({}, True, True)


def test_a_lock_for_other_pythons_is_named_with_the_line_that_takes_the_list(locked: Site) -> None:
    lock = locked.project / "uv.lock"
    lock.write_text(re.sub('requires-python = ".*"', 'requires-python = ">=3.8, <3.9"', lock.read_text()))
    write_wheel(locked.public.directory, "leaf", "9.9", files={"leaf.py": "of_another_python = True\n"})
    found, done = locked.install("-r", "uv.lock")
    assert (found, missing(done.out, "leaf >=3.8, <3.9 ipexctl install -r pyproject.toml")) == ({}, [])
    assert locked.install("-r", "pyproject.toml")[0]["leaf"] == "9.9"


def test_run_leaves_a_found_file_out_and_advises_no_public_package(site: Site) -> None:
    site.write(HEAD + EXPLICIT)
    site.write("import six, user\n", "train.py")
    refused = site.call("run", "--install", "-n", "1", "train.py")
    assert (refused.rc, "--with" in refused.err, site.corp.url in refused.err) == (1, False, True)
    assert "-r pyproject.toml" in refused.err.splitlines()[-1]
    assert site.public.asked("/six") == 0


def test_a_later_install_does_not_replace_the_package(site: Site) -> None:
    site.write(HEAD + EXPLICIT)
    site.write("import six\nassert six.__version__ == '1.0'\n", "train.py")
    assert site.call("run", "-r", "pyproject.toml", "-n", "1", "train.py").rc == 0
    site.write(HEAD)  # a call in another project, in the same environment
    found, done = site.install("--with", "lib")
    assert (found, site.corp.url in done.out) == ({}, True)
    assert site.install("--with", "lib", "--extra-index-url", "CORP")[0]["six"] == "1.0"
