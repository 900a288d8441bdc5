"""copy and template: a file of this machine, or its text, in its place on the host; a directory, too."""

from __future__ import annotations

import difflib
import hashlib
import io
import os
import tarfile
from typing import TYPE_CHECKING, Final

from ipexctl.playbook.files import size_of
from ipexctl.playbook.modules.host_script import run_sh
from ipexctl.playbook.options import source_path
from ipexctl.playbook.result import Result, failed

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call
    from ipexctl.remote.session import Session

MOST: Final = 256 << 20
_SMALL: Final = 256 << 10
"""A file up to this size is sent along with the question whether it is there: one round trip."""
_LONGEST_DIFF: Final = 200_000

_PLACE: Final = """\
LC_ALL=C; export LC_ALL
dest=$1 name=$2 want=$3 size=$4 mode=$5 backup=$6 check=$7 diff=$8 sent=$9
case $dest in '~') dest=$HOME;; '~/'*) dest=$HOME/${dest#??};; esac
case $dest in */) dest=$dest$name;; *) [ ! -d "$dest" ] || dest=$dest/$name;; esac
[ ! -L "$dest" ] || dest=$(readlink -f -- "$dest")
case $dest in -*) dest=./$dest;; esac
if [ -d "$dest" ]; then echo "a directory is in its place: $dest" >&2; exit 1; fi
have= was= state=changed
if [ -e "$dest" ]; then
  have=$(sha256sum <"$dest") || exit 1
  have=${have%% *} was=$(stat -c %a -- "$dest") || exit 1
  [ "$have" != "$want" ] || { state=mode; [ -n "$mode" ] && [ "$mode" != "$was" ] || state=ok; }
fi
say() { printf '%s\\n%s\\n%s\\n' "$1" "$dest" "$was"; }
old() { [ "$diff" != yes ] || [ -z "$have" ] || head -c 200000 <"$dest"; }
if [ "$sent" = no ] && [ $state = changed ]; then say send; exit 0; fi
if [ $state = ok ] || [ "$check" = yes ]; then say $state; [ $state != changed ] || old; exit 0; fi
if [ $state = mode ]; then chmod "$mode" -- "$dest" && say mode; exit; fi
dir=${dest%/*}; [ "$dir" != "$dest" ] || dir=.
[ -d "$dir" ] || [ -z "$dir" ] || mkdir -p -- "$dir" || exit 1
[ -w "${dir:-/}" ] || { echo "this account may not write to ${dir:-/}: permission denied" >&2; exit 1; }
aside=$dest.ipexctl-$$.part
trap 'rm -f -- "$aside" 2>/dev/null' EXIT; trap 'exit 1' HUP INT PIPE TERM
mask=$(umask); umask 077
cat >"$aside" || exit 1
[ "$(wc -c <"$aside")" -eq "$size" ] || { echo 'only part of it has arrived' >&2; exit 1; }
[ -n "$mode" ] || mode=${was:-$(printf %o $((0666 & ~mask)))}
say changed; old
[ "$backup" != yes ] || [ -z "$have" ] || cp -p -- "$dest" "$dest.$(date +%Y%m%d-%H%M%S).bak" || exit 1
chmod "$mode" -- "$aside" && mv -f -- "$aside" "$dest"
"""

_TREE: Final = """\
LC_ALL=C; export LC_ALL
case $1 in '~') dest=$HOME;; '~/'*) dest=$HOME/${1#??};; *) dest=$1;; esac
cd -- "$dest" 2>/dev/null || { echo none; exit 0; }
echo some; sha256sum -c - 2>/dev/null
exit 0
"""
_UNPACK: Final = """\
case $1 in '~') dest=$HOME;; '~/'*) dest=$HOME/${1#??};; *) dest=$1;; esac
mkdir -p -- "$dest" && exec tar -xpof - -C "$dest"
"""


class _Copy:
    def on_host(self, context: PlayContext, call: Call, session: Session) -> Result:
        content = call.args.get("content")
        if content is not None:
            name = os.path.basename(call.args.get("src") or "content")  # noqa: PTH119
            return _put(context, call, session, content.encode("utf-8", "surrogateescape"), name)
        source = source_path(call.task.spec.name, call.task.base, call.args["src"])
        if source.is_dir():
            return _put_tree(context, call, session, source)
        try:
            if size_of(source) > MOST:
                return failed(
                    f"{source} has more than 256 MB", "sync brings large trees, and goes on where it broke off"
                )
            data = source.read_bytes()
        except OSError as error:
            return failed(f"{source} on this machine: {error.strerror or error}", "its path is from the playbook on")
        return _put(context, call, session, data, source.name)


def _put(context: PlayContext, call: Call, session: Session, data: bytes, name: str) -> Result:
    """One round trip for a small file: it is sent along, and thrown away there where it is there already."""
    args = call.args
    mode = "" if args["mode"] is None else f"{args['mode']:o}"
    words = [args["dest"], name, hashlib.sha256(data).hexdigest(), str(len(data)), mode]
    words += ["yes" if args["backup"] else "", "yes" if call.check else "", "yes" if call.diff else ""]
    small = len(data) <= _SMALL
    ran = run_sh(context, session, call, _PLACE, [*words, "" if small else "no"], stdin=data if small else b"")
    if ran.rc == 0 and ran.stdout.startswith(b"send\n"):
        ran = run_sh(context, session, call, _PLACE, [*words, ""], stdin=b"" if call.check else data)
    if ran.rc != 0:
        return failed(ran.last_words or f"exit code {ran.rc}", fix_for(ran.last_words), dest=args["dest"])
    state, dest, was, old = (*ran.stdout.split(b"\n", 3), b"", b"", b"")[:4]
    where = dest.decode(errors="replace")
    found = {"dest": where, "checksum": words[2], "size": len(data)}
    if state == b"ok":
        return Result("ok", data=found)
    if state == b"mode":
        said = f"mode {was.decode()} → {mode}"
        return Result(
            "changed", said, data=found, diff=f"--- {where}\n+++ {where}\n-mode {was.decode()}\n+mode {mode}\n"
        )
    return Result("changed", data=found, diff=_diff(old, data, where) if call.diff else "")


def _diff(old: bytes, new: bytes, where: str) -> str:
    if b"\0" in old[:8000] or b"\0" in new[:8000] or max(len(old), len(new)) >= _LONGEST_DIFF:
        return f"--- {where}\n+++ {where}\n(too long, or no text: {len(old)} bytes → {len(new)} bytes)\n"
    before, after = (part.decode(errors="replace").splitlines(keepends=True) for part in (old, new))
    lines = difflib.unified_diff(before, after, f"{where} (before)", f"{where} (after)", n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n" for line in lines)


def _put_tree(context: PlayContext, call: Call, session: Session, source: Path) -> Result:
    """A directory: what differs there travels. `src/` is what is in it, `src` the directory itself."""
    args = call.args
    inside = "" if args["src"].endswith("/") else f"{source.name}/"
    try:
        files = _files_below(source)
    except OSError as error:
        return failed(f"{error.filename} on this machine: {error.strerror or error}")
    if sum(len(data) for data, _ in files.values()) > MOST:
        return failed(f"{source} has more than 256 MB", "sync brings large trees, and goes on where it broke off")
    bad = next((name for name in files if "\n" in name or "\\" in name), None)
    if bad is not None:
        return failed(f"{bad!r}: copy can't carry such a name", "sync can")
    wanted = {f"{inside}{name}": each for name, each in files.items()}
    lines = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, (data, _) in wanted.items())
    asked = run_sh(context, session, call, _TREE, [args["dest"]], stdin=os.fsencode(lines))
    same = {line[: -len(b": OK")] for line in asked.stdout.splitlines() if line.endswith(b": OK")}
    missing = {name: each for name, each in wanted.items() if os.fsencode(name) not in same}
    found = {"dest": args["dest"], "files": len(wanted), "copied": sorted(missing)}
    if not missing:
        return Result("ok", data=found)
    said = f"{len(missing)} of {len(wanted)} files"
    diff = "".join(f"+ {args['dest'].rstrip('/')}/{name}\n" for name in sorted(missing))
    if call.check:
        return Result("changed", said, data=found, diff=diff)
    ran = run_sh(context, session, call, _UNPACK, [args["dest"]], stdin=_packed(missing, args["mode"]))
    if ran.rc != 0:
        return failed(ran.last_words or f"exit code {ran.rc}", fix_for(ran.last_words), **found)
    return Result("changed", said, data=found, diff=diff)


def _files_below(source: Path) -> dict[str, tuple[bytes, int]]:
    found: dict[str, tuple[bytes, int]] = {}
    size = 0
    for directory, names, files in os.walk(source):
        names.sort()
        for name in sorted(files):
            path = source / directory / name
            if path.is_file():
                size += path.stat().st_size
                if size > MOST:
                    return {"": (b"\0" * (MOST + 1), 0)}
                found[str(path.relative_to(source))] = (path.read_bytes(), path.stat().st_mode & 0o777)
    return found


def _packed(files: dict[str, tuple[bytes, int]], mode: int | None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, (data, own) in files.items():
            node = tarfile.TarInfo(name)
            node.size, node.mode = len(data), own if mode is None else mode
            archive.addfile(node, io.BytesIO(data))
    return packed.getvalue()


def fix_for(said: str) -> str:
    text = said.lower()
    if "permission denied" in text:
        return "a place this account may write to, or become: true"
    if "no space" in text or "quota" in text:
        return "free some space there, then run it again"
    return ""


RUNNERS: Final = {"copy": _Copy(), "template": _Copy()}
