"""Run by one rank on each of some hosts: values that codecs may damage, over a link of each mode. Prints `right`.

    $IPEXCTL_WIRE    the mode

All ranks must get the same bits, which are near the sum in fp64 as far as the mode allows it.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

MODE = os.environ["IPEXCTL_WIRE"]
NEAR = {"bf16": 0.01, "int8": 0.02}[MODE]
"""Of the largest value of a block."""
BLOCK = 1024
SIZES = (1, 3, 1023, 1024, 1025, 12_293, 600_001, 1_500_000)


class Ways:
    """The link of this rank, and what all ranks have."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        connect = importlib.import_module("ipexctl_inrank.link").connect
        self.link = connect(store, self.rank, self.ranks, "values", "", 60.0, wire=MODE)

    def total(self, tensor: Any, lost: Any = None) -> Any:
        """By the link; all ranks must have the same bits."""
        future = self.link.all_reduce(self, tensor, 1.0, {} if lost is None else lost)
        self.link.channel.finish()
        found = future.value()
        assert found.data_ptr() == tensor.data_ptr()
        others = [torch.empty_like(found) for _ in range(self.ranks)]
        dist.all_gather(others, found)
        for other in others:
            assert torch.equal(other.view(torch.uint8), found.view(torch.uint8)), "ranks have different bits"
        return found

    def all(self, make: Any) -> list[Any]:
        return [make(rank) for rank in range(self.ranks)]


def noise(seed: int, elements: int) -> Any:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def check_near(ways: Ways, dtype: Any, elements: int, scale: float = 1.0) -> None:
    terms = ways.all(lambda rank: (noise(rank, elements) * scale).to(dtype))
    found = ways.total(terms[ways.rank].clone())
    assert found.dtype == dtype
    expected = sum(term.double() for term in terms)
    most = max(float(term.double().abs().max()) for term in terms)
    difference = float((found.double() - expected).abs().max())
    assert difference <= NEAR * ways.ranks * most, (dtype, elements, difference, most)


def check_undefined(ways: Ways, value: float) -> None:
    """On one rank, in the second block: it reaches all ranks, and nothing else of other blocks."""
    terms = ways.all(lambda rank: noise(rank, 5 * BLOCK))
    terms[1][BLOCK + 7] = value
    lost: dict[int, Any] = {}
    found = ways.total(terms[ways.rank].clone(), lost)
    assert not found[BLOCK + 7].isfinite()
    if MODE == "int8":
        assert not found[BLOCK : 2 * BLOCK].isfinite().any(), "a block with it is undefined as a whole"
    rest = torch.cat([found[:BLOCK], found[2 * BLOCK :]])
    assert rest.isfinite().all()
    again = ways.total(noise(9 + ways.rank, 5 * BLOCK), lost)
    assert again.isfinite().all(), "what was undefined must not come again"


def check_small(ways: Ways) -> None:
    assert not ways.total(torch.zeros(3000)).any()
    tiny = torch.full((3000,), 1e-39)
    assert ways.total(tiny).abs().max() <= 1e-38 * ways.ranks
    mixed = torch.zeros(2 * BLOCK)
    mixed[::BLOCK] = 127.0
    found = ways.total(mixed.clone())
    assert not found[mixed == 0].any(), "zeros beside large values stay zeros"
    assert (found[::BLOCK] - 127.0 * ways.ranks).abs().max() <= NEAR * 127.0


def check_feedback(ways: Ways) -> None:
    """Values far below the scale of their block come in the end, by what is kept of them."""
    lost: dict[int, Any] = {}
    values = torch.full((2 * BLOCK,), 0.001)
    values[::BLOCK] = 1.0
    steps, total = 200, torch.zeros(2 * BLOCK)
    for _ in range(steps):
        total += ways.total(values.clone(), lost)
    wanted = values * ways.ranks * steps
    assert (total - wanted).abs().max() <= 0.02 * ways.ranks, float((total - wanted).abs().max())


def check_wrong_step(ways: Ways) -> None:
    """What a step loses whose values are far too large, so that a script leaves it out, is in no other."""
    lost: dict[int, Any] = {}
    for step, scale in enumerate((1.0, 1e30, 1.0)):
        terms = ways.all(lambda rank, step=step, scale=scale: noise(9 * step + rank, 5 * BLOCK) * scale)
        found = ways.total(terms[ways.rank].clone(), lost)
        assert (found - sum(terms)).abs().max() <= NEAR * ways.ranks * 5 * scale, (step, found.abs().max())


def main() -> None:
    dist.init_process_group("gloo")
    ways = Ways()
    for elements in SIZES:
        check_near(ways, torch.float32, elements)
        check_near(ways, torch.float64, elements)
    for dtype in (torch.float16, torch.bfloat16) if MODE == "int8" else ():
        check_near(ways, dtype, 12_293)
    check_near(ways, torch.float32, 12_293, 1e30)
    check_near(ways, torch.float32, 12_293, 1e-20)
    for value in (float("inf"), float("-inf"), float("nan")):
        check_undefined(ways, value)
    check_small(ways)
    if MODE == "int8":
        check_feedback(ways)
        check_wrong_step(ways)
    torch.set_default_dtype(torch.float64)  # as scripts of other sciences do
    check_near(ways, torch.float32, 12_293)
    large = torch.zeros(1 << 20, dtype=torch.int64)
    assert not ways.link.takes(large), "integers go as they are"
    assert ways.link.takes(large.double())
    assert not ways.link.takes(torch.zeros(1000))
    assert ways.link.gains(torch.zeros(1))
    assert ways.link.gains(torch.zeros(1, dtype=torch.bfloat16)) == (MODE == "int8")
    sys.stdout.write("right\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, os.environ["PYTHONPATH"].partition(":")[0])  # the hooks are imported from there, and hide it
    main()
