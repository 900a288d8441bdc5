"""Fills a directory with an environment: an interpreter, the wheels of a lock, and a record of what a rank needs set.

Standard library only, Python 3.8 or newer. Who may do so and when it is published is `build.py`, which starts this.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.stop import EXIT_CODE, Stopped, emit_step, stop_on_signals
from ipexctl.node.env.child import end_with_parent
from ipexctl.node.env.uv import unpack_uv

MARGIN = 32 << 20
FOREIGN = ("UV_", "PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_", "_CE_")
LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH", "LIBRARY_PATH", "CPATH", "MANPATH", "CLASSPATH", "PKG_CONFIG_PATH")
UNWANTED = {"_", "PWD", "OLDPWD", "SHLVL", "HOME", "SETVARS_CALL", "INFOPATH", "CMAKE_PREFIX_PATH", *LISTS[2:]}
BASE = "/ipexctl-base"
"""What the lists hold before a setvars.sh is sourced: what stands in front of it afterwards was put there."""


def failure(reason: str, fix: str = "run ipexctl install again") -> AgentError:
    return AgentError(reason, fix)


def human(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def run(argv: list[str], env: dict[str, str], cwd: str) -> tuple[int, str]:
    """A program's exit code and the end of what it printed; it ends when we do, or when nobody listens."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            preexec_fn=end_with_parent(signal.SIGKILL),
        )
    except OSError as error:
        raise failure(f"{argv[0]} can't be run: {error.strerror}") from None
    assert child.stdout is not None
    text = b""
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    poller.register(1, 0)
    try:
        while True:
            ready = [fd for fd, _ in poller.poll(1000)]
            if 1 in ready:
                raise Stopped
            if ready:
                data = os.read(child.stdout.fileno(), 65536)
                if not data:
                    return child.wait(), text.decode(errors="replace")
                text = (text + data)[-16384:]
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        child.stdout.close()


class Fill:
    """One environment, from its wheels to its variables."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.home, self.work, self.aside = Path(order["home"]), Path(order["work"]), Path(order["aside"])
        self.order, self.store = order, self.home / "wheels"
        self.record: dict[str, Any] = order["record"]
        self.needed = 0

    def fill(self) -> None:
        emit_step("reading wheels")
        self._check_python()
        self._gather()
        emit_step(f"unpacking {human(self.needed)}")
        self._install()
        emit_step("finishing")
        site = next(iter(self.aside.glob("lib/python3*/site-packages")))
        variables, prepended = self._variables(site)
        self._move_paths(site)
        record = {
            **self.record,
            "name": self.order["name"],
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "build": self.order["token"],
            "variables": variables,
            "prepended": prepended,
        }
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
        self._write("lock.json", json.dumps(self.order["lock"], indent=1))
        self._write("env.json", "{\n" + ",\n".join(lines) + "\n}")

    def _write(self, name: str, text: str) -> None:
        with (self.aside / name).open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        kept.update(HOME=str(self.work), TMPDIR=str(self.work / "tmp"), LC_ALL="C.UTF-8", PYTHONNOUSERSITE="1")
        kept.update(UV_CACHE_DIR=str(self.work / "cache"), UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")
        kept.update(PIP_CONFIG_FILE=os.devnull, XDG_CONFIG_HOME=str(self.work / "tmp"))
        return kept

    def _run(self, *argv: str) -> tuple[int, str]:
        return run(list(argv), self._environment(), str(self.work))

    def _check_python(self) -> None:
        python, wanted = self.order["python"], self.record.get("python")
        code, text = self._run(python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        if code:
            raise failure(f"{python} doesn't run (exit code {code}): {text.strip()[-200:]}", "install it anew")
        if wanted and text.strip() != wanted:
            raise failure(f"{python} is Python {text.strip()} now, this environment is for {wanted}")

    def _gather(self) -> None:
        """The wheels in one flat directory, where installers look for them by name."""
        (self.work / "wheels").mkdir()
        for file in self.order["files"]:
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
                raise self._damaged() or failure(f"{file['name']} is no wheel", "ask whoever made it") from None
        if self._free() < self.needed + MARGIN:
            raise self.no_room(self.needed + MARGIN - self._free())

    def _free(self) -> int:
        stat = os.statvfs(str(self.home))
        return stat.f_bavail * stat.f_frsize

    def no_room(self, missing: int | None = None, *, quota: bool = False) -> AgentError:
        missing = self.needed - self._used() if missing is None else missing
        return failure(
            f"{self.home} has no room for the environment{' under the quota of this account' * quota}: "
            f"it takes {human(self.needed)}, {human(max(missing, 1 << 20))} are missing",
            "make room there (ipexctl envs shows what is ours), or give --home a directory with more",
        )

    def _damaged(self) -> AgentError | None:
        """Wheels that aren't what the lock says any more; they are taken out of the store."""
        bad = []
        for file in self.order["files"]:
            digest = sha256()
            with (self.store / file["sha256"] / file["name"]).open("rb") as wheel:
                for piece in iter(lambda: wheel.read(1 << 20), b""):
                    digest.update(piece)
            if digest.hexdigest() != file["sha256"]:
                bad.append(file["name"])
                shutil.rmtree(str(self.store / file["sha256"]), ignore_errors=True)
        if not bad:
            return None
        return failure(f"{', '.join(bad)} in {self.store} was not what the lock says, and was removed")

    def _install(self) -> None:
        lock = self.work / "lock.txt"
        lines = [f"{w['name']}=={w['version']} --hash=sha256:{w['sha256']}\n" for w in self.order["lock"]["wheels"]]
        lock.write_text("".join(lines))
        python = str(self.aside / "bin" / "python")
        places = ["--no-index", "--no-deps", "--require-hashes", "--find-links", str(self.work / "wheels")]
        if self.order.get("installer"):
            uv = [unpack_uv(self.store, self.order["installer"], self.work), "--no-config", "--offline", "--quiet"]
            make = [*uv, "venv", "--no-project", "--python", self.order["python"], "--prompt", self.order["name"]]
            self._step(*make, str(self.aside))
            pip = [*uv, "pip", "install", "--python", python, "--link-mode", "hardlink"]
        else:
            self._step(self.order["python"], "-I", "-m", "venv", "--prompt", self.order["name"], str(self.aside))
            pip = [python, "-I", "-m", "pip", "--isolated", "--disable-pip-version-check", "-q", "install"]
            pip += ["--no-compile", "--no-cache-dir"]
        self._step(*pip, *places, "-r", str(lock))

    def _step(self, *argv: str) -> None:
        code, text = self._run(*argv)
        if code == 0:
            return
        tool = "uv" if self.order.get("installer") else argv[3]
        quota = re.search(r"[Qq]uota exceeded|os error 122\)", text) is not None
        if quota or re.search(r"No space left|os error 28\)", text) or self._free() < self.needed - self._used():
            raise self.no_room(quota=quota)
        if tool == "venv" and re.search("ensurepip is not available|No module named ensurepip", text):
            raise failure(
                f"{self.order['python']} has no ensurepip, which makes an environment with pip in it",
                f"apt install python{self.record.get('python', '3')}-venv there, or let ipexctl bring uv",
            )
        lines = [re.sub(r"^[^\w/]+", "", line).strip() for line in text.splitlines() if line.strip()]
        said = " ".join(lines[-6:])[-700:]
        raise self._damaged() or failure(f"{tool} ended with exit code {code}: {said}")

    def _used(self) -> int:
        seen: dict[int, int] = {}
        for top in (self.work / "cache", self.work / "tmp", self.aside):
            for directory, _, names in os.walk(str(top)):
                for name in names:
                    with contextlib.suppress(OSError):
                        stat = os.lstat(os.path.join(directory, name))  # noqa: PTH118
                        seen[stat.st_ino] = stat.st_size
        return sum(seen.values())

    def _variables(self, site: Path) -> tuple[dict[str, str], list[str]]:
        """What a rank needs set: from the package's own script where it has one, else from where the files are."""
        env = self.aside
        sets: dict[str, str] = {}
        lists: dict[str, list[str]] = {"PATH": [str(env / "bin")], "LD_LIBRARY_PATH": []}
        where = site / str(self.record.get("module")) / "env"
        script = next((where / name for name in ("setvars.sh", "vars.sh") if (where / name).is_file()), None)
        if script is not None:
            sets, sourced = self._source(script)
            for name, front in sourced.items():
                lists[name] = [front, *lists.get(name, [])]
        lib = env / "lib"
        if "I_MPI_ROOT" not in sets and (env / "bin" / "mpiexec.hydra").exists():
            sets["I_MPI_ROOT"] = str(env)
            places = [lib, lib / "libfabric", lib / "libfabric" / "prov"]  # releases differ in where they are
            has = ("libmpi.so*", "libfabric.so*")
            lists["LD_LIBRARY_PATH"] += [str(p) for p in places if any(any(p.glob(name)) for name in has)]
            for place in (p for p in places if any(p.glob("lib*-fi.so"))):
                sets.setdefault("FI_PROVIDER_PATH", str(place))
        if "CCL_ROOT" not in sets and any(lib.glob("libccl.so*")):
            sets["CCL_ROOT"] = str(env)
            lists["LD_LIBRARY_PATH"].append(str(lib))
        values = {name: ":".join(dict.fromkeys(":".join(parts).split(":"))) for name, parts in lists.items() if parts}
        variables = {**values, **sets}
        return {name: self._placed(value) for name, value in variables.items()}, sorted(values)

    def _source(self, script: Path) -> tuple[dict[str, str], dict[str, str]]:
        """The variables a script sets, and what it puts in front of lists. In bash: other shells set half of it."""
        bash = shutil.which("bash")
        if bash is None:
            raise failure(f"there is no bash here, and {script.name} of the oneCCL bindings needs it", "install bash")
        path = os.environ.get("PATH", os.defpath)
        base = {"PATH": path, "HOME": str(self.work), "LC_ALL": "C", **dict.fromkeys(LISTS, BASE)}
        out = self.work / "variables"
        # As at a prompt: $0 is bash, since oneCCL's scripts refuse where it is themselves, and there are no arguments.
        line = f". {shlex.quote(str(script))} >&2 && env -0 >{shlex.quote(str(out))}"
        code, text = run([bash, "--noprofile", "--norc", "-c", line], base, str(self.work))
        if code:
            raise failure(f"{script.name} of the oneCCL bindings failed (exit code {code}): {text.strip()[-500:]}")
        pairs = [item.split("=", 1) for item in out.read_text().split("\0") if "=" in item]
        sets, lists = {}, {}
        for name, value in pairs:
            old = path if name == "PATH" else base.get(name)
            if value == old or name in UNWANTED or name.startswith("BASH_FUNC"):
                continue
            if old and value.endswith(":" + old):
                lists[name] = value[: -len(old) - 1].strip(":")
            elif name in LISTS:
                lists[name] = ":".join(part for part in value.split(":") if part and part != BASE)
            else:
                sets[name] = value
        return sets, lists

    def _placed(self, text: str) -> str:
        """With the path the environment is going to have; a tool may have written the aside's path resolved."""
        final = self.order["final"]
        return text.replace(str(self.aside), final).replace(str(self.aside.resolve()), final)

    def _move_paths(self, site: Path) -> None:
        changed = set()
        for path in [*(self.aside / "bin").iterdir(), self.aside / "pyvenv.cfg", *site.glob("*.pth")]:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 20:
                continue
            try:
                before = path.read_text()
            except ValueError:
                continue
            after = self._placed(before)
            if after != before:
                fresh = path.with_name(path.name + ".new")  # the file may be one with a file of the cache
                fresh.write_text(after)
                shutil.copymode(str(path), str(fresh))
                fresh.replace(path)
                changed.add(os.path.relpath(str(path), str(site)))
        for record in site.glob("*.dist-info/RECORD"):
            self._note(site, record, changed)

    def _note(self, site: Path, record: Path, changed: set[str]) -> None:
        """Bring a package's list of files in line with what is there: some are published with wrong sizes."""
        rows, true = list(csv.reader(record.read_text().splitlines())), []
        for row in rows:
            path = site / row[0]
            if len(row) == 3 and row[2].isdigit() and not row[0].endswith(".pyc"):
                if not path.exists():
                    continue
                if row[0] in changed or path.stat().st_size != int(row[2]):
                    data = path.read_bytes()
                    digest = urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
                    row = [row[0], f"sha256={digest}", str(len(data))]
            true.append(row)
        if true != rows:
            fresh = record.with_name("RECORD.new")
            with fresh.open("w", newline="") as out:
                csv.writer(out, lineterminator="\n").writerows(true)
            fresh.replace(record)


def main(order_file: str) -> int:
    stop_on_signals()
    order = json.loads(Path(order_file).read_text())
    filler, error = Fill(order), None
    try:
        filler.fill()
    except AgentError as failed:
        error = failed
    except OSError as failed:
        full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
        error = filler.no_room(quota=failed.errno == errno.EDQUOT) if full else None
        error = error or failure(f"{failed.filename or order['home']}: {failed.strerror}")
    except Stopped:
        return EXIT_CODE
    if error:
        shutil.rmtree(order["aside"], ignore_errors=True)  # there may be no room for the answer otherwise
    Path(order["answer"]).write_text(json.dumps({"reason": error.reason, "fix": error.fix} if error else {}))
    return 0
