"""LoRA of a Llama from a config, beside torchrun and accelerate launch: start, tokens, memory, bytes on the wire.

One script (`contenders/finetune.py`), one environment and one model, in a home that both hosts share. The others are
started as their documentation says, on one host by one call, on two by one call on each host.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ipexctl.text import format_count

from .figures import median
from .harness import Contender, Failed, end_of, failure, in_turns, say, spend
from .part_train import TORCH
from .report import Goal, Report
from .rig import CONTENDERS, Rig, ipexctl, laboratory

SCRIPT: Final = "finetune.py"
SIZES: Final = ("tiny", "158m", "1b", "7b")
LARGE: Final = ("7b",)
"""Sizes of which this machine holds one copy: for two ranks on one host, in a cgroup, and for few tokens and steps."""
SPARE: Final = 2 << 30
"""Bytes of this machine's memory outside the cgroup."""
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
    host: float
    """All processes of the account, each page once."""
    sent: float


def measure(rig: Rig) -> Report:
    project = rig.scratch / "finetune"
    project.mkdir()
    shutil.copy(CONTENDERS / SCRIPT, project)
    places = PLACES[1:2] if rig.size in LARGE else PLACES
    found: dict[tuple[Place, str], Sequence[Training | None]] = {}
    limit = limited_memory() if rig.size in LARGE else nullcontext(lambda: 0)
    with limit as kills, laboratory(HOSTS if len(places) > 1 else 1, shared_home=True) as lab:
        rig = replace(rig, lab=lab)
        hosts = len(lab.hosts)
        say(f"finetune: installing torch {TORCH}, transformers and peft on the lab's hosts")
        packages = [word for name in ("transformers", "accelerate", "peft") for word in ("--with", name)]
        spend(
            ipexctl("install", "install", *rig.where(hosts), "--stack", "torch", "--torch", TORCH, *packages), rig.env
        )
        model = f"{lab.hosts[0].home}/model"
        spend(_run(rig, Place(1, 1), project, "make", rig.size, model), rig.env)
        ((_, tree),) = rig.on_hosts("ls -d $HOME/.ipexctl/code/finetune-*", 1)
        for place in places:
            contenders = _contenders(rig, place, project, f"{tree}/{SCRIPT}", model)

            def once(
                name: str, contenders: Mapping[str, Contender] = contenders, place: Place = place
            ) -> Training | None:
                return _training(rig, contenders[name], place, kills)

            found |= {(place, name): each for name, each in in_turns(list(contenders), rig.runs, once).items()}
    return _report(rig, found)


@contextmanager
def limited_memory() -> Iterator[Callable[[], int]]:
    """Put this process, and what it starts, into a cgroup with this machine's memory but for SPARE. Yields what counts
    the processes that were killed there. They are the first that the kernel kills outside of it, too."""
    root = Path("/sys/fs/cgroup")
    (known, limit, events), root = (
        (("memory", "memory.limit_in_bytes", "memory.oom_control"), root / "memory")
        if (root / "memory").is_dir()
        else (("", "memory.max", "memory.events"), root)
    )
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    before = next(path for _, names, path in lines if known in names.split(","))
    group = root / f"ipexctl-benchmark-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - SPARE))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        Path("/proc/self/oom_score_adj").write_text("900")
        yield lambda: int((group / events).read_text().partition("oom_kill ")[2].split()[0])
    finally:
        (root / before.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _run(
    rig: Rig, place: Place, project: Any, *words: object, options: Sequence[object] = (), name: str = OURS
) -> Contender:
    call = ("run", "--plain", "--quiet", *rig.where(place.hosts), "--ppn", place.ranks, *_threads(place), *options)
    return ipexctl(name, *call, project / SCRIPT, *words)


def _threads(place: Place) -> tuple[str, ...]:
    """All hosts share two cores."""
    return ("--omp", "1" if place.hosts * place.ranks > 1 else "2")


def _contenders(rig: Rig, place: Place, project: Any, script: str, model: str) -> dict[str, Contender]:
    words = ("train", model, *(("8", "2") if rig.size in LARGE else ("128", "5")))
    found = {
        OURS: _run(rig, place, project, *words),
        TORCHRUN: _by_hand(rig, place, "torchrun --nnodes {hosts} --nproc-per-node {ranks} {meeting}", script, *words),
    }
    if rig.size in LARGE:
        return found
    if place.hosts * place.ranks > 1:
        found[APART] = _run(rig, place, project, *words, options=("--share-weights", "off"), name=APART)
    if place.hosts == 1:
        line = "accelerate launch --cpu --num_processes {ranks} --num_machines 1"
        found[ACCELERATE] = _by_hand(
            rig, place, line if place.ranks == 1 else f"{line} --mpirun_hostfile hosts", script, *words
        )
    else:
        found[FULL] = _run(rig, place, project, *words, "--full", name=FULL)
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


def _training(rig: Rig, contender: Contender, place: Place, kills: Callable[[], int]) -> Training | None:
    """None if the kernel killed a rank for want of memory."""
    begun, killed = time.time(), kills()
    end, output = end_of(contender, rig.env)
    if end.code and kills() > killed:
        say(f"finetune: {place}: {contender.name}: killed for want of memory")
        return None
    if end.code:
        raise failure(contender, end, output)
    rows = [json.loads(line.partition(_FIGURES)[2]) for line in output.splitlines() if _FIGURES in line]
    if len(rows) != place.hosts * place.ranks:
        raise Failed(f"{contender.name} trained with {len(rows)} ranks on {place}:\n{output[-2000:]}")
    most = {name: max(row[name] for row in rows) for name in rows[0]}
    found = Training(**{**most, "first": most["first"] - begun})
    say(f"finetune: {place}: {contender.name}: {found}")
    return found


def _report(rig: Rig, found: Mapping[tuple[Place, str], Sequence[Training | None]]) -> Report:
    def value(place: Place, name: str, field: str) -> float | None:
        figures = [getattr(each, field) for each in found.get((place, name), ()) if each is not None]
        return median(figures) if figures else None

    def cell(place: Place, name: str, field: str, form: str) -> str:
        figure = value(place, name, field)
        return "killed" if figure is None else f"{figure:{form}}"

    forms = {
        "first": ".1f", "tokens_per_s": ".1f", "private": ".0f", "shared": ".0f", "most": ".0f", "host": ".0f",
        "sent": ".1f",
    }  # fmt: skip
    rows = tuple(
        (f"{place}: {name}", *(cell(place, name, field, form) for field, form in forms.items()))
        for place, name in found
    )
    one_host, two_hosts = PLACES[1:]
    goals = []
    for place, field, what in (
        (one_host, "private", "private memory of a rank, 2 ranks on a host"),
        (one_host, "host", "memory of a host, 2 ranks"),
        (two_hosts, "sent", "bytes that a host sends, 2 hosts"),
    ):
        ours, theirs = value(place, OURS, field), value(place, TORCHRUN, field)
        if ours is not None and theirs is not None:
            goals.append(Goal(f"{what}: ≤ 1x torchrun", f"{ours / max(theirs, 1e-9):.2f}x", ours <= theirs))
    for place in PLACES:
        ours, theirs = value(place, OURS, "tokens_per_s"), value(place, TORCHRUN, "tokens_per_s")
        if ours is not None and theirs is not None:
            goals.append(Goal(f"{place}: a step ≤ {_AIM}x torchrun's", f"{theirs / ours:.2f}x", theirs / ours <= _AIM))
    header = (
        f"Llama {rig.size}, LoRA r=16",
        *("first step, s", "tokens/s", "private MB", "shared MB", "most MB", "host MB", "MB sent"),
    )
    note = "MB: of the rank, and of the host, that has most, in a step. `killed`: by the kernel, for want of memory."
    return Report(rig.runs, header, rows, tuple(goals), (note,))
