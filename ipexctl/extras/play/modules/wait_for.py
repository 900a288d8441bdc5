"""The modules wait_for (on the host, in one round trip, for a port or path) and pause (on the control machine)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ipexctl.extras.play.modules.host_script import run_sh
from ipexctl.extras.play.result import Call, Result, failed
from ipexctl.remote.reply import MalformedReply

if TYPE_CHECKING:
    from ipexctl.extras.play.play_context import PlayContext
    from ipexctl.remote.session import Session

# /proc lists the host's own listening ports; for ports of other hosts bash opens a connection.
_WAIT: Final = """\
port=$1 host=$2 path=$3 want=$4 most=$5 delay=$6 once=$7
case $path in '~/'*) path=$HOME/${path#??};; esac
there() {
  if [ -n "$path" ]; then [ -e "$path" ]; return; fi
  if [ -z "$host" ]; then cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi ":$port [0-9A-F]*:0000 0A"; return; fi
  timeout 3 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$host" "$port" 2>/dev/null
}
[ -z "$host" ] || command -v bash >/dev/null || { echo 'there is no bash, which host: needs' >&2; exit 2; }
sleep "$delay"
began=$(date +%s)
while :; do
  if there; then now=yes; else now=no; fi
  [ "$now" != "$want" ] || { echo yes $(($(date +%s) - began)); exit 0; }
  [ "$once" != yes ] && [ $(($(date +%s) - began)) -lt "$most" ] || { echo no; exit 0; }
  sleep 0.2 2>/dev/null || sleep 1
done
"""


def _wait_for(context: PlayContext, call: Call, session: Session) -> Result:
    args = call.args
    expected = "no" if args["state"] in ("stopped", "absent") else "yes"
    if args["port"] is None and args["path"] is None:
        if not call.check:
            run_sh(context, session, call, f"sleep {args['seconds']:g}")
        return Result("ok", data={"elapsed": 0 if call.check else args["seconds"]})
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
        return Result("ok", data={"elapsed": int(output[1])})
    target = args["path"] or f"port {args['port']}" + (f" of {args['host']}" if host else "")
    state = {"yes": "is not there", "no": "is still there"}[expected]
    if call.check:
        return Result("ok", f"{target} {state}; --check doesn't wait")
    return failed(f"{target} {state} after {args['seconds']:g} s", "seconds: more of them, or see why")


def _pause(context: PlayContext, call: Call) -> Result:
    seconds = call.args["seconds"] + 60 * call.args["minutes"]
    if call.check:
        return Result("ok", f"{seconds:g} s; --check doesn't wait", data={"delta": 0})
    context.sleep(seconds)
    return Result("ok", data={"delta": seconds})


RUNNERS: Final = {"wait_for": _wait_for, "pause": _pause}
