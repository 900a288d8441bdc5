"""Build an environment on this host: unpack the wheels of a lock, or link packages that other environments have.

An environment is built in a temporary directory, which gets its final name when it is complete. The rename is atomic,
so even after kill -9 no rank sees half an environment. Several hosts may share the home and build the same environment
at once: a lock avoids the double work, but nothing depends on the lock.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import re
import shlex
import shutil
import time
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, TypedDict

from ipexctl.node.common.answer import (
    AgentError,
    Json,
    answer_until_stopped,
    check_stopped,
    emit_step,
    explain_os_error,
)
from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.environ import SetupError, source_setup
from ipexctl.node.common.files import HomeRequest, format_size, free_space, read_json, sha256_of, write_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.home import home_of, make_home, open_home
from ipexctl.node.common.home_entries import BUILD_DIRECTORY, STAGED_ENVIRONMENT, is_environment, own_entries
from ipexctl.node.common.owners import read_owner
from ipexctl.node.common.plan import COMPILER
from ipexctl.node.common.store_lock import Marker, is_alive, store_lock
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.node.env.environments import HYDRA, check_name, intel_mpi_version, remove_tree, write_record
from ipexctl.node.env.unpacked import LockedWheel, Package, find_unpacked
from ipexctl.node.env.uv import run, unpack_uv, uv_environment

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import StoreFile


class LockDocument(TypedDict):
    """Content of lock.json."""

    schema: str
    python: str
    """Such as `3.11`."""
    wheels: list[LockedWheel]


class BuildRequest(HomeRequest):
    """Request of `env.build`: the environment to build, from wheels that are in the home's store."""

    name: str
    """Directory of the environment, as in `ipex-2.8-1a2b3c4d`."""
    python: str
    """Path of the interpreter for which the environment is built."""
    files: list[StoreFile]
    """Wheels in the store. Other environments of the home contain the lock's other wheels (`unpacked.py`)."""
    installer: StoreFile
    """uv, as a wheel or a binary in the store."""
    record: Json
    """The fields of `EnvRecord` that are known before the build."""
    lock: LockDocument
    drop_wheels: bool
    """True to remove the wheels and uv from the store afterwards."""
    replace: str | None
    """Token of the build of a damaged environment, which is built again; None if there is none."""


class BuildArea:
    """The entries of one build in a home: `envs/.build-TOKEN`, where it builds, `tmp/build-TOKEN` for its files, and
    `tmp/owner-TOKEN`, a marker that names this process. Once the process is dead, another build removes all three."""

    def __init__(self, home: str) -> None:
        self.home = Path(home)
        self.envs, self.tmp, self.store = self.home / "envs", self.home / "tmp", self.home / "wheels"
        self.token = os.urandom(6).hex()
        self.work, self.target = self.tmp / f"build-{self.token}", self.envs / f".build-{self.token}"
        self._marker = Marker(str(self.tmp / f"owner-{self.token}"))

    def open(self) -> None:
        """Make the entries, after removing those of dead builds.

        Raises an OSError or an AgentError if no environment can be built in this home.
        """
        make_home(str(self.home))
        flags = os.statvfs(str(self.home)).f_flag
        if flags & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.home))
        if flags & getattr(os, "ST_NOEXEC", 8):
            raise AgentError(
                f"{self.home} is on a filesystem mounted noexec: no program can be run from there",
                "give --home a directory on a filesystem that allows programs to run",
            )
        for directory in (self.envs, self.tmp):
            directory.mkdir(exist_ok=True)
        self.remove_leftovers()
        self._marker.create()
        (self.work / "tmp").mkdir(parents=True)

    def close(self) -> None:
        """Remove the build's entries, also an environment that is not finished. A finished one has its own name by
        then."""
        remove_tree(str(self.target))
        remove_tree(f"{self.envs}/.build-{self.token}+old")
        remove_tree(str(self.work))
        self._marker.remove()

    def remove_leftovers(self) -> None:
        """Remove the entries of builds whose process is dead, and links left by killed calls an hour ago or before."""
        home = str(self.home)
        for entry in own_entries(home, "tmp"):
            name = Path(entry).name
            if BUILD_DIRECTORY.fullmatch(name):
                token = name[6:]
                if token != self.token and not is_alive(str(self.tmp / f"owner-{token}")):
                    remove_tree(f"{self.envs}/.build-{token}")
                    remove_tree(entry)
            elif name.startswith("owner-") and not is_alive(entry):
                remove_tree(entry)
        for entry in own_entries(home, "envs"):
            name = Path(entry).name
            if STAGED_ENVIRONMENT.fullmatch(name):
                if not (self.tmp / name[1:].split("+")[0]).exists():
                    remove_tree(entry)
            elif name.startswith(".link-"):  # left by a killed call that named an environment
                with contextlib.suppress(OSError):
                    if seconds_since(os.lstat(entry).st_mtime) > 3600:
                        remove_tree(entry)

    @contextlib.contextmanager
    def lock(self, name: str, ready: Callable[[], bool]) -> Iterator[None]:
        """Hold the lock of an environment in the block. Once `ready()` is true, go on without the lock."""
        is_reported = False

        def wait(_: float) -> bool:
            nonlocal is_reported
            if not is_reported:
                emit_step("waiting for another install of the same environment")
                is_reported = True
            check_stopped()
            return not ready()

        with store_lock(str(self.tmp / f"{name}.lock"), wait):
            yield


MARGIN = 32 << 20
"""Bytes that must stay free beside the environment."""
COMPILER_TEXT = """\
#!/bin/sh
env={env}
: "${{ZIG_GLOBAL_CACHE_DIR:=$env/compiler/cache}}" "${{ZIG_LOCAL_CACHE_DIR:=$ZIG_GLOBAL_CACHE_DIR}}"
export ZIG_GLOBAL_CACHE_DIR ZIG_LOCAL_CACHE_DIR
exec "$env/bin/python" -I -m ziglang c++ -target {machine}-linux-gnu.2.31 \\
    -isystem "$env/opt/compiler/include" -idirafter /usr/include "-L$env/compiler" "$@"
"""
"""Kernels of torch.compile link with `-lgomp`, which is Intel's OpenMP here. Debian's Python.h is in two directories of
/usr/include, where zig does not search."""
LIST_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH", "LIBRARY_PATH", "CPATH", "MANPATH", "CLASSPATH", "PKG_CONFIG_PATH")
IGNORED_VARIABLES = {"_", "PWD", "OLDPWD", "SHLVL", "HOME", "SETVARS_CALL", "INFOPATH", "CMAKE_PREFIX_PATH"}
IGNORED_VARIABLES.update(LIST_VARIABLES[2:])
"""Variables that ranks do not get: those of the shell and of setvars.sh itself, and lists for other programs."""
LIST_MARKER = "/ipexctl-base"
"""Value of list variables before setvars.sh is sourced. The script adds its text before the marker."""


def failure(reason: str, fix: str = Fix("run `ipexctl install` again")) -> AgentError:
    """Return the error of a build that a second call may complete, unless another fix is given."""
    return AgentError(reason, fix)


def _site_of(env: Path) -> Path:
    """Return the site-packages of an environment. Raises an AgentError if it has none."""
    site = next(iter(env.glob("lib/python3*/site-packages")), None)
    if site is None:
        raise failure(f"{env.name} has no site-packages")
    return site


class Fill:
    """Installs an environment into an empty directory: a venv, the wheels of a lock, and the variables that ranks need.

    Scripts and settings in the directory contain its final path, to which `Build` renames it afterwards. uv installs
    from local files alone; it never asks an index.
    """

    def __init__(self, request: BuildRequest, area: BuildArea, final: Path) -> None:
        self.home, self.work, self.target, self.store = area.home, area.work, area.target, area.store
        self.request, self.final, self.token = request, str(final), area.token
        self.record = EnvRecord(**request["record"])
        self.needed = 0
        """Bytes on disk of the wheels that are unpacked, estimated from their lists of files."""
        self.unpacked: list[Package] = []
        """Packages of other environments, which are linked."""

    def run(self) -> None:
        """Fill the directory. Raises an AgentError that names what is wrong and a fix."""
        try:
            self._steps()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._disk_full_error(quota=error.errno == errno.EDQUOT) from None
            raise explain_os_error(error, str(self.home), Fix("run `ipexctl install` again")) from None

    def _steps(self) -> None:
        emit_step("reading wheels")
        self._check_python()
        new = self._find_unpacked_packages()
        self._collect_wheels()
        emit_step(f"unpacking {format_size(self.needed)}" if self.needed else "linking unpacked packages")
        self._install(new)
        emit_step("finishing")
        site = _site_of(self.target)
        if (site / "ziglang").is_dir() and (self.target / "lib" / "libiomp5.so").exists():
            self._make_compiler()
        variables, prepended = self._variables(site)
        self._replace_paths(site)
        owner = read_owner(read_json(f"{self.final}/env.json"))
        record = self.record._replace(
            by=owner._asdict() if owner is not None else self.record.by,  # a repair changes no owner
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            build=self.token,
            variables=variables,
            prepended=tuple(prepended),
        )
        with contextlib.suppress(FileNotFoundError), (site / str(record.module) / HYDRA).open("rb") as program:
            mpi = intel_mpi_version(program)  # this MPI starts the ranks, even if impi-rt is installed
            record = record._replace(mpi=mpi)
        write_atomically(self.target / "lock.json", json.dumps(self.request["lock"], indent=1).encode() + b"\n")
        write_record(self.target, record._asdict())

    def _run(self, *argv: str) -> tuple[int, str]:
        """Run a program without the account's settings for uv, pip and Python; return its exit code and output."""
        env = uv_environment(self.work)
        env.update(HOME=str(self.work), XDG_CONFIG_HOME=str(self.work / "tmp"), PYTHONNOUSERSITE="1")
        env.update(PIP_CONFIG_FILE=os.devnull)
        child = run(argv, env, self.work)
        return child.process.returncode, child.text

    def _check_python(self) -> None:
        """Refuse an interpreter that does not run, or that has another version by now."""
        python, wanted = self.request["python"], self.record.python
        code, text = self._run(python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        if code:
            raise failure(f"{python} doesn't run (exit code {code}): {text.strip()[-200:]}", "reinstall it")
        if text.strip() != wanted:
            raise failure(f"{python} is Python {text.strip()} now, this environment is for {wanted}")

    def _find_unpacked_packages(self) -> list[LockedWheel]:
        """Find the packages of wheels that were not sent, and return the wheels that were.

        Raises an AgentError if no environment of the home has such a package any more: one may have been removed
        since the control machine asked.
        """
        sent = {file["sha256"] for file in self.request["files"]}
        wheels = self.request["lock"]["wheels"]
        others = [wheel for wheel in wheels if wheel["sha256"] not in sent]
        packages = find_unpacked(str(self.home), self.record.python, others) if others else {}
        for wheel in others:
            if wheel["sha256"] not in packages:
                raise failure(f"no environment of {self.home} has {wheel['name']} {wheel['version']} any more")
        self.unpacked = list(packages.values())
        return [wheel for wheel in wheels if wheel["sha256"] in sent]

    def _collect_wheels(self) -> None:
        """Link the sent wheels into one directory, where uv finds them, and add up how much room they need.

        Raises an AgentError if a wheel is missing or damaged, or if the disk has too little room.
        """
        (self.work / "wheels").mkdir()
        for file in self.request["files"]:
            source, target = self.store / file["sha256"] / file["name"], self.work / "wheels" / file["name"]
            try:
                os.link(str(source), str(target))
            except FileNotFoundError:
                raise failure(f"{file['name']} is not in {self.store}") from None
            except OSError:
                shutil.copyfile(str(source), str(target))
            try:
                with zipfile.ZipFile(str(target)) as wheel:
                    self.needed += sum(entry.file_size + 2048 for entry in wheel.infolist())
            except zipfile.BadZipFile:
                raise self._remove_damaged_wheels() or failure(
                    f"{file['name']} is not a wheel", "download it again, or leave it out"
                ) from None
        if free_space(str(self.home)) < self.needed + MARGIN:
            raise self._disk_full_error(self.needed + MARGIN - free_space(str(self.home)))

    def _disk_full_error(self, missing: int | None = None, *, quota: bool = False) -> AgentError:
        """Return the error of a full disk. `missing`: bytes; None for those that are not yet unpacked."""
        missing = self.needed - self._used() if missing is None else missing
        limit = " under the quota of this account" if quota else ""
        return failure(
            f"{self.home} has no room for the environment{limit}: "
            f"it takes {format_size(self.needed)}, {format_size(max(missing, 1 << 20))} more than is free",
            Fix(
                "free some space there (`ipexctl envs` lists the environments), or give --home a directory with "
                "more room"
            ),
        )

    def _remove_damaged_wheels(self) -> AgentError | None:
        """Remove wheels whose bytes do not have their hash, so that the next install sends them again.

        Returns the error that names them; None if all wheels are intact, and something else is the cause.
        """
        damaged = []
        for file in self.request["files"]:
            if sha256_of(self.store / file["sha256"] / file["name"]) != file["sha256"]:
                damaged.append(file["name"])
                shutil.rmtree(str(self.store / file["sha256"]), ignore_errors=True)
        if not damaged:
            return None
        return failure(f"{', '.join(damaged)} in {self.store} did not match the lock, and was removed")

    def _install(self, new: list[LockedWheel]) -> None:
        """Make the venv, link packages of other environments into it, and install the new wheels beside them."""
        lock = self.work / "lock.txt"
        lines = [f"{wheel['name']}=={wheel['version']} --hash=sha256:{wheel['sha256']}\n" for wheel in new]
        lock.write_text("".join(lines))
        uv = [unpack_uv(self.store, self.request["installer"], self.work), "--no-config", "--offline", "--quiet"]
        make = [*uv, "venv", "--no-project", "--python", self.request["python"], "--prompt", self.request["name"]]
        self._step(*make, str(self.target))
        for package in self.unpacked:
            package.link_into(str(self.target), str(_site_of(self.target)))
        if new:
            install = [
                *uv,
                "pip",
                "install",
                "--python",
                str(self.target / "bin" / "python"),
                "--link-mode",
                "hardlink",
            ]
            options = ["--no-index", "--no-deps", "--require-hashes", "--find-links", str(self.work / "wheels")]
            self._step(*install, *options, "-r", str(lock))
        with contextlib.suppress(FileNotFoundError):
            (self.target / ".lock").chmod(0o600)  # uv ignores the umask and makes it world-writable

    def _make_compiler(self) -> None:
        """Make a C++ compiler of ziglang and Intel's OpenMP, which answers calls of GNU's, too.

        It needs no library of the host. An older glibc than the host's is enough, and one home may serve several hosts.
        """
        path = self.target / COMPILER
        path.parent.mkdir()
        (path.parent / "libgomp.so").symlink_to("../lib/libiomp5.so")
        path.write_text(COMPILER_TEXT.format(env=shlex.quote(self.final), machine=os.uname().machine))
        path.chmod(0o711)

    def _step(self, *argv: str) -> None:
        """Run uv. If it fails, raise an AgentError with the cause: a full disk, a damaged wheel, else uv's output."""
        code, text = self._run(*argv)
        if code == 0:
            return
        quota = re.search(r"[Qq]uota exceeded|os error 122\)", text) is not None
        is_full = free_space(str(self.home)) < self.needed - self._used()
        if quota or is_full or re.search(r"No space left|os error 28\)", text):
            raise self._disk_full_error(quota=quota)
        lines = [re.sub(r"^[^\w/]+", "", line).strip() for line in text.splitlines() if line.strip()]
        output = " ".join(lines[-6:])[-700:]
        raise self._remove_damaged_wheels() or failure(f"uv ended with exit code {code}: {output}")

    def _used(self) -> int:
        """Return the bytes of the build's files, linked packages included; a file with several links counts once."""
        seen: dict[int, int] = {}
        for top in (self.work / "cache", self.work / "tmp", self.target):
            for directory, _, names in os.walk(str(top)):
                for name in names:
                    with contextlib.suppress(OSError):
                        stat = os.lstat(os.path.join(directory, name))  # noqa: PTH118
                        seen[stat.st_ino] = stat.st_size
        return sum(seen.values())

    def _variables(self, site: Path) -> tuple[dict[str, str], list[str]]:
        """Return the variables that ranks need, with final paths, and the names of those that are lists of paths.

        Some oneCCL bindings have a script that sets them. For others, they are made of the paths of the libraries in
        `lib`.
        """
        env = self.target
        single_values: dict[str, str] = {}
        list_values: dict[str, list[str]] = {"PATH": [str(env / "bin")], "LD_LIBRARY_PATH": []}
        directory = site / str(self.record.module) / "env"
        script = next((directory / name for name in ("setvars.sh", "vars.sh") if (directory / name).is_file()), None)
        if script is not None:
            single_values, sourced = self._source(script)
            for name, front in sourced.items():
                list_values[name] = [front, *list_values.get(name, [])]
        lib = env / "lib"
        if "I_MPI_ROOT" not in single_values and (env / "bin" / "mpiexec.hydra").exists():
            single_values["I_MPI_ROOT"] = str(env)
            directories = [lib, lib / "libfabric", lib / "libfabric" / "prov"]  # differs between releases
            patterns = ("libmpi.so*", "libfabric.so*")
            for libraries in directories:
                if any(any(libraries.glob(pattern)) for pattern in patterns):
                    list_values["LD_LIBRARY_PATH"].append(str(libraries))
                if any(libraries.glob("lib*-fi.so")):
                    single_values.setdefault("FI_PROVIDER_PATH", str(libraries))
        if "CCL_ROOT" not in single_values and any(lib.glob("libccl.so*")):
            single_values["CCL_ROOT"] = str(env)
            list_values["LD_LIBRARY_PATH"].append(str(lib))
        values = {
            name: ":".join(dict.fromkeys(":".join(parts).split(":"))) for name, parts in list_values.items() if parts
        }
        fabrics = (Path(name, "libfabric.so.1") for name in values.get("LD_LIBRARY_PATH", "").split(":"))
        if "CCL_ROOT" in single_values and (fabric := next(filter(Path.is_file, fabrics), None)):
            # By default oneCCL loads libfabric.so, which no wheel has, and falls back from ofi to MPI with a warning.
            single_values.setdefault("CCL_OFI_LIBRARY_PATH", str(fabric))
        variables = {**values, **single_values}
        return {name: self._with_final_path(value) for name, value in variables.items()}, sorted(values)

    def _source(self, script: Path) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables that a script of the bindings sets, and what it adds to lists: name → value.

        The script is sourced in bash, because in other shells it sets fewer variables. Raises an AgentError if it
        fails.
        """
        path = os.environ.get("PATH", os.defpath)
        base = {"PATH": path, "HOME": str(self.work), "LC_ALL": "C", **dict.fromkeys(LIST_VARIABLES, LIST_MARKER)}
        try:
            sourced = source_setup(str(script), base).environ
        except SetupError as error:
            raise failure(f"the oneCCL bindings: {error.strerror}") from None
        single_values, list_values = {}, {}
        for name, value in sourced.items():
            old = path if name == "PATH" else base.get(name)
            if value == old or name in IGNORED_VARIABLES or name.startswith("BASH_FUNC"):
                continue
            if old and value.endswith(":" + old):
                list_values[name] = value[: -len(old) - 1].strip(":")
            elif name in LIST_VARIABLES:
                list_values[name] = ":".join(part for part in value.split(":") if part and part != LIST_MARKER)
            else:
                single_values[name] = value
        return single_values, list_values

    def _with_final_path(self, text: str) -> str:
        """Return the text with the final path in place of the temporary one.

        The paths of environments from which packages were linked are replaced, too. A tool may have written a path
        with links resolved.
        """
        for directory in (self.target, *sorted({Path(package.env) for package in self.unpacked})):
            text = text.replace(str(directory), self.final).replace(str(directory.resolve()), self.final)
        return text

    def _replace_paths(self, site: Path) -> None:
        """Write the final path into scripts, pyvenv.cfg and .pth files, and correct the lists of files of packages."""
        changed = set()
        for path in [*(self.target / "bin").iterdir(), self.target / "pyvenv.cfg", *site.glob("*.pth")]:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 20:
                continue
            try:
                before = path.read_text()
            except ValueError:
                continue
            after = self._with_final_path(before)
            if after != before:
                fresh = path.with_name(path.name + ".new")  # the file may be a hard link to uv's cache
                fresh.write_text(after)
                shutil.copymode(str(path), str(fresh))
                fresh.replace(path)
                changed.add(os.path.relpath(str(path), str(site)))
        linked = {package.info for package in self.unpacked}  # `find_unpacked` compared their sizes
        for record in site.glob("*.dist-info/RECORD"):
            self._update_record_file(site, record, changed, sizes=record.parent.name not in linked)

    def _update_record_file(self, site: Path, record: Path, changed: set[str], *, sizes: bool) -> None:
        """Correct a package's list of files, because `check.py` compares sizes with it.

        `changed`: files, relative to `site`, into which this build wrote another path. `sizes`: True to compare all
        other files, too, because some packages are published with wrong sizes; missing files leave the list.
        """
        entries, updated = list(csv.reader(record.read_text().splitlines())), []
        for entry in entries:
            is_compared = sizes or not changed.isdisjoint(entry[:1])
            has_size = len(entry) == 3 and entry[2].isdigit() and not entry[0].endswith(".pyc")
            if is_compared and has_size:
                path = site / entry[0]
                if not path.exists():
                    continue
                if entry[0] in changed or path.stat().st_size != int(entry[2]):
                    data = path.read_bytes()
                    digest = urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
                    entry = [entry[0], f"sha256={digest}", str(len(data))]
            updated.append(entry)
        if updated != entries:
            fresh = record.with_name("RECORD.new")
            with fresh.open("w", newline="") as out:
                csv.writer(out, lineterminator="\n").writerows(updated)
            fresh.replace(record)


class Build:
    """One call of `ipexctl install` on one host: makes sure that the home has an environment."""

    def __init__(self, request: BuildRequest) -> None:
        self.request = request
        self.area = BuildArea(home_of(request, "envs"))
        check_name(request["name"])
        self.final = self.area.envs / request["name"]

    def exists(self) -> bool:
        """True if the home has the environment, made from the same lock, and not by the build that is to be replaced.

        Of its files, only the Python is looked for.
        """
        record = read_json(self.final / "env.json")
        is_new = bool(record.get("build")) and record.get("build") != self.request["replace"]
        is_current = is_new and record.get("digest") == self.request["record"]["digest"]
        return is_current and not self.final.is_symlink() and (self.final / "bin" / "python").exists()

    def run(self) -> Json:
        """Build the environment unless it exists. Returns `state`: `built`, or `there` if it exists or another call
        built it meanwhile."""
        outcome = "there"
        open_home(str(self.area.home))
        if not self.exists():
            try:
                self.area.open()
                with self.area.lock(self.request["name"], self.exists):
                    if not self.exists():
                        outcome = self._build()
            finally:
                self.area.close()
        else:
            with contextlib.suppress(OSError):
                self.area.remove_leftovers()  # a builder may have died after the rename
        if self.request["drop_wheels"]:
            self._drop_wheels()
        return {"state": outcome}

    def _build(self) -> str:
        """Build the environment and give it its final name; return `built`, or `there` if another call was faster.

        An environment with this name that is damaged is moved away first. Raises an AgentError if something else has
        the name, or if others change it again and again.
        """
        Fill(self.request, self.area, self.final).run()
        check_stopped()
        for _ in range(5):
            try:
                self.area.target.rename(self.final)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return "built"
            if self.exists():
                return "there"
            if os.path.lexists(self.final) and not self.final.is_symlink() and not is_environment(str(self.final)):
                raise AgentError(
                    f"{self.final} is in the way, and ipexctl did not make it", "look at it, then move it away"
                )
            old = self.area.envs / f".build-{self.area.token}+old"
            remove_tree(str(old))
            with contextlib.suppress(FileNotFoundError):
                self.final.rename(old)
        raise AgentError(f"{self.final} is being changed by another process", Fix("run `ipexctl install` again"))

    def _drop_wheels(self) -> None:
        """Remove the wheels and uv from the store, unless another build on the home may need them."""
        if any(is_alive(str(marker)) for marker in self.area.tmp.glob("owner-*")):  # this build's marker is removed
            return
        for file in [*self.request["files"], self.request["installer"]]:
            remove_tree(str(self.area.store / file["sha256"]))


def main(action: str) -> int:
    """Answer a call of `env.build`: make an environment."""
    return answer_until_stopped({"build": lambda request, _: Build(request).run()}[action])
