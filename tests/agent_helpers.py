"""The agent as a node runs it: from a zip, under any Python, with values set before it where a test cannot wait."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import marshal
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from ipexctl.node.common.frames import WINDOWS, CompressedFrameReader, OutputPart, decode_json, decode_output
from ipexctl.node.common.home import MARK
from ipexctl.node.run.follow import FollowRequest
from ipexctl.remote.node_call import agent_zip, folders_of


def pyenv_pythons(version: str) -> list[Path]:
    """The Pythons of pyenv whose version matches this pattern."""
    root = os.environ.get("PYENV_ROOT")
    return sorted(Path(root).glob(f"versions/{version}/bin/python")) if root else []


def other_pythons() -> list[str]:
    """Other supported Pythons of this machine: from pyenv, else on PATH."""
    found = []
    for minor in range(8, 16):
        installed = [str(path) for path in pyenv_pythons(f"3.{minor}.*")]
        path = shutil.which(f"python3.{minor}") or ""
        found += installed[-1:] or ([path] if path and "/shims/" not in path else [])
    return found


def all_pythons() -> list[str]:
    return [sys.executable, *other_pythons()]


def agent_argv(python: str, command: str, action: str = "", first: str = "") -> list[str]:
    """`first`: statements that the agent's process runs before it, such as `limits.UPLOAD_SILENCE = 1`."""
    place = agent_file(" ".join(folders_of(command)))
    words = [command, *([action] if action else [])]
    if not first:
        return [python, "-I", place, *words]
    code = f"import runpy, sys\nsys.path.insert(0, {place!r})\n{first}\nrunpy.run_path({place!r}, run_name='__main__')"
    return [python, "-I", "-c", code, *words]


@functools.cache
def agent_file(rooms: str, *, bytecode: bool = True) -> str:
    """`rooms`: one or more, with spaces between them.

    It has bytecode as after the first run of a version: compiling takes two thirds of a rank's start. Other Pythons
    compile its source, as they do on a node.
    """
    with tempfile.NamedTemporaryFile(dir=_directory().name, suffix=".zip", delete=False) as file:
        file.write(agent_zip(*rooms.split()))
    if bytecode:
        _add_bytecode(Path(file.name))
    return file.name


@functools.cache
def with_code(packed: bytes) -> bytes:
    """The agent with the code of each module beside its text; see `compiled_agent.py`."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed)) as source, zipfile.ZipFile(changed, "w") as target:
        for item in source.infolist():
            text = source.read(item)
            code = compile(text, item.filename, "exec", dont_inherit=True)
            unchecked = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + importlib.util.source_hash(text)
            target.writestr(item, text)
            target.writestr(f"{item.filename}c", unchecked + marshal.dumps(code))
    return changed.getvalue()


def follow_request(home: Path | str, run: str, **changes: Any) -> FollowRequest:
    """A request for all output of a run."""
    request: FollowRequest = {
        "home": str(home),
        "id": run,
        "copy": False,
        "offsets": {},
        "ranks": None,
        "streams": ["out", "err"],
        "follow": True,
        "tail": None,
        "grep": "",
        "exact": False,
        "figures": 0.0,
        "windows": False,
    }
    return cast("FollowRequest", {**request, **changes})


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ipexctl-agent-")


def _add_bytecode(path: Path) -> None:
    with zipfile.ZipFile(path) as source:
        texts = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(path, "w") as target:
        for name, text in texts.items():
            target.writestr(name, text)
            if name.startswith("ipexctl/"):
                target.writestr(f"{name}c", _compile(name, text))


@functools.cache
def _compile(name: str, text: bytes) -> bytes:
    """As `node/common/agent_copy.py: save_bytecode` does; kept, as rooms share modules."""
    code = compile(text, f"agent.zip/{name}", "exec", dont_inherit=True)
    unchecked_hash = (1).to_bytes(4, "little") + bytes(8)
    return importlib.util.MAGIC_NUMBER + unchecked_hash + marshal.dumps(code)


def mark_home(home: Path) -> Path:
    """Make a directory a home of ipexctl, as its first call there does; returns it."""
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).touch(0o600)
    return home


def wait_until(
    is_true: Callable[[], object], seconds: float = 20, details: Callable[[], object] = lambda: None
) -> None:
    """An AssertionError with `details` if it is not true within that time. Most of the time is a pause."""
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if is_true():
            return
        assert time.monotonic() < until, details()
        took = time.monotonic() - began
        time.sleep(max(0.02, min(3 * took, took + 0.2)))  # a look may start a program, or read all of /proc


def read_events(number: int) -> Iterator[OutputPart | dict[str, Any]]:
    """Output and messages as they come, without files of windows, then the last line."""
    line = b""
    while not line.endswith(b"\n") and (more := os.read(number, 1)):
        line += more
    if line != b'{"event": "frames"}\n':
        yield json.loads(line)
        return
    frames = CompressedFrameReader()
    while not frames.is_over and (data := os.read(number, 65536)):
        for kind, payload in frames.feed(data):
            if kind != WINDOWS:
                yield decode_json(payload) if kind == b"J" else decode_output(kind, payload)
    rest = frames.rest
    while data := os.read(number, 65536):
        rest += data
    if rest:
        yield json.loads(rest)
