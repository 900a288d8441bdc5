"""The sentence on AMX that a script in fp32 leaves idle, for `why`, `slow`, the end of a run and its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ipexctl.doctor.product_speeds import product_speeds
from ipexctl.hosts.nodeset import fold
from ipexctl.text import printable

_WORTH: Final = 1.1
"""Least speedup worth advising."""


def amx_text(hosts: Mapping[str, str]) -> str:
    """`hosts`: with AMX, and ranks that multiply in fp32; with their `HostPlan.hardware`. Empty without such a host, or
    if their measured gain is small."""
    if not hosts:
        return ""
    measured = product_speeds()
    known = {host: measured[hardware] for host, hardware in hosts.items() if hardware in measured}
    text = (
        f"the script multiplies in fp32; AMX is idle on {fold(hosts)}: --fp32-math bf16, or bf16 autocast in the script"
    )
    if not known:
        return printable(f"{text}; to measure what it brings: ipexctl doctor --smoke")
    host, speeds = max(known.items(), key=lambda each: each[1].rounded / each[1].fp32)
    if speeds.rounded < _WORTH * speeds.fp32:
        return ""
    fp32, rounded = (f"{value / 1e9:.3g}" for value in speeds)
    return printable(f"{text}; {host} by doctor --smoke: {fp32} GFLOP/s, with bf16 inputs {rounded}")
