"""`install --download-only`: a wheelhouse on this machine, for hosts that reach nothing. No host is changed."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.remote.outcome import HostError
from ipexctl.remote.progress import BytesMoved, Notice, ignore_event
from ipexctl.remote.transfer import store_client as stores
from ipexctl.remote.transfer.store_client import Download, StoreLocation
from ipexctl.stack.env.staging import blob_of, is_whole
from ipexctl.stack.install_context import InstallContext, announce_sizes, inspect_hosts, summary_of
from ipexctl.stack.lock.pipeline import lock_stack, web_of
from ipexctl.stack.resolve.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.remote.progress import Watch
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.install_context import InstallRequest
    from ipexctl.stack.lock.lock import Wheel
    from ipexctl.stack.lock.pipeline import LockedStack
    from ipexctl.stack.report import InstallReport

LOCK: Final = "ipexctl-lock.json"
_PARTS: Final = ".ipexctl-parts"


def download(
    hosts: Sequence[Host], wishes: InstallRequest, pool: SessionPool, directory: Path, watch: Watch = ignore_event
) -> InstallReport:
    """Fill the directory. Where hosts are named, the stack is the one that fits them."""
    directory = directory.expanduser().absolute()
    if not wishes.dry_run:
        _make(directory)
    context = InstallContext(hosts, _for_some_python(wishes, hosts, watch), pool, watch)
    inspect_hosts(context)
    if hosts and not context.there:
        return context.report()
    for host in context.there:
        context.leave_out(host)
    try:
        decided = lock_stack(context, node0_may=False)
        if isinstance(decided, Refusal):
            return context.report(refusal=decided)
        context.notes += decided.plan.notes
        announce_sizes(context, decided, by="this machine fetches them")
        if not wishes.dry_run:
            _fetch(context, decided, directory)
    except HostError as error:
        return context.report(refusal=Refusal(error.reason, error.fix))
    return context.report(stack=summary_of(decided.plan, decided.lock), lock=decided.lock, path=str(directory))


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--download-only {directory}: {error.strerror or error}", fix="name a directory that can be made"
        ) from None


def _for_some_python(wishes: InstallRequest, hosts: Sequence[Host], watch: Watch) -> InstallRequest:
    """Wheels are for one Python: the hosts', what the call says, else the one we run on."""
    stack = wishes.env.stack
    if hosts or stack.python is not None:
        return wishes
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    watch(Notice(f"for Python {own}, as on this machine; if the nodes have another: --python V"))
    return replace(wishes, env=replace(wishes.env, stack=replace(stack, python=own)))


def _fetch(context: InstallContext, decided: LockedStack, directory: Path) -> None:
    wheels = [*decided.lock.wheels, *([decided.installer] if decided.installer else [])]
    wanted = [wheel for wheel in wheels if not is_whole(directory / wheel.filename, wheel)]
    try:
        for wheel in wanted:
            if wheel.path is not None:
                shutil.copyfile(wheel.path, directory / wheel.filename)
        _from_indexes(context, decided, [wheel for wheel in wanted if wheel.path is None], directory)
        text = json.dumps(decided.lock.to_json(), indent=1)
        (directory / LOCK).write_text(text + "\n")
    except OSError as error:
        raise HostError(
            f"{error.filename or directory}: {error.strerror or error}", "make room there, or name another directory"
        ) from None


def _from_indexes(context: InstallContext, decided: LockedStack, wheels: Sequence[Wheel], directory: Path) -> None:
    if not wheels:
        return
    here, total = context.here, sum(wheel.size or 0 for wheel in wheels) or None
    parts = directory / _PARTS
    place = StoreLocation(here.session.host, here.python, str(parts))
    headers = decided.asked.headers_for
    fetched = stores.fetch(
        here.session,
        place,
        [Download(blob_of(wheel), wheel.url, headers(wheel.url)) for wheel in wheels if wheel.url],
        web=web_of(decided.asked.settings),
        on_bytes=lambda done: context.watch(BytesMoved("", "downloading", done, total)),
        cancel=context.pool.cancel,
    )
    for wheel in wheels:
        whole = parts / wheel.sha256 / wheel.filename
        if wheel.sha256 in fetched.got:
            whole.chmod(0o644)
            whole.replace(directory / wheel.filename)
            context.downloaded += wheel.size or 0
    if fetched.failed:
        lost = next(wheel for wheel in wheels if wheel.sha256 in fetched.failed)
        raise HostError(
            f"{lost.filename} can't be had: {fetched.failed[lost.sha256]}", "run it again: what has come is kept"
        )
    shutil.rmtree(parts, ignore_errors=True)
