"""What was asked of a run: every option of the call that hosts may know, typed or default. Pure.

The rest of the spec (`ipexctl/spec.py`) stays on the control machine. A field has a default only if plans of version
0.5 lack it; the defaults of options are in the spec.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple


class AskedExport(NamedTuple):
    name: str
    source: str
    value: str | None
    """None: a secret, whose value only the control machine and job.json have."""


class Asked(NamedTuple):
    kind: str
    """A `CommandKind`."""
    argv: tuple[str, ...]
    n: int | None
    ppn: int | None
    oversubscribe: bool
    bind: str
    omp: int | None
    ccl_workers: int | None
    nice: int
    backend: str
    allreduce: str
    wire: str
    fp32_math: str
    mpi: str
    master_port: int | None
    time_limit: float | None
    launcher: str
    env: str
    python: str | None
    setup: str | None
    offline_hub: bool
    cwd: str | None
    sync: bool
    max_restarts: int
    checkpoint: str | None
    min_hosts: int | None
    spares: int
    hang_after: float
    """Seconds without output from any rank until the silence is reported; 0 for never."""
    exclusive: bool
    wait: float | None
    on_hang: str
    """`report`; `dump` also dumps all stacks; `stop` also stops the run after that."""
    meter: bool
    tag: str | None
    metric: str | None
    exclude: tuple[str, ...]
    include: tuple[str, ...]
    data: tuple[str, ...]
    allow_big: bool
    home: str
    iface: str | None
    exports: tuple[AskedExport, ...]
    checkpoint_is_found: bool
    """True if the path is from a project file; no link may then lead it out of the project."""
    stack: str | None
    torch: str | None
    install: bool
    packages: tuple[str, ...]
    requirements: tuple[str, ...]
    takes_own_requirements: bool
    first_world_size: int
    master_addr: str | None
    local_rank: str
    allocator: str
    openmp: str
    sources: Mapping[str, str]
    is_followed: bool
    resumed: tuple[str, ...]
    extra: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    profile: bool = False
    keep_going: bool = False
    """True if copies end, and start again, on their own."""

    @property
    def has_pool(self) -> bool:
        return self.min_hosts is not None or self.spares > 0
