"""The version table's rows from torch 2.0 on, and the newest that fits given hosts. Data is in rows.json.

Whether an index in reach has a row's wheels is not known here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.facts.facts import Facts

_TIERS: Final = ("unsupported", "avx2", "avx512", "avx512_bf16", "amx")


@dataclass(frozen=True, slots=True)
class StackRow:
    """One stack: versions that were built for one another, and what a host must have for them."""

    name: str
    torch: str
    ipex: str | None
    oneccl: str | None
    pythons: tuple[str, ...]
    glibc: str
    retired: bool
    note: str = ""

    @property
    def backend(self) -> str:
        return "ccl" if self.oneccl else "gloo"


@dataclass(frozen=True, slots=True)
class Choice:
    """A row and why it is that one; no row where none fits, and why not."""

    row: StackRow | None
    why: str


@cache
def rows() -> tuple[StackRow, ...]:
    """All rows, newest first."""
    data = json.loads((files("ipexctl.stack") / "rows.json").read_text())
    made = [StackRow(**{**item, "pythons": tuple(item["pythons"])}) for item in data]
    return tuple(reversed(made))


def choose(hosts: Mapping[str, Facts]) -> Choice:
    """The newest row with IPEX and oneCCL that fits every host, else with IPEX, else stock PyTorch."""
    refusals: dict[str, str] = {}
    wanted = sorted(rows(), key=lambda row: (row.oneccl is None, row.ipex is None))
    for row in wanted:
        refusal = next((f"{name} {why}" for name, facts in hosts.items() if (why := misfit(row, facts))), None)
        if refusal is None and (common_python(row, hosts.values()) is None):
            refusal = "the hosts have no Python in common that it is built for"
        if refusal is None:
            return Choice(row, _praise(row, refusals))
        refusals.setdefault(row.name, refusal)
    first = next(iter(refusals.items()), None)
    return Choice(None, f"no row fits: {first[0]}: {first[1]}" if first else "there are no hosts")


def misfit(row: StackRow, facts: Facts) -> str | None:
    """Why a host can't have this row, as the rest of a sentence about it; what isn't known is no reason."""
    system, cpu = facts.system, facts.cpu
    if system.kernel_name not in (None, "Linux"):
        return f"runs {system.kernel_name}"
    if cpu.arch not in (None, "x86_64"):
        return f"is {cpu.arch}; the wheels are for x86_64"
    if row.ipex and cpu.flags and _TIERS.index(cpu.tier) < _TIERS.index("avx2"):
        return "has no AVX2, which IPEX needs"
    if system.libc == "musl":
        return "has musl instead of glibc"
    if system.libc_version and _number(system.libc_version) < _number(row.glibc):
        return f"has glibc {system.libc_version}; {row.name} needs {row.glibc}"
    usable = {minor(python.version) for python in facts.software.pythons if python.version}
    if usable and not usable & set(row.pythons):
        return f"has Python {', '.join(sorted(usable, key=_number))}; {row.name} is built for {_span(row.pythons)}"
    return None


def common_python(row: StackRow, hosts: Iterable[Facts]) -> str | None:
    """The newest Python of this row that every host has; of hosts with unknown Pythons nothing is asked."""
    common = set(row.pythons)
    for facts in hosts:
        if found := {minor(python.version) for python in facts.software.pythons if python.version}:
            common &= found
    return max(common, key=_number, default=None)


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _praise(row: StackRow, refusals: Mapping[str, str]) -> str:
    kind = "with IPEX and oneCCL" if row.oneccl else "with IPEX" if row.ipex else "of stock PyTorch"
    why = f"the newest row {kind} that fits every host"
    newer = next((f"{name}: {refusal}" for name, refusal in refusals.items()), None)
    return f"{why} ({newer})" if newer else why


def _span(pythons: tuple[str, ...]) -> str:
    return pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
