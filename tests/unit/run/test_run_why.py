"""Causes of a run's end: every known text gives its cause, misleading ones never win, and each state has its answer."""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from known_texts import SECTIONS, TEXTS, Text, account, document, page, planned, recorded_dump, verdict_of
from supervised_run import Supervised, closed_by_peer
from why_helpers import FAILED, FIRST, NO_MODULE, STOPPED, cause_id, cause_in, judged

from ipexctl.known_errors import error_table
from ipexctl.known_errors.error_table import known_errors
from ipexctl.known_errors.match import Cause, RankOutput
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.records import DETAIL_MARK, Detail
from ipexctl.node.run.decisions.supervisor_state import LauncherExited, StartFailed
from ipexctl.node.run.run_snapshot import tail
from ipexctl.run.stack_dump import Dump, Process, RankStacks, StackFrame, Thread
from ipexctl.run.why.diagnosis import LINES, Diagnosis, diagnose
from ipexctl.run.why.read_snapshot import RunSnapshot, read_snapshot, with_copied_output
from message_data import missing

DOCS = Path(__file__).parents[3] / "docs"
TRACEBACK = "Traceback (most recent call last):"
GONE = f"{TRACEBACK}\nRuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.3]:4725"
HEALTHY = "\n".join(
    [
        "[W socket.cpp:462] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "WARNING: no module named apex was looked for, which is optional: No module named 'apex'",
        "Traceback (most recent call last):",
        '  File "/p/train.py", line 3, in optional',
        "ModuleNotFoundError: No module named 'flash_attn'",
        "going on without flash attention",
        "Killed 3 stale entries; Connection reset by peer was retried",
        "OSError: [Errno 28] No space left on device (cache; retried elsewhere)",
        *(f"epoch {n // 100} step {n}: loss nan" for n in range(600)),
        "Illegal instructions in the text of a document are no instruction",
        *(f"{n}%|####| {n}/100 [00:01<00:00, 99.9it/s]" for n in range(100)),
    ]
)


OF_TYPES = (
    "RuntimeError: expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float",
    "RuntimeError: expected scalar type Float but found BFloat16",
    "RuntimeError: index_add_(): self (Float) and source (BFloat16) must have the same scalar type",
    "RuntimeError: Index put requires the source and destination dtypes match, got Float for ... and BFloat16 for ...",
    "RuntimeError: masked_scatter: expected self and source to have same dtypes but gotFloat and BFloat16",
    "TypeError: Got unsupported ScalarType BFloat16",
    "RuntimeError: linalg.pinv(BFloat16{[16, 8]}): expected a tensor with 2 or more dimensions of float, double",
    "RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16",
    "RuntimeError: self and mat2 must have the same dtype, but got Float and BFloat16",
    "NotImplementedError: \"lstsq_cpu\" not implemented for 'BFloat16'",
    "RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float",
)
"""Of torch 2.13, from custom Functions, sparse and in-place operations, hooks and linear algebra under autocast."""


@pytest.mark.parametrize("raised", OF_TYPES)
@pytest.mark.parametrize("autocast", ["bf16", "off"])
def test_an_exception_about_types_is_answered_by_autocast_if_it_was_on(raised: str, autocast: str) -> None:
    plan = {"autocast": {"mode": autocast}}
    cause = cause_in(judged([(STOPPED, ""), (FAILED, f"{TRACEBACK}\n{raised}")], plan=plan))
    assert ("--autocast off" in cause.fix) == (autocast == "bf16")
    assert (cause.id == "script.autocast") == (autocast == "bf16")


OWN = (
    "RuntimeError: expected scalar type Long but found Float",
    "RuntimeError: index_add_(): self (Double) and source (Float) must have the same scalar type",
    "RuntimeError: scatter(): Expected self.dtype to be equal to src.dtype",
)


@pytest.mark.parametrize("raised", [*OWN, OF_TYPES[0]])
def test_autocast_is_blamed_only_with_evidence_that_it_touched_what_failed(raised: str) -> None:
    plan, has_left = {"autocast": {"mode": "bf16"}}, raised == OF_TYPES[0]
    levers = [{"name": "autocast", "acted": not has_left, "steps": 0, "reason": ""}]
    text = f"{TRACEBACK}\n{raised}"
    assert cause_in(judged([(STOPPED, ""), (FAILED, text)], plan=plan, status={"levers": levers})).id == "script.raised"


def test_an_exception_about_unnamed_types_in_a_model_under_autocast_is_answered_by_it() -> None:
    plan = {"autocast": {"mode": "bf16"}}
    frame = '  File "/h/hooks/inrank/fast.py", line 64, in __call__\n    outputs = call(self, *args, **kwargs)'
    text = f'{TRACEBACK}\n  File "train.py", line 7, in <module>\n    model(x)\n{frame}\n{OWN[2]}'
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)], plan=plan))
    assert cause.id == "script.autocast"
    assert "train.py" in cause.sentence


@pytest.mark.parametrize("raised", ["ValueError: batch 7 is empty", "RuntimeError: shape '[4]' is invalid"])
def test_another_exception_is_not_blamed_on_autocast(raised: str) -> None:
    plan = {"autocast": {"mode": "bf16"}}
    assert cause_in(judged([(STOPPED, ""), (FAILED, f"{TRACEBACK}\n{raised}")], plan=plan)).id != "script.autocast"


def test_a_row_that_names_no_error_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"errors": [{"id": "any.words", "text": "No space left", "cause": "a disk is full", "fix": "df -h"}]}
    monkeypatch.setattr(error_table, "_sections", lambda: rows)
    with pytest.raises(ValueError, match=r"any\.words"):
        known_errors.__wrapped__("errors")


_OWN = f"{TRACEBACK}\n  File \"/home/me/.ipexctl/code/p/train.py\", line 3, in <module>\n    step('x')\n"
_OWN_RAISE = _OWN.replace("step('x')", "raise Refused(words)")
_EMFILE = "Too many open files (24)"
_FORK = '  File "/usr/lib/python3.11/subprocess.py", line 9, in _execute_child\n    self.pid = _fork_exec(\n'
_TRL = (
    '  File "/env/bin/trl", line 8, in <module>\n'
    '  File "/env/lib/python3.11/site-packages/trl/cli.py", line 4, in main\n'
    '  File "/env/lib/python3.11/site-packages/transformers/trainer.py", line 5, in f\n'
)
_TORCH = '  File "/env/lib/python3.11/site-packages/torch/x.py", line 9, in f\n'


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Host key verification failed.\n" + f"{_OWN}ValueError: no validation set", "script.raised"),
        (f"No space left on device\n{_OWN}KeyError: 'labels'", "script.raised"),
        (f"{_OWN}ValueError: No space left on device", "script.raised"),  # of a type that the system does not raise
        (f"{_OWN}MemoryError: model needs 20 GB, budget is 8 GB", "script.raised"),
        (f"{_OWN}MemoryError", "memory.refused"),
        (f"{_OWN}BlockingIOError: [Errno 11] Resource temporarily unavailable", "script.raised"),  # a lock of a file
        (
            f"{_OWN}{_FORK}BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "limit.threads",
        ),
        (f"{_OWN}TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'", "script.raised"),
        (
            f"{_OWN}requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: http://10.0.0.9/a",
            "script.raised",
        ),
        (f"{_OWN}huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: x", "hf.not_allowed"),
        (f"{_OWN}TypeError: device() received an invalid combination of arguments - got (NoneType)", "script.raised"),
        (f"{_OWN}{_TORCH}KeyError: 'Too many open files'", "script.raised"),
        ("sh: 1: ninja: not found\nsh: 1: nvcc: not found", "script.no_program"),
        (f"{_OWN_RAISE}RuntimeError: Too many open files in shard 3", "script.raised"),
        (f"{_OWN_RAISE}ConnectionError: [1] Connection closed by peer", "script.raised"),
        (f"{_OWN_RAISE}ImportError: No module named 'train_set'", "script.raised"),
        (f"{_OWN_RAISE}OSError: [Errno 28] No space left on device: 'out'", "disk.full"),
        (f"{_OWN}IndexError: index out of range in self", "script.raised"),  # of index_select
        (f"{_OWN}KeyError: 'SLURM_NODES'", "script.raised"),  # of a dict
        (f"{_OWN}{_FORK}FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'", "script.no_program"),
        (f"{_OWN}{_FORK}PermissionError: [Errno 13] Permission denied: './prepare'", "file.denied"),
        (f"{_OWN}RuntimeError: unable to open shared memory object </torch_1_2>: {_EMFILE}", "limit.files"),
        ("WARNING: Too many open files: retry\nreading 4\nno validation set\nusage: --set DIR", "script.exited"),
    ],
)
def test_words_are_a_cause_only_of_the_error_that_they_are_of(said: str, expected: str) -> None:
    cause = cause_in(judged([(STOPPED, ""), (FAILED, said)]))
    assert cause.id == expected
    assert "train.py, line 3" in cause.sentence or TRACEBACK not in said


@pytest.mark.parametrize(
    ("line", "kind", "text", "sentence", "fix"),
    [
        (
            "json.load(open(p))",
            "gone",
            "its directory had changed 2.0 s before",
            "; its directory had",
            "barrier",
        ),
        ("open(p, 'w').write('')", "directory", "work", "no directory work, in which rank", "os.makedirs('work'"),
        ("np.save(p, x)", "directory", "work", "no directory work, in which rank", "os.makedirs('work'"),
        ("json.load(open(p))", "directory", "work", "no file work/a.txt", "put it into the project"),
        ("os.remove(p)", "gone", "its directory had changed 2.0 s before", "was to remove or move it", "if rank == 0"),
    ],
)
def test_a_file_that_another_rank_removed_is_not_to_be_sent(
    line: str, kind: str, text: str, sentence: str, fix: str
) -> None:
    said = f'{TRACEBACK}\n  File "/p/train.py", line 3, in <module>\n    {line}\n'
    said += "FileNotFoundError: [Errno 2] No such file or directory: 'work/a.txt'"
    seen = {"kind": kind, "text": text, "host": "node2"}
    cause = cause_in(judged([(STOPPED, ""), ({**FAILED, "evidence": [seen]}, said)]))
    assert (cause.id, sentence in cause.sentence, fix in cause.fix) == ("file.not_there", True, True), cause


def test_a_call_s_package_is_known_from_the_rank_s_python() -> None:
    said = f"{_OWN}TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'"
    called = {"kind": "called", "text": "pytorch_lightning.trainer.trainer", "host": "node2"}
    cause = cause_in(judged([(STOPPED, ""), ({**FAILED, "evidence": [called]}, said)]))
    assert cause.id == "lightning.unknown_argument"


@pytest.mark.parametrize(
    ("said", "place"),
    [
        (f'{_OWN}  File "numpy/random/mtrand.pyx", line 984, in choice\nValueError: a', "train.py, line 3: step('x')"),
        (f'{TRACEBACK}\n  File "<frozen runpy>", line 1, in f\n  File "<string>", line 1, in g\nValueError: a', ""),
        (
            f"{TRACEBACK}\n{_TRL}ValueError: a",
            "cli.py, line 4",
        ),
    ],
)
def test_a_place_is_in_the_project_s_files_or_in_the_package_that_was_started(said: str, place: str) -> None:
    sentence = cause_in(judged([(STOPPED, ""), (FAILED, said)])).sentence
    assert place in sentence
    assert missing(sentence, ".pyx runpy <string> trainer.py") == [".pyx", "runpy", "<string>", "trainer.py"]


def test_the_exception_of_a_thread_that_died_is_in_the_cause() -> None:
    dead = f'Exception in thread Thread-1 (read):\n{TRACEBACK}\n  File "/p/data.py", line 7, in read\nOSError: row 7\n'
    said = f"{dead}{_OWN}_queue.Empty"
    sentence = cause_in(judged([(STOPPED, ""), (FAILED, said)])).sentence
    assert missing(sentence, "Thread-1 OSError: row 7 data.py, line 7 Empty") == []


def test_more_ranks_than_the_run_has_are_named() -> None:
    said = f"{_OWN}torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 2/4 clients joined."
    cause = cause_in(judged([(STOPPED, ""), (FAILED, said)]))
    assert missing(cause.sentence, "world_size 4 2/4") == []
    assert "another" not in cause.sentence


@pytest.mark.parametrize(("size", "is_named"), [("4", True), ("2", False), ("four", False), ("9" * 5000, False)])
def test_the_size_of_a_group_is_named_also_by_a_rank_that_gave_up_first(size: str, is_named: bool) -> None:
    group = {"kind": "group", "text": size, "host": "node2"}
    said = f"{_OWN}torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0"
    cause = cause_in(judged([(STOPPED, ""), ({**FAILED, "evidence": [group]}, said)]))
    assert ((cause.id, "waits for 4 ranks" in cause.sentence) == ("meet.too_few", True)) is is_named


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text.id}-{crc32(text.text.encode()) % 1000}")
def test_every_known_text_gives_its_cause(text: Text) -> None:
    cause = cause_in(verdict_of(text))
    assert cause.id == text.id
    assert cause.sentence
    assert cause.fix
    assert "{" not in cause.sentence + cause.fix


def test_a_line_of_an_installed_package_is_not_to_be_changed() -> None:
    text = next(text for text in TEXTS if text.id == "script.wants_cuda" and "site-packages" in text.text)
    cause = cause_in(verdict_of(text))
    assert "axolotl" in cause.sentence
    assert "train.py, line 184" in cause.sentence  # of the package whose program was started
    assert missing(cause.fix, "axolotl -n 1") == []
    assert "line" not in cause.fix


@pytest.mark.parametrize(
    "text",
    [text for text in TEXTS if text.state == "failed"],
    ids=lambda text: f"{text.id}-{crc32(text.text.encode())}",
)
def test_run_and_why_give_one_cause(text: Text) -> None:
    """`run` reads the copy, which has the status, the plan, the stacks and all output, and nothing else."""
    of_node0, chunks = document(text)
    copied: dict[str, Any] = {name: of_node0[name] for name in ("status", "ranks", "plan") if name in of_node0}
    copied["status"] = {**copied["status"], "mpirun": {"tail": of_node0.get("mpirun") or []}}
    dump = recorded_dump(text.stacks) if text.stacks else None
    assert diagnose(read_snapshot(copied, chunks, "node1", dump)).cause == verdict_of(text).cause


def test_every_known_error_has_an_example_text() -> None:
    ids = {known.id for section in ("errors", "hang", "recorded") for known in known_errors(section)}
    assert {text.id for text in TEXTS} == {*ids, "script.raised"}
    for texts in SECTIONS.values():
        assert texts


def test_troubleshooting_page_is_current() -> None:
    assert (DOCS / "troubleshooting.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"install": "", "python": "/opt/py"}, "if you know one, install it"),
        ({}, "if you know one, add it with --with"),
    ],
)
def test_fix_for_a_module_of_no_known_package_prints_no_command_with_a_made_up_name(
    plan: dict[str, Any], said: str
) -> None:
    cause = cause_in(judged([(STOPPED, ""), (FAILED, NO_MODULE)], plan=plan))
    assert cause.fix.endswith(f"; no package is known to have it; {said}")


def test_module_that_the_project_names_is_installed_by_the_run() -> None:
    plan = {"install_by_run": "ipexctl run --install t.py", "project_packages": ["hydra-core"]}
    text = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'hydra.core'"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)], plan=plan))
    assert cause.fix.split("; ")[1] == "if it is a package: ipexctl run --install t.py"


def test_a_module_that_an_own_package_lacks_is_not_looked_for_at_an_index() -> None:
    plan = {"project": {"own": ["Tiny_LM"]}, "project_packages": ["tiny-lm"]}
    text = "/opt/py/bin/python: No module named tiny_lm.trian"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)], plan=plan))
    assert "no Python module named tiny_lm.trian" in cause.sentence
    assert missing(cause.fix, "correct own package tiny_lm run") == []
    assert "install" not in cause.fix


APART = {"what": "train.py names last.pt, which is on node1, and not on node2", "place": "last.pt"}


@pytest.mark.parametrize("throughput", [{}, {"throughput": {"steps_per_s": 2.0}}])
def test_a_stopped_run_has_no_cause_but_who_stopped_it(throughput: dict[str, Any]) -> None:
    stopped = {"stopped": {"by": "alice", "host": "laptop", "at": 1012.0}, "exit_code": 143, **throughput}
    shown = {"state": "stopped", "first": None, "plan": {"apart": APART}, "status": stopped}
    verdict = judged([(STOPPED, ""), (STOPPED, "")], **shown)
    assert verdict.cause is None
    assert "by alice@laptop at " in verdict.headline
    unknown = judged([(STOPPED, "")], **{**shown, "status": {"exit_code": 143, "stopped": {"at": 1012.0}}})
    assert unknown.headline.endswith("by ipexctl stop, or SIGTERM")
    interrupted = judged([(STOPPED, "")], **{**shown, "status": {**stopped, "exit_code": 130}})
    assert "by Ctrl-C of alice@laptop" in interrupted.headline


@pytest.mark.parametrize(
    ("versions", "fix"),
    [({"torchao": "0.17.0"}, "--with of ipexctl install"), ({}, "--with of ipexctl install")],
)
def test_installed_package_that_lacks_a_submodule_is_not_damaged(versions: dict[str, str], fix: str) -> None:
    plan = {"install": "ipexctl install", "packages": ["torchao"], "versions": versions}
    lost = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torchao.dtypes.affine'"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, lost)], plan=plan))
    assert missing(cause.sentence, "torchao installed torchao.dtypes.affine too new too old") == []
    assert "damaged" not in cause.sentence
    assert fix in cause.fix


@pytest.mark.parametrize(
    ("said", "cause_or_fix"),
    [
        ("AttributeError: module 'numpy' has no attribute 'int'.", "write int instead"),
        ("AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64`.", "Use `np.float64`"),
        ("AttributeError: module 'numpy' has no attribute 'trapz'", "trapezoid"),
        ("AttributeError: module 'wandb' has no attribute 'join'", "wandb 0.29.1 is installed and has no join"),
        (
            "ImportError: cannot import name 'b' from 'wandb.util' (/e/site-packages/wandb/util.py)",
            "has no b in wandb.util",
        ),
        ("ModuleNotFoundError: No module named 'pkg_resources'", "--with 'setuptools<81'"),
        ("AttributeError: module 'numpy' has no attribute 'in1d'", "ipexctl run --install --with 'numpy<2' t.py"),
    ],
)
def test_a_version_is_advised_only_if_it_is_known_to_have_what_the_installed_one_lost(
    said: str, cause_or_fix: str
) -> None:
    versions = {"numpy": "2.5.0", "wandb": "0.29.1", "setuptools": "82.0"}
    plan = {"install": "ipexctl install", "packages": [*versions], "versions": versions}
    plan |= {"install_by_run": "ipexctl run --install t.py", "project_packages": ["numpy", "setuptools"]}
    cause = cause_in(judged([(STOPPED, ""), (FAILED, f"{TRACEBACK}\n{said}")], plan=plan))
    assert cause_or_fix in f"{cause.sentence} | {cause.fix}"
    assert "<" not in str(cause.fix).replace("setuptools<81", "").replace("numpy<2", "")
    assert "damaged" not in cause.sentence


_OPTUNA = '  File "/e/site-packages/optuna/v.py", line 9, in f\n    cm.get_cmap("x")\n'
_TORCHMETRICS = '  File "/e/site-packages/torchmetrics/classification/accuracy.py", line 9, in f\n'
_SKLEARN = '  File "/e/site-packages/sklearn/utils/_param_validation.py", line 194, in wrapper\n'


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("AttributeError: module 'matplotlib.cm' has no attribute 'get_cmap'", "write plt.get_cmap or"),
        (f"{_OPTUNA}AttributeError: module 'matplotlib.cm' has no attribute 'get_cmap'", "take a newer optuna, or"),
        ("AttributeError: module 'matplotlib.cm' has no attribute 'get_cmap'", "--with 'matplotlib<3.9' t.py"),
        (
            "ImportError: cannot import name 'Models' from 'ax' (/e/site-packages/ax/__init__.py)",
            "'ax-platform<1,>=0.5'",
        ),
        ("ModuleNotFoundError: No module named 'ax.modelbridge'", "'ax-platform<1,>=0.5'"),
        ("AttributeError: module transformers has no attribute AdamW", "write torch.optim.AdamW instead, or"),
        ("AttributeError: 'DataFrame' object has no attribute 'append'", "--with 'pandas<2' --with 'numpy<2' t.py"),
        (f"{_SKLEARN}TypeError: got an unexpected keyword argument 'squared'", "write sklearn.metrics.root_mean"),
        ("AttributeError: module 'scipy.signal' has no attribute 'gaussian'", "write scipy.signal.windows.gaussian"),
        ("OSError: 'seaborn-whitegrid' is not a valid package style, path of", "use('seaborn-v0_8-whitegrid')"),
        (
            f"{_TORCHMETRICS}TypeError: Accuracy.__new__() missing 1 required positional argument: 'task'",
            "'torchmetrics<0.11'",
        ),
        (
            "ModuleNotFoundError: No module named 'pytorch_lightning.lite'",
            "'pytorch-lightning<2' --with 'setuptools<81'",
        ),
    ],
)
def test_a_name_that_newer_versions_lack_is_answered_with_the_version_that_has_it(said: str, fix: str) -> None:
    versions = {"matplotlib": "3.11", "ax-platform": "1.3", "transformers": "5.24.0", "pandas": "3.1", "scipy": "1.17"}
    versions |= {"scikit-learn": "1.9", "pytorch-lightning": "2.6", "optuna": "3.0"}
    plan = {"install": "ipexctl install", "install_by_run": "ipexctl run --install t.py", "packages": [*versions]}
    cause = cause_in(judged([(STOPPED, ""), (FAILED, f"{TRACEBACK}\n{said}")], plan={**plan, "versions": versions}))
    assert fix in cause.fix, cause.fix


@pytest.mark.parametrize("plan", [{"packages": ["polars"]}, {"packages": ["pandas"], "versions": {"pandas": "1.5.3"}}])
def test_a_name_of_another_package_or_of_an_older_version_is_none_that_was_lost(plan: dict[str, Any]) -> None:
    said = f"{TRACEBACK}\nAttributeError: 'DataFrame' object has no attribute 'append'"
    assert cause_id(judged([(STOPPED, ""), (FAILED, said)], plan=plan)) == "script.raised"


@pytest.mark.parametrize(
    ("said", "is_old"),
    [
        (
            (
                '  File "/e/site-packages/pytorch_lightning/trainer/configuration_validator.py", line 9, in f\n'
                "NotImplementedError: Support for `validation_epoch_end` has been removed in v2.0.0."
            ),
            True,
        ),
        (
            (
                '  File "/e/site-packages/pytorch_lightning/cli.py", line 9, in f\n'
                "    parser = pl.Trainer.add_argparse_args(parser)\n"
                "AttributeError: type object 'Trainer' has no attribute 'add_argparse_args'"
            ),
            True,
        ),
        (
            (
                "    parser = Trainer.add_argparse_args(parser)\n"
                "AttributeError: type object 'Trainer' has no attribute 'add_argparse_args'"
            ),
            False,  # a Trainer of the script's own
        ),
        (
            ("    Trainer.start(parser)\nAttributeError: type object 'Trainer' has no attribute 'start'"),
            False,
        ),
    ],
)
def test_code_for_lightning_1_is_answered_with_the_line_that_installs_it(said: str, is_old: bool) -> None:
    cause = cause_in(judged([(STOPPED, ""), (FAILED, f"{TRACEBACK}\n{said}")], plan={"install": "ipexctl install"}))
    line = "ipexctl install --with 'pytorch-lightning<2' --with 'setuptools<81'"
    assert (line in str(cause.fix), "Lightning 2 has no" in cause.sentence) == (is_old, is_old)


def test_a_trainer_that_lacks_use_cpu_gets_the_line_of_the_run_with_it() -> None:
    frame = '  File "/e/site-packages/transformers/training_args.py", line 9, in f\n'
    said = f"{TRACEBACK}\n{frame}ValueError: You need to assign use_cpu."
    for kind, argv, words in (("script", ["t.py", "--bf16"], "t.py --bf16"), ("module", ["m", "a b"], "-m m 'a b'")):
        cause = cause_in(judged([(STOPPED, ""), (FAILED, said)], plan={"asked": {"kind": kind, "argv": argv}}))
        assert str(cause.fix).rstrip("`").endswith(f"else: ipexctl run {words} --use_cpu")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["m", "--model_name_or_path", "org/tiny", "--output_dir", "out/a"], "ipexctl push hf:org/tiny;"),
        (["m", "--model=org/tiny", "--dataset_name", "org/data"], "ipexctl push hf:org/tiny hf-dataset:org/data;"),
        (["m", "--model", "./org/tiny"], "as hf:ORG/MODEL"),
    ],
)
def test_a_model_that_only_the_line_names_is_the_one_to_push(argv: list[str], words: str) -> None:
    said = f"{TRACEBACK}\nOSError: We couldn't connect to 'https://huggingface.co' to load the files"
    plan = {"asked": {"kind": "module", "argv": argv}}
    cause = cause_in(judged([(STOPPED, ""), (FAILED, said)], plan=plan))
    assert (cause.id, words in f"{cause.fix};") == ("hf.no_internet", True), cause.fix


def test_ranks_whose_parameters_have_other_shapes_have_built_different_models() -> None:
    text = "RuntimeError: [1]: params[0] in this process with sizes [2, 5] appears not to match sizes of the same param"
    verdict = judged([(STOPPED, ""), (FAILED, f"Traceback (most recent call last):\n{text} in process 0.")])
    assert cause_id(verdict) == "ddp.models_differ"


_CIRCULAR = "(most likely due to a circular import)"
_USAGE = "usage: train.py [-h] [--lr LR]\n                [--epochs EPOCHS]\ntrain.py: error: "


@pytest.mark.parametrize(
    ("argv", "said", "command"),
    [
        (["train.py", "--lrr", "1e 3"], "unrecognized arguments: --lrr 1e 3", "ipexctl run train.py --lr '1e 3'"),
        (["train.py", "--lrr=2", "x"], "unrecognized arguments: --lrr=2 x", "ipexctl run train.py --lr=2 x"),
        (
            ["train.py", "--ppn", "2", "--lr", "1"],
            "unrecognized arguments: --ppn 2",
            "ipexctl run --ppn 2 train.py --lr 1",
        ),
        (["train.py", "--no-sync"], "unrecognized arguments: --no-sync", "ipexctl run -n 1 train.py --help"),
        (["a b.py", "--q", "2"], "unrecognized arguments: --q 2", "ipexctl run -n 1 'a b.py' --help"),
        (["train.py"], "the following arguments are required: --data", "ipexctl run -n 1 train.py --help"),
        (["train.py", "--lr", "x"], "argument --lr: invalid float value: 'x'", "ipexctl run -n 1 train.py --help"),
    ],
)
def test_rejected_arguments_are_corrected_in_the_words_of_the_call(argv: list[str], said: str, command: str) -> None:
    plan = {"asked": {"kind": "script", "argv": argv}}
    verdict = judged([(STOPPED, ""), ({"state": "failed", "exit_code": 2}, _USAGE + said)], plan=plan)
    cause = cause_in(verdict)
    assert (cause.id, said in cause.sentence) == ("script.arguments", True)
    assert isinstance(cause.fix, Fix)
    assert [str(each) for each in cause.fix.commands] == [command]
    as_module = {"asked": {"kind": "module", "argv": argv}}
    fix = cause_in(judged([(STOPPED, ""), ({"state": "failed", "exit_code": 2}, _USAGE + said)], plan=as_module)).fix
    assert " -m " in fix


@pytest.mark.parametrize(
    ("said", "sentence", "fix"),
    [
        ("from 'utils' (/home/me/.ipexctl/code/p-5cc3e842/lib/utils.py)", "lib/utils.py", "correct the import"),
        (
            f"from partially initialized module 'datasets' {_CIRCULAR} (/h/code/p-5cc3e842/datasets.py)",
            "hides the package datasets",
            "rename",
        ),
        (
            f"from partially initialized module 'engine' {_CIRCULAR} (/h/code/p-5cc3e842/engine.py)",
            "engine imports a module that imports engine again",
            "into the function",
        ),
        ("from 'transformers' (/env/lib/python3.11/site-packages/transformers/__init__.py)", "another version", "envs"),
        ("from 'transformers' (unknown location)", "another version", "envs"),
    ],
)
def test_a_name_that_a_module_lacks_is_blamed_on_its_owner(said: str, sentence: str, fix: str) -> None:
    text = f"{TRACEBACK}\nImportError: cannot import name 'x' {said}"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)]))
    assert cause.id == "script.no_name"
    assert sentence in cause.sentence
    assert fix in cause.fix


_CODE, _ENV = "/home/ipex/.ipexctl/code/p-7a8357c2", "/home/ipex/.ipexctl/envs/torch-2.13-a57db98d/lib/python3.11"
_AT_TRAIN = f'{TRACEBACK}\n  File "{_CODE}/train.py", line 1, in <module>\n    import torch\n'
_IN_TORCH = (
    f'  File "{_ENV}/site-packages/torch/fx/pass_manager.py", line 5, in <module>\n    from queue import Queue\n'
)
_IN_PYTHON = (
    '  File "/usr/lib/python3.11/linecache.py", line 136, in updatecache\n    with tokenize.open(fullname) as fp:\n'
)
_SINCE = "since it has the same name as the standard library module named"
_RENAMED = (
    f"(consider renaming '{_CODE}/queue.py' {_SINCE} 'queue' and prevents importing that standard library module)"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            f"{_IN_TORCH}ImportError: cannot import name 'Queue' from 'queue' ({_CODE}/queue.py)",
            "queue.py of the project hides Python's own module queue, which torch imports",
        ),
        (
            f"{_IN_TORCH}ImportError: cannot import name 'Queue' from 'queue' {_RENAMED}",
            "queue.py of the project hides Python's own module queue, which torch imports",
        ),
        (
            f"{_IN_PYTHON}AttributeError: module 'tokenize' has no attribute 'open'",
            "tokenize.py of the project hides Python's own module tokenize, which Python's linecache imports",
        ),
        (
            "AttributeError: module 'logging' has no attribute 'getLogger'",
            "logging.py of the project hides Python's own module logging; train.py, line 1 needs its getLogger",
        ),
        (
            f"ImportError: cannot import name 'getLogger' from 'logging' ({_CODE}/logging.py)",
            "logging.py of the project hides Python's own module logging; train.py, line 1 needs its getLogger",
        ),
        (
            f"ImportError: cannot import name 'handlers' from 'logging' ({_CODE}/logging.py)",
            "logging.py of the project hides Python's own module logging; train.py, line 1 needs its handlers",
        ),
        (
            "ModuleNotFoundError: No module named 'logging.handlers'; 'logging' is not a package",
            "logging.py of the project hides Python's own module logging; train.py, line 1 needs its logging.handlers",
        ),
        (
            f"{_IN_TORCH}AttributeError: module 'queue' has no attribute 'Queue' {_RENAMED}",
            "queue.py of the project hides Python's own module queue, which torch imports",
        ),
        (
            "ModuleNotFoundError: No module named 'torch.distributed'; 'torch' is not a package",
            "torch.py of the project hides the package torch; train.py, line 1 needs its torch.distributed",
        ),
        (
            "ModuleNotFoundError: No module named 'transformers.models'",
            "transformers/__init__.py of the project hides the package transformers; train.py, line 1 needs its",
        ),
    ],
)
def test_a_file_that_hides_a_module_of_python_or_a_package_is_to_be_renamed(text: str, sentence: str) -> None:
    files = ("tokenize.py", "logging.py", "torch.py", "transformers/__init__.py", "inspect.py")
    cause = _cause_in_project(f"{_AT_TRAIN}{text}", files, {"packages": ["torch", "transformers"]})
    assert cause.sentence.startswith(sentence)
    assert cause.fix.startswith("rename that file; ")


@pytest.mark.parametrize(
    ("text", "files", "plan"),
    [
        (f"{_IN_TORCH}AttributeError: module 'inspect' has no attribute 'getargspec'", (), {}),
        ("AttributeError: module 'profile' has no attribute 'x'", ("profile.py",), {}),
        ("AttributeError: module 'utils' has no attribute 'x'", ("utils.py",), {}),
        ("AttributeError: module 'logging' has no attribute 'setup_all'", ("logging.py",), {}),
        ("AttributeError: module 'logging' has no attribute 'getLoger'", (), {}),
        (f"ImportError: cannot import name 'x' from 'profile' ({_CODE}/profile.py)", ("profile.py",), {}),
        ("ModuleNotFoundError: No module named 'peft.x'", ("peft/__init__.py",), {"project": {"own": ["peft"]}}),
    ],
)
def test_a_module_that_hides_none_is_not_to_be_renamed(text: str, files: tuple[str, ...], plan: dict[str, Any]) -> None:
    cause = _cause_in_project(f"{_AT_TRAIN}{text}", files, plan)
    assert missing(f"{cause.sentence}; {cause.fix}", "hides rename") == ["hides", "rename"]


def _cause_in_project(text: str, files: tuple[str, ...], plan: dict[str, Any]) -> Cause:
    snapshot = read_snapshot(*account([(STOPPED, ""), (FAILED, text)], first=FIRST, plan=plan), "node1")
    paths = {f"{_CODE}/{file}": file for file in files}
    context = replace(snapshot.context, project_file=lambda path: paths.get(path, ""))
    return cause_in(diagnose(replace(snapshot, context=context)))


_BY_BASH = """\
: invalid option
set: usage: set [-abefhkmnptuvxBCEHPT] [-o option-name] [--] [-] [arg ...]
go.sh: line 3: cd: $'sub\\r': No such file or directory
"""
_BY_PYTHON = (
    "python: can't open file '/home/me/.ipexctl/code/p-224f0b61/train.py\\r': [Errno 2] No such file or directory"
)
_BY_ENV = """\
/usr/bin/env: \u2018python3\\r\u2019: No such file or directory
/usr/bin/env: use -[v]S to pass options in shebang lines"""


@pytest.mark.parametrize(
    ("text", "argv", "sentence", "fix"),
    [
        (_BY_BASH + _BY_PYTHON, ("bash", "go.sh"), "go.sh has Windows line ends", r"sed -i 's/\r$//' -- go.sh"),
        (_BY_PYTHON, ("bash", "go.sh"), "go.sh has Windows line ends", r"sed -i 's/\r$//' -- go.sh"),
        (_BY_ENV, ("./my train.py",), "./my train.py has Windows line ends", r"sed -i 's/\r$//' -- './my train.py'"),
        (_BY_ENV, ("bash", "go.sh"), "a file has Windows line ends: node2 looks for python3", "grep -rlI"),
        (_BY_ENV, ("bash", "-c", "./train.py"), "a file has Windows line ends", "grep -rlI"),
        (_BY_BASH.replace("go.sh:", "-e1eid:"), ("bash", "go.sh"), "a file has Windows line ends", "grep -rlI"),
    ],
)
def test_windows_line_ends_are_named_with_the_file(text: str, argv: tuple[str, ...], sentence: str, fix: str) -> None:
    failed = {"state": "failed", "exit_code": 127}
    cause = cause_in(judged([(STOPPED, ""), (failed, text)], plan={"asked": {"kind": "command", "argv": list(argv)}}))
    assert (cause.id, cause.confidence) == ("run.no_command", "likely")
    assert cause.sentence.startswith(sentence)
    assert missing(cause.fix, fix) == []


@pytest.mark.parametrize(
    ("path", "directory", "leads_out"),
    [
        ("../x.csv", "", True),
        ("../x.csv", "/sub", False),
        ("../../x.csv", "/sub", True),
        ("x.csv", "", False),
        ("../x.csv", "/code/sub", False),
    ],
)
def test_a_path_out_of_the_project_is_not_looked_for_on_the_hosts(
    path: str, directory: str, *, leads_out: bool
) -> None:
    text = f"{_AT_TRAIN}FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    plan = {"cwd": f"{_CODE}{directory}", "home": posixpath.dirname(posixpath.dirname(_CODE))}
    cause = _cause_in_project(text, (), plan)
    assert ("leads out of the project" in cause.sentence, "ipexctl exec" not in cause.fix) == (leads_out, leads_out)


@pytest.mark.parametrize(
    ("path", "shown", "fix"),
    [
        (f"{_CODE}/data/x.csv", "data/x.csv", "put it into the project"),
        ("/data/x.csv", "/data/x.csv", "if this machine has it, copy it"),
    ],
)
def test_an_absolute_path_in_the_project_s_tree_is_a_file_of_the_project(path: str, shown: str, fix: str) -> None:
    text = f"{_AT_TRAIN}FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    cause = _cause_in_project(text, (), {"cwd": _CODE, "home": posixpath.dirname(posixpath.dirname(_CODE))})
    assert f" no file {shown}" in cause.sentence
    assert cause.fix.startswith(fix)


def test_an_init_method_with_localhost_is_the_cause_of_ranks_that_did_not_meet() -> None:
    text = (
        f'{TRACEBACK}\n  File "{_CODE}/train.py", line 5, in main\n'
        '    dist.init_process_group("gloo", init_method="tcp://HOST:29511", rank=rank, world_size=2)\n'
        f'  File "{_ENV}/site-packages/torch/distributed/rendezvous.py", line 199, in _create_c10d_store\n'
        "    store = TCPStore(\n"
        "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 1/2 clients joined."
    )
    of_itself, of_node0 = (
        cause_in(judged([(STOPPED, ""), (FAILED, text.replace("HOST", place))])) for place in ("localhost", "10.0.0.1")
    )
    assert missing(of_itself.sentence, "init_method localhost train.py 5") == []
    assert "env://" in of_itself.fix
    assert "only 1 of 2 ranks" in of_node0.sentence


def test_a_compiler_that_the_user_has_named_is_the_one_that_is_missing() -> None:
    text = f"{TRACEBACK}\ntorch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in cxx: (None, "
    named, default = (cause_in(judged([(STOPPED, ""), (FAILED, f"{text}'{name}')")])) for name in ("icpx", "g++"))
    assert missing(named.sentence, "icpx CXX node2") == []
    assert "--with-compiler" not in named.fix
    assert "--with-compiler" in default.fix


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            'Missing key(s) in state_dict: "a.weight". \n\tUnexpected key(s) in state_dict: "module.a.weight". ',
            "DDP model",
        ),
        (
            'Missing key(s) in state_dict: "module.a.weight". \n\tUnexpected key(s) in state_dict: "a.weight". ',
            "wrapped",
        ),
        ('Missing key(s) in state_dict: "head.weight". ', "head.weight"),
    ],
)
def test_a_checkpoint_with_other_keys_is_explained(keys: str, said: str) -> None:
    text = f"{TRACEBACK}\nRuntimeError: Error(s) in loading state_dict for Net:\n\t{keys}"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)]))
    assert cause.id == "script.other_checkpoint"
    assert said in cause.sentence


HIDING = """Traceback (most recent call last):
  File "/h/code/p/train.py", line 1, in <module>
    import torch
  File "/env/lib/python3.11/site-packages/torch/types.py", line 9, in <module>
    @dataclasses.dataclass(frozen=True)
TypeError: dataclass() got an unexpected keyword argument 'frozen'"""


@pytest.mark.parametrize(("name", "cause"), [("dataclasses.py", "script.no_name"), ("other.py", "script.raised")])
def test_a_file_that_hides_a_module_of_python_is_named_though_it_has_the_name(name: str, cause: str) -> None:
    snapshot = read_snapshot(*account([(STOPPED, ""), (FAILED, HIDING)], first=FIRST), "node1")
    context = replace(snapshot.context, project_file=lambda path: name if path.endswith(f"/{name}") else "")
    verdict = diagnose(replace(snapshot, context=context))
    assert cause_id(verdict) == cause
    assert ("dataclasses.py of the project hides" in cause_in(verdict).sentence) == (cause == "script.no_name")


@pytest.mark.parametrize(
    ("kills", "raised", "said"),
    [
        (0, "", "counted no kill for memory since its boot"),
        (3, "", "by whom is not known"),
        (None, "", "by whom is not known"),
        (0, "Traceback (most recent call last):\nValueError: x", "ended with ValueError: x, an error of ipexctl"),
    ],
)
def test_who_ended_a_supervisor_is_said_only_if_it_is_known(kills: int | None, raised: str, said: str) -> None:
    document, output = account([({"state": "running"}, "")], state="lost", supervise=raised.splitlines(), kills=kills)
    verdict = diagnose(read_snapshot(document, output, "node1"))
    assert said in verdict.headline
    assert any("dmesg" in note for note in verdict.notes) == (kills != 0 and not raised)


def test_another_torch_is_another_stack() -> None:
    plan = {"install": "ipexctl install", "packages": ["torch"], "versions": {"torch": "2.13.0+cpu"}}
    lost = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch.nothing'"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, lost)], plan=plan))
    assert "torch 2.13.0+cpu" in cause.sentence
    assert missing(cause.fix, "ipexctl versions") == []
    assert "--with" not in cause.fix


def test_a_run_that_succeeded_names_the_command_that_fetches_its_checkpoint() -> None:
    ended = judged([({"state": "ok"}, "")], state="ok", first=None, status={"checkpoint": "ck/step-3"})
    assert any(line.startswith("ipexctl fetch ") and ":ck/step-3 " in line for line in ended.next)


def test_lost_module_of_the_environment_is_repaired_and_not_added() -> None:
    plan = {"install": "ipexctl install --stack torch --with peft", "packages": ["sympy", "torch"]}
    lost = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'sympy'"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, lost)], plan=plan))
    assert cause.id == "script.no_module"
    assert cause.fix.endswith(f": {plan['install']}")
    assert missing(cause.sentence, "node2 sympy") == []


@pytest.mark.parametrize(
    ("plan", "expected"), [({"install": "ipexctl install"}, "library.torch"), ({"install": ""}, "library.missing")]
)
def test_lost_library_of_torch_damages_an_environment_of_ipexctl_only(plan: dict[str, Any], expected: str) -> None:
    lost = "Traceback (most recent call last):\nImportError: libtorch_cpu.so: cannot open shared object file: No such"
    assert cause_in(judged([(STOPPED, ""), (FAILED, lost)], plan=plan)).id == expected


def test_a_port_taken_by_the_spawn_of_another_rank_is_no_other_program() -> None:
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    mp.spawn(work, nprocs=2)\n'
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n"
        'Traceback (most recent call last):\n  File "train.py", line 4, in work\n'
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)]))
    assert missing(cause.sentence, "ranks own 2 29500") == []
    assert "another program" not in cause.sentence
    assert missing(cause.fix, "-n 1") == []


@pytest.mark.parametrize(("plan", "again"), [({}, True), ({"master_port": 29500}, False)])
def test_advice_for_a_busy_port_depends_on_who_chose_it(plan: dict[str, Any], again: bool) -> None:
    kind = f"{TRACEBACK}\ntorch.distributed.DistNetworkError"
    busy = f"{kind}: The server socket has failed to listen on any local network address. port: 29500, name: EADDRINUSE"
    fix = cause_in(judged([(STOPPED, ""), (FAILED, busy)], plan=plan)).fix
    assert (fix.startswith("run it again"), "--master-port" in fix) == (again, not again)


@pytest.mark.parametrize(
    "text",
    [
        "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.3.0",
        "OSError: libiomp5.so: cannot open shared object file",
        "sh: x: not found",
    ],
)
def test_the_advice_to_install_keeps_the_stack(text: str) -> None:
    plan = {"install": "ipexctl install --stack torch"}
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)], plan=plan))
    assert "ipexctl install --stack torch" in cause.fix


def test_a_lost_host_is_the_cause_and_not_the_end_of_mpirun_that_follows() -> None:
    mpirun = """\
=   RANK 0 PID 3513 RUNNING AT 10.77.2.11
=   KILLED BY SIGNAL: 15 (Terminated)"""
    first = {**FIRST, "exit_code": None, "kind": "lost", "detail": {"kind": "silent", "fields": {}}}
    more: dict[str, Any] = {"reason": "node2 stopped responding (rank 1)", "mpirun": mpirun.splitlines()}
    assert cause_id(judged([(STOPPED, ""), ({"state": "lost"}, "")], first=first, **more)) == "node.lost"


@pytest.mark.parametrize(
    ("kind", "reason", "mpirun", "wanted"),
    [
        ("lost", "node2 stopped responding (rank 1)", "", "node.lost"),
        ("lost", "rank 1 on node2 disconnected: its wrapper process was killed", "", "node.wrapper_killed"),
        (
            "not-begun",
            "mpirun ended (exit code 111) before ranks 0-2 began",
            "ipexctl: node2: the supervisor at 10.0.0.1:4711 can't be reached from here: it has not answered",
            None,
        ),
        (
            "not-begun",
            "mpirun ended (exit code 1) before ranks 0-2 began",
            "unable to find interface eth9",
            "mpi.no_interface",
        ),
    ],
)
def test_overloaded_hosts_are_noted_and_not_blamed(kind: str, reason: str, mpirun: str, wanted: str | None) -> None:
    detail: Any = (
        {"kind": "wrapper-killed" if "killed" in reason else "silent", "fields": {}} if kind == "lost" else None
    )
    first = {**FIRST, "exit_code": None, "kind": kind, "detail": detail}
    more: dict[str, Any] = {
        "reason": reason,
        "mpirun": [mpirun] if mpirun else [],
        "plan": {"hosts": [planned("node2", 64, 2)]},
    }
    judgement = judged([(STOPPED, ""), ({"state": "lost"}, "")], first=first, **more)
    assert cause_id(judgement) == wanted
    assert wanted is None or "node2 has 64 ranks on 2 cores: it may be too slow" in judgement.notes


@pytest.mark.parametrize(
    ("printed", "kind", "file", "argument"),
    [
        ("", "no-command", "./my train; reboot", "ls -l './my train; reboot'"),
        ("", "setup-failed", "/opt/$(reboot).sh", "'/opt/$(reboot).sh'"),
        ("sh: 1: x'; reboot; ': not found", "", "", """ 'x'"'"'; reboot; '"'"'';"""),
        ("", "no-command", "./train", "ipexctl exec -- ls -l ./train"),
    ],
)
def test_printed_and_recorded_texts_are_quoted_in_the_fix(printed: str, kind: str, file: str, argument: str) -> None:
    detail = {"kind": kind, "fields": {"place": "node2", "file": file, "what": f"{file}: Permission denied"}}
    assert argument in cause_in(verdict_of(Text("", printed, detail=detail if kind else None))).fix


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"RuntimeError: ffmpeg: 10 %\r 20 %\rno codec\r", b"RuntimeError: ffmpeg: 10 %  20 % no codec"),
        (b"[rank1]: torch.cuda.OutOfMemoryError: a\rb", b"[rank1]: torch.cuda.OutOfMemoryError: a b"),
        (b"train:  10%|#\rtrain:  20%|##", b"train:  20%|##"),
        (b"10%|#\rTraceback (most recent call last):", TRACEBACK.encode()),
    ],
)
def test_exceptions_keep_text_with_carriage_returns(tmp_path: Path, printed: bytes, shown: bytes) -> None:
    (tmp_path / "err").write_bytes(printed + b"\n")
    assert tail(str(tmp_path / "err"), 1000, 5) == [shown]


def test_traceback_whose_exception_is_overwritten_is_not_denied() -> None:
    cut = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n   of a batch'
    verdict = judged([(FAILED, cut)], first={**FIRST, "rank": 0})
    assert "a traceback whose exception can't be read" in cause_in(verdict).sentence


@pytest.mark.parametrize("state", ["ok", "running", "stopped"])
def test_run_without_a_failure_has_no_cause(state: str) -> None:
    row = {"state": state}
    verdict = judged([(row, HEALTHY)] * 3, state=state, first=None, out=dict.fromkeys(range(3), HEALTHY))
    assert verdict.cause is None


def test_a_live_run_has_the_exceptions_of_threads_that_its_ranks_outlive() -> None:
    printed = """Exception in thread Thread-1 (produce):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
ValueError: no such sample
"""
    row = {"state": "running"}
    verdict = judged([(row, printed), (row, HEALTHY), (row, printed)], state="running", first=None)
    assert "ranks 0,2: thread Thread-1 (produce) ended with ValueError: no such sample" in verdict.notes
    assert any("--stderr" in line for line in verdict.next)


def test_harmless_output_is_not_the_cause_of_a_failure() -> None:
    first = {**FIRST, "exit_code": 3}
    ranks = [(STOPPED, HEALTHY), ({**FAILED, "exit_code": 3}, HEALTHY)]
    assert cause_id(judged(ranks, first=first)) == "script.exited"


@pytest.mark.parametrize(("printed", "is_said"), [("", True), ("│ ValueError: loss is negative │", False)])
def test_an_exception_that_no_traceback_shows_is_the_cause(printed: str, is_said: bool) -> None:
    ranks = [(STOPPED, HEALTHY), (FAILED, printed)]
    cause = cause_in(judged(ranks, status={"raised": "ValueError: loss is negative"}))
    assert (cause.id, "ValueError: loss is negative" in cause.sentence) == ("script.raised", True)
    assert ("its stderr has no line of it" in cause.sentence) == is_said


@pytest.mark.parametrize(("version", "known"), [("2.4.1", "certain"), ("1.26.4", None), ("", "likely")])
def test_a_package_for_numpy_1_is_blamed_only_if_numpy_2_may_be_installed(version: str, known: str | None) -> None:
    text = f"{TRACEBACK}\nImportError: numpy.core.multiarray failed to import"
    cause = cause_in(judged([(STOPPED, ""), (FAILED, text)], plan={"versions": {"numpy": version}}))
    assert (cause.confidence if cause.id == "stack.numpy" else None) == known


@pytest.mark.parametrize(
    ("disk", "known"), [({"path": "/dev/shm", "free": 0, "size": 9}, "certain"), (None, "possible")]
)
def test_a_bus_error_blames_a_disk_for_sure_only_if_it_was_full(disk: dict[str, Any] | None, known: str) -> None:
    row = {**FAILED, "exit_code": 135, "signal": 7, "disk": disk}
    first = {**FIRST, "exit_code": 135, "signal": 7, "kind": "signal"}
    cause = cause_in(judged([(STOPPED, ""), (row, "")], first=first))
    assert (cause.id, cause.confidence) == ("process.bus_error", known)
    assert ("/dev/shm was full on node2" in cause.sentence) == (disk is not None)


def test_a_rank_that_raised_before_it_was_ended_says_so() -> None:
    ranks = [(STOPPED, f"{TRACEBACK}\nModuleNotFoundError: No module named 'frobnicate'"), (FAILED, LOST)]
    (others,) = judged(ranks).others
    assert missing(others.sentence, "raised ModuleNotFoundError frobnicate") == []


@pytest.mark.parametrize(
    "misleading",
    [text.text for text in TEXTS if text.id in {"peer.gone", "peer.timeout"}],
)
@pytest.mark.parametrize("better", [NO_MODULE, "Traceback (most recent call last):\nKeyError: 'labels'"])
def test_error_caused_by_a_lost_peer_is_not_the_cause(misleading: str, better: str) -> None:
    failed_first = judged([(FAILED, better), (FAILED, f"Traceback (most recent call last):\n{misleading}")])
    assert cause_id(failed_first) == ("script.no_module" if better is NO_MODULE else "script.raised")
    assert cause_in(failed_first).rank == 0
    ended = judged([(STOPPED, better), (FAILED, f"Traceback (most recent call last):\n{misleading}")])
    assert cause_id(ended) == cause_id(failed_first)


def test_first_failure_is_the_cause_if_its_output_explains_it() -> None:
    verdict = judged([(FAILED, NO_MODULE), (FAILED, "Traceback (most recent call last):\nKeyError: 'labels'")])
    assert cause_id(verdict) == "script.raised"
    assert cause_in(verdict).rank == 1


NO_HUB = "OSError: We couldn't connect to 'https://huggingface.co' to load the files"
CONNECTED = "During handling of the above exception, another exception occurred"
DIRECT = "The above exception was the direct cause of the following exception"


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        *(
            (f"{text.text}\ngoing on without it\n{TRACEBACK}\nKeyError: 'labels'", "script.raised")
            for text in TEXTS
            if text.id in {"ccl.no_transport", "ccl.no_libccl", "meet.port_busy", "hf.no_internet"} and not text.detail
        ),
        (f"{NO_MODULE}\ngoing on without it\n{TRACEBACK}\nOSError: [Errno 24] Too many open files", "limit.files"),
        (
            f"{TRACEBACK}\nOSError: [Errno 101] Network is unreachable\n\n{CONNECTED}:\n\n{TRACEBACK}\n{NO_HUB}",
            "hf.no_internet",
        ),
        (f"{NO_MODULE}\n\n{DIRECT}:\n\n{TRACEBACK}\nRuntimeError: Failed to import trainer", "script.no_module"),
        (GONE, "peer.gone"),
        (f"{TRACEBACK}\nNameError: name 'exit' is not defined", "script.raised"),
    ],
    ids=lambda text: crc32(text.encode()) % 1000 if " " in text else text,
)
def test_last_exception_with_its_chain_is_the_cause(printed: str, cause: str) -> None:
    assert cause_id(judged([(STOPPED, ""), (FAILED, printed)])) == cause


def test_rank_prefix_and_colors_are_removed() -> None:
    said = "\n".join(f"\x1b[31m[rank1]: {line}\x1b[0m" for line in NO_MODULE.splitlines())
    verdict = judged([(STOPPED, ""), (FAILED, said)])
    assert cause_id(verdict) == "script.no_module"
    assert not any("\x1b" in line.text or "[rank1]" in line.text for line in verdict.lines)


def test_the_exception_of_the_script_is_named_with_its_line() -> None:
    said = (
        'Traceback (most recent call last):\n  File "/p/train.py", line 12, in <module>\n    main()\n'
        '  File "/env/lib/python3.11/site-packages/torch/nn.py", line 9, in forward\n    x\n'
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x10 and 20x5)"
    )
    cause = cause_in(judged([(STOPPED, ""), (FAILED, said)]))
    assert said.splitlines()[-1] in cause.sentence
    assert missing(cause.sentence, "train.py 12") == []


def test_exit_code_128_plus_n_is_read_as_a_signal() -> None:
    first = {**FIRST, "exit_code": 139}
    assert cause_id(judged([(STOPPED, ""), ({**FAILED, "exit_code": 139}, "")], first=first)) == "process.crashed"


@pytest.mark.parametrize("evidence", [(), ({"kind": "child", "text": "process 7 exited with code 137"},)])
def test_an_exit_code_that_a_python_script_chose_is_no_signal(evidence: tuple[dict[str, str], ...]) -> None:
    code, place = {"exit_code": 137}, {"kind": "exited", "text": "train.py:7"}
    row = {**FAILED, **code, "evidence": [{**each, "host": "node2"} for each in (place, *evidence)]}
    plan = {"asked": {"kind": "script", "argv": ["train.py"]}}
    cause = cause_in(judged([(STOPPED, ""), (row, "loss 3.2 > 1.0")], first={**FIRST, **code}, plan=plan))
    assert cause.id == ("memory.killed" if evidence else "script.exited")
    assert "train.py, line 7" in cause.sentence or evidence


def test_an_exception_that_a_script_survived_is_no_cause_and_one_that_it_printed_last_is() -> None:
    code, caught = {"exit_code": 2}, f"{_OWN}FileNotFoundError: [Errno 2] No such file or directory: 'cache'"
    row, first = {**FAILED, **code}, {**FIRST, **code}
    cause = cause_in(judged([(STOPPED, ""), (row, f"{caught}\nlabels.txt has 9 lines")], first=first))
    assert missing(cause.sentence, "FileNotFoundError cache labels.txt has 9 lines") == []
    assert cause.id == "script.exited"
    hydra = "\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
    for end in ("", hydra):
        assert cause_in(judged([(STOPPED, ""), (row, caught + end)], first=first)).id == "file.not_there"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Max retries exceeded (Caused by NewConnectionError('[Errno 111] Connection refused'))", "listens on port 9"),
        ("Max retries exceeded (Caused by NameResolutionError('Failed to resolve'))", "can't reach"),
        ("Read timed out. (read timeout=2)", "raised requests.exceptions.ConnectionError"),
    ],
)
def test_a_server_that_refuses_or_is_late_is_not_one_that_can_t_be_reached(said: str, expected: str) -> None:
    raised = f"{_OWN}requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.0.0.9', port=9): {said}"
    assert expected in cause_in(judged([(STOPPED, ""), (FAILED, raised)])).sentence


def test_last_30_lines_of_both_streams_are_kept() -> None:
    many = "\n".join(f"line {n}" for n in range(100))
    verdict = judged([(STOPPED, ""), (FAILED, many)], out={1: many})
    assert [line.stream for line in verdict.lines] == ["stdout"] * 10 + ["stderr"] * 20
    assert len(verdict.lines) == LINES
    assert verdict.lines[-1].text == verdict.lines[9].text == "line 99"
    alone = judged([(STOPPED, ""), (FAILED, "")], out={1: many + "\n\n\n"})
    assert [line.text for line in alone.lines] == [f"line {n}" for n in range(70, 100)]


@pytest.mark.parametrize(("state", "ended"), [("running", None), ("stopped", 1013.0)])
@pytest.mark.parametrize(("at", "shown"), [(1005.0, True), (1001.0, False)])
def test_dump_of_the_last_attempt_shows_where_ranks_are(
    state: str, ended: float | None, at: float, *, shown: bool
) -> None:
    frames = (StackFrame("recv", "/lib/python3.11/socket.py", 3), StackFrame("step", "/h/code/p-01234567/train.py", 17))
    process = Process(100, "python", "S", "", "py-spy", (Thread("MainThread", frames, True),), "")
    ranks = (RankStacks(0, "node1", "running", (process,)), RankStacks(1, "node2", "running", (), "it is reconnecting"))
    attempts = [{"attempt": 0, "reason": "rank 1 failed", "ended": 1002.0}]
    status = {"ended": ended, "exit_code": 130, "attempts": attempts}
    record, output = account([({"state": state}, "")] * 2, state=state, status=status)
    verdict = diagnose(read_snapshot(record, output, "node1", Dump(at, ranks)))
    places = [other for other in verdict.others if "train.py:17" in other.sentence or "reconnecting" in other.sentence]
    assert [(other.ranks, other.hosts) for other in places] == ([((0,), ("node1",)), ((1,), ("node2",))] * shown)
    text = " ".join(verdict.notes)
    assert (missing(text, "8 before the end") == []) == (shown and ended is not None)


@pytest.mark.parametrize(
    "warning",
    [
        "[W socket.cpp:462] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "[W ProcessGroupGloo.cpp:757] Warning: Unable to resolve hostname to a (local) address. Using the loopback",
    ],
)
@pytest.mark.parametrize("state", ["running", "stopped", "lost"])
def test_warning_of_torch_is_no_cause_of_a_hang(warning: str, state: str) -> None:
    frames = (StackFrame("step", "/h/code/p-01234567/train.py", 17),)
    process = Process(100, "python", "S", "", "py-spy", (Thread("MainThread", frames, True),), "")
    silent = {"since": 860.0, "after": 600.0, "ranks": []}
    record, output = account([({"state": state}, warning)] * 2, state=state, first=None, silent=silent)
    assert diagnose(read_snapshot(record, output, "node1", None)).cause is None
    dump = Dump(1005.0, (RankStacks(0, "node1", "running", (process,)),))
    assert diagnose(read_snapshot(record, output, "node1", dump)).cause is None


@pytest.mark.parametrize("state", ["running", "stopped"])
@pytest.mark.parametrize(("since", "wanted"), [(1001.0, "hang.elsewhere"), (1006.0, None), (None, None)])
def test_stacks_explain_a_silent_run_while_it_lasts_and_when_it_was_stopped(
    state: str, since: float | None, wanted: str | None
) -> None:
    silent = None if since is None else {"since": since, "after": 4.0}
    record, output = account([({"state": state}, "")] * 3, state=state, first=None, silent=silent)
    verdict = diagnose(read_snapshot(record, output, "node1", recorded_dump("elsewhere")))
    assert cause_id(verdict) == (wanted if state == "running" else None)
    assert any(note.startswith("until then, rank 1") for note in verdict.notes) == (state == "stopped" and bool(wanted))
    if wanted is not None:
        assert verdict.hang is not None
        assert (verdict.hang.kind, verdict.hang.ranks) == ("elsewhere", (1,))
    if wanted is not None and state == "running":
        cause = cause_in(verdict)
        assert (cause.confidence, cause.rank, cause.host, cause.source) == ("likely", 1, "node2", "record")
        assert missing(cause.sentence, "1 node2 load_batch hang.py:13 0,2 all_reduce hang.py:51") == []
        assert [(seen.kind, seen.at) for seen in cause.evidence] == [("stack", 1005.0)]


def test_stacks_of_a_silent_run_count_more_than_what_healthy_runs_print_too() -> None:
    said = "libfabric provider: shm"
    record, output = account(
        [({"state": "running"}, said)] * 3, state="running", first=None, silent={"since": 1001.0, "after": 4.0}
    )
    assert cause_id(diagnose(read_snapshot(record, output, "node1", None))) == "ccl.shm_only"
    assert cause_id(diagnose(read_snapshot(record, output, "node1", recorded_dump("elsewhere")))) == "hang.elsewhere"


def _in_child_wait(*, of_child: str, is_launcher: bool = False) -> Dump:
    """`recorded_dump("elsewhere")` with rank 1 in Popen.wait and a child that the kernel keeps in `of_child`."""
    dump = recorded_dump("elsewhere")
    (main,) = dump.ranks[1].processes
    (thread,) = main.threads
    wait = StackFrame("_try_wait", "/usr/lib/python3.11/subprocess.py", 1932)
    child = replace(main, pid=777, wchan=of_child, threads=main.threads if is_launcher else ())
    waiting = replace(main, wchan="do_wait", threads=(replace(thread, frames=(wait, *thread.frames)),))
    return replace(dump, ranks=(dump.ranks[0], replace(dump.ranks[1], processes=(waiting, child)), dump.ranks[2]))


@pytest.mark.parametrize(
    ("of_child", "is_launcher", "said"),
    [
        ("anon_pipe_write", False, "process 777 full pipe"),  # the kernel's function for a full pipe, Linux 6.18
        ("anon_pipe_write", True, "process 777 full pipe"),
        ("hrtimer_nanosleep", False, "rank 1 waits for a child process"),
        ("hrtimer_nanosleep", True, ""),
    ],
)
def test_rank_that_waits_for_its_child_is_told_to_read_the_pipe(of_child: str, is_launcher: bool, said: str) -> None:
    record, output = account([({"state": "running"}, "")] * 3, state="running", first=None, silent={"since": 1001.0})
    dump = _in_child_wait(of_child=of_child, is_launcher=is_launcher)
    cause = cause_in(diagnose(read_snapshot(record, output, "node1", dump)))
    assert (cause.id, missing(cause.sentence, f"1 node2 {said}")) == ("hang.elsewhere", [])
    assert ("communicate()" in cause.fix, "limit of time" in cause.fix) == (bool(said), not said)


def test_place_of_the_rank_that_lost_a_peer_is_told() -> None:
    """Such as a state dict that only rank 0 gathers, or a loader that is empty on the other ranks."""
    lost = GONE.replace(TRACEBACK, f'{TRACEBACK}\n  File "/p/train.py", line 41, in save')
    rows = [(FAILED, lost), ({"state": "ok", "exit_code": 0, "ended_at": 1011.0}, "")]
    cause = cause_in(judged(rows, first={**FIRST, "rank": 0, "host": "node1"}))
    assert (cause.id, missing(cause.sentence, "rank 1 rank 0 train.py, line 41")) == ("peer.ended", [])
    detail = {"kind": "left", "fields": {"lost": "0", "step": " at step 20"}}
    first = {**FIRST, "kind": "left", "rank": 1, "host": "node2", "exit_code": 0, "detail": detail}
    recorded = cause_in(judged(rows, first=first))
    assert recorded.sentence == cause.sentence.replace("code 0", "code 0 at step 20")
    waited = TIMED_OUT.replace(TRACEBACK, f'{TRACEBACK}\n  File "/p/train.py", line 41, in save')
    cause = cause_in(judged([(FAILED, waited), (STOPPED, "")], first={**FIRST, "rank": 0, "host": "node1"}))
    assert (cause.id, missing(cause.sentence, "train.py, line 41")) == ("peer.timeout", [])


TIMED_OUT = f"{TRACEBACK}\nRuntimeError: [unbound_buffer.cc:78] Timed out waiting 9000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("at", "wanted"), [(1005.0, "hang.elsewhere"), (1000.5, "peer.timeout"), (1012.5, "peer.timeout")]
)
def test_stacks_taken_while_a_rank_waited_explain_its_timeout(at: float, wanted: str) -> None:
    record, output = account(
        [(STOPPED, ""), (STOPPED, ""), (FAILED, TIMED_OUT)], first={**FIRST, "rank": 2, "host": "node3"}
    )
    dump = replace(recorded_dump("elsewhere"), at=at)
    assert cause_id(diagnose(read_snapshot(record, output, "node1", dump))) == wanted


@pytest.mark.parametrize("text", ["OSError: [Errno 28] No space left on device", "RuntimeError: EADDRINUSE"])
@pytest.mark.parametrize("row", [STOPPED, FAILED])
def test_output_of_another_rank_is_no_cause_of_an_exit_code(text: str, row: dict[str, Any]) -> None:
    verdict = judged([(row, text), ({**FAILED, "exit_code": 3}, "")], first={**FIRST, "exit_code": 3})
    assert cause_id(verdict) == "script.exited"


LOST = (
    "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
    "pair.cc:537] Read error [127.0.0.1]:32134: Connection reset by peer. This is typically caused by a remote worker"
)


def test_ranks_that_crashed_on_a_lost_peer_are_told_from_those_that_ran_on() -> None:
    first = {**FIRST, "exit_code": 137, "signal": 9, "kind": "signal"}
    killed = {"state": "failed", "exit_code": 137, "signal": 9}
    gone = {"state": "stopped", "exit_code": None, "signal": None}
    rows: list[tuple[dict[str, Any], str]] = [
        (STOPPED, LOST),
        (killed, ""),
        ({**FAILED, "exit_code": 1}, LOST),
        (STOPPED, ""),
        (gone, ""),
    ]
    others = judged(rows, first=first).others
    assert [(other.what, other.ranks) for other in others] == [
        ("lost-peer", (0,)),
        ("lost-peer", (2,)),
        ("ended", (3,)),
        ("lost", (4,)),
    ]
    assert missing(others[0].sentence, "0 node1 1 SIGTERM RuntimeError") == []
    assert missing(others[1].sentence, "2 node3 1 RuntimeError") == []
    assert "SIGTERM" not in others[1].sentence


def test_a_rank_that_was_ended_after_it_had_failed_alike_did_not_run_on() -> None:
    usage = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --rate 0.1"
    failed = {**FAILED, "exit_code": 2}
    others = judged([(STOPPED, usage), (failed, usage), (STOPPED, "")], first={**FIRST, "exit_code": 2}).others
    assert [(other.what, other.ranks) for other in others] == [("same", (0,)), ("ended", (2,))]


def test_next_is_the_output_of_the_rank_that_the_cause_names() -> None:
    first = {**FIRST, "rank": 0, "host": "node1"}
    ended = {"state": "ok", "exit_code": 0, "ended_at": 1011.0}
    verdict = judged([(FAILED, LOST), (ended, "nothing to do")], first=first)
    assert [str(command) for command in verdict.next] == ["ipexctl logs train-1 -r 1"]


def test_ranks_whose_exceptions_differ_in_figures_are_one_group() -> None:
    gone = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [10.0.0.{}]:{}"
    rows = [(FAILED, NO_MODULE), *((FAILED, gone.format(rank, 31000 + rank)) for rank in range(1, 6))]
    rows.append(({"state": "failed", "exit_code": 3}, gone.format(9, 9)))
    others = judged(rows, first={**FIRST, "rank": 0, "host": "node1"}).others
    assert [(other.what, other.ranks) for other in others] == [("lost-peer", (1, 2, 3, 4, 5)), ("lost-peer", (6,))]
    assert missing(others[0].sentence, "1-5 exit code 1 [10.0.0.1]:31001") == []


@pytest.mark.parametrize(
    "ended",
    [
        {"state": "stopped", "status": {"exit_code": 143}},
        {"first": {"kind": "time-limit", "rank": None, "host": None, "at": 1012.0}},
    ],
)
def test_stopped_run_reports_its_silence(ended: dict[str, Any]) -> None:
    rows = [{"rank": 0, "host": "node1", "last": "epoch 3", "cpu": 0.0, "waits_in": "futex_wait"}]
    ended = {**ended, "status": {"exit_code": 124, **ended.get("status", {})}}
    silent = {"since": 1001.0, "after": 5.0, "ranks": rows}
    ended = {"first": None, **ended}
    verdict = judged([({"state": "stopped"}, "")], silent=silent, **ended)
    assert missing(verdict.notes[0], "12 ipexctl why last --stacks") == []
    (other,) = verdict.others
    assert missing(other.sentence, "0 node1 futex_wait epoch 3") == []
    talked = judged([({"state": "stopped"}, "")], silent=None, **ended)
    assert not any("--stacks" in note for note in talked.notes)


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        ("Traceback (most recent call last):\nValueError: batch 7 is empty", "script.raised"),
        ("Traceback (most recent call last):\nKeyboardInterrupt", None),
        ("step 7", None),
    ],
)
def test_exception_before_the_time_limit_is_the_cause(printed: str, cause: str | None) -> None:
    first = {"kind": "time-limit", "rank": None, "host": None, "at": 1012.0}
    verdict = judged([(STOPPED, printed), (STOPPED, "")], first=first, status={"exit_code": 124}, silent=None)
    assert cause_id(verdict) == cause
    assert any("longer --time-limit" in note for note in verdict.notes) is (cause is None)


def notes_of_a_run() -> tuple[str, ...]:
    """Notes of a run that was restarted once, with lost output and events, and one rank on other cores."""
    rows = [(STOPPED, ""), ({**FAILED, "lost": 12345, "mismatch": ["only core 1 may be used here"]}, "")]
    attempts = [{"attempt": 0, "reason": "rank 0 on node1 ended with exit code 3"}]
    return judged(rows, status={"unwritten_events": 2, "attempts": attempts}).notes


def note_of_attempts() -> str:
    attempts = [{"attempt": 0, "reason": "REASON"}, {"attempt": 1, "reason": "REASON"}]
    return judged([(STOPPED, ""), (FAILED, "")], status={"attempts": attempts}).notes[0]


def notes_of_notify(**end: Any) -> tuple[str, ...]:
    return judged([({"state": "ok"}, "")], state="ok", first=None, notify=end or None).notes


def test_damaged_record_of_notify_is_a_note() -> None:
    assert notes_of_notify() == ()
    assert len(notes_of_notify(exit_code="3", line=["damaged"])) == 1


def test_a_rank_lost_with_its_node_is_no_failure_of_the_script() -> None:
    first = {**FIRST, "exit_code": None, "kind": "lost", "ranks": [1, 4]}
    rows: list[tuple[dict[str, Any], str]] = [
        (STOPPED, ""),
        ({"state": "lost"}, ""),
        (STOPPED, ""),
        (STOPPED, ""),
        ({"state": "lost"}, ""),
    ]
    verdict = judged(rows, first=first, reason="node2 stopped responding (ranks 1, 4)")
    assert cause_id(verdict) == "node.lost"
    assert [each.ranks for each in verdict.others] == [(0, 2, 3)]


def silent(*ranks: int) -> Callable[[Supervised], object]:
    return lambda run: run.silent_since.update(dict.fromkeys(ranks, 5.0))


@pytest.mark.parametrize(
    ("happens", "plan", "wanted"),
    [
        (lambda run: run.at(5, LauncherExited(-9)), {}, "mpi.ended"),
        (lambda run: run.at(5, LauncherExited(7)), {}, None),
        (lambda run: run.at(5, LauncherExited(-9)), {"flavor": "none", "has_starters": True}, None),
        (lambda run: run.at(5, closed_by_peer(1)), {}, "node.wrapper_killed"),
        (silent(1, 2), {}, "node.cut_off"),
        (silent(2), {}, "node.lost"),
        (lambda run: run.at(0, StartFailed("why", Detail("setup-failed"))), {}, "run.setup_failed"),
    ],
)
def test_ends_that_the_supervisor_records_give_their_cause(
    happens: Callable[[Supervised], object], plan: dict[str, Any], wanted: str | None
) -> None:
    """By the fields of the record alone."""
    run = Supervised(3, per_host=1, **plan).begin().run_until(5)
    happens(run)
    status = run.run_until(32).state.status
    record = status.to_json()
    more = {
        "reason": "in words that no program knows",
        "first": record["first_failure"],
    }
    verdict = judged([(STOPPED, ""), (STOPPED, "")], **more)
    assert cause_id(verdict) == wanted


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        ("no-directory", {"place": "node2", "file": "/code", "what": "/code: gone"}, "run.no_directory"),
        ("no-command", {"place": "node2", "file": "./x", "what": "./x: Exec format error"}, "run.no_command"),
        ("setup-failed", {"place": "node2", "file": "/s.sh", "what": "/s.sh: no"}, "run.setup_failed"),
        ("a-kind-of-tomorrow", {}, "script.exited"),
    ],
)
def test_command_that_was_not_started_is_explained_by_the_record(
    kind: str, fields: dict[str, str], wanted: str
) -> None:
    row = {"state": "failed", "exit_code": 127, "problem": {"kind": kind, "fields": fields}}
    first = {**FIRST, "exit_code": 127, "detail": row["problem"]}
    cause = cause_in(judged([(STOPPED, ""), (row, "any words")], first=first))
    assert cause.id == wanted
    assert missing(cause.sentence, " ".join(fields.get("what", "").split())) == []


@pytest.mark.parametrize(
    ("detail", "wanted"),
    [
        ({"kind": "no-way-back", "fields": {"place": "10.0.0.1:7", "why": "timed out"}}, "run.no_way_back"),
        ({"kind": "wrong-mpi", "fields": {}}, "run.wrong_mpi"),
        ("damaged", None),
    ],
)
def test_details_in_the_log_of_mpirun_are_read_and_not_shown(detail: object, wanted: str | None) -> None:
    log = ["ipexctl: node2: in words that no program knows", DETAIL_MARK + json.dumps(detail)]
    first = {**FIRST, "exit_code": None, "rank": None, "host": None, "kind": "not-begun"}
    verdict = judged([(STOPPED, ""), (STOPPED, "")], first=first, mpirun=log)
    assert cause_id(verdict) == wanted
    assert [line.text for line in verdict.lines] == log[:1]


def test_sentences_of_a_new_record_are_not_read() -> None:
    words = "rank 1 on node2 disconnected: its wrapper process was killed"
    first = {**FIRST, "exit_code": None, "kind": "lost", "detail": {"kind": "silent", "fields": {}}}
    verdict = judged([(STOPPED, ""), (STOPPED, "")], first=first, reason=words)
    assert cause_id(verdict) == "node.lost"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"status": None, "ranks": [], "events": [1, None]},
        {"status": {"ranks": [{"rank": 0}]}, "ranks": {"0": {"out": [0], "err": 7}}},
        {"status": {"id": 3, "state": "failed", "ranks": [{}, 7], "first_failure": {"rank": "x", "at": "y"}}},
        {"status": {"state": "failed", "ranks": [{"rank": 0}], "first_failure": {"rank": 5, "exit_code": True}}},
        {"status": {"state": "running", "silent": True}, "plan": None, "mpirun": "text"},
        {"status": {"state": "no such state", "started": "then", "ended": []}},
    ],
)
def test_damaged_records_are_diagnosed_without_errors(document: dict[str, Any]) -> None:
    assert diagnose(read_snapshot(document, [Chunk(0, "stdout", b"\xff")], "node1")).headline


@pytest.mark.parametrize("piece", ["a", "1", "/x.so", "'"])
def test_patterns_are_fast_on_long_lines(piece: str) -> None:
    line = piece * (30_000 // len(piece))
    sections = ("errors", "hang", "verification", "verification_last")
    for known in (row for section in sections for row in known_errors(section)):
        for pattern in known.patterns:
            began = time.process_time()
            pattern.search(line)
            assert time.process_time() - began < 1, pattern.pattern


def diagnosis_of_lost_output(copied: str | None = None, lost: int = 12345) -> Diagnosis:
    """Rank 1 printed a line; then the disk was full. `copied` is the stderr that the control machine has."""
    failed = {**FAILED, "lost": lost}

    def snapshot(said: str) -> RunSnapshot:
        status = {"supervisor": {"host": "node1"}}
        return read_snapshot(*account([(STOPPED, ""), (failed, said)], first=FIRST, status=status), "node1")

    recorded = snapshot("loading")
    return diagnose(recorded if copied is None else with_copied_output(recorded, snapshot(copied)))


@pytest.mark.parametrize("copied", [None, "", "loading"])
def test_rank_whose_output_is_lost_is_not_said_to_have_printed_no_exception(copied: str | None) -> None:
    verdict = diagnosis_of_lost_output(copied)
    assert cause_id(verdict) == "run.output_lost"
    assert missing(cause_in(verdict).fix, "node1 ipexctl logs train-1 -r 1") == []
    assert [line.text for line in verdict.lines] == ["loading"]
    assert cause_id(diagnosis_of_lost_output(lost=0)) == "script.exited"


def test_copy_with_more_output_than_the_record_gives_the_cause() -> None:
    verdict = diagnosis_of_lost_output(f"loading\n{NO_MODULE}")
    assert cause_id(verdict) == "script.no_module"
    assert [line.text for line in verdict.lines] == ["loading", *NO_MODULE.splitlines()]
    assert cause_id(diagnosis_of_lost_output("loading\nsaving")) == "script.exited"
    assert cause_id(diagnosis_of_lost_output(f"loading\n{NO_MODULE}", lost=0)) == "script.exited"


WRITE_FAILED = "RuntimeError: PytorchStreamWriter failed writing file data/1: file write failed"
FULL_DISK = {"path": "/home/me/my project", "free": 4096, "size": 16_000_000_000}


@pytest.mark.parametrize(
    ("text", "disk", "expected"),
    [
        (WRITE_FAILED, None, "disk.write_failed"),
        ("Traceback (most recent call last):\nValueError: no", FULL_DISK, "script.raised"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_1'", FULL_DISK, "disk.full"),
    ],
)
def test_full_disk_is_the_cause_of_writes_to_it_alone(text: str, disk: dict[str, Any] | None, expected: str) -> None:
    diagnosis = judged([(STOPPED, ""), ({**FAILED, "disk": disk}, text)])
    cause = cause_in(diagnosis)
    assert (cause.id, cause.source) == (expected, "output")
    assert sum("/home/me/my project" in note for note in diagnosis.notes) == (expected == "disk.full")


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (
            ("/w/train.py", "/h/runs/x/hooks/ipexctl_inrank/meter.py", "/e/lib/python3.11/site-packages/torch/f.py"),
            "train.py, line 1",
        ),
        (
            ("<frozen runpy>", "/e/lib/python3.11/site-packages/trl/cli.py", "/usr/lib/python3.11/json.py"),
            "cli.py, line 2",
        ),
        (("/h/runs/x/hooks/ipexctl_hooks.py", "<frozen runpy>"), ""),
    ],
)
def test_the_place_of_an_error_is_the_scripts_or_else_a_packages(files: tuple[str, ...], place: str) -> None:
    frames = [f'  File "{file}", line {at}, in f' for at, file in enumerate(files, 1)]
    output = RankOutput(0, "node1", err=("Traceback (most recent call last):", *frames, "ValueError: x"))
    assert output.place == place


def test_an_exception_is_answered_with_the_call_and_its_script() -> None:
    said = "Traceback (most recent call last):\nKeyError: 'x'"
    asked = {"asked": {"kind": "script", "argv": ["train.py", "--lr", "1"]}}
    assert (
        "then again: ipexctl run train.py --lr 1; " in cause_in(judged([(STOPPED, ""), (FAILED, said)], plan=asked)).fix
    )
