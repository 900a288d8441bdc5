"""fetch: a file of each host, or files of a run, brought to this machine."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from typing import TYPE_CHECKING, Any, Final

from ipexctl.jobs.fetch.manifest import encoded
from ipexctl.jobs.fetch.requested import is_contents
from ipexctl.playbook.modules.host_script import MOST, run_sh
from ipexctl.playbook.modules.project_warning import warn_of_synced_files
from ipexctl.playbook.options import local_path
from ipexctl.playbook.result import Result, failed

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call
    from ipexctl.remote.session import Session

_GIVE: Final = """\
src=$1 have=$2 check=$3
case $src in '~/'*) src=$HOME/${src#??};; esac
case $src in -*) src=./$src;; esac
if [ -d "$src" ]; then echo d; exit 0; fi
[ -e "$src" ] || { echo n; exit 0; }
[ -f "$src" ] || { echo "no regular file: $src" >&2; exit 1; }
size=$(wc -c <"$src") || exit 1
is=$(sha256sum <"$src") || exit 1
if [ "${is%% *}" = "$have" ]; then echo "s $size"; exit 0; fi
echo "f $size"
[ "$check" = yes ] || exec cat -- "$src"
"""
_SIGN: Final = re.compile(rb"([sf]) +([0-9]{1,19})")


class _Fetch:
    def on_host(self, context: PlayContext, call: Call, session: Session) -> Result:
        if call.args["run"] is not None:
            return _of_run(context, call)
        dest = _place(call)
        have = ""
        try:
            if dest.is_file():
                have = hashlib.sha256(dest.read_bytes()).hexdigest()
        except OSError as error:
            return failed(f"{dest} on this machine: {error.strerror or error}")
        src = call.args["src"]
        ran = run_sh(context, session, call, _GIVE, [src, have, "yes" if call.check else ""])
        sign, _, content = ran.stdout.partition(b"\n")
        if ran.rc != 0:
            return failed(ran.last_words or f"exit code {ran.rc}", src=src)
        if sign == b"d":
            return _directory(context, call)
        if sign == b"n" and call.args["fail_on_missing"] and not call.check:
            return failed(f"there is no {src}", "fail_on_missing: false lets that be", src=src)
        if sign == b"n":
            return Result("ok", f"there is no {src}", data={"src": src})
        is_file = _SIGN.fullmatch(sign)
        if is_file is None or is_contents(encoded(src)) or (is_file[1] == b"s" and not have):
            return failed("what it says of the file can't be read", "look at that machine before you trust it", src=src)
        found: dict[str, Any] = {"src": src, "dest": str(dest), "size": int(is_file[2])}
        if is_file[1] == b"s":
            return Result("ok", data=found)
        return self._taken(context, call, found, content, dest, cut=ran.cut)

    @staticmethod
    def _taken(
        context: PlayContext, call: Call, found: dict[str, Any], content: bytes, dest: Path, *, cut: bool
    ) -> Result:
        if call.check:
            return Result("changed", data=found)
        if cut or len(content) != found["size"]:
            if found["size"] >= MOST - 64:
                return _by_python(context, call, dest, str(dest))
            return failed("it changed while it was read", "fetch it again", **found)
        warn_of_synced_files(context, dest)
        try:
            _land(dest, content)
        except OSError as error:
            return failed(f"{dest} on this machine: {error.strerror or error}", **found)
        return Result("changed", data=found)


def _place(call: Call) -> Path:
    """`dest/HOST/src`, as Ansible has it; with `flat` `dest` itself, or in it where it ends with a slash."""
    dest, src = call.args["dest"], call.args["src"]
    base = local_path(call.task.base, dest)
    if call.args["flat"]:
        return base / os.path.basename(src) if dest.endswith("/") or base.is_dir() else base  # noqa: PTH119
    parts = [part for part in src.split("/") if part not in ("", ".", "..", "~")]
    return base.joinpath(call.host.name, *parts)


def _land(dest: Path, content: bytes) -> None:
    dest.parent.mkdir(parents=True, exist_ok=True)
    aside = dest.with_name(f".{dest.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        aside.replace(dest)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _directory(context: PlayContext, call: Call) -> Result:
    base = local_path(call.task.base, call.args["dest"])
    dest = base if call.args["flat"] else base / call.host.name
    return _by_python(context, call, dest, f"{dest}/")


def _by_python(context: PlayContext, call: Call, place: Path, dest: str) -> Result:
    """A directory, or a file too large to hold: as `ipexctl fetch` brings it, which needs a Python there."""
    from ipexctl.jobs.fetch.fetch import order_of_host
    from ipexctl.jobs.fetch.manifest import Source

    warn_of_synced_files(context, place)
    if call.check:
        return Result("changed", "would be brought", data={"src": call.args["src"], "dest": str(place)})
    return _bring(
        context, order_of_host(Source(call.target.name, call.args["src"]), dest, [call.target], context.options.home)
    )


def _of_run(context: PlayContext, call: Call) -> Result:
    from ipexctl.errors import UserError
    from ipexctl.jobs.fetch.fetch import order_of_run
    from ipexctl.jobs.registry import RunRegistry

    dest = local_path(call.task.base, call.args["dest"])
    if not call.args["run"]:
        return Result("skipped", "there was no run to bring from")
    try:
        record = RunRegistry().find(call.args["run"])
        if call.host.name != record.node0.name:
            return Result("skipped", f"node0 of the run is {record.node0.name}")
        warn_of_synced_files(context, dest)
        if call.check:
            return Result("changed", "would be brought", data={"run": record.id, "dest": str(dest)})
        order = order_of_run(record, call.args["path"], str(dest), rank=None, host=None, others=())
    except UserError as error:
        if call.check:
            return Result("skipped", "--check: there is no such run yet")
        return failed(error.message, error.fix)
    return _bring(context, order)


def _bring(context: PlayContext, order: Any) -> Result:
    from ipexctl.jobs.fetch.fetch import fetch

    done = fetch(order, lambda: context.lent(order.host, context.cancel), lambda _: None, context.cancel)
    left_out = [each.name for each in done.left_out]
    found = {"src": done.source, "dest": done.dest, "files": list(done.brought), "size": done.size}
    found["left_out"] = left_out
    without = f", {len(left_out)} left out: {left_out[0]}" + (" …" if left_out[1:] else "") if left_out else ""
    if done.failed:
        first = done.failed[0]
        return failed(f"{first.name}: {first.reason}", "the same call goes on from there", **found)
    if done.brought:
        return Result("changed", f"{len(done.brought)} brought{without}", data=found)
    return Result("ok", without[2:], data=found)


RUNNERS: Final = {"fetch": _Fetch()}
