"""The output of `ipexctl why` for a verdict, and its JSON document."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

from known_texts import account
from why_helpers import FAILED, FIRST, NO_MODULE, STOPPED, answer, judged

from ipexctl.commands.why_command import lines_of
from ipexctl.homes.registry import FailedCall, read_failed_call, save_failed_call
from ipexctl.node.common.records import Throughput
from ipexctl.run.why.diagnosis import diagnose
from ipexctl.run.why.read_snapshot import read_snapshot
from ipexctl.run.why.why import WhyResult, mention_failed_call
from ipexctl.ui.run.why_document import why_json
from message_data import missing


def test_output_fits_80_columns_and_begins_with_the_headline() -> None:
    said = "x" * 100_000 + "\n" + NO_MODULE
    verdict = judged([(STOPPED, ""), (FAILED, said), (STOPPED, "")])
    lines = list(lines_of(answer(verdict), 80))
    assert missing(lines[0], "train-1 13 1 node2") == []
    assert all(len(line) <= 80 for line in lines if not line.startswith("  xxx"))
    assert all(len(line) <= 240 for line in lines)
    text = "\n".join(lines)
    assert text.index("stderr") < text.index("frobnicate") < text.index("ipexctl logs")
    assert "\x1b" not in text
    assert "\x1b[1m" in next(lines_of(answer(verdict), 80, colors=True))


def test_commands_are_not_repeated() -> None:
    verdict = judged([(STOPPED, ""), (FAILED, "Traceback (most recent call last):\nKeyError: 'x'")])
    text = "\n".join(lines_of(answer(verdict)))
    assert text.count("ipexctl logs train-1 -r 1") == 1


def test_throughput_is_below_the_headline_and_in_the_json() -> None:
    snapshot = read_snapshot(*account([(FAILED, NO_MODULE)], first=FIRST), "node1")
    snapshot = replace(snapshot, status=snapshot.status._replace(throughput=Throughput(3.25, 410.0, 0.1, "dataloader")))
    known = replace(answer(diagnose(snapshot)), snapshot=snapshot)
    lines = list(lines_of(known, 80))
    assert missing(lines[1], "3.25 steps/s 410 samples/s 10 %") == []
    assert why_json(known)["run"]["throughput"]["samples_per_s"] == 410.0
    assert why_json(answer(judged([(FAILED, NO_MODULE)])))["run"]["throughput"] is None


def test_printed_file_name_is_quoted_in_the_command() -> None:
    name = "a; touch b #c"
    said = f"Traceback (most recent call last):\nFileNotFoundError: [Errno 2] No such file or directory: '{name}'"
    verdict = judged([(STOPPED, ""), (FAILED, said)])
    shown = [line.strip() for line in lines_of(answer(verdict)) if "ls -d" in line]
    (command,) = [line[line.index("ipexctl exec") :] for line in shown]
    assert shlex.split(command)[-1] == name


REFUSED = FailedCall(1e9, "train.py", "node2 has no environment\nnode3, too", "to install it: ipexctl install")


def answer_after_failed_call(failed: FailedCall = REFUSED) -> WhyResult:
    return mention_failed_call(answer(judged([(STOPPED, ""), (FAILED, NO_MODULE)])), failed)


def test_later_call_that_began_no_run_comes_first_with_its_reason_and_fix() -> None:
    report = answer_after_failed_call()
    lines = list(lines_of(report))
    account = list(lines_of(replace(report, failed_call=None)))
    run = report.record.id
    paragraph = lines[: lines.index("")]
    assert missing("\n".join(paragraph), "train.py node2 has no environment node3, too") == []
    assert paragraph[-1].strip() == REFUSED.fix
    assert lines[-1] == f"the run before it failed: ipexctl why {run}"
    assert not any("train.py" in line for line in account)
    document = why_json(report)
    assert document["failed_call"].items() >= {"script": "train.py", "fix": REFUSED.fix}.items()
    assert why_json(replace(report, failed_call=None))["failed_call"] is None


def test_earlier_call_that_began_no_run_is_not_mentioned() -> None:
    report = answer(judged([(STOPPED, ""), (FAILED, NO_MODULE)]))
    report = replace(report, record=replace(report.record, started=REFUSED.at))
    assert mention_failed_call(report, REFUSED) is report
    assert mention_failed_call(report, replace(REFUSED, at=REFUSED.at + 1)).failed_call is not None
    report = replace(report, record=replace(report.record, sequence=3))
    for at in (0.0, REFUSED.at + 1):  # whatever the clock said
        assert mention_failed_call(report, replace(REFUSED, at=at, sequence=2)).failed_call is None
        assert mention_failed_call(report, replace(REFUSED, at=at, sequence=3)).failed_call is not None


def test_failed_call_is_kept_with_its_fix_and_read_without(tmp_path: Path) -> None:
    save_failed_call(tmp_path, REFUSED)
    assert read_failed_call(tmp_path) == REFUSED
    file = tmp_path / "failed-call"
    fields = json.loads(file.read_text())
    del fields["fix"]
    file.write_text(json.dumps(fields))
    assert read_failed_call(tmp_path) == replace(REFUSED, fix="")
