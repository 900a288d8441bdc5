"""What is said where a run doesn't begin."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipexctl.text import on_same_hosts


@dataclass(frozen=True, slots=True)
class PreflightFailure:
    """Why the run doesn't begin: nothing was started anywhere."""

    reason: str
    fix: str = ""
    hosts: tuple[str, ...] = ()
    unreachable: bool = False
    unsure: bool = False
    """Something may have begun all the same."""

    def on(self, options: str) -> PreflightFailure:
        """With what to type next for the same hosts."""
        return replace(self, fix=on_same_hosts(self.fix, options))

    @property
    def exit_code(self) -> int:
        return 3 if self.unreachable else 1
