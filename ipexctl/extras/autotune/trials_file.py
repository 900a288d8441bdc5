"""The trials of a search on disk, so that it can go on after Ctrl-C: `trials.jsonl` in the user's data directory.

    {"schema": "ipexctl.trials/1", "call": HASH, "seed": N, "script": …, "began": …}
    {"trial": {…}, "observation": {…}}        one line a trial, in their order

In come trials with their observations; out come the observations that `--resume` goes on with. The rules: a file is
for one call, by the hash of hosts, options and arguments, as ratios of other calls mean nothing; a line that is cut off
by a full disk or a crash ends what is read; nothing is kept in the project.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.extras.autotune.model import Observation, Trial
from ipexctl.node.common.files import make_private_directory, write_atomically
from ipexctl.node.common.json_parser import parse_json
from ipexctl.node.common.json_records import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SCHEMA: Final = "ipexctl.trials/1"


@dataclass(frozen=True, slots=True)
class SearchHeader:
    """Whose trials these are."""

    call: str
    """The hash of the call."""
    seed: int
    script: str
    began: float


class TrialsFile:
    """The file of one search."""

    def __init__(self, directory: Path, header: SearchHeader) -> None:
        self.path = directory / "trials.jsonl"
        self.header = header
        self.error: OSError | None = None
        """Why trials are not kept any more."""

    def begin(self, done: Sequence[tuple[Trial, Observation]] = ()) -> None:
        """Write the file, with these trials."""
        lines = [_line({"schema": SCHEMA, **asdict(self.header)}), *(_trial_line(*pair) for pair in done)]
        try:
            make_private_directory(self.path.parent)
            write_atomically(self.path, b"".join(lines), durable=False)
        except OSError as error:
            self.error = error

    def add(self, trial: Trial, observation: Observation) -> None:
        if self.error is not None:
            return
        try:
            number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(number, _trial_line(trial, observation))
            finally:
                os.close(number)
        except OSError as error:
            self.error = error


def read_search(directory: Path, call: str) -> tuple[SearchHeader, list[str]]:
    """The search that was begun, with all lines of its file. Raises a UserError."""
    path = directory / "trials.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        header = decode(SearchHeader, parse_json(lines[0]), "its first line")
    except (OSError, ValueError, IndexError):
        raise UserError("there is no search to go on with", fix="leave out --resume") from None
    if header.call != call:
        raise UserError(
            f"the last search of this project was another call: {header.script}",
            fix="type the same call as then; or leave out --resume, which begins a new search",
        )
    return header, lines


def resume(directory: Path, call: str) -> tuple[TrialsFile, tuple[tuple[Trial, Observation], ...]]:
    """The search that was begun, and its trials. Raises a UserError."""
    header, lines = read_search(directory, call)
    done = tuple(_trials(lines[1:]))
    trials = TrialsFile(directory, header)
    if len(done) + 1 < len(lines) or not lines[-1].endswith("\n"):  # the next one would follow the line that is cut off
        trials.begin(done)
    return trials, done


def _trials(lines: list[str]) -> Iterator[tuple[Trial, Observation]]:
    for line in lines:
        try:
            fields = parse_json(line)
            trial, observation = _trial(fields["trial"]), _observation(fields["observation"])
        except (ValueError, KeyError, TypeError):
            return
        yield trial, observation


def _trial(fields: dict[str, Any]) -> Trial:
    settings = tuple((str(name), str(value)) for name, value in fields["settings"])
    return Trial(str(fields["group"]), int(fields["block"]), settings, bool(fields["is_baseline"]))


def _observation(fields: dict[str, Any]) -> Observation:
    rate, samples = fields["rate"], fields["samples_per_step"]
    return Observation(
        float(fields["seconds"]),
        None if rate is None else float(rate),
        None if samples is None else float(samples),
        tuple((str(step), float(loss)) for step, loss in fields["losses"]),
        str(fields["failure"]),
    )


def _trial_line(trial: Trial, observation: Observation) -> bytes:
    return _line({"trial": asdict(trial), "observation": asdict(observation)})


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
