"""A run with --checkpoint and --max-restarts beside a stranger and a liar, while the network is recorded.

The stranger fills each port of the run as it is opened, from the address of a host of the run and from one of its own;
the liar sends half frames, noise and the hellos that it has recorded. The recording has no secret of the run.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import wire_recorder
from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import Lab, LabHost
from ipexctl.extras.lab.system import run
from ipexctl.node.common.handshake import (
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
PROGRAMS = ("run.supervisor", "files.checkpoint")
"""Programs of a run that listen."""
LISTENING = "0A"
STRANGERS = 150
"""Connections held at each port from each address; the port's own limit is 32 of one address."""
REPLAYED = 4
"""Hellos of the first attempt that are sent again: of two ranks, and of their parts in the exchange."""
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


def listening_programs() -> list[tuple[int, str]]:
    """The pids of the programs of a run that may listen, on any host of any lab."""
    found = []
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            pid = int(entry)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            found += [(pid, name) for name in PROGRAMS if name in words]
    return found


def listening_ports() -> dict[tuple[str, int], str]:
    """Address and port → the program of a run that listens there."""
    found = {}
    for pid, program in listening_programs():
        with suppress(OSError):
            files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING and f"socket:[{words[9]}]" in files:
                    address, _, port = words[1].partition(":")
                    text = ".".join(str(byte) for byte in bytes.fromhex(address)[::-1])
                    found[text, int(port, 16)] = program
    return found


class Strangers:
    """Fills the ports of all hosts as they are opened, from the namespace of one of them."""

    def __init__(self, lab: Lab, source: LabHost, own_address: str, recording: Path) -> None:
        self.report: dict[str, dict[str, Any]] = {}
        self.programs: dict[str, str] = {}
        """ADDRESS:PORT → the program that listened there."""
        self.replayed: list[bytes] = []
        self._targets = {host.peer_address for host in lab.hosts}
        self._sources, self._recording = (source.peer_address, own_address), recording
        self._over = threading.Event()
        argv = ["ip", "netns", "exec", source.netns, sys.executable, "-I", str(HERE.parent / "strangers.py")]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        recording = wire_recorder.Recording(self._recording)
        while not self._over.wait(0.02):
            for (address, port), program in listening_ports().items():
                if address in self._targets and f"{address}:{port}" not in self.programs:
                    self.programs[f"{address}:{port}"] = program
                    self._send(*(f"fill {address} {port} {source} {STRANGERS}" for source in self._sources))
            # Later hellos are not needed, and to read all that strangers send would take too long.
            for flow in recording.update() if len(self.replayed) < REPLAYED else ():
                hello = hello_in(bytes(recording.flows[flow][:5000]))
                if hello and flow[0] not in self._sources[1:] and hello not in self.replayed:
                    self.replayed.append(hello)
                    self._send(f"replay {hello.hex()}")

    def _send(self, *lines: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()

    def __enter__(self) -> Strangers:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.report = json.loads(self._process.communicate(timeout=20)[0])


def hello_in(data: bytes) -> bytes:
    """The frame of a hello at the beginning of what a client has sent; empty if there is none."""
    size = int.from_bytes(data[:4], "big")
    return data[: 5 + size] if data[5:].startswith(b'{"t": "hello"') and len(data) >= 5 + size else b""


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


@contextmanager
def another_address(host: LabHost) -> Iterator[str]:
    """An address of that host that is not in the hostfile."""
    address = host.peer_address.rpartition(".")[0] + ".211"
    run(["ip", "-netns", host.netns, "address", "add", f"{address}/32", "dev", "eth0"])
    try:
        yield address
    finally:
        run(["ip", "-netns", host.netns, "address", "delete", f"{address}/32", "dev", "eth0"])


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


def test_secrets_and_strangers_on_the_wire(cluster: Cluster, tmp_path: Path) -> None:
    lab, recording, value = cluster.lab, tmp_path / "recording", secrets.token_hex(32)
    cluster.write("train.py", TRAIN)
    setup = f"/tmp/slow-{value[:8]}.sh"
    for number in range(3):  # the ports of the run are open for a while before its ranks connect
        cluster.on(number, f"echo sleep 2.5 >{setup}")
    options = ("--ppn", "1", "--setup", setup, "--checkpoint", "checkpoints/last.pt", "--max-restarts", "1")
    with (
        recorded(lab, recording),
        another_address(lab.hosts[2]) as address,
        Strangers(lab, lab.hosts[2], address, recording) as strangers,
    ):
        running = cluster.begin(*options, "-x", f"LAB_SECRET={value}", "train.py")
        running.wait_for("a line in clear", times=3, timeout=100)
        rundir = f".ipexctl/runs/{running.id}"
        job = json.loads(cluster.on(0, f"cat {rundir}/job.json"))
        assert job["variables"]["LAB_SECRET"] == value
        cluster.on(1, f"touch '{job['cwd']}/go'")
        assert running.end(100) == 0, running.said()
    # The verdict is that of a run without strangers.
    status = json.loads(cluster.on(0, f"cat {rundir}/status.json"))
    assert (status["state"], status["exit_code"], len(status["attempts"])) == ("ok", 0, 1)
    first = status["attempts"][0]["first_failure"]
    assert (first["kind"], first["rank"], first["signal"]) == ("signal", 1, 9)
    lines = [line for of_rank in by_rank(running.out.read_text()).values() for line in of_rank]
    assert [re.findall(r"\d+", line) for line in lines] == [["0", "64"], ["5", "64"]] * 3
    # The strangers were there, at all kinds of ports, and got no further.
    supervisor = [port for port, program in strangers.programs.items() if program == "run.supervisor"]
    assert len(supervisor) == 3  # that of the ranks, and one for the exchange of each attempt
    for port in supervisor:
        assert strangers.report[port]["connections"] > STRANGERS, strangers.report
    assert len(strangers.replayed) >= REPLAYED
    assert {kind for row in strangers.report.values() for kind in row["received"]} <= {"challenge", "refused"}
    # The recording is one: it has what crosses in clear.
    text = wire_recorder.Recording(recording).text()
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
