"""Builds wheels from a lock's sources with uv, which runs the packages' own code on this machine.

Only packages named on the command line have a source in the lock; what their builds need comes as wheels.
"""

from __future__ import annotations

import re
import shutil
import sys
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, NamedTuple
from urllib.parse import unquote, urlsplit

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import make_private_directory, sha256_of, write_atomically
from ipexctl.node.common.home import home_of
from ipexctl.node.common.http import HttpClient, explain, without_login
from ipexctl.node.common.limits import DOWNLOAD_SILENCE
from ipexctl.node.env.replies import LocalWheel
from ipexctl.node.env.uv import run

if TYPE_CHECKING:
    from ipexctl.node.env.lock import CompileRequest

NAME = re.compile(r'^name = "([^"]+)"', re.MULTILINE)
SDIST = re.compile(r'^sdist = \{ url = "([^"]+)"[^\n]{0,400}?\bsha256 = "([0-9a-f]{64})"', re.MULTILINE)


class SourceArchive(NamedTuple):
    package: str
    url: str
    sha256: str


class BuildFailed(Exception):
    """uv's output."""


def sources(pylock: str) -> Iterator[SourceArchive]:
    for entry in pylock.split("[[packages]]")[1:]:
        name, sdist = NAME.search(entry), SDIST.search(entry)
        if name and sdist:
            yield SourceArchive(name.group(1), sdist.group(1), sdist.group(2))


def interpreter_for(request: CompileRequest) -> str:
    """The environments' Python, for building. Raises an AgentError if this machine has none."""
    version = request["python"]
    own = sys.executable if version == "{}.{}".format(*sys.version_info) else None
    found = request["interpreter"] or own or shutil.which(f"python{version}")
    if found is None:
        builds = ", ".join(request["builds"])
        raise AgentError(
            f"there is no Python {version} on this machine to build {builds}",
            "install that Python here, or let the first host reach an index: it builds then",
        )
    return found


def build_wheels(
    request: CompileRequest, pylock: str, uv: list[str], env: dict[str, str], directory: Path
) -> dict[str, LocalWheel]:
    client = HttpClient(request["settings"], request["logins"])
    env = {**env, "SOURCE_DATE_EPOCH": "315532800"}  # the same source makes the same wheel
    built = {}
    for number, source in enumerate(sources(pylock)):
        place = directory / "built" / str(number)
        place.mkdir(parents=True)
        archive = download(client, source, place)
        argv = [*uv, "build", "--wheel", "--no-build", "--no-create-gitignore", "--no-sources"]
        argv += ["--python", interpreter_for(request), "--build-constraints", str(directory / "constraints.txt")]
        child = run([*argv, "--out-dir", str(place), str(archive)], env, directory, timeout=request["timeout"])
        wheel = next(place.glob("*.whl"), None)
        if child.process.returncode or wheel is None:
            raise BuildFailed(child.text)
        digest = sha256_of(wheel)
        stored = Path(home_of(request), "wheels", digest, wheel.name)
        make_private_directory(stored.parent)
        write_atomically(stored, wheel.read_bytes())
        built[source.url] = LocalWheel(str(stored), digest, stored.stat().st_size)
    return built


def download(client: HttpClient, source: SourceArchive, directory: Path) -> Path:
    """Raises an AgentError, also if the hash differs from the lock's."""
    path = directory / Path(unquote(urlsplit(source.url).path)).name  # an index may name `..%2F..%2Fx`
    try:
        with client.open(source.url, timeout=DOWNLOAD_SILENCE) as response, path.open("wb") as file:
            shutil.copyfileobj(response, file, 1 << 20)
    except (OSError, HTTPException, ValueError) as error:
        raise AgentError(f"{without_login(source.url)}: {explain(error, DOWNLOAD_SILENCE)}") from None
    if sha256_of(path) != source.sha256:
        raise AgentError(f"{path.name} has not the sha256 of the index", "run ipexctl install again")
    return path
