"""Sum gradients over hosts, between the ranks with the same place on each host, optionally in fewer bytes.

Sums are formed in fp32 in host order, and a host uses its own values as other hosts decode them, so all get the same
bits. An infinite or undefined value makes its block undefined everywhere, so that loss scalers see it. What int8
rounding loses is added to the next step's values (error feedback), unless it is larger than all of them.
"""

from __future__ import annotations

from typing import Any, Sequence, Union

import torch

MODES = ("fp32", "bf16", "int8")
BLOCK = 1024
LEAST = 1e-30
"""Smallest scale, for a block of zeros. Values that it rounds to zero are far below any gradient."""
_TOP = 127.0


class Bf16:
    """Values as bf16, two bytes each."""

    itemsize, has_feedback = 2, False

    @staticmethod
    def encoded_bytes(elements: int) -> int:
        """Return the bytes of so many values."""
        return 2 * elements

    @staticmethod
    def encode(values: Any, wire: Any) -> None:
        """Write the values as bf16."""
        wire.view(torch.bfloat16).copy_(values)

    @staticmethod
    def decode(wire: Any, values: Any) -> None:
        """Read the values back into fp32."""
        values.copy_(wire.view(torch.bfloat16))


class Int8:
    """Scales of all blocks, then one byte per value."""

    itemsize, has_feedback = 1, True

    @staticmethod
    def encoded_bytes(elements: int) -> int:
        """Return the bytes of so many values, with the scales of their blocks."""
        return 4 * -(-elements // BLOCK) + -(-elements // 4) * 4  # fp32 begins at multiples of four

    @staticmethod
    def encode(values: Any, wire: Any) -> None:
        """Write the scale of each block, and each value as a multiple of it. An infinite or undefined value makes its
        block undefined."""
        for part, scale, codes in _blocks(values, wire):
            torch.amax(part.abs(), 1, keepdim=True, out=scale)
            scale.div_(_TOP).clamp_(min=LEAST)
            scale.masked_fill_(~scale.isfinite(), float("nan"))
            codes.copy_(part.div(scale).round_())

    @staticmethod
    def decode(wire: Any, values: Any) -> None:
        """Read the values back into fp32."""
        for part, scale, codes in _blocks(values, wire):
            part.copy_(codes).mul_(scale)


Codec = Union[Bf16, Int8]
CODECS: dict[str, Codec] = {"bf16": Bf16(), "int8": Int8()}


def _blocks(values: Any, wire: Any) -> list[Any]:
    """Return values, scales and codes of the full blocks together, and of the last, shorter block."""
    elements = values.numel()
    blocks, aligned = -(-elements // BLOCK), elements // BLOCK * BLOCK
    scales, codes = wire[: 4 * blocks].view(torch.float32), wire[4 * blocks :].view(torch.int8)
    parts = [(0, aligned, BLOCK)] if aligned else []
    parts += [(aligned, elements, elements - aligned)] if aligned < elements else []
    return [
        (
            values[low:high].view(-1, width),
            scales[low // BLOCK : -(-high // BLOCK)].view(-1, 1),
            codes[low:high].view(-1, width),
        )
        for low, high, width in parts
    ]


class Lost:
    """What rounding lost of a piece in the last step; `values` is None before the first."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: Any = None


class Work:
    """A step of a sum between hosts."""

    def __init__(self, work: Any = None) -> None:
        self._work = work

    def is_completed(self) -> bool:
        """True once the collective of this step is over, or if there is none."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> None:
        """Wait until the collective of this step is over. Raises its error."""
        if self._work is not None:
            self._work.wait()

    def next_step(self) -> Work | None:
        """Begin the next step and return its work; None after the last one."""
        return None

    def store(self, target: Any) -> None:
        """Write the sum into `target`, after the last step."""


class PlainSum(Work):
    """A sum of values as they are."""

    def __init__(self, between: Between, values: Any) -> None:
        super().__init__(between.first.allreduce([values]))
        self._values = values

    def store(self, target: Any) -> None:
        """Write the sum into `target`, unless it is there already."""
        if target.data_ptr() != self._values.data_ptr():
            target.copy_(self._values)


class Swap(Work):
    """With two hosts: each gets the other's values."""

    def __init__(self, between: Between, values: Any, lost: Lost | None) -> None:
        self._between, self._values, self._lost = between, _with_lost(values, lost), lost
        own = between.encoded(self._values)
        self._wires = [torch.empty_like(own) for _ in range(between.size)]
        super().__init__(between.first.allgather([self._wires], [own]))

    def store(self, target: Any) -> None:
        """Write the sum of both hosts' decoded values into `target`, and keep what rounding lost."""
        between = self._between
        terms = [torch.empty_like(self._values) for _ in self._wires]
        for wire, term in zip(self._wires, terms):
            between.codec.decode(wire, term)
        if self._lost is not None:
            _keep(self._lost, self._values, terms[between.place])
        target.copy_(terms[0].add_(terms[1]))


class ReduceScatter(Work):
    """With more hosts, first step: this host gets its part of the values from all other hosts, and sums it."""

    def __init__(self, between: Between, values: Any, lost: Lost | None) -> None:
        self._between, self._values, self._lost = between, _with_lost(values, lost), lost
        elements = values.numel()
        self._bounds = part_bounds(elements, between.size)
        size = between.codec.encoded_bytes(self._bounds[0][1])
        self._sent = self._values.new_zeros(between.size * size, dtype=torch.uint8)
        self._received = torch.empty_like(self._sent)
        for wire, (low, high) in zip(self._sent.view(between.size, -1), self._bounds):
            between.codec.encode(self._values[low:high], wire[: between.codec.encoded_bytes(high - low)])
        super().__init__(between.first.alltoall_base(self._received, self._sent, [], []))

    def next_step(self) -> Gather:
        """Sum this host's part of the values, and begin to exchange the sums."""
        between, codec, place = self._between, self._between.codec, self._between.place
        low, high = self._bounds[place]
        total, term = (self._values.new_zeros(high - low) for _ in range(2))
        for host, wire in enumerate(self._received.view(between.size, -1)):
            codec.decode(wire[: codec.encoded_bytes(high - low)], total if host == 0 else term)
            if host:
                total.add_(term)
        if self._lost is not None:
            decoded = torch.empty_like(self._values)
            for wire, (first, last) in zip(self._sent.view(between.size, -1), self._bounds):
                codec.decode(wire[: codec.encoded_bytes(last - first)], decoded[first:last])
            _keep(self._lost, self._values, decoded)
        return Gather(between, total, self._bounds, self._lost)


class Gather(Work):
    """With more hosts, second step: this host gets the sums of all other hosts."""

    def __init__(self, between: Between, total: Any, bounds: Sequence[Any], lost: Lost | None) -> None:
        self._between, self._total, self._bounds, self._lost = between, total, bounds, lost
        own = total.new_zeros(between.codec.encoded_bytes(bounds[0][1]), dtype=torch.uint8)
        between.codec.encode(total, own[: between.codec.encoded_bytes(total.numel())])
        self._wires = [torch.empty_like(own) for _ in range(between.size)]
        super().__init__(between.second.allgather([self._wires], [own]))

    def store(self, target: Any) -> None:
        """Write the decoded sums of all parts into `target`. What rounding lost of the own part is added to the
        losses."""
        codec, place = self._between.codec, self._between.place
        sums = self._total.new_empty(self._bounds[-1][1])
        for wire, (low, high) in zip(self._wires, self._bounds):
            codec.decode(wire[: codec.encoded_bytes(high - low)], sums[low:high])
        if self._lost is not None and self._lost.values is not None:
            low, high = self._bounds[place]
            missing = self._total - sums[low:high]
            self._lost.values[low:high] += missing.nan_to_num_(0.0, 0.0, 0.0)
        target.copy_(sums)


class Between:
    """The connections of this rank to the ranks with the same place on other hosts."""

    def __init__(self, groups: Sequence[Any], place: int, size: int, mode: str) -> None:
        self.first, self.second = groups[0], groups[-1]
        """Groups for the first and the second step, because the calls of the two steps have no common order."""
        self.place, self.size, self.mode = place, size, mode
        self.codec: Any = CODECS.get(mode)

    def compresses(self, dtype: Any, itemsize: int) -> bool:
        """True if values of this type are sent in fewer bytes than they have."""
        return self.codec is not None and dtype.is_floating_point and self.codec.itemsize < itemsize

    def begin(self, values: Any, lost: Lost | None) -> Work:
        """Start summing values over all hosts. Nobody may change them until the sum is stored."""
        if not values.numel():
            return Work()
        if not self.compresses(values.dtype, values.element_size()):
            return PlainSum(self, values)
        return (Swap if self.size == 2 else ReduceScatter)(self, values, lost if self.codec.has_feedback else None)

    def encoded(self, values: Any) -> Any:
        """Return the values as they are sent."""
        wire = values.new_empty(self.codec.encoded_bytes(values.numel()), dtype=torch.uint8)
        self.codec.encode(values, wire)
        return wire


def part_bounds(elements: int, hosts: int) -> list[Any]:
    """Return the bounds of each host's part. Parts consist of full blocks, so the last part may be shorter or empty."""
    size = -(-elements // (hosts * BLOCK)) * BLOCK if elements > BLOCK else elements
    return [(min(size * host, elements), min(size * (host + 1), elements)) for host in range(hosts)]


def _with_lost(values: Any, lost: Lost | None) -> Any:
    """Return the values in fp32 plus the losses of the previous step. Losses larger than all values come from a step
    that went wrong, and are left out."""
    values = values.float()
    if lost is not None and lost.values is not None and not _largest(lost.values) > _largest(values):
        values.add_(lost.values)
    return values


def _largest(values: Any) -> float:
    return max(-float(values.amin()), float(values.amax()))


def _keep(lost: Lost, values: Any, decoded: Any) -> None:
    """Keep what rounding lost: the values without what other hosts decode. Undefined values are in the sum already and
    must not be repeated."""
    if lost.values is None:
        lost.values = torch.empty_like(decoded)
    torch.sub(values, decoded, out=lost.values).nan_to_num_(0.0, 0.0, 0.0)
