"""mpirun over ssh: node0 logs in to the other nodes, and the control machine to all of them. Pure.

This is the default way. Ranks that need no mpirun may be started directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ipexctl.starters.direct import DIRECT

if TYPE_CHECKING:
    from ipexctl.starters.starter import RankStarter


class MpirunOverSsh:
    name: str = "ssh"
    uses_ssh: Final = True
    no_logins: Final = ""
    remote_shell: Final = ""
    ranks: Final[RankStarter] = DIRECT
    waits: bool = False

    def job(self, environ: Mapping[str, str]) -> str:
        del environ
        return ""

    def job_title(self, job: str) -> str:
        return f"job {job}"

    def seconds_left(self, job: str) -> int | None:
        del job
        return None

    def announcement(self, environ: Mapping[str, str]) -> str:
        del environ
        return ""


OVER_SSH: Final = MpirunOverSsh()
