"""A login shell that lies: it runs what sshd asks for, and changes the answer on its way to the control machine.

It runs on a lab host, where no module of the tests is. `DIRECTORY/lie.json` says how it lies: `seed`, and `nodes`,
the addresses that get true answers. Each session is numbered, so that a seed gives the same lies again; each
lie is written to `DIRECTORY/log`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

DIRECTORY = "/run/lie"
FRAME = struct.Struct("!Ic")
CHUNK = struct.Struct("!IQ")
QUIET_SECONDS = 0.1
"""After so long without output, what has arrived is forwarded, whether or not a line has ended."""
WORDS = (
    "",
    " ",
    "-1",
    "0",
    "1e999",
    "nan",
    "9" * 30,
    "٣",
    "x" * 70000,
    "a\nb",
    "\x1b]52;c;eA==\x07",
    "\x1b[2J\r",
    "\x9b31m",
    "../../../../tmp/lied",
    "/tmp/lied",
    "~/lied",
    ".",
    "..",
    "-oProxyCommand=touch lied",
    "$(touch lied)",
    "`touch lied`",
    "{{ lookup('pipe', 'touch lied') }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "[/][bold]",
    "a\0b",
    "\ud800",
    "node1",
    "unknown",
    "done",
    "running",
    "failed",
    "changed",
    "2024-99-99T00:00:00",
    "1.2.3.4.5.rc",
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 0.5, 1e300, float("inf")),
    *(float("nan"), [], {}, [[]], [None], [1], ["x"], [{}], {"": None}, {"a": {"b": []}}, "", [[1, 2, 3]]),
)


def other_value(rng: random.Random, old: object) -> object:
    """Often a near one of the same type: it passes the first check of its type."""
    if rng.random() < 0.3:
        return rng.choice(VALUES)
    if isinstance(old, bool):
        return not old
    if isinstance(old, (int, float)):
        return rng.choice((0, -1, old + 1, old - 1, old * 1000, -old, 1 << 62, old / 3))
    if isinstance(old, str):
        return other_text(rng, old)
    if isinstance(old, list):
        return rng.choice(([], old * 2, old[1:], [*old, None], [old], dict.fromkeys(map(str, old)), old * 1000))
    if isinstance(old, dict):
        return rng.choice(({}, list(old), {**old, "x": old}, dict.fromkeys(old), dict(list(old.items())[1:])))
    return rng.choice(VALUES)


def other_text(rng: random.Random, old: str) -> str:
    """A word of the list, part of the text, or a number in it replaced."""
    choice = rng.randrange(6)
    if choice == 0 and (numbers := list(re.finditer(r"\d+", old))):
        number = rng.choice(numbers)
        return old[: number.start()] + rng.choice(("0", "-1", "99999999999", "", "x")) + old[number.end() :]
    if choice == 1:
        return old[: rng.randrange(len(old) + 1)]
    if choice == 2:
        return old + rng.choice(WORDS)
    return rng.choice(WORDS)


def places(value: object) -> list[tuple[Any, Any]]:
    """Every place in a document that holds a value: its container and its key."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value[:50]))
    else:
        return found
    for key, child in items:
        found.append((value, key))
        found += places(child)
    return found


def change_document(rng: random.Random, document: dict[str, Any]) -> str:
    """Change one or two values of it in place; returns what was changed."""
    changes = []
    for _ in range(rng.choice((1, 1, 2))):
        found = [place for place in places(document) if place[1] != "event"] or places(document)
        if not found or rng.random() < 0.02:
            found = places(document)
        if not found:
            break
        container, key = rng.choice(found)
        if rng.random() < 0.2:
            del container[key]
            changes.append(f"no {key}")
        else:
            container[key] = other_value(rng, container[key])
            changes.append(f"{key}={container[key]!r:.60}")
    return ", ".join(changes)


def change_line(rng: random.Random, line: str) -> str:
    """A line of a script's answer with one word changed, repeated, or missing."""
    words = re.split(r"([ =:/,]+)", line)
    index = rng.randrange(len(words))
    choice = rng.randrange(8)
    if choice == 0:
        return f"{line}\n{line}"
    if choice == 1:
        return ""
    words[index] = other_text(rng, words[index])
    return "".join(words)


class Frames:
    """Changes values in a compressed stream of frames, and compresses it again."""

    def __init__(self, rng: random.Random, log: Callable[[str], None]) -> None:
        self._rng, self._log = rng, log
        self._in, self._out, self._data = zlib.decompressobj(), zlib.compressobj(1), b""

    @property
    def rest(self) -> bytes | None:
        return self._in.unused_data if self._in.eof else None

    def feed(self, data: bytes) -> bytes:
        self._data += self._in.decompress(data)
        result = b""
        while len(self._data) >= FRAME.size:
            size, kind = FRAME.unpack_from(self._data)
            end = FRAME.size + size
            if len(self._data) < end:
                break
            payload, self._data = self._data[FRAME.size : end], self._data[end:]
            if self._rng.random() < 0.25:
                payload = self._change(kind, payload)
            result += FRAME.pack(len(payload), kind) + payload
        return self._out.compress(result) + self._out.flush(zlib.Z_FINISH if self._in.eof else zlib.Z_SYNC_FLUSH)

    def _change(self, kind: bytes, payload: bytes) -> bytes:
        if kind == b"J":
            document = json.loads(payload)
            self._log(f"frame J: {change_document(self._rng, document)}")
            return json.dumps(document).encode()
        rank, offset = CHUNK.unpack_from(payload)
        rank = self._rng.choice((rank, rank + 1, 1 << 31, (1 << 32) - 1))
        offset = self._rng.choice((offset, 0, offset + 1, 1 << 63, (1 << 64) - 1))
        self._log(f"frame {kind!r}: rank {rank}, offset {offset}")
        return CHUNK.pack(rank, offset) + payload[CHUNK.size :]


class Values:
    """Changes values inside valid events, frames and lines."""

    def __init__(self, rng: random.Random, log: Callable[[str], None]) -> None:
        self._rng, self._log = rng, log
        self._odds = rng.choice((0.25, 0.5, 1.0))
        self._buffer = b""
        self._frames: Frames | None = None

    def feed(self, data: bytes) -> bytes:
        result = b""
        while data:
            if self._frames is not None:
                result += self._frames.feed(data)
                if self._frames.rest is None:
                    return result
                data, self._frames = self._frames.rest, None
            self._buffer += data
            data = b""
            while not self._is_in_frames() and b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                result += self._change(line) + b"\n"
            if self._is_in_frames():
                data, self._buffer = self._buffer, b""
        return result

    def _is_in_frames(self) -> bool:
        return self._frames is not None

    def flush(self) -> bytes:
        data, self._buffer = self._buffer, b""
        return data

    def _change(self, line: bytes) -> bytes:
        document = None
        with contextlib.suppress(ValueError):
            document = json.loads(line)
        if isinstance(document, dict):
            if document.get("event") == "frames":
                self._frames = Frames(self._rng, self._log)
                return line
            # The last event is the answer.
            if self._rng.random() > (0.9 if document.get("event") == "done" else self._odds):
                return line
            self._log(f"{document.get('event')}: {change_document(self._rng, document)}")
            return json.dumps(document).encode()
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return line
        is_fence = text.startswith("\x1e")
        if not text or self._rng.random() > (0.01 if is_fence else self._odds / 2):
            return line
        changed = change_line(self._rng, text)
        self._log(f"line {text[:60]!r} -> {changed[:60]!r}")
        return changed.encode(errors="surrogatepass")


def write_all(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        os._exit(1)


def session_number() -> int:
    with open(f"{DIRECTORY}/count", "ab") as file:
        file.write(b".")
        file.flush()
        return os.fstat(file.fileno()).st_size


def main() -> None:
    shell = ["/bin/bash", *sys.argv[1:]]
    client = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    try:
        with open(f"{DIRECTORY}/lie.json") as file:
            lie = json.load(file)
    except (OSError, ValueError):
        lie = None
    if lie is None or client in lie["nodes"] or not client:
        os.execv(shell[0], shell)
    number = session_number()
    rng = random.Random(f"{lie['seed']} {number}")
    if number > 1 and rng.random() < 0.2:
        os.execv(shell[0], shell)

    def log(text: str) -> None:
        with open(f"{DIRECTORY}/log", "a", errors="backslashreplace") as file:
            file.write(f"session {number}: {text}\n")

    mutator = Values(rng, log)
    process = subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    output = process.stdout.fileno()
    while True:
        if not select.select([output], [], [], QUIET_SECONDS)[0]:
            write_all(mutator.flush())
            select.select([output], [], [])
        data = os.read(output, 1 << 16)
        if not data:
            break
        write_all(mutator.feed(data))
    write_all(mutator.flush())
    code = process.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
