"""Ask the build backend of a project what the project requires, as pip does.

A list that is computed, as in a setup.py, cannot be read from the text. Asking runs the project's code. So it runs on a
node, never on the control machine: with the account that will start the project there anyway, without the account's
variables and logins, and bounded in time and memory.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.node.common.answer import AgentError, answer_until_stopped
from ipexctl.node.common.files import HomeRequest
from ipexctl.node.common.home import home_of
from ipexctl.node.env.child import Child, watch
from ipexctl.node.env.env_replies import ListReply
from ipexctl.node.env.lock import configuration, environment, temporary_directory
from ipexctl.node.env.uv import unpack_uv

if TYPE_CHECKING:
    from typing import Mapping

    from ipexctl.node.common.http import HttpSettings
    from ipexctl.node.env.indexes import SourceRequest
    from ipexctl.node.files.call_requests import StoreFile

MEMORY = 4 << 30
"""Bytes of address space for the backend."""
MOST_REQUIRED = 2000
"""Requirements that are returned."""
MAX_METADATA = 4 << 20
REQUIRED = re.compile(r"^Requires-Dist: *([^\n]{1,500})$", re.MULTILINE)
HOOK = f"""\
import importlib, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
name, out, step, *paths = sys.argv[1:]
sys.argv, sys.path[:0] = ["setup.py"], paths
module, _, attributes = name.partition(":")
backend = importlib.import_module(module)
for attribute in filter(None, attributes.split(".")):
    backend = getattr(backend, attribute)
if step == "requires":
    hook = getattr(backend, "get_requires_for_build_wheel", None)
    with open(out + "/requires.txt", "w") as file:
        file.write("\\n".join(hook(None) if hook else ()))
else:
    backend.prepare_metadata_for_build_wheel(out, None)
"""
"""Calls one hook of the backend (PEP 517): `requires` writes what a build needs, `metadata` makes METADATA."""


class BackendListRequest(HomeRequest):
    """Request of `env.project_list`: the project, its build backend, and what the backend needs."""

    uv: str | StoreFile
    archive: StoreFile
    """The project's files, in the home's store."""
    directory: str
    """Directory of the package in the archive."""
    backend: str
    """As in pyproject.toml: `setuptools.build_meta`, or `MODULE:OBJECT`."""
    requires: list[str]
    """Requirements of the backend."""
    paths: list[str]
    """Directories in the package from which the backend is imported."""
    python: str
    """The Python of the stack on this machine; empty for the agent's."""
    sources: list[SourceRequest]
    settings: HttpSettings
    logins: Mapping[str, str]
    timeout: float


def read_list(request: BackendListRequest, directory: Path) -> ListReply:
    """Unpack the project, make a venv with its backend, and return what the backend says.

    Raises an AgentError, OSError, ValueError, StopIteration or TarError if there is no answer.
    """
    uv, archive = request["uv"], request["archive"]
    if not isinstance(uv, str):
        uv = unpack_uv(Path(home_of(request), "wheels"), uv, directory)
    project, out = directory / "project", directory / "out"
    for path in (project, out, directory / "no-home"):
        path.mkdir()
    with tarfile.open(str(Path(home_of(request), "wheels", archive["sha256"], archive["name"]))) as packed:
        for member in packed:
            if member.isfile() or member.isdir():  # a link may lead anywhere
                packed.extract(member, str(project))
    package = project / request["directory"]
    if not (package / "setup.py").exists() and not (package / "pyproject.toml").exists():
        (package / "setup.py").write_text("from setuptools import setup\nsetup()\n")  # it has a setup.cfg alone
    env = environment(request["sources"], request["settings"], directory, strict=False)
    config = directory / "uv.toml"
    config.write_text(configuration(request["sources"], env, strict=False), encoding="utf-8")
    base, python = [uv, "--config-file", str(config)], str(directory / "venv" / "bin" / "python")

    def step(argv: list[str], variables: Mapping[str, str], cwd: Path) -> None:
        child = Child(argv, dict(variables), cwd=str(cwd))
        if not watch([child], request["timeout"]):
            raise AgentError(f"it took more than {request['timeout']:.0f} s")
        if child.process.returncode:
            raise AgentError((child.text.strip().splitlines() or ["it failed"])[-1][:300])

    def add(requires: list[str]) -> None:
        if requires:
            step([*base, "pip", "install", "--only-binary", ":all:", "--python", python, *requires], env, directory)

    own = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
    own.update(HOME=str(directory / "no-home"), TMPDIR=str(directory / "tmp"), SETUPTOOLS_SCM_PRETEND_VERSION="0")
    call = [python, "-c", HOOK, request["backend"], str(out)]
    paths = [str(package / path) for path in request["paths"]]
    step(
        [*base, "venv", "--no-project", "--python", request["python"] or sys.executable, str(directory / "venv")],
        env,
        directory,
    )
    add([*request["requires"]])
    step([*call, "requires", *paths], own, package)
    add([line for line in read_text(out / "requires.txt").splitlines() if line and not line.startswith("-")])
    step([*call, "metadata", *paths], own, package)
    text = read_text(next(out.glob("*.dist-info/METADATA"))).partition("\n\n")[0]
    return ListReply(tuple(REQUIRED.findall(text)[:MOST_REQUIRED]))


def read_text(path: Path) -> str:
    """Return the text of a file that a backend wrote, at most `MAX_METADATA` characters. Raises an OSError if there is
    none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MAX_METADATA)


def list_request(request: BackendListRequest, _: BinaryIO) -> ListReply:
    """Return what the project requires; a failure is a reply with a message, because the caller can go on without."""
    with temporary_directory(home_of(request)) as directory:
        try:
            return read_list(request, directory)
        except (OSError, ValueError, StopIteration, tarfile.TarError) as error:
            return ListReply(message=str(error) or "it made no METADATA")
        except AgentError as error:
            return ListReply(message=error.reason)


def main(action: str) -> int:
    """Answer a call of `env.project_list`: ask the build backend of a project."""
    return answer_until_stopped({"read": list_request}[action])
