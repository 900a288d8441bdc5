"""The modules exec, shell and command: run a line of sh, or a program with its arguments, on a host."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from ipexctl.extras.play.modules.host_script import exports, run_sh
from ipexctl.extras.play.result import Call, Result, failed

if TYPE_CHECKING:
    from ipexctl.extras.play.play_context import PlayContext
    from ipexctl.remote.session import Session

# The guard prints one letter and a newline; the command's own output follows.
# Its variables begin with _: any other name may be one of the host's environment, which the command inherits.
_GUARD: Final = """\
_creates=$1 _removes=$2 _chdir=$3 _mode=$4
case $_chdir in '~') _chdir=$HOME;; '~/'*) _chdir=$HOME/${_chdir#??};; esac
if [ -n "$_chdir" ]; then cd -- "$_chdir" 2>/dev/null || { echo d; exit 0; }; fi
case $_creates in '~/'*) _creates=$HOME/${_creates#??};; esac
case $_removes in '~/'*) _removes=$HOME/${_removes#??};; esac
if [ -n "$_creates" ] && { [ -e "$_creates" ] || [ -L "$_creates" ]; }; then echo c; exit 0; fi
if [ -n "$_removes" ] && ! { [ -e "$_removes" ] || [ -L "$_removes" ]; }; then echo r; exit 0; fi
if [ "$_mode" = check ]; then echo w; exit 0; fi
echo g
"""

_NAME: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")


def _exec(context: PlayContext, call: Call, session: Session) -> Result:
    args = call.args
    guarded = args["creates"] is not None or args["removes"] is not None
    if call.check and not guarded:
        return Result("skipped", "not run: --check", data={"rc": 0, "stdout": "", "stderr": ""}, not_run=True)
    splits_words = call.task.spec.name == "command"
    argv: Any = args["cmd"]
    line = ""
    if isinstance(argv, str):
        if splits_words:
            try:
                argv = shlex.split(argv)
            except ValueError:
                return failed("a quote in this line is never closed", "shell: hands a line to sh as it is")
        else:
            argv, line = ["/bin/sh", "-c", argv], argv
    guard_args = [args["creates"] or "", args["removes"] or "", args["chdir"] or "", "check" if call.check else ""]
    stdin = (args["stdin"] or "").encode("utf-8", "surrogateescape")
    command_line = " ".join(map(_quote_expanding, argv)) if splits_words else shlex.join(argv)
    tail = f"exec {command_line}" + ("\n" if stdin else " </dev/null\n")
    completed = run_sh(context, session, call, _GUARD + exports(call) + tail, guard_args, stdin=stdin)
    guard_letter, _, output = completed.stdout.partition(b"\n")
    data = {
        "rc": completed.rc,
        "stdout": output.decode(errors="replace").rstrip("\r\n"),
        "stderr": completed.stderr.decode(errors="replace").rstrip("\r\n"),
        "cmd": line or argv,
    }
    return _outcome(guard_letter, call, data, truncated=completed.truncated, last_line=completed.last_error)


def _outcome(guard_letter: bytes, call: Call, data: dict[str, Any], *, truncated: bool, last_line: str) -> Result:
    args = call.args
    if guard_letter == b"d":
        return failed(f"there is no directory {args['chdir']} to go to", "chdir: one that is there", **data)
    if guard_letter == b"c":
        return Result("ok", f"{args['creates']} is there already", data=data)
    if guard_letter == b"r":
        return Result("ok", f"{args['removes']} isn't there", data=data)
    if guard_letter == b"w":
        return Result("changed", "would be run", data=data, not_run=True)
    if guard_letter != b"g":
        return failed(f"the shell there can't run our script: {last_line or 'it says nothing'}", **data)
    if data["rc"] != 0:
        fix = "no such program is on the PATH there" if data["rc"] == 127 else ""
        return failed(f"exit code {data['rc']}" + (f": {last_line}" if last_line else ""), fix, **data, changed=True)
    note = "more than 16 MB of output: the rest is left out" if truncated else ""
    return Result("changed", note, data=data)


def _quote_expanding(word: str) -> str:
    """Quote a word but expand `~/` and `$NAME` on the host, as Ansible does; unset names stay as written."""
    home, word = ('"$HOME"', word[1:]) if word == "~" or word.startswith("~/") else ("", word)
    parts = _NAME.split(word)
    names = [f'"${{{name}-\\${name}}}"' for name in (part.strip("{}") for part in parts[1::2])]
    quoted_parts = [shlex.quote(part) if part else "" for part in parts[0::2]]
    return home + "".join(text for pair in zip(quoted_parts, [*names, ""], strict=True) for text in pair) or "''"


RUNNERS: Final = {"exec": _exec, "command": _exec}
