"""A blob is taken for verified only while its size, times and inode are as they were when it was hashed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ipexctl.node.files.verified_blobs import RECORDED_SIZE, VERIFIED, VerifiedBlobs

SHA256 = "a" * 64


def recorded(directory: Path, size: int = RECORDED_SIZE) -> VerifiedBlobs:
    (directory / "blob").write_bytes(bytes(size))
    verified = VerifiedBlobs(directory)
    with (directory / "blob").open("rb") as file:
        verified.add("blob", SHA256, file.fileno(), os.fstat(file.fileno()))
    verified.save()
    return VerifiedBlobs(directory)


@pytest.mark.parametrize("changed", [0, 1, 2, 3, 4])
def test_a_row_counts_while_the_blob_is_unchanged(tmp_path: Path, changed: int) -> None:
    """Size, mtime, inode and ctime."""
    assert recorded(tmp_path).sha256_of("blob") == SHA256
    rows = json.loads((tmp_path / VERIFIED).read_text())
    if changed:
        rows["blob"][changed] += 1
    (tmp_path / VERIFIED).write_text(json.dumps(rows))
    assert VerifiedBlobs(tmp_path).sha256_of("blob") == (None if changed else SHA256)


@pytest.mark.parametrize("text", ["[]", '{"blob": "x"}', '{"blob": [1, 2, 3, 4, 5]}', "x"])
def test_a_record_of_another_form_counts_as_none(tmp_path: Path, text: str) -> None:
    recorded(tmp_path)
    (tmp_path / VERIFIED).write_text(text)
    assert VerifiedBlobs(tmp_path).sha256_of("blob") is None


def test_small_blobs_and_blobs_that_change_meanwhile_are_not_recorded(tmp_path: Path) -> None:
    assert recorded(tmp_path, RECORDED_SIZE - 1).sha256_of("blob") is None
    verified, blob = VerifiedBlobs(tmp_path), tmp_path / "blob"
    blob.write_bytes(bytes(RECORDED_SIZE))
    with blob.open("rb") as file:
        before = os.fstat(file.fileno())
        os.utime(blob, ns=(1, 1))
        verified.add("blob", SHA256, file.fileno(), before)
    assert verified.sha256_of("blob") is None
