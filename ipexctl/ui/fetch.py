"""What `ipexctl fetch` shows: how far it is, then what became of it in one line, or JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ipexctl.text import printable, readable
from ipexctl.ui.messages import print_message

if TYPE_CHECKING:
    from ipexctl.jobs.fetch.fetch import FetchRequest
    from ipexctl.jobs.fetch.manifest import FetchProgress, FetchResult, FileFailure
    from ipexctl.remote.outcome import HostError

_DRAWN: Final = 0.1
_SAID: Final = 5.0
_NAMED: Final = 10
_WORTH_A_RATE: Final = 1_000_000


class FetchView:
    """One line that is drawn over and over on a terminal; anywhere else a line now and then."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began: tuple[float, int] | None = None
        self._last = time.monotonic()
        self._is_drawn = False

    def __enter__(self) -> FetchView:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch(self, event: FetchProgress | str) -> None:
        if isinstance(event, str):
            self.stop()
            print_message(printable(event))
            return
        now = time.monotonic()
        began, first = self._began = self._began or (now, event.done)
        if self._quiet or now - self._last < (_DRAWN if self._terminal else _SAID):
            return
        self._last = now
        rate = (event.done - first) / max(now - began, 0.001)
        text = f"{readable(event.done)} of {readable(event.total)}, {readable(rate)}/s, {printable(event.name)}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._put(f"\r{text[:width]}\x1b[K")
            self._is_drawn = True
        else:
            print_message(text)

    def stop(self) -> None:
        if self._is_drawn:
            self._put("\r\x1b[K")
            self._is_drawn = False

    @staticmethod
    def _put(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def document_of(done: FetchResult) -> dict[str, Any]:
    return {
        "schema": "ipexctl.fetch/1",
        "status": "failed" if done.failed else "changed" if done.brought else "ok",
        "host": done.host,
        "source": printable(done.source),
        "dest": printable(done.dest),
        "brought": [printable(name) for name in done.brought],
        "resumed": [printable(name) for name in done.resumed],
        "unchanged": done.unchanged,
        "bytes": done.size,
        "received_bytes": done.received,
        "failed": [_trouble(each) for each in done.failed],
        "left_out": [_trouble(each) for each in done.left_out],
        "reason": "",
        "fix": "",
        "seconds": round(done.seconds, 3),
    }


def _trouble(each: FileFailure) -> dict[str, str]:
    return {"name": printable(each.name), "reason": printable(each.reason)}


def _write(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def show_json(done: FetchResult) -> None:
    _write(document_of(done))


def show(done: FetchResult, *, quiet: bool = False) -> None:
    """The answer on stdout; what is missing, and why, on stderr."""
    for what, troubles in (("", done.failed), ("left out: ", () if quiet else done.left_out)):
        for each in troubles[:_NAMED]:
            print_message(f"{printable(done.host)}: {what}{printable(each.name)}: {printable(each.reason)}")
        if len(troubles) > _NAMED:
            print_message(f"  … and {len(troubles) - _NAMED} more: --json names all")
    if not quiet:
        sys.stdout.write(f"{summary(done)}\n")


def summary(done: FetchResult) -> str:
    if not done.brought and not done.failed:
        same = f"{_files(done.unchanged)} there already" if done.unchanged else "no files"
        return f"{printable(done.dest)}: nothing to bring, {same}"
    rate = f", {readable(done.received / done.seconds)}/s" if done.received > _WORTH_A_RATE else ""
    said = f"{_files(len(done.brought))}, {readable(done.size)}, in {done.seconds:.1f} s{rate}"
    more = [f"{done.unchanged} there already"] if done.unchanged else []
    if done.resumed:
        more.append(f"{len(done.resumed)} gone on with, {readable(done.size - done.received)} of it here before")
    if done.failed:
        more.append(f"{len(done.failed)} failed")
    return f"{printable(done.dest)}: {said}" + "".join(f"; {each}" for each in more)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def say_failed(order: FetchRequest, error: HostError, *, as_json: bool) -> None:
    """Nothing more can be brought. What has come stays, and the next call goes on with it."""
    reason, fix = printable(error.reason), printable(error.fix)
    print_message(f"{printable(order.host.name)}: {reason}" + (f"\n  {fix}" if fix else ""))
    if as_json:
        said = {"host": order.host.name, "dest": printable(order.dest), "reason": reason, "fix": fix}
        _write({"schema": "ipexctl.fetch/1", "status": error.status, **said})
