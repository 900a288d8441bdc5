"""Call the agent, the package `ipexctl.node`, which a Python on the host runs.

The agent is a zip, sent on stdin before the request, so nothing is written to the host. Only a `cached` call keeps a
copy in `HOME/agent/HASH`, and sends the zip only if the copy is missing. Python starts without `site`, because a host's
.pth files run code (0.1 s on some hosts), whose output would mix with the reply.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import os
import queue
import re
import shlex
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ipexctl.errors import UserError
from ipexctl.limits import STEP_SILENCE
from ipexctl.node.common.answer import explain_os_error
from ipexctl.node.common.frames import CompressedFrameReader, Frame, FrameError
from ipexctl.remote.advice import read_advice
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command, shell_text
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import AgentEnded, HostError
from ipexctl.remote.reply import DEFAULT_LIMITS, EventLimits, EventReader, OnEvent, RawReader, Reply
from ipexctl.remote.session import ChunkStream, Readable, Session, StdinQueue, chunks_of

_EXPLAINED: Final = tuple((os.strerror(code), code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Filesystem errors that are the cause wherever they appear."""
_NO_CAUSE: Final = re.compile(r"tar: (?:Exiting with failure status|Error is not recoverable|Child returned status)")
"""Lines that only report that an earlier line ended the program."""


def explain_stderr(stderr: bytes) -> tuple[str, str]:
    """Return the reason for a failure, which is the last line as in a traceback, and its fix. Each is empty if it is
    unknown."""
    text = stderr.decode(errors="replace")
    for error_text, code in _EXPLAINED:
        if error_text in text:
            explained = explain_os_error(OSError(code, error_text))
            return explained.reason, explained.fix
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _NO_CAUSE.match(line.strip())]
    return (lines[-1] if lines else "", "")


_NODE: Final = Path(__file__).parents[1] / "node"
_PYTHONS: Final = "python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8"
_TOO_OLD: Final = 97
WALK: Final = Path(__file__).with_name("walk.sh")
"""The sh function `walk`, which checks who could change a path."""
_zip_lock = threading.Lock()
T = TypeVar("T")
NO_PYTHON: Final = "there is no Python 3.8 or newer"

_BOOT: Final = f"""\
import os, sys, time
if sys.version_info < (3, 8): sys.exit({_TOO_OLD})
size, copy = int(sys.argv[1]), sys.argv[2]
del sys.argv[1:3]
present = False
if copy:
    walk = type(sys)("ipexctl.node.common.walk")
    sys.modules[walk.__name__] = walk
    exec(sys.argv.pop(1), walk.__dict__)
    try:
        place = walk.enter(copy, walk.own_path)
        status = place.status
        present = not place.name and status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0
        if present and time.time() - status.st_mtime > 86400: os.utime(place.path)
    except (OSError, walk.Refused): pass
    data = b""
    while not present and not data.endswith(b"\\n"):
        data = os.read(0, 1 << 20) or sys.exit("the connection broke before the request had arrived")
    os.write(1, b'{{"event": "agent", "present": %s}}\\n' % (b"true" if present else b"false"))
if present:
    opened = "/proc/%d/fd/%d" % (os.getpid(), place.number)
    sys.path.insert(0, opened if os.path.isdir(opened) else place.path)
else:
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit("the connection broke before the agent had arrived")
    if os.path.isdir("/proc/self/fd"):
        try: fd = os.memfd_create("ipexctl")
        except (AttributeError, OSError):
            import tempfile
            file = tempfile.TemporaryFile(buffering=0)
            fd = file.fileno()
        while data: data = data[os.write(fd, data):]
        sys.path.insert(0, "/proc/%d/fd/%d" % (os.getpid(), fd))
    else:
        import io, zipfile
        from importlib.util import spec_from_loader
        class Agent:
            archive = zipfile.ZipFile(io.BytesIO(data))
            def find_spec(self, name, path=None, target=None):
                for end in ("/__init__.py", ".py"):
                    file = name.replace(".", "/") + end
                    if file in self.archive.NameToInfo:
                        return spec_from_loader(name, self, origin=file, is_package=end != ".py")
            def create_module(self, spec): pass
            def exec_module(self, module):
                file = module.__spec__.origin
                exec(compile(self.archive.read(file), file, "exec"), module.__dict__)
        sys.meta_path.insert(0, Agent())
if copy:
    from ipexctl.node.common.archive import open_home
    open_home(copy, present)
from ipexctl.node.__main__ import run_and_exit
run_and_exit()
"""
"""Runs the agent's copy if this account owns it and nobody else can open it, else the zip from stdin.

`node/common/walk.py`, passed as an argument, enters the copy before anything in it or in the home is used. If there is
no copy, the request that was sent ahead is dropped, and zip and request follow. The zip stays in memory, with the pid
in its path, so that programs started by the agent can load it. Pythons built for a glibc before 2.27 (conda's, uv's)
and kernels before 3.17 have no `memfd_create`. Without /proc, as on a Mac that calls itself, the zip is imported from
memory.
"""

_RUN_SOURCE: Final = f"""\
import sys
if sys.version_info < (3, 8): sys.exit({_TOO_OLD})
exec(sys.argv.pop(1))
"""
"""Python source that checks the version first, because an older Python would report a syntax error in the module's
source."""

_FIND_PYTHON: Final = """\
try() {{
  command -v "$1" >/dev/null 2>&1 || return
  "$1" -I -S -c {boot} {arguments}
  code=$?
  case $code in {too_old} | 126 | 127) ;; *) exit $code ;; esac
}}
{walk}for python in {first} {pythons}; do {check}try "$python"; done
{envs}printf '%s\\n' '{{"event": "failed", "reason": "{no_python}", "fix": "install one on that host"}}'
"""
_CHECK: Final = 'case $python in {home}/*) walk "${{python%/*}}" end || continue ;; esac; '
_ENVS: Final = """\
if walk {home}/envs end; then
  for python in {home}/envs/*/bin/python; do if walk "${{python%/*}}" end; then try "$python"; fi; done
fi
"""
"""Finds a Python and runs the agent in one round trip. Exit codes 126 and 127 of the shell: the file can't start, its
interpreter is gone, or it is for another libc."""


_MORE_FOLDERS: Final = {
    "uninstall": ("env", "files", "run"),
    "hub.hub_download": ("files",),
    "files.checkpoint": ("run",),
    "files.file_sender": ("run",),
}
"""Folder, or one command of it → the folders that it imports."""


def agent_zip(*folders: str) -> bytes:
    """Return a zip with the modules that all commands share, and with the given folders or modules and the folders that
    they import."""
    with _zip_lock:  # calls to many hosts start at once, and each would otherwise make the zip (4 ms)
        return _make_zip(folders)


def folders_of(command: str) -> tuple[str, ...]:
    """Return the folders of a command, for `agent_zip`."""
    return command.partition(".")[0], *_MORE_FOLDERS.get(command, ())


@functools.cache
def _make_zip(folders: tuple[str, ...]) -> bytes:
    """Return the zip of `agent_zip`. Equal files give an equal zip, whose hash names the copy on the host."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "ipexctl/__init__.py", "")
        _add(archive, "__main__.py", "import sys\nfrom ipexctl.node.__main__ import main\nsys.exit(main())\n")
        for name in ("__init__", "__main__"):
            _add(archive, f"ipexctl/node/{name}.py", (_NODE / f"{name}.py").read_text(encoding="utf-8"))
        others = (other for folder in folders for other in _MORE_FOLDERS.get(folder, ()))
        for name in dict.fromkeys(("common", *folders, *others)):
            for file in sorted((_NODE / name).rglob("*.py")) or [_NODE / f"{name}.py"]:
                _add(archive, f"ipexctl/node/{file.relative_to(_NODE)}", file.read_text(encoding="utf-8"))
    return packed.getvalue()


@functools.cache
def script_text(module: str) -> str:
    """Return the source of a standalone module in `ipexctl.node`, for Pythons that are too old for the agent."""
    *folders, name = module.split(".")
    return _NODE.joinpath(*folders, f"{name}.py").read_text(encoding="utf-8")


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(
        zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED
    )  # a fixed date: the same text gives the same zip


@functools.cache
def _copy_name(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()[:16]


class AgentPlace(NamedTuple):
    """Where the agent finds a Python 3.8 or newer on a host: `python` if it exists, else the system's, else the Python
    of an environment in `home`, which also has the copy of the agent."""

    python: str = ""
    home: str = ""


ANYWHERE: Final = AgentPlace()


def agent_command(
    command: str, action: str = "", at: AgentPlace = ANYWHERE, *, cached: bool = False, label: str = ""
) -> Command:
    """Return the command line for `call`. Unless `cached`, stdin begins with the `agent_zip` of the command's
    folder."""
    home = at.home
    home_path = f'"$HOME"{shlex.quote(home[1:])}' if home.startswith("~/") else shlex.quote(home)
    archive = agent_zip(*folders_of(command))
    copy = f"{home_path}/agent/{_copy_name(archive)} {shlex.quote(script_text('common.walk'))}" if cached else "''"
    arguments = f"{len(archive)} {copy} {shlex.join([command, action] if action else [command])}"
    text = _find_python(at.python, home_path if home else "", _BOOT, arguments)
    return Command(text, label or f"{command} {action}".strip())


def script_command(module: str, *, python: str = "", label: str) -> Command:
    """Return the command that runs a module of the agent alone, without the agent's zip, by a Python found on the
    host."""
    return Command(_find_python(python, "", _RUN_SOURCE, shlex.quote(script_text(module))), label)


@functools.lru_cache(maxsize=64)
def _find_python(python: str, home_path: str, boot: str, arguments: str) -> str:
    """Return a script in sh that finds a Python and starts the agent with `boot`. If `home_path` is empty, no
    environment is searched."""
    return _FIND_PYTHON.format(
        first=shlex.quote(python) if python else "",
        pythons=_PYTHONS,
        walk=shell_text(WALK) if home_path else "",
        check=_CHECK.format(home=home_path) if home_path else "",
        envs=_ENVS.format(home=home_path) if home_path else "",
        boot=shlex.quote(boot),
        arguments=arguments,
        too_old=_TOO_OLD,
        no_python=NO_PYTHON,
    )


def ignore_reply(event: Reply) -> None:
    """Do nothing. The default of `on_event`."""


def call(
    session: Session,
    command: str,
    action: str,
    request: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    at: AgentPlace = ANYWHERE,
    *,
    cached: bool = False,
    label: str = "",
    stdin: Readable | None = None,
    on_event: OnEvent = ignore_reply,
    on_frame: Callable[[Frame], None] | None = None,
    limits: EventLimits = DEFAULT_LIMITS,
    timeout: float | None = None,
    silence: float = STEP_SILENCE,
    deadline: Deadline | None = None,
) -> Reply:
    """Run an agent command and return its last event. Raises HostError unless that is `done`, AgentEnded if there is
    none, and UserError, which ends the call on all hosts, if the host refuses what the call names.

    `stdin` follows the request. `cached`: for commands that may write to the home. A function as `request` may block
    while the agent starts. `deadline` replaces `timeout`, `silence` and the session's `cancel`.
    """
    line = agent_command(command, action, at, cached=cached, label=label)
    archive = agent_zip(*folders_of(command))
    if callable(request) and not cached:
        request = request()
    answers: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
    feed = ChunkStream(_call_chunks(archive, request, stdin, answers if cached else None))

    def handle_event(event: Reply) -> RawReader | None:
        if cached and event.get("event") == "agent":
            answers.put(event.get("present") is True)
            return None
        return on_event(event)

    try:
        return _run(session, line, feed, handle_event, on_frame, limits, timeout, silence, deadline)
    finally:
        answers.put(None)  # so that the reader ends if the call ends without an answer


class HeldCall(Generic[T]):
    """A call of the agent in the background, which lasts until `end`. `value` is the future of what the agent reports
    first."""

    def __init__(self, call: Callable[..., object], read: Callable[[Reply], T | None], ended: str) -> None:
        """Start the call in a thread. `call` is a function that takes `stdin` and `on_event`. `ended`: the error if the
        call ends and `read` has returned nothing."""
        self.value: Future[T] = Future()
        self._stdin = StdinQueue()
        self._running = run_in_background(lambda: self._run(call, read, ended), "held")

    def _run(self, call: Callable[..., object], read: Callable[[Reply], T | None], ended: str) -> None:
        """Make the call in the thread, and set `value` at the first event from which `read` returns something. A call
        that ends without one sets an error."""

        def on_event(event: Reply) -> None:
            if not self.value.done() and (value := read(event)) is not None:
                self.value.set_result(value)

        error = HostError(ended)
        try:
            call(stdin=self._stdin, on_event=on_event)
        except HostError as caught:
            error = caught
        finally:
            if not self.value.done():
                self.value.set_exception(error)

    def end(self) -> Future[None]:
        """Close the agent's stdin. Return a future that is done when the call has ended."""
        self._stdin.end()
        return self._running


def call_line(
    session: Session,
    line: Command,
    first: bytes,
    request: Mapping[str, Any] | None,
    *,
    stdin: Readable | None = None,
    on_event: OnEvent = ignore_reply,
    on_frame: Callable[[Frame], None] | None = None,
    timeout: float | None = None,
    silence: float = STEP_SILENCE,
    deadline: Deadline | None = None,
) -> Reply:
    """Run a command line that starts an agent, send it `first` and the request on stdin, and return its answer."""
    head = first + (_encode(request) if request is not None else b"")
    feed = ChunkStream(chain([head], chunks_of(stdin) if stdin is not None else ()))
    return _run(session, line, feed, on_event, on_frame, DEFAULT_LIMITS, timeout, silence, deadline)


def _encode(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def _run(
    session: Session,
    line: Command,
    stdin: Readable,
    on_event: OnEvent,
    on_frame: Callable[[Frame], None] | None,
    limits: EventLimits,
    timeout: float | None,
    silence: float,
    deadline: Deadline | None,
) -> Reply:
    """Run a command line that starts an agent, and return its event `done`. Raises the error of an event `failed`, and
    an AgentEnded if the agent exits without either."""
    last: list[Reply] = []

    def handle_event(event: Reply) -> RawReader | None:
        kind = event.get("event")
        if kind in ("done", "failed"):
            last[:] = [event]
            return None
        return _frame_reader(on_frame) if kind == "frames" and on_frame is not None else on_event(event)

    output = EventReader(handle_event, limits)
    ended = session.run(line, output.sink, stdin=stdin, timeout=timeout, silence=silence, deadline=deadline)
    if last and last[0]["event"] == "failed":
        reason, fix = str(last[0].get("reason") or "it failed without a reason"), read_advice(last[0].get("fix"))
        if last[0].get("wrong_call") is True:
            raise UserError(f"{session.host.name}: {reason}", fix=fix)
        raise HostError(reason, fix, kind=str(last[0].get("kind") or ""))
    if last and ended.ok:
        return last[0]
    cause, fix = explain_stderr(output.stderr)
    how = f"{ended}: {cause}" if cause else str(ended)
    raise AgentEnded(f"{line.label} ended early ({ended})" + (f": {cause}" if cause else ""), fix, how=how)


def _frame_reader(on_frame: Callable[[Frame], None]) -> RawReader:
    """Return a reader of compressed frames, which passes each one to `on_frame`. It returns None until the frames are
    over, then how many bytes of its data belonged to them."""
    frames = CompressedFrameReader()

    def receive_frames(data: memoryview) -> int | None:
        try:
            for frame in frames.feed(data):
                on_frame(frame)
        except FrameError as error:
            raise HostError(f"its output can't be read: {error}") from None
        return len(data) - len(frames.rest) if frames.is_over else None

    return receive_frames


def agent_and_request(command: str, request: Mapping[str, Any]) -> bytes:
    """Return what a command that reads the agent from stdin gets there: the agent's zip, and the request."""
    return agent_zip(*folders_of(command)) + _encode(request)


def _call_chunks(
    archive: bytes,
    request_source: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    rest: Readable | None,
    answers: queue.SimpleQueue[bool | None] | None,
) -> Iterator[bytes]:
    """Yield the agent's zip, the request and `rest`. With `answers`, the zip is only sent if the host has no copy of
    the agent. `request_source`: the request, or a function that returns it and may block."""
    request = _encode(request_source() if callable(request_source) else request_source)
    is_present: bool | None = False
    if answers is not None:
        yield request
        is_present = answers.get()
    if is_present is None:
        return
    if not is_present:
        yield archive + request
    if rest is not None:
        yield from chunks_of(rest)
