"""The modules copy and template: write a file, a text or a directory of the control machine to a host.

The host compares hashes, so what it has is not sent; up to 256 KB are sent along in the same round trip. The scripts
follow no symlink of another account (`enter.sh`): as root they would write wherever it leads.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final

from ipexctl.addons.play.modules.host_script import ENTER, run_sh
from ipexctl.addons.play.modules.local_files import TOO_LARGE_FIX, source_path
from ipexctl.addons.play.result import Call, TaskResult, failure, unified_diff
from ipexctl.addons.play.variables import PlayContext
from ipexctl.file_reader import COPIED, TooLargeError, read_regular
from ipexctl.remote.command import shell_text
from ipexctl.remote.node_call import WALK
from ipexctl.remote.session import Session

_SMALL_FILE: Final = 256 << 10
_MAX_DIFF: Final = 200_000
_READING: Final = threading.Lock()
_ENTER: Final = shell_text(WALK) + ENTER + shell_text(Path(__file__).with_name("temporary.sh"))

# enter.sh says how a path is entered, and why each name begins with `./`. An existing file is opened once and handled
# through that descriptor; a new one has a temporary name that must not exist yet (set -C: O_EXCL).
_PLACE: Final = (
    _ENTER
    + """\
basename=$2 want=$3 size=$4 mode=$5 backup=$6 check=$7 diff=$8 sent=$9 follow=${10}
expand_home "$1"
dest=$path present=yes
case $dest in
  */) enter "$dest" || present=; dest=$dest$basename name=$basename;;
  *)
    enter_parent "$dest" || present=
    if [ -z "$name" ] || { [ -n "$present" ] && [ -d "./$name" ]; }; then
      [ -z "$name" ] || enter "$name" || changed_meanwhile "$dest"
      dest=$dest/$basename name=$basename
    fi;;
esac
while [ "$follow$present" = yesyes ] && [ -L "./$name" ]; do
  read_link "$name"; enter_parent "$target" || present=
  dest=$here/${missing}$name
done
[ -z "$present" ] || [ "$check" = yes ] || remove_abandoned "$name"
have= was= state=changed
if [ -n "$present" ] && [ -e "./$name" ] && [ ! -L "./$name" ]; then
  [ ! -d "./$name" ] || fail "$dest is a directory"
  [ -f "./$name" ] || fail "$dest is not a regular file"
  open_file "$name"
  have=$(sha256sum <&3) || exit 1
  have=${have%% *} was=$(stat -L -c %a /proc/self/fd/3) || exit 1
  [ "$have" != "$want" ] || { state=mode; [ -n "$mode" ] && [ "$mode" != "$was" ] || state=ok; }
fi
report() { printf '%s\\n%s\\n%s\\n' "$1" "$dest" "$was"; }
old() { [ "$diff" != yes ] || [ -z "$have" ] || head -c 200000 </proc/self/fd/3; }
if [ "$sent" = no ] && [ $state = changed ]; then report send; exit 0; fi
if [ $state = ok ] || [ "$check" = yes ]; then report $state; [ $state != changed ] || old; exit 0; fi
if [ $state = mode ]; then chmod "$mode" /proc/self/fd/3 && report mode; exit; fi
[ -n "$present" ] || enter "$missing" make || exit 1
[ -w . ] || fail "this account may not write to ${here:-/}: permission denied" denied
temporary_name "$name"
trap 'rm -f -- "$temporary" "$temporary.bak" 2>/dev/null' EXIT; trap 'exit 1' HUP INT PIPE TERM
mask=$(umask); umask 077
set -C
exec 4>"$temporary"
cat >&4 || exit 1
[ "$(wc -c </proc/self/fd/4)" -eq "$size" ] || fail 'only part of the file arrived'
[ -n "$mode" ] || mode=${was:-$(printf %o $((0666 & ~mask)))}
report changed; old
if [ "$backup" = yes ] && [ -n "$have" ]; then
  exec 5>"$temporary.bak"
  cat </proc/self/fd/3 >&5 && chmod "$was" /proc/self/fd/5 || exit 1
  touch -r /proc/self/fd/3 /proc/self/fd/5
  chown "$(stat -L -c %u:%g /proc/self/fd/3)" /proc/self/fd/5 2>/dev/null
  mv -fT -- "$temporary.bak" "./$name.$(date +%Y%m%d-%H%M%S).bak" || exit 1
fi
chmod "$mode" /proc/self/fd/4 && mv -fT -- "$temporary" "./$name"
"""
)

_TREE: Final = """\
LC_ALL=C; export LC_ALL
case $1 in '~') dest=$HOME;; '~/'*) dest=$HOME/${1#??};; *) dest=$1;; esac
cd -- "$dest" 2>/dev/null || { echo none; exit 0; }
sums=$(cat)
printf '%s\\n' "$sums" | while IFS= read -r line; do
  name=${line#*  }
  [ -f "./$name" ] || [ -d "./$name" ] || [ ! -e "./$name" ] || { printf '%s\\n' "special $name"; exit 1; }
done || exit 0
echo some; printf '%s\\n' "$sums" | sha256sum -c - 2>/dev/null
exit 0
"""
# The archive has the first directory's files in its directory 0, and so on. They are unpacked in a directory that no
# other account can enter, and then moved to their own, which may be behind a link. tar alone would follow any link.
_UNPACK: Final = (
    _ENTER
    + """\
follow=$2; expand_home "$1"
shift 2
enter "$path" make
[ -w . ] || fail "this account may not write to ${here:-/}: permission denied" denied
remove_abandoned ''
temporary_name ''
trap 'remove_tree "$temporary"' EXIT; trap 'exit 1' HUP INT PIPE TERM
mkdir -m 700 -- "$temporary" || exit 1
(
  cd -P -- "$temporary" && find_directory || exit 1
  [ "$at" = "$here/${temporary#./}" ] && [ -O . ] || changed_meanwhile "$here"
  : >.ipexctl-tree && exec 7<. && tar -xpof - || exit 1
  number=0
  for directory do
    (
      cd -P .. && find_directory && [ "$at" = "$here" ] || changed_meanwhile "$here"
      enter "$directory" make
      exec find "/proc/self/fd/7/$number" -type f -exec sh -c 'exec mv -f -- "$@" ./' sh {} +
    ) || exit
    number=$((number + 1))
  done
)
"""
)


def _copy(context: PlayContext, call: Call, session: Session) -> TaskResult:
    """Write `content`, which for template is the filled text, or the file or directory `src`."""
    content = call.args.get("content")
    if content is not None:
        name = os.path.basename(call.args.get("src") or "content")  # noqa: PTH119
        return _put(context, call, session, content.encode("utf-8", "surrogateescape"), name)
    source = source_path(call.task.spec.name, call.task.base, call.args["src"])
    if source.is_dir():
        return _put_tree(context, call, session, source)
    try:
        with _READING:
            data = _content(source, source.stat().st_mtime_ns)
    except TooLargeError:
        return failure(f"{source} is larger than 256 MB", TOO_LARGE_FIX)
    except OSError as error:
        return failure(f"{source} on this machine: {error.strerror or error}", "paths are relative to the playbook")
    return _put(context, call, session, data, source.name)


@lru_cache(maxsize=1)
def _content(path: Path, _modified: int) -> bytes:
    """Return the bytes of a file, read once for all hosts, and again if `_modified`, its mtime, changes."""
    return read_regular(path, COPIED)


def _put(context: PlayContext, call: Call, session: Session, data: bytes, name: str) -> TaskResult:
    """Write one file. A small one is sent along with the check; the host discards it if it already has that content.

    `name`: of the file, if `dest` is a directory.
    """
    args = call.args
    mode = "" if args["mode"] is None else f"{args['mode']:o}"
    arguments = [args["dest"], name, hashlib.sha256(data).hexdigest(), str(len(data)), mode]
    arguments += ["yes" if flag else "" for flag in (args["backup"], call.check, call.diff)]
    follow = "yes" if args["follow"] else ""
    small = len(data) <= _SMALL_FILE
    completed = run_sh(
        context, session, call, _PLACE, [*arguments, "" if small else "no", follow], stdin=data if small else b""
    )
    if completed.rc == 0 and completed.stdout.startswith(b"send\n"):
        completed = run_sh(context, session, call, _PLACE, [*arguments, "", follow], stdin=b"" if call.check else data)
    if completed.rc != 0:
        return completed.failure(dest=args["dest"])
    state, dest, old_mode, old = (*completed.stdout.split(b"\n", 3), b"", b"", b"")[:4]
    path = dest.decode(errors="replace")
    outcome = {"dest": path, "checksum": arguments[2], "size": len(data)}
    if state == b"ok":
        return TaskResult("ok", data=outcome)
    if state == b"mode":
        before = old_mode.decode(errors="replace")
        diff = f"--- {path}\n+++ {path}\n-mode {before}\n+mode {mode}\n"
        return TaskResult("changed", f"mode {before} → {mode}", data=outcome, diff=diff)
    return TaskResult("changed", data=outcome, diff=_diff(old, data, path, is_new=not old_mode) if call.diff else "")


def _diff(old: bytes, new: bytes, path: str, *, is_new: bool) -> str:
    """Return the difference of two texts as `diff -u` shows it; of long or binary files, only their sizes."""
    is_binary = b"\0" in old[:8000] or b"\0" in new[:8000]
    if is_binary or max(len(old), len(new)) >= _MAX_DIFF:
        names = f"--- /dev/null\n+++ {path}\n" if is_new else f"--- {path} (before)\n+++ {path} (after)\n"
        return f"{names}(too long or not text: {len(old)} bytes → {len(new)} bytes)\n"
    return unified_diff(old.decode(errors="replace"), new.decode(errors="replace"), path, is_new=is_new)


def _put_tree(context: PlayContext, call: Call, session: Session, source: Path) -> TaskResult:
    """Write a directory; only files that differ are sent. `src/` copies what is in it, `src` the directory itself."""
    args = call.args
    prefix = "" if args["src"].endswith("/") else f"{source.name}/"
    try:
        files = _files_below(source)
    except OSError as error:
        return failure(f"{error.filename} on this machine: {error.strerror or error}")
    if files is None:
        return failure(f"{source} is larger than 256 MB", TOO_LARGE_FIX)
    unsupported = next((name for name in files if "\n" in name or "\\" in name), None)
    if unsupported is not None:
        return failure(f"{unsupported!r}: copy can't transfer a file with such a name", "sync can")
    expected = {f"{prefix}{name}": file for name, file in files.items()}
    lines = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, (data, _) in expected.items())
    checked = run_sh(context, session, call, _TREE, [args["dest"]], stdin=os.fsencode(lines))
    if checked.stdout.startswith(b"special "):
        path = f"{args['dest'].rstrip('/')}/{checked.stdout[8:-1].decode(errors='replace')}"
        return failure(f"{path} is a FIFO, socket or device", "name another dest")
    same = {line[: -len(b": OK")] for line in checked.stdout.splitlines() if line.endswith(b": OK")}
    missing = {name: file for name, file in expected.items() if os.fsencode(name) not in same}
    outcome = {"dest": args["dest"], "files": len(expected), "copied": sorted(missing)}
    if not missing:
        return TaskResult("ok", data=outcome)
    message = f"{len(missing)} of {len(expected)} files"
    diff = "".join(f"+ {args['dest'].rstrip('/')}/{name}\n" for name in sorted(missing))
    if call.check:
        return TaskResult("changed", message, data=outcome, diff=diff)
    directories = sorted({str(PurePosixPath(name).parent) for name in missing})
    arguments = [args["dest"], "yes" if args["follow"] else "", *directories]
    completed = run_sh(context, session, call, _UNPACK, arguments, stdin=_packed(missing, directories, args["mode"]))
    if completed.rc != 0:
        return completed.failure(**outcome)
    return TaskResult("changed", message, data=outcome, diff=diff)


def _files_below(source: Path) -> dict[str, tuple[bytes, int]] | None:
    """Return path below `source` → bytes and mode of each file; None if they are too large. Raises an OSError."""
    contents: dict[str, tuple[bytes, int]] = {}
    size = 0
    for directory, names, files in os.walk(source):
        names.sort()
        for name in sorted(files):
            path = source / directory / name
            if path.is_file():
                size += path.stat().st_size
                if size > COPIED.limit:
                    return None
                contents[str(path.relative_to(source))] = (read_regular(path, COPIED), path.stat().st_mode & 0o777)
    return contents


def _packed(files: dict[str, tuple[bytes, int]], directories: Sequence[str], mode: int | None) -> bytes:
    """Return a tar archive for `_UNPACK`: a file is `NUMBER/NAME`, by the number of its directory in `directories`."""
    numbers = {directory: number for number, directory in enumerate(directories)}
    packed, now = io.BytesIO(), int(time.time())
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, (data, file_mode) in files.items():
            path = PurePosixPath(name)
            member = tarfile.TarInfo(f"{numbers[str(path.parent)]}/{path.name}")
            member.size, member.mode, member.mtime = len(data), file_mode if mode is None else mode, now
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


RUNNERS: Final = {"copy": _copy, "template": _copy}
