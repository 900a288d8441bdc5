"""The outcome of a run for programs: fields of `--summary`, of the event `end`, and of the input for `--notify`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from itertools import islice
from typing import TYPE_CHECKING

from ipexctl.node.common.home import STATE_DIRECTORY
from ipexctl.node.common.json_records import as_json, read_json_file
from ipexctl.node.common.records import LeverUse

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.plan import Plan
    from ipexctl.node.common.records import RunStatus

SCHEMA = "ipexctl.run/1"
_BESIDE = (
    r"(?:training_args|optim(?:izer)?(?:_states?(?:_dict)?)?|scheduler|sampler|scaler|rng_state|random_states)"
    r"(?:_[0-9]+)?\."
)
"""Files that frameworks write beside a model's weights."""
_CHECKPOINT = re.compile(rf"(?!\.?tmp|{_BESIDE}).+\.(?:pt|pth|ckpt|safetensors|bin|distcp)")
_DIRECTORY = re.compile(r"(?:checkpoint|(?:global_)?step|epoch|iter)[-_]?[0-9]+.*|.*\.ckpt")
"""A directory that is one checkpoint; another one may have several."""
_MOST_DIRECTORIES = 2000
"""A project may have its data beside its checkpoints, on a slow disk."""
_TOLERANCE = 2.0
"""Seconds by which a file server's clock may be behind."""


def summary_fields(plan: Plan | None, status: RunStatus | None, exit_code: int, seconds: float) -> Json:
    """`plan`: None if no run was started; `status`: None if the run was not followed to its end."""
    state = "unknown" if status is None else status.state  # as in `ps`
    lost = status.output_lost if status is not None else None
    return {
        "id": plan and plan.id,
        "state": plan and state,
        "exit_code": exit_code,
        "world_size": plan.world_size if plan is not None else 0,
        "hosts": list(plan.names) if plan is not None and plan.hosts else [],
        "seconds": round(seconds, 3),
        "tag": plan and plan.asked.tag,
        "script": plan and plan.script,
        "cause": (status and status.cause) or None,
        "stopped": status and status.stopped and status.stopped._asdict(),
        "checkpoint": {"path": status.checkpoint, "fetch": status.fetch_line} if status and status.checkpoint else None,
        "output_lost": lost and lost._asdict(),
        "throughput": status and status.throughput and status.throughput._asdict(),
        "group": status and status.group and status.group._asdict(),
        "untrained": status and status.untrained and status.untrained._asdict(),
        "nan": status and status.nan and status.nan._asdict(),
        "exchange": status and status.exchange and status.exchange._asdict(),
        "network": status and status.network and as_json(status.network),
        "levers": levers_of(status),
        "wrong": as_json(status.wrong) if status else [],
        "attempts": attempts_of(status),
    }


def levers_of(status: RunStatus | None) -> list[Json]:
    """Options that were asked for, and those that --profile measured; the speedup is null if it was not."""
    if status is None:
        return []
    speedups = {lever.option: lever.speedup for lever in status.levers}
    asked = {use.name: use._asdict() for use in status.acted}
    others = {name: LeverUse(name, acted=False, reason="not asked")._asdict() for name in speedups}
    return [{**row, "option": name, "speedup": speedups.get(name)} for name, row in {**others, **asked}.items()]


def attempts_of(status: RunStatus | None) -> list[Json]:
    return [
        {
            "attempt": attempt.attempt,
            "hosts": list(attempt.hosts),
            "world_size": attempt.world_size,
            "reason": attempt.reason,
            "ended": attempt.ended,
        }
        for attempt in (status.all_attempts if status is not None else ())
    ]


def summary_text(fields: Json) -> str:
    return json.dumps({"schema": SCHEMA, **fields}, indent=2) + "\n"


def newest_checkpoint(cwd: str, asked: str, since: float, home: str = "") -> str:
    """The newest one, relative to `cwd`, or absolute if `asked` is; empty without one. `asked`: the PATH of
    `--checkpoint`, or empty. `since`: when the run began. `home`: whose trees have what sync brought."""
    tree, sent = _sent_files(home, cwd)
    top = os.path.join(cwd, asked)
    walk = os.walk(top) if os.path.isdir(top) else [(os.path.dirname(top), [], [os.path.basename(top)])]
    newest, at = "", since - _TOLERANCE
    for directory, names, files in islice(walk, _MOST_DIRECTORIES):
        if "pyvenv.cfg" in files:
            del names[:]
            continue
        names[:] = (name for name in names if not name.startswith("."))
        for name in filter(_CHECKPOINT.fullmatch, files):
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                is_new = stat.S_ISREG(found.st_mode) and found.st_size and found.st_mtime >= at
                identity = [found.st_size, found.st_mtime_ns, found.st_ino]
                if is_new and sent.get(os.path.relpath(path, tree)) != identity and _is_of_torch(path):
                    newest, at = path, found.st_mtime
    above = os.path.dirname(newest)
    if newest.endswith(".distcp") or (above != cwd and _DIRECTORY.fullmatch(os.path.basename(above))):
        newest = above
    return newest if not newest or os.path.isabs(asked) else os.path.relpath(newest, cwd)


def _sent_files(home: str, cwd: str) -> tuple[str, dict[str, list[int]]]:
    """The tree with this directory, and the size, mtime and inode of each file that sync brought there."""
    code = os.path.join(home, "code")
    tree = os.path.join(code, os.path.relpath(cwd, code).partition("/")[0])
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # no tree of ours
        rows = read_json_file(os.path.join(tree, STATE_DIRECTORY, "state.json"))[
            "rows"
        ]  # `node/files/tree.py: TreeRow`
        return tree, {path: identity for path, *_, identity, is_from_sync in rows if is_from_sync}
    return tree, {}


def _is_of_torch(path: str) -> bool:
    """False for data with the ending `.bin`, such as the token files of nanoGPT."""
    if not path.endswith(".bin"):
        return True
    with open(path, "rb") as file:
        return file.read(4).startswith((b"PK\3\4", b"\x80"))  # a zip file, or a pickle of an old torch
