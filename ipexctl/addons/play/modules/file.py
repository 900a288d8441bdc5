"""The modules file, stat and ping: set or inspect a path of a host, and check that a host replies.

The script of file enters the parent directory step by step (`enter.sh`), so that no other account can put a symlink in
the way between check and change.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ipexctl.addons.play.modules.host_script import ENTER, run_sh
from ipexctl.addons.play.result import Call, TaskResult
from ipexctl.addons.play.variables import PlayContext
from ipexctl.remote.command import shell_text
from ipexctl.remote.node_call import WALK
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import Session

_HOME: Final = """\
case $1 in '~') path=$HOME;; '~/'*) path=$HOME/${1#??};; *) path=$1;; esac
case $path in -*) path=./$path;; esac
"""
_FILE: Final = (
    shell_text(WALK)
    + ENTER
    + """\
state=$2 src=$3 mode=$4 check=$5 follow=$6 changed=ok
expand_home "$1"
present=yes
enter_parent "$path" || present=
if [ -z "$present" ]; then was=absent
elif [ -z "$name" ]; then was=directory
elif [ -L "./$name" ]; then was=link; elif [ -d "./$name" ]; then was=directory; elif [ -e "./$name" ]; then was=file
else was=absent; fi
now=$was
if [ "$was" = link ] && [ "$state" != link ] && [ "$state" != absent ]; then
  while [ -n "$present" ] && [ -n "$name" ] && [ -L "./$name" ]; do
    read_link "$name"; enter_parent "$target" || present=
  done
  if [ -z "$present" ]; then :; elif [ -d "./$name" ]; then now=directory; elif [ -e "./$name" ]; then now=file; fi
fi
is_closed() { walk_down . && walk_check end; }
need_parent() { [ -n "$present" ] || fail "there is no directory $here/${missing%/}"; }
case $state in
  absent)
    home=$(cd -P -- "$HOME" 2>/dev/null && env pwd -P)
    case $path in /|"$HOME"|"$HOME/") name=;; esac
    [ "$was" != directory ] || case $home/ in "$here/$name/"*) name=;; esac
    [ -n "$name" ] || [ "$was" = absent ] || fail "$path is not removed: it is the root or contains the account's home"
    [ "$was" = absent ] || changed=changed
    [ "$check$changed" != changed ] || rm -rf -- "./$name" || exit 1;;
  directory)
    [ "$now" = directory ] || [ "$now" = absent ] || fail "$path is a $now"
    [ "$now" = directory ] || changed=changed
    if [ "$check$changed" = changed ]; then
      [ -n "$present" ] || enter "$missing" make
      present=yes
      [ -z "$name" ] || enter "$name" make
      name=.
    fi;;
  touch)
    need_parent
    changed=changed
    if [ -n "$check" ]; then :
    elif [ -e "./$name" ]; then touch -c -h -- "./${name:-.}" || exit 1
    else (set -C; : >"./$name") || exit 1; fi;;
  link)
    need_parent
    [ "$was" = link ] || [ "$was" = absent ] || fail "$path is a $was"
    [ "$was" = link ] && [ "$(readlink -- "./$name")" = "$src" ] || changed=changed
    [ "$check$changed" != changed ] || ln -sfn -- "$src" "./$name" || exit 1;;
  *)
    [ "$now" != absent ] || fail "there is nothing at $path"
    [ "$now" = file ] || [ -z "$state" ] || fail "$path is a $now";;
esac
had=
[ -z "$present" ] || had=$(stat -c %a -- "./${name:-.}" 2>/dev/null)
if [ -n "$mode" ] && [ "$had" != "$mode" ]; then
  changed=changed
  if [ -n "$check" ]; then :
  elif [ -d "./$name" ] && [ -x "./$name" ]; then enter "./$name" && chmod "$mode" . || exit 1
  elif [ -f "./$name" ] && [ -r "./$name" ]; then open_file "$name"; chmod "$mode" /proc/self/fd/3 || exit 1
  elif is_closed; then chmod "$mode" -- "./$name" || exit 1
  else fail "the mode of $path was not changed: another account can replace it at any moment"; fi
fi
printf '%s\\n%s\\n%s\\n%s\\n' "$changed" "$was" "$had" "$path"
"""
)
_STAT: Final = """\
follow=$2 sum=$3
[ -e "$path" ] || { [ -L "$path" ] && [ -z "$follow" ]; } || { echo none; exit 0; }
stat ${follow:+-L} -c '%f|%s|%a|%Y|%U|%G' -- "$path" || exit 1
readlink -- "$path" || echo
[ -z "$sum" ] || ! [ -f "$path" ] || sha1sum <"$path"
"""
_STAT_LINE: Final = re.compile(
    r"(?P<kind>[0-9a-f]{1,8})\|(?P<size>[0-9]{1,19})\|(?P<mode>[0-7]{1,4})\|(?P<changed>-?[0-9]{1,19})"
    r"\|(?P<user>[^|]*)\|(?P<group>[^|]*)"
)
_KINDS: Final = {0x4: "isdir", 0x8: "isreg", 0xA: "islnk"}


def _file(context: PlayContext, call: Call, session: Session) -> TaskResult:
    """Make a path a directory, a link, an empty file or nothing, and set its mode."""
    args = call.args
    mode = "" if args["mode"] is None else f"{args['mode']:o}"
    state = args["state"] or ""
    arguments = [args["path"], state, args["src"] or "", mode, "check" if call.check else ""]
    arguments.append("yes" if args["follow"] else "")
    completed = run_sh(context, session, call, _FILE, arguments)
    if completed.rc != 0:
        return completed.failure(path=args["path"])
    output = completed.stdout.decode(errors="replace")
    if output.count("\n") < 3:
        raise MalformedReply("a line is missing", output)
    changed, old_state, old_mode, path = output.split("\n", 3)
    data: dict[str, Any] = {"path": path.rstrip("\n"), "state": state or old_state}
    if changed != "changed":
        return TaskResult("ok", data=data)
    removed = [f"-{old_state}", f"-mode {old_mode}"] if old_mode and mode else [f"-{old_state}"]
    added = [f"+{state or old_state}", f"+mode {mode}"] if old_mode and mode else [f"+{state or old_state}"]
    lines = [f"--- {data['path']}", f"+++ {data['path']}", *removed, *added]
    return TaskResult("changed", data=data, diff="".join(f"{line}\n" for line in lines))


def _stat(context: PlayContext, call: Call, session: Session) -> TaskResult:
    """Return what a path is, in Ansible's fields; `{"exists": False}` for nothing."""
    args = call.args
    arguments = [args["path"], "yes" if args["follow"] else "", "yes" if args["get_checksum"] else ""]
    completed = run_sh(context, session, call, _HOME + _STAT, arguments)
    if completed.rc != 0:
        return completed.failure(path=args["path"])
    output = completed.stdout.decode(errors="replace")
    first, *rest = output.split("\n")
    if first == "none":
        return TaskResult("ok", data={"stat": {"exists": False}})
    match = _STAT_LINE.fullmatch(first)
    if match is None or not rest:
        raise MalformedReply("no file status", output)
    stat: dict[str, Any] = {
        "exists": True,
        "path": args["path"],
        "size": int(match["size"]),
        "mode": match["mode"].rjust(4, "0"),
        "mtime": int(match["changed"]),
        "pw_name": match["user"],
        "gr_name": match["group"],
        **{name: int(match["kind"], 16) >> 12 == number for number, name in _KINDS.items()},
    }
    if stat["islnk"]:
        stat["lnk_target"] = rest[0]
    if checksum := "".join(rest[1:2]).split():
        stat["checksum"] = checksum[0]
    return TaskResult("ok", data={"stat": stat})


def _ping(context: PlayContext, call: Call, session: Session) -> TaskResult:
    completed = run_sh(context, session, call, "exit 0")
    if completed.rc != 0:
        return completed.failure()
    return TaskResult("ok", data={"ping": "pong"})


RUNNERS: Final = {"file": _file, "stat": _stat, "ping": _ping}
