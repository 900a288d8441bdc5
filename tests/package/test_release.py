"""A release: the same bytes from every build, and a wheel by which a new user installs and trains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ipexctl
from clean_environment import package_environ
from man_pages import pages
from simple_index import SimpleIndex

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
NOT_OURS = shutil.ignore_patterns(".*", "__pycache__", "build", "checkpoints")
EPOCH = "1780000000"
AS_SOMEBODY = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")


@pytest.mark.core
@pytest.mark.needs("git")
def test_clone_sdist_and_git_url_install_in_an_isolated_build(tmp_path: Path) -> None:
    """As strangers install: the build has what pyproject.toml requires of it, and nothing of this environment."""
    clone, sdist, out = tmp_path / "clone", tmp_path / "sdist", tmp_path / "out"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    for name in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, clone)
    subprocess.run(
        ["git", "-C", str(clone), *AS_SOMEBODY, "commit", "-qam", "as it is here", "--allow-empty"], check=True
    )
    environ = {name: value for name, value in package_environ().items() if not name.startswith("PYTHON")}

    def uv(*args: str) -> None:
        subprocess.run([sys.executable, "-m", "uv", "-q", *args], check=True, env=environ, cwd=tmp_path)

    uv("build", "--sdist", "-o", str(sdist), str(clone))
    sources = {"clone": str(clone), "sdist": str(next(sdist.glob("*.tar.gz"))), "git": f"git+file://{clone}"}
    for name, source in sources.items():
        uv("pip", "install", "--no-deps", "-p", sys.executable, "--target", str(out / name), source)
        assert (out / name / "ipexctl/__main__.py").is_file(), name


def release_tools(place: Path) -> Path:
    """The directory of the programs that `.github/release.txt` names."""
    environment = place / "tools"
    uv = [sys.executable, "-m", "uv", "-q"]
    subprocess.run([*uv, "venv", "-p", sys.executable, str(environment)], check=True)
    install = ["pip", "install", "-p", str(environment), "--require-hashes", "-r", str(ROOT / ".github/release.txt")]
    subprocess.run([*uv, *install], check=True, env=package_environ())
    return environment / "bin"


def build(tools: Path, source: Path, output: Path, *, umask: int = 0o022) -> dict[str, bytes]:
    """The files of a release by their names."""
    subprocess.run([sys.executable, "-m", "tools.man_pages"], cwd=source, check=True)
    call = [str(tools / "python"), "-m", "build", "--no-isolation", "-o", str(output), str(source)]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    done = subprocess.run(call, capture_output=True, text=True, env=variables, umask=umask, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: path.read_bytes() for path in sorted(output.iterdir())}


def download_requirements(directory: Path) -> None:
    """The wheels that the wheel of this checkout requires, at the versions of the tests' lock, and pip for pipx."""
    lock = (ROOT / "tests/requirements.txt").read_text()
    pins = directory.parent / "pins.txt"
    pins.write_text("\n".join(line.rstrip("\\ ") for line in re.findall(r"(?m)^\w.*==.*$", lock)))
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
    wheel = str(next(directory.glob("ipexctl-*.whl")))
    subprocess.run([*pip, "-d", str(directory), "-c", str(pins), wheel, "pip"], check=True, env=package_environ())


@dataclass(frozen=True)
class Release:
    tools: Path
    directory: Path
    index: SimpleIndex

    def variables(self, place: Path) -> dict[str, str]:
        """Those of an account that has no other index and nothing of the tests'."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON"))}
        own = {"HOME": str(place), "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index.url}
        own |= {"UV_NO_CONFIG": "1", "UV_DEFAULT_INDEX": self.index.url, "UV_PYTHON_DOWNLOADS": "never"}
        own |= {"PIPX_HOME": str(place / "pipx"), "PIPX_BIN_DIR": str(place / ".local/bin")}
        own |= {"XDG_DATA_HOME": str(place / ".local/share"), "XDG_CACHE_HOME": str(place / ".cache")}
        own |= {"PATH": f"{place}/.local/bin:{self.tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return {**kept, **own}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    base = tmp_path_factory.mktemp("release")
    tools, directory = release_tools(base), base / "dist"
    shutil.copytree(ROOT, base / "checkout", ignore=NOT_OURS)
    build(tools, base / "checkout", directory)
    download_requirements(directory)
    with SimpleIndex(directory) as index:
        yield Release(tools, directory, index)


@pytest.fixture(scope="module")
def venv(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing else in it."""
    place = tmp_path_factory.mktemp("user") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin/pip"), "install", "-q", "ipexctl"]
    subprocess.run(install, env=release.variables(place.parent), check=True)
    return place


def test_wheel_contains_only_the_package(release: Release) -> None:
    (wheel,) = release.directory.glob("ipexctl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert top == {"ipexctl", *(f"ipexctl-{ipexctl.__version__}.{end}" for end in ("data", "dist-info"))}
    assert "ipexctl/py.typed" in names
    here = {
        str(p.relative_to(ROOT)) for p in (ROOT / "ipexctl").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    here |= {f"ipexctl/playbooks/{path.name}" for path in (ROOT / "playbooks").iterdir()}
    assert {name for name in names if name.startswith("ipexctl/")} == here


def test_installed_wheel_has_the_man_pages(venv: Path) -> None:
    installed = {path.name: path.read_text() for path in (venv / "share/man/man1").glob("ipexctl*.1")}
    assert installed == pages()
    assert {"ipexctl.1", "ipexctl-run.1", "ipexctl-lab.1"} <= set(installed)


@pytest.mark.needs("groff")
@pytest.mark.parametrize("name", ["ipexctl.1", "ipexctl-run.1", "ipexctl-lab.1"])
def test_man_pages_are_roff_without_a_warning(venv: Path, name: str) -> None:
    call = ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", str(venv / "share/man/man1" / name)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert name.removesuffix(".1").upper() in done.stdout


def test_installed_wheel_behaves_like_the_checkout(venv: Path, tmp_path: Path) -> None:
    for args in (
        ["--version"],
        ["--help"],
        ["exec", "--help"],
        ["exec", "--hosts", "localhost", "--", "echo", "hi"],
        ["exec", "--hosts", "nosuch.invalid", "--gather", "--", "true"],
        ["lab", "up", "--cpu", "list"],
        ["play", "preflight", "--hosts", "node[1-2]", "--list-tasks"],
    ):
        there, here = (
            subprocess.run([*call, *args], cwd=cwd, capture_output=True, text=True, check=False)
            for call, cwd in (([f"{venv}/bin/ipexctl"], tmp_path), ([sys.executable, "-m", "ipexctl"], ROOT))
        )
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout), there.stderr
        assert "Traceback" not in there.stderr


def test_builds_of_two_checkouts_are_the_same_bytes(release: Release, tmp_path: Path) -> None:
    """Of another path, with other times, made with another umask, its files in another order."""
    builds = []
    for at, umask in enumerate((0o022, 0o077)):
        copy = tmp_path / ("x" * at) / "checkout"
        for path in sorted((ROOT / name for name in os.listdir(ROOT)), reverse=bool(at)):
            if path.name not in NOT_OURS(str(ROOT), [path.name]) or path.name == ".github":
                into = copy / path.name
                into.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, into, ignore=NOT_OURS)
                else:
                    shutil.copy(path, into)
        for path in copy.rglob("*"):
            path.chmod(path.stat().st_mode & ~umask)
            os.utime(path, (at * 1000, at * 1000))
        builds.append(build(release.tools, copy, tmp_path / f"dist{at}", umask=umask))
    assert list(builds[0]) == [f"ipexctl-{ipexctl.__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz")]
    assert builds[0] == builds[1]


RENDERED = """
import sys, tarfile, zipfile
from email import message_from_bytes
from readme_renderer.markdown import render
name = sys.argv[1]
if name.endswith(".whl"):
    wheel = zipfile.ZipFile(name)
    data = wheel.read(next(entry for entry in wheel.namelist() if entry.endswith("/METADATA")))
else:
    sdist = tarfile.open(name)
    data = sdist.extractfile(next(entry for entry in sdist if entry.name.endswith("/PKG-INFO"))).read()
print(render(message_from_bytes(data).get_payload()))
"""
"""The description of a wheel or of an sdist, as PyPI shows it."""


def test_long_description_has_no_relative_link_once_a_home_is_set(release: Release, tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=NOT_OURS)
    settings = copy / "pyproject.toml"
    settings.write_text(settings.read_text().replace('home = ""', 'home = "https://example.org/team/ipexctl"'))
    build(release.tools, copy, tmp_path / "dist")
    for path in (tmp_path / "dist").iterdir():
        call = [str(release.tools / "python"), "-c", RENDERED, str(path)]
        html = subprocess.run(call, capture_output=True, text=True, check=True).stdout
        targets = re.findall(r'(?:href|src)="([^"]+)"', html)
        assert len(targets) > 15
        assert [target for target in targets if not target.startswith(("https://", "#"))] == []
        assert f'src="https://example.org/team/ipexctl/raw/v{ipexctl.__version__}/docs/pictures/' in html


def test_files_of_a_release_pass_the_check_of_their_index(release: Release) -> None:
    files = [str(path) for path in release.directory.glob("ipexctl-*")]
    assert len(files) == 2
    checked = [str(release.tools / "twine"), "check", "--strict", *files]
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout


@pytest.mark.parametrize(
    "calls",
    [
        ("uv tool install -q ipexctl", "ipexctl --version"),
        ("pipx run ipexctl --version",),
    ],
    ids=["uv", "pipx"],
)
def test_release_is_installed_from_an_index(release: Release, calls: tuple[str, ...], tmp_path: Path) -> None:
    out = ""
    for call in calls:
        done = subprocess.run(
            call.split(), cwd=tmp_path, env=release.variables(tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{call}\n{done.stdout}{done.stderr}"
        out = done.stdout
    assert out.split()[-1] == ipexctl.__version__
