"""Notes in the output of ranks: told from it by their entry, in any order of reading, and never by their text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipexctl.node.common.frames import HEAD, Chunk, FrameError, Note, OutputPart, decode_output, encode_note
from ipexctl.node.run.follow import FollowedFile
from ipexctl.node.run.output_filter import OutputFilter
from ipexctl.node.run.record.output_notes import NotesReader, NotesWriter, note_line, note_sentence

RESTART = {"attempt": 1, "restarts": 2, "reason": "rank 1 on node2 ended with exit code 5"}


def restart_at(offset: int, rank: int = 0) -> Note:
    return Note(rank, "stdout", note_line("restart", RESTART), offset, None, "restart", RESTART)


def test_a_note_crosses_as_a_frame_of_its_own() -> None:
    frame = encode_note(restart_at(7))
    size, kind = HEAD.unpack_from(frame)
    assert (kind, decode_output(kind, frame[HEAD.size :])) == (b"N", restart_at(7))
    assert size == len(frame) - HEAD.size


@pytest.mark.parametrize(
    "changes",
    [{"rank": -1}, {"rank": True}, {"offset": -1}, {"offset": 1.5}, {"line": None}, {"kind": 3}, {"fields": []}],
)
def test_a_malformed_note_is_refused(changes: dict[str, object]) -> None:
    fields = {"rank": 0, "stream": "stdout", "offset": 0, "line": "x\n", "kind": "restart", "fields": {}}
    decode_output(b"N", json.dumps(fields).encode())
    with pytest.raises(FrameError):
        decode_output(b"N", json.dumps({**fields, **changes}).encode())
    with pytest.raises(FrameError):
        decode_output(b"N", b"{}")


def test_a_note_of_a_newer_version_is_shown_as_its_line() -> None:
    assert note_sentence(Note(0, "stdout", b"[ipexctl: new]\n", 0, None, "new", {})) == "[ipexctl: new]"
    assert note_sentence(restart_at(0)._replace(fields={})) == restart_at(0).data.decode().rstrip()


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        ("restart", RESTART, b"[ipexctl: restart 1 of 2 after: rank 1 on node2 ended with exit code 5]\n"),
        ("checkpoint", {"text": "checkpoint a: 2 files"}, b"[ipexctl: checkpoint a: 2 files]\n"),
        (
            "gap",
            {"bytes": 7, "host": "node2"},
            b"[ipexctl: 7 bytes are missing here, because the disk of node2 was full]\n",
        ),
        ("not-started", {"host": "node2", "reason": "./t: No {such} file"}, b"ipexctl: node2: ./t: No {such} file\n"),
    ],
)
def test_the_line_in_the_file_is_that_of_older_versions(kind: str, fields: dict[str, object], line: bytes) -> None:
    assert note_line(kind, fields) == line


def parts_of(tmp_path: Path, offset: int = 0) -> list[OutputPart]:
    reader = NotesReader(str(tmp_path / "output.notes"))
    file = FollowedFile(str(tmp_path / "0000.out"), 0, "stdout", offset, reader)
    return list(file.new_chunks(3.0))


def test_only_a_line_with_an_entry_is_a_note(tmp_path: Path) -> None:
    line = restart_at(0).data
    (tmp_path / "0000.out").write_bytes(line + b"a\n" + line + b"b")
    writer = NotesWriter(str(tmp_path / "output.notes"))
    writer.add(restart_at(len(line) + 2))
    expected = [
        Chunk(0, "stdout", line + b"a\n", 0, 3.0),
        restart_at(len(line) + 2)._replace(at=3.0),
        Chunk(0, "stdout", b"b", 2 * len(line) + 2, 3.0),
    ]
    assert parts_of(tmp_path) == expected
    assert parts_of(tmp_path, len(line) + 2) == expected[1:]
    assert parts_of(tmp_path, 2 * len(line) + 2) == expected[2:]


def test_a_note_waits_for_its_whole_line(tmp_path: Path) -> None:
    note = restart_at(2)
    NotesWriter(str(tmp_path / "output.notes")).add(note)
    (tmp_path / "0000.out").write_bytes(b"a\n" + note.data[:-1])
    assert parts_of(tmp_path) == [Chunk(0, "stdout", b"a\n", 0, 3.0)]
    (tmp_path / "0000.out").write_bytes(b"a\n" + note.data)
    assert parts_of(tmp_path)[1:] == [note._replace(at=3.0)]


def test_a_withdrawn_note_hides_no_output(tmp_path: Path) -> None:
    writer = NotesWriter(str(tmp_path / "output.notes"))
    writer.add(restart_at(0, rank=1))
    writer.add(restart_at(0))
    writer.undo_last_note()
    (tmp_path / "0000.out").write_bytes(b"what the script printed, which is longer than the line of any note of ours\n")
    assert [type(part) for part in parts_of(tmp_path)] == [Chunk]
    reader = NotesReader(str(tmp_path / "output.notes"))
    reader.refresh()
    assert reader.find_next(1, "stdout", 0) == restart_at(0, rank=1)


def test_entries_that_a_full_disk_refused_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = NotesWriter(str(tmp_path / "output.notes"))
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda *_: 0)
        writer.add(restart_at(0))
        writer.add(restart_at(500))
        writer.undo_last_note()
    assert (tmp_path / "output.notes").read_bytes() == b""
    writer.write_refused()
    reader = NotesReader(str(tmp_path / "output.notes"))
    reader.refresh()
    assert (reader.find_next(0, "stdout", 0), reader.find_next(0, "stdout", 1)) == (restart_at(0), None)


def test_a_damaged_or_repeated_entry_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "output.notes"
    writer = NotesWriter(str(path))
    for note in (restart_at(90), restart_at(5), restart_at(5)):
        writer.add(note)
    path.write_bytes(b"{}\nno json\n" + path.read_bytes() + b'{"rank": 0')
    reader = NotesReader(str(path))
    reader.refresh()
    found = [reader.find_next(0, "stdout", offset) for offset in (0, 6, 91)]
    assert found == [restart_at(5), restart_at(90), None]


def test_a_note_counts_as_a_line_and_stays_a_note() -> None:
    note = restart_at(5)._replace(at=1.0)
    output: list[OutputPart] = [
        Chunk(0, "stdout", b"a\nb\n.", 0, 1.0),
        note,
        Chunk(0, "stdout", b"c\nd\n", note.end, 1.0),
    ]

    def chosen(pattern: str, tail: int | None) -> list[OutputPart]:
        lines = OutputFilter(pattern, tail)
        return [*(found for part in output for found in lines.feed(part)), *lines.caught_up(is_final=True)]

    assert chosen("", None) == output
    last = Chunk(0, "stdout", b"c\nd\n", note.end, 1.0)
    assert chosen("", 3) == [note, last]
    assert chosen("restart|^d", None) == [note, last._replace(data=b"d\n", offset=last.offset + 2)]
    assert chosen("^c", None) == [last._replace(data=b"c\n")]
    assert chosen(r"^\.$", None) == [Chunk(0, "stdout", b".", 4, 1.0)]
