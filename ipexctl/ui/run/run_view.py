"""The protocol of the views of a run: `cli/watch.py` follows a run and knows nothing else about what shows it.

In come the updates of `run/follow.py`, from one thread (notices from any), and what the signals of the call mean for
the screen. Out goes what the user or a program reads. `view.py` draws the live view, `plain.py` prints lines with their
rank, `events.py` prints one JSON object a line.

A view never decides about the run: it asks through the callbacks that its maker gave it (stop, detach). It may make
`watch` wait, as for a blocked reader; then the follower waits, but never the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus
    from ipexctl.run.follow import RunUpdate


class RunView(Protocol):
    """Shows one run. It is entered for as long as the run is followed; `finish` comes after that."""

    @property
    def figures_interval(self) -> float:
        """Seconds between two updates in which only figures of the ranks differ."""

    @property
    def drops_output(self) -> bool:
        """Whether output that its reader has not taken is dropped once the call is cancelled."""

    @property
    def detached(self) -> bool:
        """Whether the user has detached by a key; the view has then shown how to come back."""

    @property
    def broken(self) -> OSError | None:
        """Why the output of the view can no longer be written, as for `| head`."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: object, *rest: object) -> None: ...

    def watch(self, update: RunUpdate) -> None:
        """Show an update."""

    def stopping(self) -> None:
        """The first signal stops the run. Called in a signal handler."""

    def not_stopping(self) -> None:
        """The run could not be stopped, and goes on."""

    def abandon(self) -> None:
        """The second signal ends the process at once. Called in a signal handler."""

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        """The call ends with this exit code; `status` is the final one, if that is known.

        `reason` says why the run was not followed to its end, if node0 is the cause.
        """
