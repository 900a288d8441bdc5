"""Frames of a rank's output, compressed in one stream."""

from __future__ import annotations

import random

import pytest

from ipexctl.node.common.frames import Chunk, CompressedFrameReader, CompressedFrameWriter, encode_chunk

MEBIBYTE = 1 << 20
"""The reader decompresses at most this many bytes at once."""


@pytest.mark.timeout(30)
@pytest.mark.parametrize("size", [MEBIBYTE - 18, MEBIBYTE - 17, MEBIBYTE, 2 * MEBIBYTE, 3 * MEBIBYTE - 5])
@pytest.mark.parametrize("seed", range(4))
def test_reader_decodes_a_stream_split_anywhere_and_stops_at_its_end(size: int, seed: int) -> None:
    received: list[bytes] = []
    writer = CompressedFrameWriter(received.append)
    sent = [Chunk(0, "stdout", bytes([65 + index]) * (size // 3), index) for index in range(3)]
    for chunk in sent:
        writer.send(encode_chunk(chunk))
    writer.close()
    stream, after = b"".join(received), b'{"event": "done"}\n'
    reader, cuts = CompressedFrameReader(), random.Random(seed)
    data, frames = stream + after, 0
    while not reader.is_over:
        piece, data = data[: (length := cuts.choice([1, 7, 100, 4096, 65536]))], data[length:]
        frames += sum(1 for _ in reader.feed(piece))
    assert frames == len(sent)
    assert reader.rest + data == after
