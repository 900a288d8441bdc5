"""The steps of doctor.

While hosts are slow to answer, those that have answered are already checked once, so that the user sees something.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import wait
from typing import Literal

from ipexctl.doctor.doctor_run import DoctorRequest, run_doctor
from ipexctl.doctor.finding import DoctorReport
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.homes.registry import RunRegistry
from ipexctl.limits import TOLD_AFTER
from ipexctl.projects.ipex_use import find_ipex_use_here
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import ignore_event
from ipexctl.stack.catalog import known_rows

InstructionSet = Literal["avx2", "avx512", "avx512_bf16", "amx"]


def doctor(
    opened: OpenHosts,
    *,
    require: InstructionSet | None = None,
    network: bool = True,
    smoke: bool = False,
    on_early: Callable[[DoctorReport], None] = ignore_event,
) -> DoctorReport:
    """Check the hosts. `on_early`: gets the report of the hosts that have answered, if others are slow.

    `require`: instruction set that each host must have. `smoke`: also measure compute, memory and network.
    """
    began, answers = time.monotonic(), list[HostFacts]()
    probed = gather_facts(opened, tries_sessions=True)
    probing = run_in_background(lambda: deque(map(answers.append, probed), maxlen=0), "facts")
    opened.pool.connector.load(opened.hosts)

    node0_of, use = RunRegistry().node0_of, find_ipex_use_here()
    request = DoctorRequest(known_rows(os.environ), node0_of, require, network, smoke, use)
    wait((probing,), opened.pool.connector.options.connect_timeout + TOLD_AFTER)
    if not probing.done() and (early := tuple(answers)):
        on_early(run_doctor(opened.only(answer.host for answer in early), early, request._replace(smoke=False)))
    probing.result()
    report = run_doctor(opened, answers, request)
    return opened.options.in_report(report._replace(seconds=time.monotonic() - began))  # includes connecting
