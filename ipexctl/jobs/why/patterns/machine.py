"""Known error texts and signals that come from the machine: memory, disks, limits, the processor.

Special patterns come before common ones; docs/troubleshooting.md has the ids.
"""

from __future__ import annotations

import signal
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.why.patterns.match import KnownError, PatternMatch

_SHM: Final = (
    "if free -h shows that much, enlarge it, as root: mount -o remount,size=8G /dev/shm (in a container: "
    "--shm-size 8g); or use no DataLoader workers: num_workers=0"
)
_LESS_MEMORY: Final = "use a smaller batch, fewer ranks per node (--ppn) or fewer DataLoader workers"
_TIERS: Final = {
    "amx": "AVX-512 and AMX",
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512": "AVX-512",
    "avx2": "AVX2 and no AVX-512",
    "unsupported": "less than AVX2",
}


def _illegal(found: PatternMatch) -> tuple[str, str]:
    host = found.output.host
    can = _TIERS.get(found.context.tiers.get(host, ""))
    has = f"; it has {can}" if can else ""
    others = sorted({tier for name, tier in found.context.tiers.items() if name != host and tier})
    more = " (other hosts of this run have more)" if can and others and others != [found.context.tiers[host]] else ""
    return (
        f"the processor of {host} does not support an instruction of a program or library{has}{more}",
        (
            "ipexctl doctor shows each processor's instruction set; ipexctl install takes a "
            "stack that runs on all; or --limit "
            f"'!{host}'"
        ),
    )


def _worker_killed(found: PatternMatch) -> tuple[str, str]:
    by = found.groups.get("by", "")
    if "Bus error" in by or "shm" in found.groups.get("more", ""):
        return f"a DataLoader worker on {found.output.host} ran out of shared memory (/dev/shm)", _SHM
    if "Killed" in by:
        where = f"a DataLoader worker on {found.output.host}"
        return f"{where} was killed, most likely by the kernel because memory was short", _LESS_MEMORY
    return (
        f"a DataLoader worker on {found.output.host} died{' of ' + by if by else ''}; its own error is above that line",
        f"num_workers=0 shows the worker's own error; ipexctl logs {found.context.run} -r {found.output.rank} --stderr",
    )


def _full(found: PatternMatch) -> tuple[str, str]:
    if any(word in found.output.last_text for word in ("/dev/shm", "/torch_")):  # noqa: S108
        return f"shared memory (/dev/shm) is full on {fold(found.hosts)}", _SHM
    return (
        f"a disk is full on {fold(found.hosts)}, or a quota is used up",
        "find it: ipexctl exec -- df -h . /tmp /dev/shm; write checkpoints to another place, or fewer of them",
    )


def _segfault(found: PatternMatch) -> tuple[str, str] | None:
    output = found.output
    at = f" ({output.place})" if output.place else ""
    if found.context.plan.get("backend") == "ccl":
        return (
            (
                f"rank {output.rank} crashed in a library{at}; with the ccl backend, a oneCCL older than its bindings "
                "often does this at the first collective"
            ),
            "ipexctl install tests an all-reduce on every node; to test without oneCCL: --backend gloo",
        )
    return (
        f"rank {output.rank} crashed in a library{at}",
        (
            "packages built for another torch often do this: ipexctl envs shows the versions; to test without this "
            f"node: ipexctl run --limit '!{output.host}'"
        ),
    )


MACHINE: Final = (
    KnownError(
        "memory.dataloader",
        (
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: (?P<by>[^.]+)(?P<more>.*)",
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) exited unexpectedly",
        ),
        tell=_worker_killed,
    ),
    KnownError(
        "memory.shm",
        (
            r"unable to open shared memory object",
            r"unable to allocate shared memory",
            r"insufficient shared memory",
            r"unable to mmap \d+ bytes from file",
            r"Bus error",
        ),
        "{host} has too little shared memory (/dev/shm) for its ranks and DataLoader workers",
        _SHM,
        signals=(signal.SIGBUS,),
    ),
    KnownError(
        "memory.refused",
        (
            r"DefaultCPUAllocator: can't allocate memory",
            r"DefaultCPUAllocator: not enough memory",
            r"std::bad_alloc",
            r"^MemoryError",
            r"Unable to allocate .+ for an array",
            r"\[Errno 12\] Cannot allocate memory",
        ),
        "{host} has too little memory for an allocation of rank {rank}",
        _LESS_MEMORY,
    ),
    KnownError(
        "disk.full",
        (r"No space left on device", r"\bENOSPC\b", r"Disk quota exceeded"),
        tell=_full,
    ),
    KnownError(
        "disk.read_only",
        (r"\[Errno 30\] Read-only file system: '(?P<path>[^']+)'", r"Read-only file system"),
        "the script writes to a read-only filesystem on {host}: {path}",
        "write below the home or /tmp; ipexctl exec -- touch FILE tests a path",
    ),
    KnownError(
        "disk.stale",
        (r"\[Errno 116\] Stale file handle", r"Stale file handle"),
        "a file on a file server was replaced while rank {rank} had it open",
        "don't change the project or the data on the server during a run; then run it again",
    ),
    KnownError(
        "limit.files",
        (r"\[Errno 24\] Too many open files", r"Too many open files"),
        "rank {rank} has reached its limit of open files",
        "use torch.multiprocessing.set_sharing_strategy('file_system') or fewer DataLoader "
        "workers; the limit: ulimit -n",
    ),
    KnownError(
        "limit.threads",
        (
            r"can't start new thread",
            r"libgomp: Thread creation failed",
            r"pthread_create failed",
            r"OMP: Error #\d+: .*[Tt]hread",
            r"\[Errno 11\] Resource temporarily unavailable",
        ),
        "this account has reached its limit of threads and processes on {host}",
        "use fewer ranks per node (--ppn), --omp N or fewer DataLoader workers; the limit there: ulimit -u",
    ),
    KnownError(
        "cpu.illegal_instruction",
        (r"Illegal instruction", r"Please verify that both the operating system and the processor support"),
        signals=(signal.SIGILL,),
        tell=_illegal,
    ),
    KnownError(
        "memory.killed",
        (r"Out of memory: Killed process", r"oom-kill:constraint"),
        "rank {rank} was killed, and not by ipexctl: most often by the kernel because memory was short",
        "on {host}, as root: dmesg -T | grep -i kill shows it; if memory was short: " + _LESS_MEMORY,
        confidence="possible",
        signals=(signal.SIGKILL,),
    ),
    KnownError(
        "process.crashed",
        (r"Fatal Python error: Segmentation fault", r"^Segmentation fault"),
        confidence="possible",
        signals=(signal.SIGSEGV,),
        tell=_segfault,
    ),
    KnownError(
        "process.aborted_at_exit",
        (r"terminate called without an active exception",),
        "a thread of a library was still running when the Python of rank {rank} ended, and aborted it; PyTorch's gloo "
        "does that when a rank ends at once after a collective, with its work done",
        "check that the output of rank {rank} is complete: ipexctl logs {run} -r {rank}; "
        "torch.distributed.barrier() before destroy_process_group() gives the thread time to finish",
        confidence="possible",
        signals=(signal.SIGABRT,),
    ),
    KnownError(
        "process.aborted",
        (r"terminate called after throwing an instance of '(?P<what>[^']+)'", r"Fatal Python error: Aborted"),
        "a library aborted the process of rank {rank}; its message is above",
        "the whole message: ipexctl logs {run} -r {rank} --stderr",
        confidence="possible",
        signals=(signal.SIGABRT,),
    ),
    KnownError(
        "process.floating_point",
        (r"Floating point exception",),
        "a library in rank {rank} divided by zero",
        "its whole stderr: ipexctl logs {run} -r {rank} --stderr",
        confidence="possible",
        signals=(signal.SIGFPE,),
    ),
    KnownError(
        "process.told_to_go",
        (),
        "rank {rank} was terminated by a signal that ipexctl did not send: from another session of yours, from a job "
        "scheduler, or because {host} was shut down",
        "check whether {host} is up and still yours: ipexctl doctor --limit {host}; then run it again",
        confidence="possible",
        signals=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    ),
    KnownError(
        "limit.cpu_time",
        (),
        "rank {rank} has reached the limit of CPU time for a process on {host}",
        "ulimit -t there shows the limit",
        signals=(signal.SIGXCPU,),
    ),
)
