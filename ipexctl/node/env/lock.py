"""Make a lock with uv, and build wheels from source archives of the lock and from the user's projects.

- Logins of indexes are in uv's environment, never in argv or a file. A project's build gets none of them.
- In place of a directory of wheels, uv gets stand-ins that contain only METADATA: hashing and unpacking all wheels
  takes 3 minutes for 4 GB.
- A build runs a package's own code on this machine, so only packages that the user named and projects are built.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Iterable, Iterator, Mapping, NamedTuple, TypedDict
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ipexctl.node.common.answer import AgentError, answer_until_stopped
from ipexctl.node.common.files import HomeRequest, format_size, make_private_directory, sha256_of, write_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.home import home_of
from ipexctl.node.common.home_entries import LOCK_DIRECTORY, own_entries
from ipexctl.node.common.http import CA_BUNDLES, HttpClient, explain
from ipexctl.node.common.node_limits import DOWNLOAD_SILENCE
from ipexctl.node.common.processes import is_partial_in_use, partial_name
from ipexctl.node.common.urls import strip_login
from ipexctl.node.env.env_replies import CompileReply, LocalWheel
from ipexctl.node.env.indexes import local_path
from ipexctl.node.env.uv import run, unpack_uv, uv_environment

if TYPE_CHECKING:
    from ipexctl.node.common.http import HttpSettings
    from ipexctl.node.env.indexes import SourceRequest
    from ipexctl.node.files.call_requests import StoreFile


NAME = re.compile(r'^name = "([^"]+)"', re.MULTILINE)
PACKAGE = re.compile(r'^name = "([^"]+)"\nversion = "([^"]+)"', re.MULTILINE)
SDIST = re.compile(r'^sdist = \{ url = "([^"]+)"[^\n]{0,400}?\bsha256 = "([0-9a-f]{64})"', re.MULTILINE)


UNDECLARED = re.compile(r"`([\w.-]{1,99})(?:@[^`]*)?` depends on `([\w.-]{1,99})`, but doesn't declare it")
"""uv's words about a build that ended because a package could not be imported."""


class SourceArchive(NamedTuple):
    """The source archive of a package in the lock."""

    package: str
    url: str
    sha256: str


class BuildFailed(Exception):
    """Raised if uv can't build a wheel; the text is uv's output."""


def sources(pylock: str) -> Iterator[SourceArchive]:
    """Yield the source archives of a lock."""
    for entry in pylock.split("[[packages]]")[1:]:
        name, sdist = NAME.search(entry), SDIST.search(entry)
        if name and sdist:
            yield SourceArchive(name.group(1), sdist.group(1), sdist.group(2))


def interpreter_for(request: CompileRequest) -> str:
    """Return the Python to build wheels with. Raises an AgentError if this machine has none of the wanted version."""
    version = request["python"]
    own = sys.executable if version == "{}.{}".format(*sys.version_info) else None
    interpreter = request["interpreter"] or own or shutil.which(f"python{version}")
    if interpreter is None:
        builds = ", ".join([*request["builds"], *(project["name"] for project in request["projects"])])
        raise AgentError(
            f"there is no Python {version} on this machine to build {builds}",
            "install that Python here, or give the first host access to an index, so that it builds",
        )
    return interpreter


def build_wheels(
    request: CompileRequest,
    pylock: str,
    uv: list[str],
    env: dict[str, str],
    directory: Path,
    undeclared: Mapping[str, list[str]],
) -> dict[str, LocalWheel]:
    """Build the source archives of a lock; return an archive's URL → its wheel.

    `uv`: the beginning of uv's command. `env`: its variables. Raises a BuildFailed for the first that fails.
    """
    client = HttpClient(request["settings"], request["logins"])
    env = {**env, "SOURCE_DATE_EPOCH": "315532800"}  # the same source makes the same wheel
    built = {}
    for number, source in enumerate(sources(pylock)):
        own_directory = directory / "built" / str(number)
        own_directory.mkdir(parents=True)
        archive = download(client, source, own_directory)
        imports_more = source.package if source.package in undeclared else ""
        try:
            wheel = build_wheel(request, archive, uv, env, directory, imports_more)
        except BuildFailed as error:  # uv names the archive
            raise BuildFailed(str(error).replace(archive.name, source.package)) from None
        built[source.url] = LocalWheel(str(wheel), wheel.parent.name, wheel.stat().st_size)
    return built


def build_wheel(
    request: CompileRequest, archive: Path, uv: list[str], env: dict[str, str], directory: Path, imports_more: str = ""
) -> Path:
    """Build the wheel of a source archive, and return its path in the home's store, below its sha256.

    `imports_more`: the package, if uv's configuration names what its build imports without declaring it. Only
    `uv pip install` reads that, and leaves the wheel in its cache. Raises a BuildFailed with uv's output.
    """
    common = ["--no-sources", "--python", interpreter_for(request)]
    common += ["--build-constraints", str(directory / "constraints.txt")]
    if imports_more:
        argv = [*uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-binary", imports_more, *common]
        argv += ["--target", str(archive.parent / "installed"), f"{imports_more} @ {archive.as_uri()}"]
        found = directory.glob(f"cache/sdists-*/path/**/{re.sub('[-_.]+', '_', imports_more)}-*.whl")
    else:
        argv = [*uv, "build", "--wheel", "--no-build", "--no-create-gitignore", *common]
        argv += ["--out-dir", str(archive.parent), str(archive)]
        found = archive.parent.glob("*.whl")
    child = run(argv, env, directory, timeout=request["timeout"])
    wheel = next(iter(found), None)
    if child.process.returncode or wheel is None:
        raise BuildFailed(child.text)
    kept = Path(home_of(request), "wheels", sha256_of(wheel), wheel.name)
    make_private_directory(kept.parent)
    write_atomically(kept, wheel.read_bytes())
    return kept


def download(client: HttpClient, source: SourceArchive, directory: Path) -> Path:
    """Download a source archive into the directory and return its path.

    Raises an AgentError if it can't be downloaded, is larger than `MAX_SOURCE`, or does not have its sha256.
    """
    path = directory / Path(unquote(urlsplit(source.url).path)).name  # an index may name `..%2F..%2Fx`
    try:
        with client.open(source.url, timeout=DOWNLOAD_SILENCE) as response, path.open("wb") as file:
            left = MAX_SOURCE
            while left and (data := response.read(min(left, 1 << 20))):
                file.write(data)
                left -= len(data)
        if not left:
            raise AgentError(
                f"{strip_login(source.url)} is larger than {format_size(MAX_SOURCE)}, and does not end",
                "use another index",
            )
    except (OSError, HTTPException, ValueError) as error:
        raise AgentError(f"{strip_login(source.url)}: {explain(error, DOWNLOAD_SILENCE)}") from None
    if sha256_of(path) != source.sha256:
        raise AgentError(f"{path.name} does not have the sha256 in the index", Fix("run `ipexctl install` again"))
    return path


class ProjectSource(TypedDict):
    """The user's project, to build a wheel from."""

    name: str
    version: str
    archive: str | StoreFile
    """A path, or a file in the home's store."""


def build_project(request: CompileRequest, source: ProjectSource, uv: list[str], directory: Path) -> Path:
    """Build the wheel of a project from a copy of its files, and return its path in the home's store.

    The project's code gets no login of an index, and of the account's variables only PATH, LANG and LC_ALL.
    """
    archive = source["archive"]
    own_directory = directory / "projects" / source["name"]
    for path in (own_directory, directory / "no-home"):
        path.mkdir(parents=True)
    copy = own_directory / f"{source['name']}.tar.gz"
    stored = (
        archive if isinstance(archive, str) else Path(home_of(request), "wheels", archive["sha256"], archive["name"])
    )
    shutil.copyfile(str(stored), str(copy))
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
    env.update(UV_CACHE_DIR=str(directory / "cache"), UV_PYTHON_DOWNLOADS="never", TMPDIR=str(directory / "tmp"))
    env.update(HOME=str(directory / "no-home"))
    env.update(SETUPTOOLS_SCM_PRETEND_VERSION=source["version"], SOURCE_DATE_EPOCH="315532800")
    return build_wheel(request, copy, uv, env, directory)


MAX_MESSAGES = 16384
"""Bytes kept of the end of uv's messages."""
MAX_SOURCE = 4 << 30
"""Bytes of a source archive; the largest on PyPI has 1 GB."""
MAX_REQUIRED = 10_000
"""Packages that a wheel may require; uv takes minutes for more, and the largest on PyPI name 1,000."""
MAX_METADATA = 16 << 20
UNFIT = "0+unfit"
"""The version of a package if no wheel for it in a named directory fits the hosts."""
PIN = re.compile(r"[\w.-]+==[\w.+!]+")
"""A pinned requirement. It also constrains builds, so that a build that needs torch gets the stack's version."""
METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


class KeptPackage(TypedDict):
    """A package that was built for the environment which gets more packages."""

    version: str
    requires: list[str]
    """Its requirements, as in METADATA."""


class CompileRequest(HomeRequest):
    """Request of `env.lock`: what the lock must fulfil, and from which sources."""

    uv: str | StoreFile
    """A path, or a file in the home's store."""
    requirements: list[str]
    """Lines of a requirements file."""
    constraints: list[str]
    python: str
    """Version for which the lock is made, such as `3.11`."""
    platform: str
    """uv's name of the hosts' system and glibc."""
    sources: list[SourceRequest]
    settings: HttpSettings
    logins: Mapping[str, str]
    """Origin → value of the Authorization header, for downloads of source archives."""
    builds: list[str]
    """Packages that are built from source."""
    projects: list[ProjectSource]
    own: Mapping[str, str]
    """Package of the user's project → its version. If others require such a package, no index is asked for it. It is
    not in the lock."""
    named: Mapping[str, str]
    """Package → its wheel: the path in a directory that the call names, or the URL in the package's own index; empty
    if none of its wheels fits. No other index is asked for it."""
    kept: Mapping[str, KeptPackage]
    """Package that was built for the environment which gets more packages → what it is. No index is asked for it."""
    strict: bool
    """True if the first index that has a package decides its version, as uv does, in place of the first that fits."""
    interpreter: str
    """This machine's Python for builds; empty if unknown."""
    timeout: float
    """Seconds for each call of uv."""


@contextlib.contextmanager
def temporary_directory(home: str) -> Iterator[Path]:
    """Yield a directory below `home`, which is removed at the end of the block, also after a signal.

    Directories that killed commands left there are removed first. `home`: a home, or the control machine's cache.
    """
    tmp = Path(home) / "tmp"
    tmp.mkdir(parents=True, exist_ok=True, mode=0o700)
    for leftover in own_entries(home, "tmp"):
        if LOCK_DIRECTORY.fullmatch(Path(leftover).name) and not is_partial_in_use(leftover):
            shutil.rmtree(leftover, ignore_errors=True)  # left by a killed command
    directory = tmp / partial_name("lock")
    for path in (directory, directory / "tmp"):
        path.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        shutil.rmtree(str(directory), ignore_errors=True)


def make_metadata_links(original: Path, directory: Path) -> None:
    """Make a directory with a stand-in for each wheel of `original`, and symlinks to all else."""
    directory.mkdir()
    for file in original.iterdir():
        stand_in = directory / file.name
        is_wheel = file.name.endswith(".whl") and file.is_file()
        if not (is_wheel and write_metadata_wheel(file, stand_in)):
            stand_in.symlink_to(file)  # uv reports what is wrong with it


def write_metadata_wheel(wheel: Path, target: Path) -> bool:
    """Write a wheel that contains only the METADATA of another one; False if that can't be read.

    Raises an AgentError for a wheel with more than `MAX_REQUIRED` requirements.
    """
    try:
        with zipfile.ZipFile(str(wheel)) as archive:
            entry = next(entry for entry in archive.infolist() if METADATA.fullmatch(entry.filename))
            with archive.open(entry) as file:
                text = file.read(MAX_METADATA)
    except (OSError, StopIteration, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return False
    if (count := text.count(b"\nRequires-Dist:")) > MAX_REQUIRED:
        fix = f"take it out of {wheel.parent}"
        raise AgentError(f"{wheel.name} requires {count:,} packages; a wheel may require {MAX_REQUIRED:,}", fix)
    with zipfile.ZipFile(str(target), "w") as archive:
        archive.writestr(entry.filename, text)
        archive.writestr(f"{entry.filename.partition('/')[0]}/RECORD", f"{entry.filename},,\n")  # uv opens it
    return True


def environment(
    sources: list[SourceRequest], settings: HttpSettings, directory: Path, *, strict: bool
) -> dict[str, str]:
    """Return uv's variables: how it chooses among the sources, directories of wheels, certificates and the proxy."""
    env = uv_environment(directory)
    env.update(
        UV_CREDENTIALS_DIR=str(directory / "credentials"),
        # uv's names; later indexes can't replace a version.
        UV_INDEX_STRATEGY="first-index" if strict else "unsafe-first-match",
        UV_PRERELEASE="if-necessary-or-explicit",  # as in pip: if a package has no release
        UV_HTTP_TIMEOUT="20",
        UV_HTTP_RETRIES="1",
        NO_COLOR="1",
    )
    links = [source["url"] for source in sources if source["kind"] == "links"]
    if links:
        env["UV_FIND_LINKS"] = ",".join(links)
    bundle = settings.get("cert") or os.environ.get("SSL_CERT_FILE")
    bundle = bundle or next((known for known in CA_BUNDLES if Path(known).exists()), None)
    if bundle:
        env["SSL_CERT_DIR" if Path(bundle).is_dir() else "SSL_CERT_FILE"] = bundle
    if client_cert := settings.get("client_cert"):
        env["SSL_CLIENT_CERT"] = client_cert
    if proxy := settings.get("proxy"):
        env.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy))
    if trusted_hosts := settings.get("trusted_hosts"):
        env["UV_INSECURE_HOST"] = " ".join(trusted_hosts)
    return env


def configuration(sources: list[SourceRequest], env: dict[str, str], *, strict: bool) -> str:
    """Return the text of uv's configuration file, with the indexes in their order, and add their logins to `env`.

    With `strict`, uv ends at a 403: the next index may have a stranger's package of the same name.
    """
    lines = []
    indexes = [source for source in sources if source["kind"] == "index"]
    explicit = [source for source in sources if source["kind"] == "explicit"]
    for number, source in enumerate([*indexes, *explicit]):
        url = source["url"]
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        if at:
            name, _, password = user.partition(":")
            url = urlunsplit(parts._replace(netloc=host))
            env[f"UV_INDEX_S{number}_USERNAME"] = unquote(name)
            env[f"UV_INDEX_S{number}_PASSWORD"] = unquote(password)
        elif not parts.scheme and (path := local_path(url)) is not None:
            url = "file://" + quote(str(path.absolute()))
        lines += [
            "[[index]]",
            f'name = "s{number}"',
            f"url = {json.dumps(url)}",
            # uv queries its default index last.
            "explicit = true" if source not in indexes else f"default = {str(source is indexes[-1]).lower()}",
        ]
        lines += ["ignore-error-codes = [403, 404]", ""] if parts.scheme.startswith("http") and not strict else [""]
    return ("" if indexes else "no-index = true\n") + "\n".join(lines)


def compile_lock(request: CompileRequest, directory: Path, undeclared: Mapping[str, list[str]]) -> CompileReply:
    """Make the lock, in these steps; all files are in the directory. `undeclared`: package → what its build imports.

    1. Build the wheels of the user's projects.
    2. Solve with overrides: for each package in `named`, `kept`, `own` and the projects, uv gets one wheel or a stub,
       so that it asks no index for them.
    3. An override ignores limits of versions. So, if there were other overrides than those of `own`, solve a second
       time without them, offline.
    4. Build the source archives that the lock has.

    If uv finds no solution or can't build a wheel, the reply has no lock. Other failures raise an AgentError.
    """
    uv = request["uv"]
    if not isinstance(uv, str):
        uv = unpack_uv(Path(home_of(request), "wheels"), uv, directory)
    builds, is_building = request["builds"], bool(request["builds"] or request["projects"])
    sources, originals = links_for_uv(request, directory)
    env = environment(sources, request["settings"], directory, strict=request["strict"])
    config = directory / "uv.toml"
    extra = [f"{json.dumps(name)} = {json.dumps(packages)}" for name, packages in undeclared.items()]
    indexes = configuration(sources, env, strict=request["strict"])
    write_lines(config, [indexes, *(["[extra-build-dependencies]", *extra] if extra else [])])
    pins = [line for line in request["requirements"] if is_building and PIN.fullmatch(line)]
    write_lines(directory / "constraints.txt", [*request["constraints"], *pins])
    base = [uv, "--config-file", str(config)]
    named, lines = dict(request["named"]), list(request["requirements"])
    try:
        for project in request["projects"]:
            wheel = build_project(request, project, base, directory)
            env["UV_FIND_LINKS"] = ",".join(filter(None, (env.get("UV_FIND_LINKS"), str(wheel.parent))))
            named[project["name"]] = str(wheel)
            lines.append(f"{project['name']}=={wheel.name.split('-')[1]}")
        kept, kept_directory = request["kept"], directory / "kept"
        stand_ins = [
            write_stub(kept_directory, name, package["version"], package["requires"]) for name, package in kept.items()
        ]
        lines += [f"{name}=={package['version']}" for name, package in kept.items()]
        find_links = ",".join(filter(None, (env.get("UV_FIND_LINKS"), str(kept_directory) if kept else "")))
        write_lines(directory / "requirements.txt", lines)
        stubs = [write_stub(directory / "own", name, version) for name, version in request["own"].items()]
        argv = compile_argv(request, base, directory)
        solve = Solve(argv, {**env, "UV_FIND_LINKS": find_links} if kept else env, directory, request["timeout"])
        code, text, message = solve.run([*stubs, *stand_ins, *overrides_of(named, originals, directory)])
        is_of_named = code == 0 and bool(named or kept)
        if is_of_named:
            # An override ignores limits of versions. Once more, with what uv has fetched: of a named package, that is
            # nothing, so only the directory has it; and with the URLs of those that came from an index of their own.
            versions = dict(PACKAGE.findall(text))
            unfit = [name for name, version in versions.items() if version == UNFIT]
            lines += [f"{name} @ {path}" for name, path in named.items() if "://" in path and name in versions]
            write_lines(directory / "requirements.txt", lines)
            code, text, message = (1, "", "\n".join(unfit)) if unfit else solve.run(stubs, "--offline")
        if code == 0:
            built = build_wheels(request, text, base, env, directory, undeclared) if builds else {}
            return CompileReply(text, {**local_wheels(text, originals), **built})
    except BuildFailed as error:
        message, is_of_named = str(error), False
    for links, original in originals.items():
        message = message.replace(str(links), str(original))
    return CompileReply(None, message=message.replace(str(directory) + "/", ""), is_of_named=is_of_named)


def links_for_uv(request: CompileRequest, directory: Path) -> tuple[list[SourceRequest], dict[Path, Path]]:
    """Return the sources with a directory of stand-ins in place of each directory of wheels, and stand-ins → wheels.

    If a package is built, uv gets the wheels themselves, because the build installs some of them.
    """
    originals: dict[Path, Path] = {}
    sources: list[SourceRequest] = []
    for source in request["sources"]:
        original = local_path(source["url"]) if source["kind"] == "links" else None
        if original is not None and original.is_dir() and not request["builds"]:  # builds use the wheels themselves
            links = directory / f"links{len(originals)}"
            originals[links] = original.absolute()
            make_metadata_links(originals[links], links)
            source = {**source, "url": str(links)}
        sources.append(source)
    return sources, originals


def compile_argv(request: CompileRequest, base: list[str], directory: Path) -> list[str]:
    """Return the command that makes the lock, without the file of requirements. `base`: uv and its configuration."""
    builds, constraints = request["builds"], str(directory / "constraints.txt")
    argv = [*base, "pip", "compile", "--format", "pylock.toml", "--no-header", "--no-sources"]
    argv += ["--only-binary", ":all:", "--python", interpreter_for(request) if builds else sys.executable]
    for name in builds:
        argv += ["--no-binary", name]
    argv += ["--build-constraints", constraints] if builds else []
    argv += ["--python-version", request["python"], "--python-platform", request["platform"]]
    argv += ["--constraints", constraints] if request["constraints"] else []
    for name in request["own"]:
        argv += ["--no-emit-package", name]
    return argv


def overrides_of(named: Mapping[str, str], originals: Mapping[Path, Path], directory: Path) -> Iterator[str]:
    """Yield lines that give uv one wheel of each named package, so that it asks no index for the package.

    A package none of whose wheels fits gets a stub with the version `UNFIT`, by which `compile_lock` notices that the
    package is needed.
    """
    stand_ins = {original: links for links, original in originals.items()}
    for name, path in named.items():
        if "://" in path:
            yield f"{name} @ {path}"
        elif path:
            wheel = Path(path)
            yield f"{name} @ {(stand_ins.get(wheel.parent, wheel.parent) / wheel.name).as_uri()}"
        else:
            yield write_stub(directory / "unfit", name, UNFIT)


class Solve(NamedTuple):
    """The call of uv that makes a lock, which may be repeated with other overrides."""

    argv: list[str]
    env: dict[str, str]
    directory: Path
    timeout: float

    def run(self, overrides: list[str], *more: str) -> tuple[int, str, str]:
        """Return uv's exit code, the text of the lock, and uv's messages. `more`: further options of uv."""
        argv = [*self.argv, *more]
        if overrides:
            write_lines(self.directory / "overrides.txt", overrides)
            argv += ["--override", str(self.directory / "overrides.txt")]
        argv.append(str(self.directory / "requirements.txt"))
        with (self.directory / "pylock.toml").open("w+b") as pylock:
            child = run(argv, self.env, self.directory, timeout=self.timeout, stdout=pylock, kept=(0, MAX_MESSAGES))
            pylock.seek(0)
            return child.process.returncode or 0, pylock.read().decode(errors="replace"), child.text


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines of a requirements file."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def write_stub(directory: Path, name: str, version: str, requires: Iterable[str] = ()) -> str:
    """Write a wheel with nothing but metadata, and return the line that makes uv use it: `NAME @ file:///…`."""
    directory.mkdir(exist_ok=True)
    escaped = re.sub(r"[-_.]+", "_", name)
    info, wheel = f"{escaped}-{version}.dist-info", directory / f"{escaped}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(str(wheel), "w") as archive:
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
        archive.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *lines, ""]))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{name} @ {wheel.as_uri()}"


def local_wheels(text: str, originals: Mapping[Path, Path]) -> dict[str, LocalWheel]:
    """Return URL in the lock → the wheel of this machine, with the hash of the wheel itself, not of its stand-in."""
    wheels = {}
    for url in text.split('"'):
        if url.startswith("file://") and url.endswith(".whl"):
            path = Path(unquote(urlsplit(url).path))
            path = (originals.get(path.parent, path.parent) / path.name).resolve()
            wheels[url] = LocalWheel(str(path), sha256_of(path), path.stat().st_size)
    return wheels


def compile_request(request: CompileRequest, _: BinaryIO) -> CompileReply:
    """Make the lock. A build that imports a package, as of torch, which it does not declare gets it in another try, if
    the call installs that package anyway: anybody may have registered the name of another module.
    """
    wanted = {normalized(line) for line in request["requirements"]}
    undeclared: dict[str, list[str]] = {}
    while True:
        with temporary_directory(home_of(request)) as directory:
            reply = compile_lock(request, directory, undeclared)
        more = UNDECLARED.search(reply.message) if reply.pylock is None else None
        if more is None or normalized(more[2]) not in wanted or more[2] in undeclared.get(more[1], []):
            return reply
        undeclared.setdefault(more[1], []).append(more[2])


def normalized(line: str) -> str:
    """Return the name of a requirement's package as indexes compare it: `torch` for `Torch==2.13.0`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", line, maxsplit=1)[0]).lower()


def main(action: str) -> int:
    """Answer a call of `env.lock`: make a lock."""
    return answer_until_stopped({"compile": compile_request}[action])
