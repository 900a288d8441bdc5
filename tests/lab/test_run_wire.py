"""A run with --checkpoint and --max-restarts while the network is recorded: the recording has no secret of the run."""

from __future__ import annotations

import base64
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wire_recorder
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.node.common.token_proof import (
    CHECKPOINT_EXCHANGE,
    CHECKPOINT_FILES,
    FILES,
    RANKS,
    ClientHandshake,
    derive_token,
)
from lab_run_helpers import Cluster, by_rank

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
TRAIN = """\
import io, os, signal, sys, time, zipfile

PATH, rank, count = "checkpoints/last.pt", int(os.environ["RANK"]), int(os.environ["RESTART_COUNT"])
step = int(zipfile.ZipFile(PATH).read("step")) if os.path.exists(PATH) else 0
sys.stdout.write(f"a line in clear, from step {step} with {len(os.environ['LAB_SECRET'])}\\n")
sys.stdout.flush()
if rank == 0:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("step", str(step + 5))
        archive.writestr("weights", "w" * 300_000)
    os.makedirs("checkpoints", exist_ok=True)
    with open(PATH + ".tmp", "wb") as file:
        file.write(packed.getvalue())
    os.replace(PATH + ".tmp", PATH)
if count == 0:  # the ranks wait for each other, as in a barrier; one is killed
    if rank == 1:
        while not os.path.exists("go"):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


@contextmanager
def recorded(lab: Lab, path: Path) -> Iterator[None]:
    """Record all of the lab's network; no packet is lost."""
    argv = ["ip", "netns", "exec", lab.switch, sys.executable, "-I", str(HERE / "wire_recorder.py"), str(path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "recording\n"
        yield
    finally:
        out, _ = process.communicate(timeout=60)
    assert int(out) == 0, "packets were lost"


def forms_of(secret: str) -> dict[str, bytes]:
    """A secret as it may cross a network."""
    found = {"text": secret.encode()}
    if re.fullmatch("[0-9a-f]{64}", secret):
        found["bytes"] = bytes.fromhex(secret)
    for name, data in list(found.items()):
        for shift in range(3):  # Base64 of it in the middle of other bytes
            encoded = base64.b64encode(b"\0" * shift + data)
            found[f"base64 of {name}, {shift}"] = encoded[4 * (shift > 0) : len(encoded) - 4]
    return found


def test_no_secret_of_a_run_crosses_the_network(cluster: Cluster, tmp_path: Path) -> None:
    """What strangers at its ports get: process/test_supervisor_port.py, unit/node/test_port_handshake.py."""
    recording, value = tmp_path / "recording", secrets.token_hex(32)
    (env_file := tmp_path / "secret.env").write_text(f"LAB_SECRET={value}\n")
    env_file.chmod(0o600)
    cluster.write("train.py", TRAIN)
    with recorded(cluster.lab, recording):
        options = ("--ppn", "1", "--checkpoint", "checkpoints/last.pt", "--max-restarts", "1")
        running = cluster.begin(*options, "--env-file", env_file, "train.py")
        running.wait_for("a line in clear", times=3, timeout=100)
        job = json.loads(cluster.on(0, f"cat .ipexctl/runs/{running.id}/job.json"))
        assert job["secrets"]["LAB_SECRET"] == value
        plan = json.loads(cluster.on(0, f"cat .ipexctl/runs/{running.id}/plan.json"))
        cluster.on(1, f"touch '{plan['cwd']}/go'")
        assert running.end(100) == 0, running.said()
    lines = [line for of_rank in by_rank(running.out.read_text()).values() for line in of_rank]
    assert [re.findall(r"\d+", line) for line in lines] == [["0", "64"], ["5", "64"]] * 3
    # The recording is one: it has what crosses in clear.
    text = wire_recorder.recorded_bytes(recording)
    assert b"a line in clear, from step 5" in text
    assert b"w" * 10_000 in text
    (*exchanges,) = {match.decode() for match in re.findall(rb'"exchange": "([0-9a-f]{32})"', text)}
    assert len(exchanges) == 2
    tokens = [job["token"], *(derive_token(job["token"], CHECKPOINT_FILES, name) for name in exchanges)]
    keys = [ClientHandshake(token, port)._key.hex() for token in tokens for port in (RANKS, CHECKPOINT_EXCHANGE, FILES)]
    found = [
        (secret, form) for secret in (value, *tokens, *keys) for form, data in forms_of(secret).items() if data in text
    ]
    assert found == []
