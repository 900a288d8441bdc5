"""Deliberate breaks of the agent, which the cases must notice: a check that cannot fail is none.

Each break replaces one text of a module in a copy of the package. The calls of a round import that copy, and upload its
agent to the hosts; the checkout stays as it is. A text that is not there exactly once is an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Break:
    name: str
    file: str
    """Below `ipexctl/node`."""
    old: str
    new: str
    report: str
    """A regular expression for what a round must find wrong: another finding shows nothing about this break."""
    cases: tuple[str, ...]
    """Played until one of them finds that."""

    def change(self, text: str) -> str:
        """The module's text with it."""
        count = text.count(self.old)
        if count != 1:
            raise BreakError(f"{self.file} has the text {self.old!r} {count} times, not once")
        return text.replace(self.old, self.new)


class BreakError(Exception):
    """The text of a change is not in its module."""


def broken_package(broken: Break, directory: Path) -> Path:
    """A copy of the package with that break; returns the directory for PYTHONPATH."""
    for name in ("ipexctl", "playbooks"):
        shutil.copytree(REPOSITORY / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = directory / "ipexctl/node" / broken.file
    path.write_text(broken.change(path.read_text(encoding="utf-8")), encoding="utf-8")
    return directory


@contextmanager
def package_of_calls(directory: Path) -> Iterator[None]:
    """Calls of ipexctl take the package in that directory."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(directory)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


BREAKS: Final = (
    Break(
        "stop is never sent",
        "run/decisions/verdict.py",
        'turn.send(peer.rank, "stop")',
        "pass",
        r"had SIGTERM (5|6|7)\.\d+ s after the end|had SIGTERM None",
        ("a rank exits 3",),
    ),
    Break(
        "stop is ignored by ranks",
        "run/rank/rank_machine.py",
        'if t == "stop":\n            return self._stop(now)',
        'if t == "stop":\n            return self, ()',
        r"had SIGTERM (5|6|7)\.\d+ s after the end|had SIGTERM None",
        ("the call gets SIGTERM",),
    ),
    Break(
        "stop is ignored by the supervisor",
        "run/decisions/supervisor_machine.py",
        "verdict.stop(turn, 128 + event.signal, event.stopped._replace(at=turn.now.epoch))",
        "pass",
        r"'stop', .* ended with 1: .* has not ended yet",
        ("it is stopped from elsewhere",),
    ),
    Break(
        "the death of a rank is not noticed",
        "run/rank/rank_machine.py",
        "(*read, *ended)",
        "read",
        r"there are still|\('failed', 'lost'",
        ("a rank is killed",),
    ),
    Break(
        "the exit code of the first failure is lost",
        "run/decisions/verdict.py",
        "code = exit_code_of(first)",
        "code = 1",
        r"the call ended with 1 and not 3",
        ("a rank exits 3",),
    ),
    Break(
        "the other ranks are not ended",
        "run/decisions/verdict.py",
        "    for peer in turn.ranks:\n        stop_rank(turn, peer)\n",
        "",
        r"there are still|had SIGTERM (5|6|7)\.\d+ s after the end|had SIGTERM None",
        ("a rank raises",),
    ),
    Break(
        "a restart too many",
        "run/decisions/verdict.py",
        "state.restarts_left <= 0",
        "state.restarts_left < 0",
        r"'not-begun'|restarted \d+ times|ended with 0",
        ("ranks fail and it restarts",) * 4,
    ),
    Break(
        "lines are dropped at a reconnect",
        "run/rank/__main__.py",
        "        self.rewind_output(welcome)\n",
        "        for stream in self.streams:\n            stream.buffer.acknowledge(stream.buffer.end)\n",
        r"lost \d+ bytes|bytes printed",
        ("connections are reset",) * 4,
    ),
    Break(
        "a lease is kept",
        "files/tree.py",
        "            remove_file(self.leases",
        "            str(self.leases",
        r"has \['lines-",
        ("nothing",),
    ),
    Break(
        "secrets are kept",
        "run/rank/__main__.py",
        'elif kind == "remove-job":\n            remove_file(self.path)',
        'elif kind == "remove-job":\n            pass',
        r"secrets are left",
        ("nothing",),
    ),
    Break(
        "the status is never final",
        "run/decisions/supervisor_machine.py",
        "turn.set_status(exit_code=ending.code, ended=ended, state=ending.state)",
        "turn.set_status(exit_code=None)",
        r"\('lost', '', None, None\)",
        ("nothing",),
    ),
    Break(
        "the checkpoint is taken from the wrong host",
        "files/checkpoint_units.py",
        "return max(written,",
        "return min(copies,",
        r"continues? from",
        ("it restarts from a checkpoint",) * 6,
    ),
    Break(
        "SIGTERM is not forwarded to the script",
        "run/rank/rank_machine.py",
        "_replace(kill_at=now + TERM_GRACE), (Act.TERMINATE,)",
        "_replace(kill_at=now + TERM_GRACE), ()",
        r"had SIGTERM None",
        ("the call gets SIGINT",),
    ),
    Break(
        "a rank that ignores SIGTERM is not killed",
        "run/rank/rank_machine.py",
        "_replace(kill_at=now + TERM_GRACE)",
        "_replace(kill_at=now + 3600)",
        r"did not kill it",
        ("a rank that ignores SIGTERM is stopped",),
    ),
    Break(
        "a lost node is not noticed",
        "run/decisions/supervisor_machine.py",
        "        lost.append(peer.rank)\n",
        "        pass\n",
        r"there are still",
        ("a node is cut off",),  # where processes are killed, mpirun ends the others
    ),
    Break(
        "remains of a sync are kept",
        "files/tree_upload.py",
        "dir_fd=directory.number)\n        empty_stage(top)",
        "dir_fd=directory.number)",
        r"are left of a sync",
        ("sync is disturbed",),
    ),
    Break(
        "remains of a killed build are kept",
        "env/build.py",
        'for entry in own_entries(home, "tmp"):',
        "for entry in ():",
        r"are left of an install",
        ("a build of an environment is killed",) * 6,
    ),
)
