"""The entry point: runs the CLI and turns every error into a message and an exit code: 2 for a wrong call, 128+N for a
signal, 141 if the reader of stdout has left, 1 with a log file for an unexpected error, else the command's. Outside the
try block only modules that Python has already loaded are imported: Ctrl-C can come during any import.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipexctl.errors import IpexctlError


def main() -> None:
    try:
        try:
            code = _run()
        except KeyboardInterrupt:
            code = 130
            _print_interrupted(code)
        _end(code)
    except KeyboardInterrupt:  # pressed a second time
        code = 130
    sys.exit(code)


def _end(code: int) -> None:
    """Exit without finalizing the interpreter, unless a thread is still working or output can't be written. Finalizing
    takes 0.04 s, in which Ctrl-C would turn a finished call into one ended by a signal.
    """
    import atexit
    import signal
    import threading

    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):  # Python reports it at its own exit
            return
        os._exit(code)


def _run() -> int:
    import errno
    import gc
    import threading

    from ipexctl.errors import Interrupted, IpexctlError, OutputError

    def report_in_thread(args: threading.ExceptHookArgs) -> None:
        if isinstance(args.exc_value, Exception):
            from ipexctl.ui.error_output import report_crash

            report_crash(args.exc_value)

    # Nearly all objects of a call live until its end: collecting garbage as usual costs a twentieth of its time.
    gc.set_threshold(200_000, 20, 20)
    _open_what_was_closed()
    if "_IPEXCTL_COMPLETE" in os.environ:
        # Typer would import rich only to strip markup that the help does not have: 0.2 s at every Tab.
        sys.modules["rich"] = None  # type: ignore[assignment]
        if ":" in os.environ.get("COMP_WORDS", ""):
            from ipexctl.commands.complete import join_words_of_bash

            join_words_of_bash(os.environ)
    threading.excepthook = report_in_thread
    try:
        from ipexctl.commands.app import app
        from ipexctl.ui.safe_output import guard_stdout

        guard_stdout()
        app(prog_name="ipexctl")
    except IpexctlError as error:
        return _print_error(error)
    except Interrupted as error:
        _print_interrupted(error.code)
        return error.code
    except OutputError as error:
        return _cannot_write(error.cause)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            return _unexpected(error)
        return _cannot_write(error)
    except Exception as error:  # noqa: BLE001  # the last one: whatever it is, it gets a sentence and a log file
        return _unexpected(error)
    except SystemExit as end:  # raised by typer
        return end.code if isinstance(end.code, int) else 0
    return 0


def _print_error(error: IpexctlError) -> int:
    from ipexctl.errors import UserError
    from ipexctl.ui.error_output import print_json_error
    from ipexctl.ui.messages import print_user_error, print_with_fix

    if isinstance(error, UserError):
        print_user_error(error)
        print_json_error(error.message, fix=error.fix, error=error)
    else:
        print_with_fix(error.message, error.fix)
        print_json_error(error.message, fix=error.fix, exit_code=error.exit_code)
    return error.exit_code


def _print_interrupted(code: int) -> None:
    from ipexctl.ui.error_output import print_json_error

    print_json_error("interrupted", fix="the same call again", status="interrupted", exit_code=code)


def _open_what_was_closed() -> None:
    """Open standard streams that are closed (`<&-`), because the next opened files would get their numbers."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # an ASCII locale is no error


def _cannot_write(error: OSError) -> int:
    """Exit code if stdout can't be written; it becomes /dev/null, or Python's flush at exit would fail again."""
    import contextlib
    import errno

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return 141
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: the output can't be written: {error.strerror}\n")
    return 1


def _unexpected(error: Exception) -> int:
    from ipexctl.ui.error_output import print_json_error, report_crash

    report_crash(error)
    print_json_error(f"{type(error).__name__}: {error}", fix="stderr names a log file that has more", exit_code=1)
    return 1


if __name__ == "__main__":
    main()
