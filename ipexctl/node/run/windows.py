"""Sends the windows of a run from node0: the files of all ranks and hosts, as they are now.

A RunReference is answered with frames of kind W, one for each file, then {"event": "done"}. A follower gets the same
frames at the end of the run (`follow.py`). The rule: of a run whose files have more than MAX_SENT bytes together, each
2nd, 4th, 8th … window is sent, in place of as many.
"""

from __future__ import annotations

import os
from typing import Iterator

from ipexctl.node.common.answer import Json, answer, emit_frames
from ipexctl.node.common.files import RunReference, rundir_of
from ipexctl.node.common.frames import WindowsFile, encode_windows
from ipexctl.node.run.window_file import KINDS, thinned

MAX_SENT = 16 << 20
"""Bytes of all files together: 64 ranks have 5 MB after a day, 1,024 ranks 54 MB."""


def windows_of(rundir: str, max_sent: int = MAX_SENT) -> Iterator[WindowsFile]:
    """The files, those of a rank together."""
    directory = os.path.join(rundir, "ranks")
    try:
        names = sorted(name for name in os.listdir(directory) if os.path.splitext(name)[1] in KINDS)
    except OSError:
        return
    sizes = {name: os.path.getsize(os.path.join(directory, name)) for name in names}
    step = 1
    while sum(sizes.values()) // step > max_sent:
        step *= 2
    for name in names:
        stem, suffix = os.path.splitext(name)
        try:
            with open(os.path.join(directory, name), "rb") as file:
                data = file.read()
        except OSError:
            continue
        if stem.isdigit():
            yield WindowsFile(int(stem), suffix, thinned(KINDS[suffix], data, step))


def read_windows(request: RunReference, _: object) -> Json:
    with emit_frames() as writer:
        for file in windows_of(rundir_of(request)):
            writer.send(encode_windows(file))
    return {}


def main(action: str) -> int:
    try:
        return answer({"read": read_windows}[action])
    except BrokenPipeError:
        return 0
