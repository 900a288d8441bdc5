"""`install --download-only`: fills a wheelhouse on the control machine, for hosts without internet.

Without hosts, the stack is for the control machine's Python. A file under its name is complete and matches the lock,
because it is downloaded next to its place and renamed; a repeated call downloads only what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ipexctl.errors import Refusal, UserError, place_fix
from ipexctl.files.store_client import StoreLocation
from ipexctl.hosts.host import Host
from ipexctl.node.common.files import write_atomically
from ipexctl.remote.outcome import HostError, Notice, Watch, ignore_event
from ipexctl.remote.session_pool import SessionPool
from ipexctl.stack.env.staging import download_wheels, is_intact
from ipexctl.stack.install_context import (
    InstallContext,
    InstallReport,
    InstallRequest,
    inspect_hosts,
    summary_of,
)
from ipexctl.stack.lock.lock import Wheel
from ipexctl.stack.lock.pipeline import LockedStack, announce_stack, lock_stack
from ipexctl.text import expanded

LOCK: Final = "ipexctl-lock.json"
_PARTS: Final = ".ipexctl-parts"


def download(
    hosts: Sequence[Host], request: InstallRequest, pool: SessionPool, directory: Path, watch: Watch = ignore_event
) -> InstallReport:
    directory = expanded(directory).absolute()
    if not request.dry_run:
        _make_directory(directory)
    context = InstallContext(hosts, _for_some_python(request.with_torch(), hosts, watch), pool, watch)
    inspect_hosts(context)
    if hosts and not context.pending:
        return context.report()
    try:
        locked = lock_stack(context, node0_may=False)
        if isinstance(locked, Refusal):
            return replace(context.report(), refusal=locked)  # the hosts were only inspected
        context.notes += [note.text for note in locked.plan.notes]
        announce_stack(context, locked, by="the control machine downloads them")
        if not request.dry_run:
            _fetch(context, locked, directory)
    except HostError as error:
        return replace(context.report(), refusal=Refusal(error.reason, error.fix))
    return context.report(stack=summary_of(locked.plan, locked.lock), lock=locked.lock, path=str(directory))


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--download-only {directory}: {error.strerror or error}", fix="choose a directory that you can create"
        ) from None


def _for_some_python(request: InstallRequest, hosts: Sequence[Host], watch: Watch) -> InstallRequest:
    stack = request.env.stack
    if hosts or stack.python is not None:
        return request
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    watch(Notice(f"for Python {own}, as on the control machine; choose another for the nodes: --python V"))
    return replace(request, env=replace(request.env, stack=replace(stack, python=own)))


def _fetch(context: InstallContext, locked: LockedStack, directory: Path) -> None:
    wheels = [*locked.lock.wheels, locked.installer]
    wanted = [wheel for wheel in wheels if not is_intact(directory / wheel.filename, wheel)]
    try:
        for wheel in wanted:
            if wheel.path is not None:
                _copy(wheel.path, directory / wheel.filename)
        _download(context, locked, [wheel for wheel in wanted if wheel.path is None], directory)
        text = json.dumps(locked.lock.to_json(), indent=1)
        write_atomically(directory / LOCK, f"{text}\n".encode(), durable=False, mode=0o644, is_of_user=True)
    except OSError as error:
        raise HostError(
            f"{error.filename or directory}: {error.strerror or error}", place_fix(error, "choose another directory")
        ) from None


def _copy(source: Path | str, target: Path) -> None:
    """Write a new file under that name: an existing one may be a link, set by another account."""
    temporary = target.with_name(f".{target.name}.{os.getpid():06x}{os.urandom(1).hex()}.new")
    try:
        with open(source, "rb") as old, open(temporary, "xb") as new:  # noqa: PTH123
            shutil.copyfileobj(old, new, 1 << 20)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _download(context: InstallContext, locked: LockedStack, wheels: Sequence[Wheel], directory: Path) -> None:
    if not wheels:
        return
    control, parts = context.control, directory / _PARTS
    store = parts / "wheels"  # a store closes its parent directory to others
    location = StoreLocation(control.session.host, control.python, str(store))
    failed = download_wheels(
        context, control.session, location, wheels, locked.index_answer, cancel=context.pool.cancel
    )
    for wheel in wheels:
        path = store / wheel.sha256 / wheel.filename
        if wheel.url and wheel.sha256 not in failed:
            path.chmod(0o644)
            path.replace(directory / wheel.filename)
    if failed:
        missing = next(wheel for wheel in wheels if wheel.sha256 in failed)
        raise HostError(
            f"{missing.filename} cannot be downloaded: {failed[missing.sha256]}",
            "check the network and the proxy (https_proxy), or use another index: --index-url URL; complete wheels are "
            "kept",
        )
    shutil.rmtree(parts, ignore_errors=True)
