"""The steps of doctor."""

from __future__ import annotations

import os
import time
from typing import Literal

from ipexctl.doctor.doctor_run import DoctorRequest, run_doctor
from ipexctl.doctor.finding import DoctorReport
from ipexctl.facts.gather import gather_facts
from ipexctl.homes.registry import RunRegistry
from ipexctl.projects.ipex_use import find_ipex_use_here
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import run_in_background
from ipexctl.stack.catalog import known_rows

InstructionSet = Literal["avx2", "avx512", "avx512_bf16", "amx"]


def doctor(
    opened: OpenHosts, *, require: InstructionSet | None = None, network: bool = True, smoke: bool = False
) -> DoctorReport:
    began = time.monotonic()
    probed = gather_facts(opened, tries_sessions=True)
    answers = run_in_background(lambda: list(probed), "facts")
    opened.pool.connector.load(opened.hosts)

    node0_of, use = RunRegistry().node0_of, find_ipex_use_here()
    request = DoctorRequest(known_rows(os.environ), node0_of, require, network, smoke, use)
    report = run_doctor(opened, answers.result(), request)
    return opened.options.in_report(report._replace(seconds=time.monotonic() - began))  # includes connecting
