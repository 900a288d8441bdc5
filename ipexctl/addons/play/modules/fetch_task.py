"""The module fetch: download a host's file, or files of a run, to `dest/HOST/` as in Ansible.

A shell script sends small files, so that a host needs no Python; the agent sends directories and large files. The
playbook alone decides where a file is written; no answer of a host changes that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from ipexctl.addons.play.modules.host_script import MAX_OUTPUT, run_sh
from ipexctl.addons.play.modules.local_files import local_path
from ipexctl.addons.play.result import Call, TaskResult, failure
from ipexctl.addons.play.variables import PlayContext
from ipexctl.errors import UserError
from ipexctl.files.destination import read_umask
from ipexctl.files.named_paths import check_named_file, write_named_file
from ipexctl.files.requested import FetchSource
from ipexctl.node.common.files import encode_name, sha256_of
from ipexctl.node.files.file_sender import is_contents
from ipexctl.remote.session import Session
from ipexctl.run.fetch import FetchRequest, fetch, order_of_host, order_of_run
from ipexctl.run.find_run import find_runs
from ipexctl.sync.path_notes import note_fetched

_SEND_FILE: Final = """\
src=$1 have=$2 check=$3
case $src in '~/'*) src=$HOME/${src#??};; esac
case $src in -*) src=./$src;; esac
if [ -d "$src" ]; then echo d; exit 0; fi
[ -e "$src" ] || { echo n; exit 0; }
[ -f "$src" ] || { echo "$src is not a regular file" >&2; exit 1; }
size=$(wc -c <"$src") || exit 1
is=$(sha256sum <"$src") || exit 1
if [ "${is%% *}" = "$have" ]; then echo "s $size"; exit 0; fi
mode=$(stat -Lc %a -- "$src" 2>/dev/null) || mode=600
echo "f $size $mode"
[ "$check" = yes ] || exec cat -- "$src"
"""
_STATUS_LINE: Final = re.compile(rb"([sf]) +([0-9]{1,19})(?: ([0-7]{1,5}))?")


def _fetch(context: PlayContext, call: Call, session: Session) -> TaskResult:
    """Download one file by a shell script, unless this machine has it; by the agent, if it turns out to be more."""
    if call.args["run"] is not None:
        return _fetch_from_run(context, call)
    dest, src = _destination(call), call.args["src"]
    try:
        check_named_file(dest, is_replaced=True)
        local_hash = sha256_of(dest) if dest.is_file() else ""
    except OSError as error:
        return failure(f"{dest} on this machine: {error.strerror or error}")
    except UserError as error:
        return failure(error.message, error.fix)
    completed = run_sh(context, session, call, _SEND_FILE, [src, local_hash, "yes" if call.check else ""])
    status_line, _, content = completed.stdout.partition(b"\n")
    if completed.rc != 0:
        return completed.failure(src=src)
    if status_line == b"d":
        base = local_path(call.task.base, call.args["dest"])
        directory = base if call.args["flat"] else base / call.host.name
        return _fetch_with_agent(context, call, directory, f"{directory}/")
    if status_line == b"n" and call.args["fail_on_missing"] and not call.check:
        return failure(f"there is no {src}", "fail_on_missing: false allows that", src=src)
    if status_line == b"n":
        return TaskResult("ok", f"there is no {src}", data={"src": src})
    match = _STATUS_LINE.fullmatch(status_line)
    is_same_as_nothing = match is not None and match[1] == b"s" and not local_hash
    if match is None or is_contents(encode_name(src)) or is_same_as_nothing:
        return failure("its reply about the file can't be read", "check that machine before you trust it", src=src)
    data: dict[str, Any] = {"src": src, "dest": str(dest), "size": int(match[2])}
    if match[1] == b"s" or call.check:
        return TaskResult("ok" if match[1] == b"s" else "changed", data=data)
    if completed.truncated or len(content) != data["size"]:
        if data["size"] >= MAX_OUTPUT - 64:
            return _fetch_with_agent(context, call, dest, str(dest))
        return failure("the file changed while it was read", "fetch it again", **data)
    return _write(dest, content, data, int(match[3] or b"600", 8))


def _destination(call: Call) -> Path:
    """Return `dest/HOST/src`; with `flat`, `dest`, or a file in it if it is a directory or ends with a slash."""
    dest, src = call.args["dest"], call.args["src"]
    base = local_path(call.task.base, dest)
    if call.args["flat"]:
        return base / os.path.basename(src) if dest.endswith("/") or base.is_dir() else base  # noqa: PTH119
    parts = [part for part in src.split("/") if part not in ("", ".", "..", "~")]
    return base.joinpath(call.host.name, *parts)


def _write(dest: Path, content: bytes, data: dict[str, Any], mode: int) -> TaskResult:
    """Write a received file with the host's mode, limited by the umask. `data`: for `register`."""
    try:
        created = write_named_file(dest, content, mode & 0o777 & ~read_umask(), make=True)
        if created is not None:
            note_fetched([created])
    except OSError as error:
        return failure(f"{dest} on this machine: {error.strerror or error}", **data)
    except UserError as error:
        return failure(error.message, error.fix, **data)
    return TaskResult("changed", data=data)


def _fetch_with_agent(context: PlayContext, call: Call, path: Path, dest: str) -> TaskResult:
    """Download a directory or a large file as `ipexctl fetch` does. `dest`: its DEST, with a `/` for a directory."""
    if call.check:
        return TaskResult("changed", "would be fetched", data={"src": call.args["src"], "dest": str(path)})
    return _fetch_order(
        context,
        order_of_host(FetchSource(call.target.name, call.args["src"]), dest, [call.target], context.options.home),
    )


def _fetch_from_run(context: PlayContext, call: Call) -> TaskResult:
    """Download files of a run from its node0; the task is skipped on other hosts, and without a run."""
    dest = local_path(call.task.base, call.args["dest"])
    if not call.args["run"]:
        return TaskResult("skipped", "there is no run to fetch from")
    try:
        (record,) = find_runs([call.args["run"]])
        if call.host.name != record.node0.name:
            return TaskResult("skipped", f"node0 of the run is {record.node0.name}")
        if call.check:
            return TaskResult("changed", "would be fetched", data={"run": record.id, "dest": str(dest)})
        order = order_of_run(record, call.args["path"], str(dest), rank=None, host=None, others=())
    except UserError as error:
        if call.check:
            return TaskResult("skipped", "--check: there is no such run yet")
        return failure(error.message, error.fix)
    return _fetch_order(context, order)


def _fetch_order(context: PlayContext, order: FetchRequest) -> TaskResult:
    """Fetch over a session of the play, and return what came of it."""
    done = fetch(order, lambda: context.pool.borrow(order.host, context.cancel), lambda _: None, context.cancel)
    left_out = [file.name for file in done.left_out]
    data = {"src": done.source, "dest": done.dest, "files": list(done.brought), "size": done.size}
    data["left_out"] = left_out
    data["older"] = list(done.older)
    suffix = f", {len(left_out)} left out: {left_out[0]}" + (" …" if left_out[1:] else "") if left_out else ""
    if done.older:
        suffix += f", {len(done.older)} older than the run: {done.older[0]}" + (" …" if done.older[1:] else "")
    if done.failed:
        first = done.failed[0]
        return failure(f"{first.name}: {first.reason}", "the same command continues from there", **data)
    if done.brought:
        return TaskResult("changed", f"{len(done.brought)} brought{suffix}", data=data)
    return TaskResult("ok", suffix[2:], data=data)


RUNNERS: Final = {"fetch": _fetch}
