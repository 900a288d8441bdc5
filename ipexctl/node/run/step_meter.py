"""The step meter in the rank wrapper: the ring for the command, values in its output, and windows for the supervisor.

In come the command's environment, its output and the time; out go messages `steps`, one for each window. The rules:
without the meter and without --metric nothing is made and nothing is read; a window is sent once the supervisor can be
reached, and those of the last minute again after a reconnect, because a message may be lost with its connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ipexctl.node.run.meter_reader import MeterReader
from ipexctl.node.run.step_windows import RECENT, StepWindow, WindowMaker

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

VARIABLE = "IPEXCTL_METER"
MOST_UNSENT = 360
"""Windows that are held while the supervisor can't be reached: an hour."""
MAX_LINE = 4096


class MetricReader:
    """Finds the newest value that a pattern has in a stream of output."""

    def __init__(self, pattern: str) -> None:
        import re  # few runs have a pattern

        self._pattern = re.compile(pattern)
        self._rest = b""

    def read(self, data: bytes) -> float | None:
        """The value of the last line with one: that of the first group. A progress bar ends its lines with \\r."""
        lines = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()[-MAX_LINE:]
        for line in reversed(lines):
            found = self._pattern.search(line[:MAX_LINE].decode(errors="replace"))
            value = _as_number(found[1] if found is not None and found.re.groups else "")
            if value is not None:
                return value
        return None


def _as_number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))  # 1,234.5
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


class StepMeter:
    """The meter of one command."""

    def __init__(self, *, is_on: bool, metric: str = "") -> None:
        self._reader = MeterReader.create() if is_on else None
        self._metrics = {stream: MetricReader(metric) for stream in ("out", "err")} if metric else {}
        self._windows = WindowMaker(has_metric=bool(metric))
        self._unsent: deque[StepWindow] = deque(maxlen=MOST_UNSENT)
        self._sent: deque[StepWindow] = deque(maxlen=RECENT)

    def prepare(self, environ: dict[str, str]) -> dict[str, str]:
        """The environment by which the hooks of the command find the ring."""
        return environ if self._reader is None else {**environ, VARIABLE: self._reader.path}

    def read_output(self, stream: str, data: bytes, now: float) -> None:
        reader = self._metrics.get(stream)
        value = reader.read(data) if reader is not None else None
        if value is not None:
            self._windows.add_metric(now, value)

    def poll(self, now: float) -> None:
        """Read the ring: at least every 20 seconds, or records are missed."""
        if self._reader is not None:
            self._windows.add(self._reader.read())
        self._unsent.extend(self._windows.close_windows(now))

    def finish(self, now: float) -> None:
        """The command has exited."""
        if self._reader is not None:
            self._windows.add(self._reader.read())
            self._reader.close()
            self._reader = None
        self._unsent.extend(self._windows.close_last(now))

    def take(self) -> list[Json]:
        """The messages to send now."""
        windows = list(self._unsent)
        self._unsent.clear()
        self._sent.extend(windows)
        return [window._asdict() for window in windows]

    def rewind(self) -> None:
        """Send the last ones again: the connection was lost."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
