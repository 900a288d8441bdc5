"""Recorded output of real failures, in known_texts.yaml by the id of the cause; docs/troubleshooting.md is made of it.

`python tests/unit/run/known_texts.py > docs/troubleshooting.md` writes that page anew.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import textwrap
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[3])]

from ipexctl.known_errors.error_table import known_errors
from ipexctl.known_errors.match import TRACEBACK, Cause
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.records import DETAIL_MARK
from ipexctl.remote.reply import Reply
from ipexctl.run.stack_dump import Dump, read_dump
from ipexctl.run.why.diagnosis import Diagnosis, diagnose
from ipexctl.run.why.read_snapshot import read_snapshot

HOSTS = ("node1", "node2", "node3")


@dataclass(frozen=True)
class Text:
    """Output of rank 1 on node2, of mpirun or of the supervisor, and how the run ends."""

    id: str
    text: str = ""
    by: str = "rank"
    """rank, mpirun (its log) or supervisor (its sentence)."""
    exit_code: int | None = 1
    signal: int | None = None
    kind: str = ""
    detail: Any = None
    """What the program that failed recorded: kind and fields; the text is only for people."""
    said_by: tuple[int, ...] = (1,)
    backend: str = "gloo"
    master: str = "10.0.0.1"
    state: str = "failed"
    oom: Any = None
    ended: int | None = None
    """A rank that had ended with exit code 0 before."""
    plan: Any = None
    """More fields of the plan."""
    disk: Any = None
    """A disk that its wrapper has found full."""
    evidence: tuple[tuple[str, str], ...] = ()
    """Kind and text of what its wrapper has measured."""
    lost: int = 0
    """Bytes of its output that the record lacks."""
    others: tuple[str, ...] = ()
    """The output of ranks 0 and 2, if all print another text."""
    stacks: str = ""
    """The stacks of a run that hung: recorded/hang-NAME.json, from PyTorch 2.13 with gloo."""


def _read(fields: dict[str, Any]) -> Text:
    """A row: the fields of `Text`, or only `ID: TEXT`."""
    values = fields if "id" in fields else dict(zip(("id", "text"), *fields.items(), strict=True))
    number = {"signal": signal.Signals[values["signal"]].value} if "signal" in values else {}
    pairs = {name: tuple(values[name]) for name in ("said_by", "others", "evidence") if name in values}
    return Text(**{**values, **number, **pairs})


_FILE = Path(__file__).with_suffix(".yaml")
SECTIONS = {
    heading: tuple(map(_read, rows)) for heading, rows in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()
}
TEXTS = tuple(text for texts in SECTIONS.values() for text in texts)


def document(text: Text) -> tuple[dict[str, Any], list[Chunk]]:
    """The snapshot of the run, as `node/run/run_snapshot.py` sends it."""
    if text.stacks:
        return hung()
    has_first = (
        text.by == "rank"
        or text.kind in ("lost", "checkpoint", "changed-orders")
        or (text.by == "supervisor" and text.detail)
    )
    first = {
        "kind": text.kind or ("exit" if not text.signal else "signal"),
        "rank": 1 if text.said_by else None,
        "host": "node2" if text.said_by else None,
        "exit_code": text.exit_code,
        "signal": text.signal,
        "oom": text.oom,
        "detail": text.detail,
        "at": 1012.0,
    }
    running = text.state == "running"
    return account(
        [(row_state(text, rank), output_of(text, rank)) for rank in range(3)],
        first=first if has_first and not running else None,
        mpirun=log_of(text) if text.by == "mpirun" else [],
        plan={
            "backend": text.backend,
            "python": "/env/bin/python",
            "env": "default",
            "hosts": [planned("node1", tier="amx"), planned("node2", tier="avx2")],
            **(text.plan or {}),
        },
        state=text.state,
        reason=text.text if text.by == "supervisor" else "",
        master={"addr": text.master, "port": 29500},
        silent={"since": 900.0} if running else None,
    )


_RAISED = re.compile(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning|Timeout|Enabled|Compiler)(?::|$)", re.MULTILINE)
_OF_PYTHON = frozenset({"threading", "subprocess", "multiprocessing", "os"})


def with_traceback(said: str) -> str:
    """A text that begins with an exception, as Python prints it: below the lines of the script and of the package that
    the row of the table names."""
    found = _RAISED.search(said)
    if found is None or TRACEBACK in said or said[: found.start()].lstrip().startswith("File "):
        return said
    rows = (known for known in known_errors() if known.frame)
    match = (known.frame[0] for known in rows if any(pattern.search(said) for pattern in known.patterns))
    package = next(match, "")
    files = ["/home/me/.ipexctl/code/p/train.py"]
    files += [f"/usr/lib/python3.11/{package}.py"] if package in _OF_PYTHON else []
    files += [f"/env/lib/python3.11/site-packages/{package}/a.py"] if package and len(files) == 1 else []
    frames = "".join(f'  File "{file}", line 3, in call\n' for file in files)
    return f"{said[: found.start()]}{TRACEBACK}\n{frames}{said[found.start() :]}"


def planned(name: str, ranks: int = 0, cores: int = 0, **more: str) -> dict[str, Any]:
    """A host of a plan."""
    return {"name": name, "ranks": [{}] * ranks, "cores": cores, **more}


def output_of(text: Text, rank: int) -> str:
    if text.others and rank != 1:
        return text.others[rank // 2]
    return text.text if rank in text.said_by and text.by == "rank" else ""


def log_of(text: Text) -> list[str]:
    detail = [f"{DETAIL_MARK}{json.dumps(text.detail)}"] if text.detail else []
    return [*text.text.splitlines(), *detail]


def hung() -> tuple[dict[str, Any], list[Chunk]]:
    """The snapshot of a run that --on-hang stop has ended."""
    warning = "[W socket.cpp:462] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    first = {"kind": "hang", "rank": None, "host": None, "ranks": [0, 1, 2], "at": 1006.0}
    rows: list[tuple[dict[str, Any], str]] = [({"state": "stopped", "exit_code": 143, "signal": 15}, warning)] * 3
    return account(rows, first=first, silent={"since": 1001.0, "after": 4.0, "on_hang": "stop"})


def recorded_dump(name: str) -> Dump:
    """Real stacks, of ranks 0 to 2 on node1 to node3."""
    path = Path(__file__).with_name("recorded") / f"hang-{name}.json"
    return read_dump(Reply(json.loads(path.read_text(encoding="utf-8"))))


def row_state(text: Text, rank: int) -> dict[str, Any]:
    if text.state == "running":
        return {"state": "running"}
    if rank == text.ended:
        return {"state": "ok", "exit_code": 0, "ended_at": 1011.0}
    problem = {"problem": text.detail} if text.detail else {}
    if rank == 1 and text.by == "rank":
        end = {"exit_code": text.exit_code, "signal": text.signal, "lost": text.lost, **problem, "disk": text.disk}
        end["evidence"] = [{"kind": kind, "text": said, "host": "node2"} for kind, said in text.evidence]
        return {"state": "failed", **end}
    return {"state": "stopped", "exit_code": 143, "signal": 15}


def account(
    ranks: list[tuple[dict[str, Any], str]], *, out: dict[int, str] | None = None, **more: Any
) -> tuple[dict[str, Any], list[Chunk]]:
    """A snapshot: each rank's row and its stderr, and other fields by name."""
    given = dict(more)
    rows = [
        {"rank": rank, "host": HOSTS[rank % 3], "pid": 100 + rank, "exit_code": None, "signal": None, **row}
        for rank, (row, _) in enumerate(ranks)
    ]
    chunks = [Chunk(rank, "stderr", with_traceback(said).encode()) for rank, (_, said) in enumerate(ranks)]
    chunks += [Chunk(rank, "stdout", said.encode()) for rank, said in (out or {}).items()]
    status = {
        "id": "train-1",
        "state": given.pop("state", "failed"),
        "started": 1000.0,
        "ended": 1013.0,
        "exit_code": 1,
        "reason": given.pop("reason", ""),
        "first_failure": given.pop("first", None),
        "master": given.pop("master", {"addr": "10.0.0.1", "port": 29500}),
        "silent": given.pop("silent", None),
        "ranks": rows,
        **given.pop("status", {}),
    }
    sent_as = {str(rank): {"err": rank, "out": rank} for rank in range(len(ranks))}
    return {"status": status, "now": 1500.0, "ranks": sent_as, **given}, chunks


def verdict_of(text: Text) -> Diagnosis:
    dump = recorded_dump(text.stacks) if text.stacks else None
    return diagnose(read_snapshot(*document(text), "node1", dump))


_HEAD = """\
# When a run fails

`ipexctl why RUN` finds these texts [in a run's output](run-end.md#when-it-fails) and prints the cause and all fixes.
Each id has one example, printed by rank 1 on node2, and the first fixes. A cause is likely unless it says "possibly".
`why --json` has the ids.

![ipexctl why: the kernel killed rank 2 on node3, whose memory ran out](pictures/why.svg)

`why` ignores two texts that healthy runs also print: `The hostname of the client socket cannot be retrieved` and `Using
the loopback address as fallback`. If it knows no text in the output, it names the exception or the exit code.
"""
_LONGEST, _LONGEST_FIX = 13, 24
"""Words of a line of output and of a fix that the page shows."""
_OF_CODE = re.compile(r"Traceback |  |=   [BR]|$")
"""Lines of output that say where something happened, not what."""


_RETIRED = "ccl."
_OF_RECORDS = """\
## Without a text here

`why` also explains these causes, which ipexctl's own records or texts of oneCCL show:
"""


_TAIL = """\
## Wrong values

The run ends well, so no text shows these.

### The Trainer's loss is multiplied by the number of ranks

transformers 4.54 and later multiply loss and gradients of the `Trainer` by the number of ranks if the model's `forward`
takes `**kwargs` and ignores `num_items_in_batch`, as BERT's classifiers do ([measured](examples.md#trainer_bertpy)).
Add `--average_tokens_across_devices False` to its arguments, or set `accepts_loss_kwargs = False` in the model's class.
Causal language models are right with the default.
"""


def is_printed(text: Text) -> bool:
    """False for a cause that ipexctl's own records show, without a text of the output."""
    return bool(text.text) and text.by != "supervisor"


def examples() -> dict[str, list[tuple[Text, Cause]]]:
    """The first example of each id, by its heading."""
    found = {}
    for heading, texts in SECTIONS.items():
        first: dict[str, Text] = {}
        for text in texts:
            first.setdefault(text.id, text)
        found[heading] = [(text, cause) for text in first.values() if (cause := verdict_of(text).cause)]
        assert len(found[heading]) == len(first), heading
    return found


def page() -> str:
    parts, of_records, ids_of_fixes = [_HEAD], list[str](), dict[str, str]()
    for heading, causes in examples().items():
        parts += [f"## {heading}\n"] if any(is_printed(text) for text, _ in causes) else []
        for text, cause in causes:
            if not is_printed(text) or text.id.startswith(_RETIRED):
                of_records.append(text.id)
                continue
            shown = _shown(text, cause)
            sentence = _without_repetition(cause.sentence, shown)
            likely = sentence if cause.confidence == "likely" else f"possibly {sentence}"
            fix = _first_fixes(cause.fix)
            known = ids_of_fixes.setdefault(fix, text.id)
            fix = fix if known == text.id else f"as for {known}"
            parts += [f"### {text.id}\n", f"    {shown}\n", f"{likely}. Fix: {fix}\n"]
    ids = textwrap.fill(", ".join(f"`{name}`" for name in of_records), 118, break_on_hyphens=False)
    return "\n".join([*parts, _OF_RECORDS, f"{ids}\n", _TAIL])


def _shown(text: Text, cause: Cause) -> str:
    """The line that shows the cause by itself, else the first one that says what happened."""
    lines = text.text.splitlines()
    alone = (line for line in lines[1:] if (found := verdict_of(replace(text, text=line)).cause) and found == cause)
    what = (line for line in lines if not _OF_CODE.match(line))
    words = next(chain(alone, what), lines[-1]).split()
    return " ".join(words if len(words) <= _LONGEST else [*words[:_LONGEST], "…"])


def _without_repetition(sentence: str, shown: str) -> str:
    cause, _, detail = sentence.partition(": ")
    return cause if detail and detail in shown else sentence


def _first_fixes(fix: str) -> str:
    """The first clauses, without those that lead to the run's own output unless there is no other."""
    clauses = fix.split("; ")
    short = [clause for clause in clauses if ": ipexctl logs " not in clause] or clauses
    while len(short) > 1 and len(" ".join(short).split()) > _LONGEST_FIX:
        short.pop()
    return "; ".join(short)


if __name__ == "__main__":
    sys.stdout.write(page())
