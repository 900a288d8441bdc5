"""Every row with IPEX, installed from whatever index is in reach, tried and removed again, one after another.

A row is installed and verified by `ipexctl install`, two ranks train `examples/train_digits.py`, one rank runs
`examples/inference.py`; the transformers and accelerate that the row names are added, two ranks train
`examples/trainer_bert.py --use_ipex`, and the environment is removed. The result is a table with a line per row; a text
in bold names the step that failed and the last line of its output. docs/versions.md lists the failures. Uses only this
machine and keeps everything in one directory. Too long for every day: each row is some 4 GB.

    python tools/all_stacks.py
    python tools/all_stacks.py --rows ipex-1.12,ipex-1.13 --scratch /var/tmp
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HEADER = (
    *("stack", "torch", "IPEX", "Python", "wheels MB", "env MB", "install s", "capability", "bf16", "all-reduce"),
    *("two ranks train", "inference", "transformers", "accelerate", "Trainer with --use_ipex"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", metavar="ROW,…", help="default: every row with IPEX, newest first")
    parser.add_argument("--python", metavar="V", help="default: the newest here that the row has wheels for")
    parser.add_argument("--python-dir", action="append", default=[], help="a directory of interpreters, beside PATH")
    parser.add_argument("--scratch", help="where to work; 12 GB are needed")
    parser.add_argument("--keep-failed", action="store_true", help="leave the home of a row that failed, to look at it")
    given = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join([*map(os.path.expanduser, given.python_dir), os.environ["PATH"]])
    table = {row["name"]: row for row in ipexctl("versions")[1]["rows"]}
    rows = given.rows.split(",") if given.rows else [name for name in table if name.startswith("ipex-")]
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * 4}{' ---: |' * 3}{' --- |' * 8}", flush=True)
    failed = 0
    scratch = tempfile.mkdtemp(prefix="ipexctl-rows-", dir=given.scratch)
    try:
        for row in rows:
            cells, well = walk(table[row], given.python, Path(scratch, row), keep=given.keep_failed)
            failed += not well
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    finally:
        if not (failed and given.keep_failed):
            shutil.rmtree(scratch, ignore_errors=True)
    return 1 if failed else 0


def ipexctl(*words: str) -> tuple[int, dict[str, Any]]:
    """Its exit code and its document; what it writes to stderr is shown, for these take minutes."""
    argv = [sys.executable, "-m", "ipexctl", *words, "--json"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout or "{}")


def walk(entry: dict[str, Any], python: str | None, home: Path, *, keep: bool) -> tuple[list[object], bool]:
    """Install, train, infer, remove: the table's line, and whether all of it went well."""
    there, row, guides = ("--hosts", "localhost", "--home", str(home)), entry["name"], entry["hugging_face"]
    begun = time.monotonic()
    code, report = ipexctl("install", *there, "--stack", row, *(("--python", python) if python else ()))
    seconds = time.monotonic() - begun
    host = (report.get("hosts") or [{}])[0]
    size, trouble, trained, inferred, by_trainer = "", "", "", "", ""
    if code == 0:
        size = subprocess.run(["du", "-sLm", report["path"]], stdout=subprocess.PIPE, text=True, check=True).stdout
        with tempfile.TemporaryDirectory(dir=home.parent) as project:
            examples = shutil.copytree(
                EXAMPLES, Path(project, "examples"), ignore=shutil.ignore_patterns("checkpoints")
            )
            trained, wrong = training(run(examples, there, "--ppn", "2", "train_digits.py"))
            inferred, also_wrong = inference(run(examples, there, "-n", "1", "inference.py", "--rounds", "5"))
            more = [f"--with={name}=={version}" for name, version in guides.items()]
            added, found = ipexctl("install", *there, *more)
            bert = ("trainer_bert.py", "--use_ipex", "--no_cuda", "--max_steps", "20")
            by_trainer, wrong_here = trainer(run(examples, there, "--ppn", "2", *bert))
            if added:
                wrong_here = (found.get("refused") or (found.get("hosts") or [{}])[0]).get("reason") or f"exit {added}"
        trouble = "; ".join(filter(None, (wrong, also_wrong, wrong_here)))
        if not (trouble and keep):
            code, _ = ipexctl("envs", *there, "--remove", "default")
            trouble = trouble or ("not removed" if code or list((home / "envs").iterdir()) else "")
    else:
        trouble = host.get("reason") or (report.get("refused") or {}).get("reason") or f"exit {code}"
    if not (trouble and keep):
        shutil.rmtree(home, ignore_errors=True)
    stack, verify = report.get("stack") or {}, host.get("verify") or {}
    times = " / ".join(f"{ms:.2g}" for ms in verify.get("allreduce_ms") or ())
    return [
        row,
        *(stack.get(name) or "" for name in ("torch", "ipex", "python")),
        f"{sum(wheel['size'] or 0 for wheel in report.get('wheels', ())) / 1e6:.0f}",
        size.partition("\t")[0],
        f"{seconds:.0f}",
        *(verify.get(name) or "" for name in ("capability", "bf16")),
        f"{verify.get('backend')}, {times} ms" if times else "",
        trained,
        inferred,
        *(guides.get(name, "") for name in ("transformers", "accelerate")),
        f"{by_trainer} **{trouble}**".strip().replace("|", "/") if trouble else by_trainer,
    ], not trouble


def run(examples: Path, there: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """A run of an example, with the environment that was just installed; its output is shown too."""
    options, script = words[:2], words[2:]
    argv = [sys.executable, "-m", "ipexctl", "run", *there, *options, *script]
    done = subprocess.run(
        argv,
        cwd=examples,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1200,
    )
    sys.stderr.write(done.stdout)
    return done


def training(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """`bf16 with IPEX, 97.9%`, and what is wrong."""
    how = re.search(r"threads: \d+; (.+)", done.stdout)
    accuracy = re.search(r"accuracy (\d+\.\d)%", done.stdout)
    if done.returncode or how is None or accuracy is None:
        return "", f"training: {last_line(done)}"
    text = f"{how[1].strip()}, {accuracy[1]}%"
    return text, "" if float(accuracy[1]) > 90 and "IPEX" in how[1] else f"training: {text}"


def inference(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """`resnet 3.1 x, bert 2.2 x`, the best of each beside plain fp32, and what is wrong."""
    found = re.findall(r"(resnet|bert) +ipex \S+(?: fused)? .* (\d+\.\d+) x, off by (\S+)", done.stdout)
    best = {name: max(float(gain) for other, gain, _ in found if other == name) for name, _, _ in found}
    text = ", ".join(f"{name} {gain:.1f} x" for name, gain in best.items())
    if done.returncode or set(best) != {"resnet", "bert"}:
        return text, f"inference: {last_line(done)}"
    off = max(float(off) for _, _, off in found)
    return text, f"inference is off by {off}" if not off < 0.1 else ""


def trainer(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """`over gloo, 97.1%`, and what is wrong."""
    found = re.search(r"ranks: 2, (over \w+); accuracy (\d+\.\d)%", done.stdout)
    if done.returncode or found is None:
        return "", f"Trainer: {last_line(done)}"
    if re.search(r"'(eval_)?loss': nan", done.stdout):
        return "", "Trainer: the loss is nan"
    return (
        f"{found[1]}, {found[2]}%",
        "Trainer: --use_ipex is left out" if "use_ipex is left out" in done.stdout else "",
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b\w*(Error|Exception|unsupported)\b", line)]
    return (errors or lines or [f"exit {done.returncode}"])[-1][:200]


if __name__ == "__main__":
    sys.exit(main())
