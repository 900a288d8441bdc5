"""The entry point: run the command line, and turn every error into a message and an exit code.

The exit code is 2 for a wrong call, 128+N for a signal, 141 if the reader of stdout has left, 1 with a log file for an
unexpected error, else the command's own. Outside the try block only built-in modules are imported, because Ctrl-C can
come during any import.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys


def main() -> None:
    """Run the call of `sys.argv`, and exit."""
    try:
        try:
            code = _run()
        except KeyboardInterrupt as error:
            _leave_late()
            code = _end_by(error)
        _end(code)
    except KeyboardInterrupt:  # pressed a second time
        os._exit(130)  # the reader of a full pipe may never read
    sys.exit(code)


def _leave_late() -> None:
    """Make sure that the process exits after Ctrl-C, even if a thread hangs."""
    from _thread import start_new_thread

    from ipexctl.commands.interrupt import Interrupt, leave_late

    interrupt = Interrupt()
    interrupt.code = 130
    start_new_thread(leave_late, (interrupt,))


def _end(code: int) -> None:
    """Exit without finalizing the interpreter, unless a thread is still working or output cannot be written.

    Finalizing takes 0.04 s, in which Ctrl-C would turn a finished call into one that a signal ended.
    """
    import signal
    import threading

    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):  # Python reports it at its own exit
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        atexit._run_exitfuncs()
        os._exit(code)


def _run() -> int:
    """Run the call, and return its exit code."""
    # Nearly all objects of a call live until its end: collecting garbage as usual costs a twentieth of its time.
    gc.set_threshold(200_000, 20, 20)
    _open_what_was_closed()
    if "_IPEXCTL_COMPLETE" in os.environ:
        # Typer would import rich only to strip markup that the help does not have: 0.2 s at every Tab.
        sys.modules["rich"] = None  # type: ignore[assignment]
        if ":" in os.environ.get("COMP_WORDS", ""):
            from ipexctl.commands.complete import join_words_of_bash

            join_words_of_bash(os.environ)
    try:
        from ipexctl.commands.app import run_app

        run_app()
    except Exception as error:  # noqa: BLE001  # the last one: whatever it is, it gets a sentence
        return _end_by(error)
    except SystemExit as end:  # raised by typer
        return end.code if isinstance(end.code, int) else 0
    return 0


def _end_by(error: BaseException) -> int:
    """Print the error, and return the exit code."""
    from ipexctl.ui.error_output import end_by_error  # 20 ms, for failed calls alone

    return end_by_error(error)


def _open_what_was_closed() -> None:
    """Open standard streams that are closed (`<&-`), because the files that are opened next would get their numbers."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # an ASCII locale is no error


if __name__ == "__main__":
    main()
