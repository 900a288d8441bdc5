"""The built wheel, in an environment with nothing else in it, is the tool."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ipexctl
from clean_environment import package_environ

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)], cwd=ROOT, check=True)
    (found,) = built.glob("*.whl")
    return found


def test_wheel_contains_only_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert top == {"ipexctl", f"ipexctl-{ipexctl.__version__}.dist-info"}
    assert "ipexctl/py.typed" in names
    here = {
        str(p.relative_to(ROOT)) for p in (ROOT / "ipexctl").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    here |= {f"ipexctl/playbooks/{path.name}" for path in (ROOT / "playbooks").iterdir()}
    assert {name for name in names if name.startswith("ipexctl/")} == here


@pytest.mark.timeout(300)
def test_installed_wheel_behaves_like_the_checkout(wheel: Path, tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    lock = (ROOT / "tests" / "requirements.lock").read_text()
    pins.write_text("\n".join(line.rstrip("\\ ") for line in re.findall(r"(?m)^\w.*==.*$", lock)))
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    pip = [str(tmp_path / "venv/bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(pins), str(wheel)], check=True, env=package_environ())
    tool = str(tmp_path / "venv/bin/ipexctl")
    for args in (
        ["--version"],
        ["--help"],
        ["exec", "--help"],
        ["exec", "--hosts", "localhost", "--", "echo", "hi"],
        ["exec", "--hosts", "nosuch.invalid", "--gather", "--", "true"],
        ["lab", "up", "--cpu", "list"],
        ["play", "preflight", "--hosts", "node[1-2]", "--list-tasks"],
    ):
        there = subprocess.run([tool, *args], cwd=tmp_path, capture_output=True, text=True, check=False)
        here = subprocess.run(
            [sys.executable, "-m", "ipexctl", *args], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout), there.stderr
        assert "Traceback" not in there.stderr
