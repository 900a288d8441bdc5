"""What is said where a run doesn't begin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the run doesn't begin: nothing was started anywhere."""

    reason: str
    fix: str = ""
    hosts: tuple[str, ...] = ()
    unreachable: bool = False
    unsure: bool = False
    """Something may have begun all the same."""

    @property
    def exit_code(self) -> int:
        return 3 if self.unreachable else 1
