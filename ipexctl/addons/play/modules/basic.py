"""The modules exec, shell, command and wait_for, on a host, and assert, fail, debug, set_fact, pause, without a host.

The script that looks at `creates`, `removes` and `chdir` of a command becomes the command: a task is one round trip.
"""

from __future__ import annotations

import json
import re
import shlex
from itertools import chain
from typing import Any, Final

from ipexctl.addons.play.modules.host_script import exports, run_sh
from ipexctl.addons.play.options import OMIT
from ipexctl.addons.play.playbook import TemplateText
from ipexctl.addons.play.result import Call, TaskResult, failure
from ipexctl.addons.play.variables import PlayContext
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import Session


def _assert(_: PlayContext, call: Call) -> TaskResult:
    for text, holds in call.args["that"]:
        if not holds:
            reason = call.args["fail_msg"] or f"not true: {text}"
            return failure(reason, assertion=text, evaluated_to=False)
    return TaskResult("ok", message="" if call.args["quiet"] else call.args["success_msg"] or "all conditions are true")


def _fail(_: PlayContext, call: Call) -> TaskResult:
    return failure(call.args["msg"])


def _debug(context: PlayContext, call: Call) -> TaskResult:
    """Show `msg`, or the value of `var` with its name. Skipped if the call has fewer -v than `verbosity`."""
    if call.args["verbosity"] > context.options.verbose:
        return TaskResult("skipped", "verbosity: -" + "v" * call.args["verbosity"] + " shows it")
    value = call.args["msg"]
    if value is None and "var" in call.task.args:
        var = call.task.args["var"].value
        name = (var.text if isinstance(var, TemplateText) else str(var)).strip()
        return TaskResult("ok", message=f"{name} = {_to_text(call.args['var'])}", data={name: call.args["var"]})
    text = "Hello world!" if value is None else value if isinstance(value, str) else _to_text(value)
    return TaskResult("ok", message=text, data={"msg": value})


def _set_fact(_: PlayContext, call: Call) -> TaskResult:
    """Return the variables as `ansible_facts`; the task runner sets them for the host."""
    facts = {name: value for name, value in call.args.items() if name != "cacheable" and value != OMIT}
    return TaskResult("ok", data={"ansible_facts": facts})


def _to_text(value: object) -> str:
    return json.dumps(value, indent=2 if isinstance(value, dict | list) else None, ensure_ascii=False)


# /proc lists the host's own listening ports; for ports of other hosts bash opens a connection.
_WAIT: Final = """\
port=$1 host=$2 path=$3 want=$4 most=$5 delay=$6 once=$7
case $path in '~/'*) path=$HOME/${path#??};; esac
there() {
  if [ -n "$path" ]; then [ -e "$path" ]; return; fi
  if [ -z "$host" ]; then cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi ":$port [0-9A-F]*:0000 0A"; return; fi
  timeout 3 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$host" "$port" 2>/dev/null
}
[ -z "$host" ] || command -v bash >/dev/null || { echo 'bash is missing, and host: needs it' >&2; exit 2; }
sleep "$delay"
began=$(date +%s)
while :; do
  if there; then now=yes; else now=no; fi
  [ "$now" != "$want" ] || { echo yes $(($(date +%s) - began)); exit 0; }
  [ "$once" != yes ] && [ $(($(date +%s) - began)) -lt "$most" ] || { echo no; exit 0; }
  sleep 0.2 2>/dev/null || sleep 1
done
"""


def _wait_for(context: PlayContext, call: Call, session: Session) -> TaskResult:
    """Wait on a host until a port or a path is there, or is gone; without either, wait for `seconds`.

    With --check, look once.
    """
    args = call.args
    expected = "no" if args["state"] in ("stopped", "absent") else "yes"
    if args["port"] is None and args["path"] is None:
        if not call.check:
            run_sh(context, session, call, f"sleep {args['seconds']:g}")
        return TaskResult("ok", data={"elapsed": 0 if call.check else args["seconds"]})
    port = "" if args["port"] is None else str(args["port"])
    if port and args["host"] in (None, "localhost", "127.0.0.1"):
        port, host = f"{args['port']:04X}", ""
    else:
        host = args["host"] or ""
    arguments = [port, host, args["path"] or "", expected, f"{args['seconds']:.0f}", f"{args['delay']:g}"]
    completed = run_sh(context, session, call, _WAIT, [*arguments, "yes" if call.check else ""])
    output = completed.stdout.split()
    if completed.rc != 0 or not output:
        return completed.failure()
    if output[0] == b"yes":
        if len(output) < 2 or re.fullmatch(rb"[0-9]{1,9}", output[1]) is None:
            raise MalformedReply("no number of seconds", completed.stdout.decode(errors="replace"))
        return TaskResult("ok", data={"elapsed": int(output[1])})
    target = args["path"] or f"port {args['port']}" + (f" of {args['host']}" if host else "")
    state = {"yes": "does not exist", "no": "is still there"}[expected]
    if call.check:
        return TaskResult("ok", f"{target} {state}; --check doesn't wait")
    return failure(f"{target} {state} after {args['seconds']:g} s", "raise seconds:, or find out why")


def _pause(context: PlayContext, call: Call) -> TaskResult:
    seconds = call.args["seconds"] + 60 * call.args["minutes"]
    if call.check:
        return TaskResult("ok", f"{seconds:g} s; --check doesn't wait", data={"delta": 0})
    context.sleep(seconds)
    return TaskResult("ok", data={"delta": seconds})


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


def _exec(context: PlayContext, call: Call, session: Session) -> TaskResult:
    """Run a line in sh or, for the module command and for a list, a program without sh.

    With --check, only `creates` and `removes` are looked at; a command without either is skipped.
    """
    args = call.args
    guarded = args["creates"] is not None or args["removes"] is not None
    if call.check and not guarded:
        return TaskResult("skipped", "not run: --check", data={"rc": 0, "stdout": "", "stderr": ""}, not_run=True)
    splits_words = call.task.spec.name == "command"
    argv: Any = args["cmd"]
    line = ""
    if isinstance(argv, str):
        if splits_words:
            try:
                argv = shlex.split(argv)
            except ValueError:
                return failure("a quote in this line is never closed", "shell: passes the line to sh unchanged")
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


def _outcome(guard_letter: bytes, call: Call, data: dict[str, Any], *, truncated: bool, last_line: str) -> TaskResult:
    """Return the result by the letter that the guard printed: `g` if the command ran, else why it did not.

    `data`: exit code and output, for `register`. `last_line`: of stderr.
    """
    args = call.args
    if guard_letter == b"d":
        return failure(f"chdir: there is no directory {args['chdir']}", "create it first, or use another", **data)
    if guard_letter == b"c":
        return TaskResult("ok", f"{args['creates']} already exists", data=data)
    if guard_letter == b"r":
        return TaskResult("ok", f"{args['removes']} does not exist", data=data)
    if guard_letter == b"w":
        return TaskResult("changed", "would be run", data=data, not_run=True)
    if guard_letter != b"g":
        return failure(f"the host's shell can't run our script: {last_line or 'no message'}", **data)
    if data["rc"] != 0:
        fix = "the program is not on the host's PATH" if data["rc"] == 127 else ""
        return failure(f"exit code {data['rc']}" + (f": {last_line}" if last_line else ""), fix, **data, changed=True)
    note = "more than 16 MB of output: the rest is omitted" if truncated else ""
    return TaskResult("changed", note, data=data)


def _quote_expanding(argument: str) -> str:
    """Return an argument for sh that expands only `~/` and `$NAME` on the host, as Ansible does.

    A variable that is not set there stays as written.
    """
    begins_with_home = argument == "~" or argument.startswith("~/")
    home, rest = ('"$HOME"', argument[1:]) if begins_with_home else ("", argument)
    parts = _NAME.split(rest)
    names = [f'"${{{name}-\\${name}}}"' for name in (part.strip("{}") for part in parts[1::2])]
    quoted_parts = [shlex.quote(part) if part else "" for part in parts[0::2]]
    return home + "".join(chain.from_iterable(zip(quoted_parts, [*names, ""], strict=True))) or "''"


RUNNERS: Final = {
    "exec": _exec, "command": _exec, "wait_for": _wait_for, "pause": _pause,
    "assert": _assert, "fail": _fail, "debug": _debug, "set_fact": _set_fact,
}  # fmt: skip
