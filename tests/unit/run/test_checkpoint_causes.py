"""Causes about a checkpoint that is torn, or of another model, name its file, its host and a line that can be typed."""

from __future__ import annotations

import pytest
from known_texts import account

from ipexctl.run.why.diagnosis import diagnose
from ipexctl.run.why.read_snapshot import read_snapshot

SHAPE = "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight: copying a param with"
LINE = (
    'Traceback (most recent call last):\n  File "/c/p-1/train.py", line 7, in <module>\n    torch.load("ck/last.pt")\n'
)
TORN = (
    "RuntimeError: PytorchStreamReader failed reading file data/0: your checkpoint file is corrupted",
    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
)
EMPTY = '  File "/e/site-packages/torch/serialization.py", line 1 in load\nEOFError'
CUT = '  File "/e/site-packages/torch/serialization.py", line 1 in load\nOSError: [Errno 22] Invalid argument'
PICKLED = '  File "/e/site-packages/torch/serialization.py", line 1 in load\nEOFError: Ran out of input'
COMPARE = "ipexctl exec -- env -C /c/p-1 sha256sum "


def cause_of(text: str, argv: tuple[str, ...] = ("train.py",), **asked: object) -> tuple[str, str, str]:
    rows = [({"state": state, "exit_code": 1}, text if state == "failed" else "") for state in ("stopped", "failed")]
    first = {"kind": "exit", "rank": 1, "host": "node2", "exit_code": 1, "at": 1012.0}
    plan = {"cwd": "/c/p-1", "command": ["python", *argv], "asked": {"argv": list(argv), **asked}}
    cause = diagnose(read_snapshot(*account(rows, first=first, plan=plan), "node1")).cause
    assert cause is not None
    return cause.id, cause.sentence, str(cause.fix)


@pytest.mark.parametrize("text", [*(LINE + torn for torn in TORN), LINE + PICKLED, LINE + EMPTY, LINE + CUT])
def test_the_words_about_a_torn_checkpoint_are_kept(text: str) -> None:
    id_, sentence, fix = cause_of(text)
    assert (id_, sentence.partition(" can't")[0]) == ("script.torn_checkpoint", "ck/last.pt on node2")
    assert text.splitlines()[-1].rpartition(": " if text != LINE + CUT else "OSError: ")[2] in sentence
    assert COMPARE + "ck/last.pt" in fix


@pytest.mark.parametrize(
    ("text", "words", "path"),
    [
        (LINE + SHAPE, (), "ck/last.pt"),
        (SHAPE, ("--init=models/a b.pth",), "'models/a b.pth'"),
        (SHAPE, (), ""),
    ],
)
def test_another_shape_names_the_file_if_it_is_known(text: str, words: tuple[str, ...], path: str) -> None:
    id_, sentence, fix = cause_of(text, ("train.py", *words))
    assert (id_, "fc.weight has another shape" in sentence) == ("script.other_checkpoint", True)
    assert (COMPARE + path in fix, "sha256sum" in fix) == (bool(path), bool(path))


def test_a_pickle_that_is_no_checkpoint_is_an_exception_of_the_script() -> None:
    assert cause_of("Traceback (most recent call last):\nEOFError: Ran out of input")[0] == "script.raised"
