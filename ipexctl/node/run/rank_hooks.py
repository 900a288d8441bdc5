"""What each Python of a rank does before its own code: it lets its stacks be asked for, and tells when it goes wrong.

`sitecustomize.py` imports it as `ipexctl_shim`, from a directory that is first on PYTHONPATH. It prints nothing, and
costs a millisecond.

    SIGNAL           all threads' stacks go to a file without a name, which `process_stacks.py` reads by way of /proc
    $IPEXCTL_NOTES   `NUMBER:INODE` of an inherited pipe: a line `PID CODE WORDS` goes there once an exception, or
                     sys.exit with a code other than 0, has reached the top. Children that haven't the pipe write none.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the signal module costs another millisecond
import _thread
import atexit
import builtins
import faulthandler
import os
import sys

TYPE_CHECKING = False  # typing costs more than all that is done here
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

SIGNAL = 61
"""SIGRTMAX-3 of Linux. It is ignored where nobody has asked for it."""
NUMBERS = range(249, 199, -1)
"""Descriptors that are free while there are few, and that no library expects."""
NAME = "ipexctl-stacks"


def begin() -> None:
    for part in (keep_stacks, keep_notes):
        try:
            part()
        except (OSError, ValueError, RuntimeError, AttributeError):  # a sandbox, an embedded Python: it goes without
            continue


def keep_stacks() -> None:
    """Have all threads' stacks written whenever the signal comes, and on stderr where the process crashes."""
    if not faulthandler.is_enabled() and sys.stderr is not None:
        faulthandler.enable(2)
    number = moved(unnamed_file())
    inode = os.fstat(number).st_ino

    def renew() -> None:
        """A forked child has a file of its own, or what it says would mix with its parent's."""
        nonlocal inode
        try:
            if os.fstat(number).st_ino == inode:
                fresh = unnamed_file()
                os.dup2(fresh, number, inheritable=False)
                os.close(fresh)
                inode = os.fstat(number).st_ino
        except OSError:
            return

    # Its default kills: one that comes when the interpreter has taken its handler away again is to do nothing.
    _signal.signal(SIGNAL, _signal.SIG_IGN)
    faulthandler.register(SIGNAL, file=number, all_threads=True)
    os.register_at_fork(after_in_child=renew)


def unnamed_file() -> int:
    """A file that is gone with the last who has it open."""
    try:
        return os.memfd_create(NAME)
    except (AttributeError, OSError):  # Pythons built for an old glibc know no memfd
        pass
    for place in ("/dev/shm", "/tmp"):  # noqa: S108
        path = f"{place}/.{NAME}-{os.getpid()}-{os.urandom(8).hex()}"
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        os.unlink(path)
        return number
    raise OSError(0, "there is no room for a file")


def moved(number: int) -> int:
    """The same file under a number nobody counts on."""
    for place in NUMBERS:
        try:
            os.fstat(place)
        except OSError:
            try:
                os.dup2(number, place, inheritable=False)
            except OSError:
                return number
            os.close(number)
            return place
    return number


def keep_notes() -> None:
    number, _, inode = os.environ.get("IPEXCTL_NOTES", "").partition(":")
    if not number.isdigit() or not inode.isdigit() or not is_pipe(int(number), int(inode)):
        return
    notes = Notes(int(number), int(inode))
    leave: Any = sys.exit
    quitter: Any = type(getattr(builtins, "exit", None))

    def exit(*status: Any) -> None:  # noqa: A001
        """Exit the interpreter by raising SystemExit(status)."""
        told = Leaving(notes, *status)  # noqa: F841  # the exception's traceback keeps this frame
        leave(*status)

    if quitter.__name__ == "Quitter":
        by_name = quitter.__call__

        def quit_(self: Any, *status: Any) -> None:
            told = Leaving(notes, *status)  # noqa: F841
            by_name(self, *status)

        quitter.__call__ = quit_
    exit.__module__, exit.__qualname__ = "sys", "exit"
    sys.exit = exit  # type: ignore[assignment]
    sys.excepthook = sys.__excepthook__ = notes.excepthook  # one, as ever: some install theirs only then
    atexit.register(notes.at_end)


def is_pipe(number: int, inode: int) -> bool:
    """Whether that descriptor still is the pipe, and no file that came to have its number."""
    try:
        found = os.fstat(number)
    except OSError:
        return False
    return found.st_ino == inode and found.st_mode & 0o170000 == 0o010000


class Notes:
    """The way out of this interpreter, told once to whoever waits for it."""

    def __init__(self, number: int, inode: int) -> None:
        self._pipe = number, inode
        self._pid = os.getpid()
        self._main = _thread.get_ident()
        self._is_over = False
        self._before = sys.excepthook

    def say(self, code: int, words: str) -> None:
        if self._is_over or os.getpid() != self._pid or _thread.get_ident() != self._main:
            return
        self._is_over = True
        try:
            if is_pipe(*self._pipe):
                os.write(self._pipe[0], f"{self._pid} {code} {words}\n".encode("utf-8", "replace"))
        except OSError:
            return

    def excepthook(self, kind: type[BaseException], value: BaseException, traceback: TracebackType | None, /) -> None:
        """Handle an exception by displaying it with a traceback on sys.stderr."""
        try:
            self._before(kind, value, traceback)
        finally:
            self.raised(value, traceback)

    def raised(self, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Only what the interpreter itself has found at the very top: others call the hook to print, and go on."""
        if value is None or traceback is None or value is not getattr(sys, "last_value", None):
            return
        frame = traceback.tb_frame
        if frame.f_back is None and frame.f_code.co_name in ("<module>", "_run_module_as_main"):
            self.say(130 if isinstance(value, KeyboardInterrupt) else 1, f"raised {words_of(value)}")

    def at_end(self) -> None:
        """The last of all hooks at exit: one of the user's may have stood in the way of ours for exceptions."""
        self.raised(getattr(sys, "last_value", None), getattr(sys, "last_traceback", None))
        self._is_over = True


class Leaving:
    """It goes together with a SystemExit: with no frame left that runs, nobody has caught that."""

    def __init__(self, notes: Notes, status: Any = None, *more: Any) -> None:
        del more
        self._notes, self._code = notes, code_of(status)

    def __del__(self) -> None:
        if self._code and sys._getframe().f_back is None:
            self._notes.say(self._code, f"ended itself with exit code {self._code}")


def code_of(status: Any) -> int:
    if isinstance(status, SystemExit):
        status = status.code
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def words_of(value: object) -> str:
    """Of an exception, its name and its first line."""
    name = type(value).__name__
    try:
        lines = str(value).strip().splitlines()
    except Exception:  # noqa: BLE001  # it is the user's own code that says it
        return name
    return f"{name}: {lines[0][:200]}" if lines else name
