"""A large download is announced before it begins, with the smaller stack."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from lock_helpers import plan
from stack_helpers import PYPI, host, index

from ipexctl.remote.progress import Notice
from ipexctl.stack.catalog.table import rows
from ipexctl.stack.install_context import InstallRequest
from ipexctl.stack.lock.lock import Lock, Wheel
from ipexctl.stack.lock.pipeline import LockedStack, announce_stack
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackPlan, StackRequest
from ipexctl.text import readable
from message_data import missing

CPU_BUILD = "torch-2.15.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
GB = 1_000_000_000


def announced(
    sizes: dict[str, int | None],
    *files: str,
    shared: frozenset[str] = frozenset(),
    request: StackRequest = StackRequest(),  # noqa: B008
    chosen: StackPlan | None = None,
) -> list[Notice]:
    """The notices for a stack whose wheels have these sizes, where the indexes have these files."""
    events: list[Any] = []
    wheels = tuple(Wheel(name, "1", f"{name}-1.whl", f"hash-{name}", size) for name, size in sizes.items())
    answer: Any = SimpleNamespace(availability=index(*PYPI, *files))
    context: Any = SimpleNamespace(
        request=InstallRequest(EnvRequest(request), Sources(), rows()),
        facts={"node1": host()},
        watch=events.append,
        notes=[],
    )
    uv = Wheel("uv", "1", "uv-1.whl", "hash-uv")
    announce_stack(
        context, LockedStack(chosen or plan(), Lock("3.11", wheels), uv, answer, True), by="BY", shared=shared
    )
    warnings = [event.text for event in events if event.warning]
    assert context.notes == warnings  # the JSON document has them, too
    return events


@pytest.mark.parametrize(("stack", "ipex"), [(None, True), (None, False), ("torch", False)])
def test_ipex_is_offered_where_the_default_has_none(stack: str | None, ipex: bool) -> None:
    chosen = plan() if ipex else replace(plan(), ipex=None)
    (line,) = announced({"torch": GB}, request=StackRequest(stack=stack), chosen=chosen)
    assert ("--stack ipex" in line.text) == (stack is None and not ipex)


def test_a_small_download_is_one_line() -> None:
    (line,) = announced({"torch": 2 * GB, "numpy": None})
    assert not line.warning
    assert missing(line.text, f"ipex-2.8 3.11 2 wheels {readable(2 * GB)} BY") == []


@pytest.mark.parametrize("is_cuda", [False, True])
def test_download_above_2_gb_warns_and_names_the_smaller_stack(is_cuda: bool) -> None:
    sizes: dict[str, int | None] = {"torch": 2 * GB, "nvidia-cublas" if is_cuda else "big": GB}
    first, second = announced(sizes, CPU_BUILD)
    assert (first.warning, second.warning) == (False, True)
    assert missing(second.text, f"{readable(3 * GB)} {readable(6.3 * GB)} --stack torch-2.15") == []
    assert ("CUDA" in second.text) == is_cuda


def test_large_download_without_a_smaller_stack_names_the_pytorch_cpu_index() -> None:
    assert missing(announced({"torch": 3 * GB})[1].text, "download.pytorch.org/whl/cpu") == []


def test_wheels_already_on_the_hosts_are_not_counted() -> None:
    sizes: dict[str, int | None] = {"torch": 2 * GB, "big": GB}
    assert len(announced(sizes, CPU_BUILD)) == 2
    (line,) = announced(sizes, CPU_BUILD, shared=frozenset({"hash-torch"}))
    assert missing(line.text, readable(GB)) == []
