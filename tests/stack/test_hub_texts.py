"""Errors of real transformers, datasets and huggingface_hub that may not ask the hub, and what `why` makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Final

import pytest
from real_helpers import require_disk, require_package

from clean_environment import package_environ
from ipexctl.hub.hugging_face import HubRepo, load_call
from ipexctl.known_errors.error_table import known_errors
from ipexctl.known_errors.match import FailureContext, RankOutput, cause_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
MODEL, DATA = "ipexctl push hf:org/tiny", "ipexctl push hf-dataset:org/data"
BY_HAND: Final = "send it to every host with ipexctl push, as hf:ORG/MODEL"
CASES: Final = {
    "from transformers import AutoConfig\nAutoConfig.from_pretrained('org/tiny')": MODEL,
    "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('org/tiny')": MODEL,
    "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained(\n    'org/' + 'tiny')": MODEL,
    "from datasets import load_dataset\nload_dataset('org/data')": DATA,
    "from datasets import load_dataset\nload_dataset('org/data', streaming=True)": DATA,
    "from huggingface_hub import snapshot_download\nsnapshot_download('org/tiny', revision='v1')": f"{MODEL}@v1",
    "from huggingface_hub import snapshot_download\nsnapshot_download('org/data', repo_type='dataset')": DATA,
    "from huggingface_hub import hf_hub_download\nhf_hub_download('org/tiny', 'config.json')": MODEL,
    "from huggingface_hub import HfApi\nHfApi().model_info('org/tiny')": MODEL,
}
MOST_SECONDS: Final = 15
"""Most of them are the import of transformers; without HF_HUB_OFFLINE a tokenizer waits 46 s for retries alone."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the three of PyPI, without torch."""
    directory = tmp_path_factory.mktemp("hub")
    require_disk(directory, 2e9)
    require_package("transformers")
    venv.create(directory)
    argv = [sys.executable, "-m", "pip", "--python", str(directory / "bin/python"), "install", "-q"]
    subprocess.run(
        [*argv, "transformers", "datasets"],
        stdin=subprocess.DEVNULL, check=True, timeout=500, env=package_environ(),
    )  # fmt: skip
    return directory / "bin/python"


def run(python: Path, script: Path, home: Path, **more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", **more}
    began = time.monotonic()
    done = subprocess.run([python, script], capture_output=True, text=True, env=env, timeout=120, check=False)
    return done, time.monotonic() - began


@pytest.mark.parametrize("source", CASES)
def test_why_names_the_push_line_after_seconds(python: Path, tmp_path: Path, source: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    ended, seconds = run(python, script, tmp_path / "empty")
    assert ended.returncode == 1, ended.stderr
    assert seconds < MOST_SECONDS
    output = RankOutput(1, "node2", err=tuple(ended.stderr.splitlines()), exit_code=1)
    cause = cause_of(output, FailureContext("train-1", (output,)), known_errors())
    assert cause is not None, ended.stderr
    assert cause.id == "hf.no_internet"
    is_named = "org/" in ended.stderr  # transformers 5.24 tells no name, and the script's line may compute it
    assert cause.fix.split("; ")[0] == (CASES[source] if is_named else BY_HAND)
    assert is_named or "'org/' +" in source


def test_datasets_load_a_pushed_dataset_by_its_directory(python: Path, tmp_path: Path) -> None:
    repo = tmp_path / "home" / "hub" / "datasets--org--data"
    (repo / "snapshots" / COMMIT).mkdir(parents=True)
    (repo / "snapshots" / COMMIT / "rows.csv").write_text("a,b\n1,2\n")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    script = tmp_path / "train.py"
    script.write_text(
        "from datasets import load_dataset\nfrom huggingface_hub import snapshot_download\n"
        f"print({load_call(HubRepo('dataset', 'org/data'))}['train'][0])\n"
        "load_dataset('org/data')\n"
    )
    ended, _ = run(python, script, tmp_path / "home")
    assert ended.stdout.endswith("{'a': 1, 'b': 2}\n"), ended.stderr
    assert "Couldn't reach 'org/data' on the Hub" in ended.stderr  # also with all of it in the cache
