"""LoRA of a Llama from a config, beside torchrun and accelerate launch: start, tokens, memory, bytes on the wire.

One script (`contenders/finetune.py`), one environment and one model, in a home that both hosts share. The others are
started as their documentation says, on one host by one call, on two by one call on each host.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ipexctl.text import format_count

from .figures import median
from .harness import Contender, Failed, good_end_of, in_turns, say, spend
from .part_train import TORCH
from .report import Goal, Report
from .rig import CONTENDERS, Rig, ipexctl, laboratory

SCRIPT: Final = "finetune.py"
SIZES: Final = ("tiny", "158m", "1b")
OURS, APART, TORCHRUN, ACCELERATE, FULL = (
    *("ipexctl run", "ipexctl run --share-weights off", "torchrun", "accelerate launch"),
    "ipexctl run, all weights under FSDP2",
)
PORT: Final = 29511
HOSTS: Final = 2
_FIGURES: Final = "figures "
_AIM: Final = 1.02


@dataclass(frozen=True, slots=True)
class Place:
    hosts: int
    ranks: int
    """On each host."""

    def __str__(self) -> str:
        return f"{format_count(self.hosts, 'host')}, {format_count(self.hosts * self.ranks, 'rank')}"


PLACES: Final = (Place(1, 1), Place(1, 2), Place(2, 1))


@dataclass(frozen=True, slots=True)
class Training:
    """One training: seconds from the call to the end of the first step, and what follows; sizes in MB, of the rank that
    has most."""

    first: float
    tokens_per_s: float
    private: float
    shared: float
    most: float
    sent: float


def measure(rig: Rig) -> Report:
    project = rig.scratch / "finetune"
    project.mkdir()
    shutil.copy(CONTENDERS / SCRIPT, project)
    found: dict[tuple[Place, str], Sequence[Training]] = {}
    with laboratory(HOSTS, shared_home=True) as lab:
        rig = replace(rig, lab=lab)
        say(f"finetune: installing torch {TORCH}, transformers and peft on the lab's hosts")
        packages = [word for name in ("transformers", "accelerate", "peft") for word in ("--with", name)]
        spend(
            ipexctl("install", "install", *rig.where(HOSTS), "--stack", "torch", "--torch", TORCH, *packages), rig.env
        )
        model = f"{lab.hosts[0].home}/model"
        spend(_run(rig, Place(1, 1), project, "make", rig.size, model), rig.env)
        ((_, tree),) = rig.on_hosts("ls -d $HOME/.ipexctl/code/finetune-*", 1)
        for place in PLACES:
            contenders = _contenders(rig, place, project, f"{tree}/{SCRIPT}", model)

            def once(name: str, contenders: Mapping[str, Contender] = contenders, place: Place = place) -> Training:
                return _training(rig, contenders[name], place)

            found |= {(place, name): each for name, each in in_turns(list(contenders), rig.runs, once).items()}
    return _report(rig, found)


def _run(rig: Rig, place: Place, project: Any, *words: object, options: Sequence[object] = ()) -> Contender:
    call = ("run", "--plain", "--quiet", *rig.where(place.hosts), "--ppn", place.ranks, *_threads(place), *options)
    return ipexctl(OURS, *call, project / SCRIPT, *words)


def _threads(place: Place) -> tuple[str, ...]:
    """All hosts share two cores."""
    return ("--omp", "1" if place.hosts * place.ranks > 1 else "2")


def _contenders(rig: Rig, place: Place, project: Any, script: str, model: str) -> dict[str, Contender]:
    words = ("train", model)
    found = {
        OURS: _run(rig, place, project, *words),
        TORCHRUN: _by_hand(rig, place, "torchrun --nnodes {hosts} --nproc-per-node {ranks} {meeting}", script, *words),
    }
    if place.hosts * place.ranks > 1:
        found[APART] = _run(rig, place, project, *words, options=("--share-weights", "off"))
    if place.hosts == 1:
        line = "accelerate launch --cpu --num_processes {ranks} --num_machines 1"
        found[ACCELERATE] = _by_hand(
            rig, place, line if place.ranks == 1 else f"{line} --mpirun_hostfile hosts", script, *words
        )
    else:
        found[FULL] = _run(rig, place, project, *words, "--full")
    return found


def _by_hand(rig: Rig, place: Place, launcher: str, *words: str) -> Contender:
    """The launcher's line on each host, by ssh."""
    node0, (_, threads) = rig.addresses(1)[0], _threads(place)
    env = f"{rig.lab.hosts[0].home}/.ipexctl/envs/default"
    variables = f"OMP_NUM_THREADS={threads} GLOO_SOCKET_IFNAME=eth0 PATH={env}/bin:$PATH I_MPI_ROOT={env}"
    lines = []
    for at, name in enumerate(rig.names(place.hosts)):
        meeting = f"--node-rank {at} --master-addr {node0} --master-port {PORT}"
        line = launcher.format(hosts=place.hosts, ranks=place.ranks, meeting=meeting)
        on_host = f"echo localhost >hosts; {variables} {env}/bin/{line} {' '.join(words)}"
        lines.append(f"{rig.peers['ssh']} -F {rig.lab.ssh_config} {name} '{on_host}' &")
    title = launcher.partition(" --")[0]
    return Contender(title, ("sh", "-c", "\n".join([*lines, *("wait $! || exit 1" for _ in lines[:1]), "wait"])))


def _training(rig: Rig, contender: Contender, place: Place) -> Training:
    begun = time.time()
    _, output = good_end_of(contender, rig.env)
    rows = [json.loads(line.partition(_FIGURES)[2]) for line in output.splitlines() if _FIGURES in line]
    if len(rows) != place.hosts * place.ranks:
        raise Failed(f"{contender.name} trained with {len(rows)} ranks on {place}:\n{output[-2000:]}")
    most = {name: max(row[name] for row in rows) for name in rows[0]}
    found = Training(**{**most, "first": most["first"] - begun})
    say(f"finetune: {place}: {contender.name}: {found}")
    return found


def _report(rig: Rig, found: Mapping[tuple[Place, str], Sequence[Training]]) -> Report:
    def value(place: Place, name: str, field: str) -> float:
        return median([getattr(each, field) for each in found[place, name]])

    forms = {"first": ".1f", "tokens_per_s": ".1f", "private": ".0f", "shared": ".0f", "most": ".0f", "sent": ".1f"}
    rows = tuple(
        (f"{place}: {name}", *(f"{value(place, name, field):{form}}" for field, form in forms.items()))
        for place, name in found
    )
    one_host, two_hosts = PLACES[1:]
    goals = []
    for place, field, what in (
        (one_host, "private", "private memory of a rank, 2 ranks on a host"),
        (one_host, "most", "its most, 2 ranks on a host"),
        (two_hosts, "sent", "bytes that a host sends, 2 hosts"),
    ):
        share = value(place, OURS, field) / max(value(place, TORCHRUN, field), 1e-9)
        goals.append(Goal(f"{what}: ≤ 1x torchrun", f"{share:.2f}x", share <= 1))
    for place in PLACES:
        slower = value(place, TORCHRUN, "tokens_per_s") / value(place, OURS, "tokens_per_s")
        goals.append(Goal(f"{place}: a step ≤ {_AIM}x torchrun's", f"{slower:.2f}x", slower <= _AIM))
    header = (
        f"Llama {rig.size}, LoRA r=16",
        *("first step, s", "tokens/s", "private MB", "shared MB", "most MB", "MB sent"),
    )
    return Report(rig.runs, header, rows, tuple(goals), ("MB: of the rank, and of the host, that has most.",))
