"""The options of a run beside those of its ranks: environment, project, restarts, hangs.

`option_declaration.py` says what follows from a declaration. `RunRequest` in `request.py` has these fields; of the
supervisor's, `submit/records.py` makes the `StartRequest` that travels to node0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ipexctl.option_declaration import declare
from ipexctl.option_defaults import DEFAULT_ENV
from ipexctl.sync.options import SyncOptions

_ENVIRONMENT, _PROJECT, _ENDING = "Environment", "Project files", "Ending"
_SHARED_HOSTS = "Ranks and cores"
_WATCHING = "Watching"
_EVERY_EXPORT = ("accelerate", "mpijob", "shell", "slurm", "trainjob")


# Without eq and repr, which the requests made from it have: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunOptions(SyncOptions):
    """Options of a run."""

    env: str = declare(
        "--env NAME", "Environment of the ranks (default: {default}).", DEFAULT_ENV, panel=_ENVIRONMENT, kind="env"
    )
    python: str | None = declare(
        "--python PATH", "Python on every host, in place of an environment.", panel=_ENVIRONMENT, kind="path"
    )
    setup: str | None = declare(
        "--setup FILE",
        "File on every host to source in bash; ranks keep its variables, ulimit and umask.",
        panel=_ENVIRONMENT,
        kind="path",
        lost_in=("accelerate", "mpijob", "trainjob"),
        consequence="source it before",
    )
    cwd: Path | None = declare("--cwd DIR", "Project directory (default: found from SCRIPT upward).", panel=_PROJECT)
    sync: bool = declare(
        "--sync/--no-sync", "Sync the project to the hosts before the launch (default: --sync).", True, panel=_PROJECT
    )
    max_restarts: int = declare(
        "--max-restarts N",
        "Restart the run up to N times after a rank failed (default: {default}).",
        0,
        panel=_ENDING,
        least=0,
        lost_in=("accelerate", "shell", "slurm", "trainjob"),
        consequence="nothing begins it again",
    )
    checkpoint: str | None = declare(
        "--checkpoint PATH",
        "File or directory; before each start, every host gets its newest copy (default: none).",
        panel=_ENDING,
        lost_in=_EVERY_EXPORT,
        consequence="only files on a shared disk are on all hosts",
    )
    hang_after: float = declare(
        "--hang-after S",
        "Report a hang after S seconds without output, 0 for never (default: {default}).",
        600.0,
        panel=_ENDING,
        least=0,
        lost_in=_EVERY_EXPORT,
        consequence="nothing reports a hang",
    )
    exclusive: bool = declare(
        "--exclusive",
        "Start only if no other run of ipexctl, of any account, is on the hosts.",
        False,
        panel=_SHARED_HOSTS,
        lost_in=_EVERY_EXPORT,
        consequence="nothing looks for other runs",
    )
    wait: float | None = declare(
        "--wait S",
        "Wait up to S seconds until no other run is on the hosts (default: start beside it).",
        panel=_SHARED_HOSTS,
        least=0,
        lost_in=_EVERY_EXPORT,
        consequence="nothing looks for other runs",
    )
    on_hang: Literal["report", "dump", "stop"] = declare(
        "--on-hang",
        "What to do at a hang: report it, dump all stacks, or dump them and stop (default: {default}).",
        "report",
        panel=_ENDING,
        lost_in=_EVERY_EXPORT,
        consequence="nothing reports a hang",
    )
    meter: bool = declare(
        "--meter/--no-meter",
        "Count optimizer steps and samples in the ranks (default: --meter).",
        True,
        panel=_WATCHING,
    )
    metric: str | None = declare(
        "--metric RE",
        "Pattern over the output; its first group is samples per second, for scripts without a DataLoader.",
        panel=_WATCHING,
        lost_in=_EVERY_EXPORT,
        consequence="nothing reads it from the output",
    )
