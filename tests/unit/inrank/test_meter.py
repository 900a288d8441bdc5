"""The step meter in a rank's process: which steps count, which samples belong to them, what can't be known."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ipexctl.inrank.meter import (
    FP32,
    LINK,
    MIXED,
    MOST_GRAPHS,
    PREFETCHED,
    RING_SIZE,
    SLOTS,
    SWITCH,
    UNSIZED,
    Meter,
    RingError,
    RingWriter,
    StepCounter,
    Totals,
    is_new_enough,
    size_of,
    tokens_in,
    watch_backward,
    watch_fused_steps,
)
from ipexctl.node.run.meter import meter_reader

THREAD, TRAIN, EVALUATION = 1, 10, 20


class Optimizer:
    """Something that a weak reference can have."""


def tensor(*shape: int) -> Any:
    return SimpleNamespace(shape=shape)


class Ids:
    """A tensor of token numbers, or its mask."""

    def __init__(self, *shape: int, ones: int = 0) -> None:
        self.shape, self._ones = shape, ones

    def sum(self) -> int:
        return self._ones

    def numel(self) -> int:
        return math.prod(self.shape)


def step(counter: StepCounter, optimizer: Any, thread: int = THREAD) -> bool:
    counter.before_step()
    return counter.after_step(optimizer, thread)


def train(counter: StepCounter, optimizer: Any, batches: int = 1, size: int | None = 8) -> None:
    for _ in range(batches):
        counter.on_batch(TRAIN, size, 100, THREAD)
    assert step(counter, optimizer)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (tensor(8, 3), 8),
        (tensor(), None),
        ((tensor(8, 3), tensor(8)), 8),
        ([tensor(), tensor(4)], 4),
        ({"name": "x", "input_ids": tensor(16, 512)}, 16),
        ({"a": [("text", tensor(5, 1))]}, 5),
        (["text"] * 16 + [tensor(3)], None),
        ([[[[[tensor(3)]]]]], None),
        ("text", None),
        (7, None),
        ([], None),
    ],
)
def test_size_of_a_batch_is_the_first_dimension_of_its_first_tensor(batch: Any, size: int | None) -> None:
    assert size_of(batch) == size


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": Ids(2, 8)}, 16),
        ({"input_ids": Ids(2, 8), "attention_mask": Ids(2, 8, ones=11)}, 11),
        ({"input_ids": Ids(2, 8), "attention_mask": Ids(2, 1, 8, 8)}, 16),
        ({"input_ids": Ids(2, 3, 8)}, 0),
        ({"input_ids": [1, 2]}, 0),
        ({"pixels": Ids(2, 8)}, 0),
        (Ids(2, 8), 0),
    ],
)
def test_tokens_of_a_batch_are_without_padding(batch: Any, tokens: int) -> None:
    assert tokens_in(batch) == tokens


def test_a_step_gets_the_batches_since_the_step_before() -> None:
    counter, optimizer = StepCounter(), Optimizer()
    for batches in (1, 4, 2):  # gradient accumulation
        train(counter, optimizer, batches)
    assert (counter.steps, counter.samples, counter.wait, counter.flags) == (3, 56, 700, 0)


def test_batches_of_an_evaluation_between_two_steps_are_no_samples() -> None:
    counter, optimizer = StepCounter(), Optimizer()
    for _ in range(3):
        train(counter, optimizer)
        train(counter, optimizer)
        for _ in range(50):
            counter.on_batch(EVALUATION, 64, 1000, THREAD)
    train(counter, optimizer)
    assert (counter.steps, counter.samples, counter.wait, counter.flags) == (7, 56, 700, 0)


@pytest.mark.parametrize(("steps", "flags"), [(1, 0), (2, MIXED)])
def test_samples_are_unknown_if_several_loaders_feed_one_step_after_another(steps: int, flags: int) -> None:
    counter, optimizer = StepCounter(), Optimizer()
    for _ in range(steps):
        counter.on_batch(EVALUATION, 8, 0, THREAD)
        train(counter, optimizer)
    assert counter.flags == flags


def test_samples_are_unknown_if_another_thread_asks_for_batches() -> None:
    counter = StepCounter()
    counter.on_batch(TRAIN, 8, 100, THREAD + 1)
    step(counter, Optimizer())
    assert counter.flags == PREFETCHED


def test_samples_are_unknown_if_a_batch_has_no_size() -> None:
    counter = StepCounter()
    train(counter, Optimizer(), size=None)
    assert counter.flags == UNSIZED


def test_step_of_a_class_that_calls_its_base_counts_once() -> None:
    counter, optimizer = StepCounter(), Optimizer()
    counter.before_step()
    counter.before_step()
    assert counter.after_step(optimizer, THREAD)
    assert not counter.after_step(optimizer, THREAD)
    assert step(counter, optimizer)
    assert counter.steps == 2


def test_the_first_of_several_optimizers_counts() -> None:
    counter, first, second = StepCounter(), Optimizer(), Optimizer()
    for _ in range(10):
        assert step(counter, first)
        assert not any(step(counter, second) for _ in range(SWITCH - 1))


def test_an_optimizer_for_each_parameter_is_no_reason_to_change() -> None:
    counter, optimizers = StepCounter(), [Optimizer() for _ in range(4 * SWITCH)]
    for _ in range(3):
        assert [step(counter, optimizer) for optimizer in optimizers] == [True] + [False] * (4 * SWITCH - 1)


def test_another_one_counts_when_the_first_no_longer_steps() -> None:
    counter, first, second = StepCounter(), Optimizer(), Optimizer()
    step(counter, first)
    assert [step(counter, second) for _ in range(SWITCH + 1)] == [False] * (SWITCH - 1) + [True, True]


def test_another_one_counts_at_once_when_the_first_is_gone() -> None:
    counter, first = StepCounter(), Optimizer()
    step(counter, first)
    del first
    assert step(counter, Optimizer())


@pytest.mark.parametrize(
    ("version", "is_enough"), [("2.0.1", False), ("2.1.0", True), ("2.13.0+cpu", True), ("", False), ("x.y", False)]
)
def test_oldest_torch(version: str, is_enough: bool) -> None:
    assert is_new_enough(version) == is_enough


@pytest.fixture
def ring() -> Any:
    reader = meter_reader.MeterReader.create()
    assert reader is not None
    yield reader
    reader.close()


def test_records_are_read_as_they_were_written(ring: meter_reader.MeterReader) -> None:
    writer = RingWriter(ring.path)
    written = [Totals(wall, 10 * wall, wall, 8 * wall, 3, 0) for wall in range(1, 6)]
    for totals in written[:3]:
        writer.write(totals)
    assert [tuple(record) for record in ring.read()] == [tuple(totals) for totals in written[:3]]
    for totals in written[3:]:
        writer.write(totals)
    assert [tuple(record) for record in ring.read()] == [tuple(totals) for totals in written[3:]]
    assert ring.read() == []


@pytest.mark.parametrize(("count", "first"), [(SLOTS, 1), (SLOTS + 1, 2), (3 * SLOTS, 2 * SLOTS + 1)])
def test_a_ring_that_was_not_read_in_time_has_the_newest_records(
    ring: meter_reader.MeterReader, count: int, first: int
) -> None:
    writer = RingWriter(ring.path)
    for number in range(1, count + 1):
        writer.write(Totals(number, steps=number))
    assert [record.steps for record in ring.read()] == list(range(first, count + 1))


@pytest.mark.parametrize("word", range(9))
def test_a_record_that_is_halfway_written_is_left_for_the_next_reading(
    ring: meter_reader.MeterReader, word: int
) -> None:
    writer = RingWriter(ring.path)
    writer.write(Totals(1, 2, 3, 4, 5, 0, 7))
    whole = os.pread(ring.number, 72, 0)
    part = whole[: 8 * word] + bytes([whole[8 * word] ^ 1]) + whole[8 * word + 1 :]
    os.pwrite(ring.number, part, 0)
    assert ring.read() == []
    os.pwrite(ring.number, whole, 0)
    assert [tuple(record) for record in ring.read()] == [(1, 2, 3, 4, 5, 0, 7)]


def test_second_process_has_no_ring_until_the_first_ends_and_then_goes_on(ring: meter_reader.MeterReader) -> None:
    first = RingWriter(ring.path)
    first.write(Totals(1, 2, 3, 4, 5))
    with pytest.raises(RingError):
        RingWriter(ring.path)
    first.close()
    second = RingWriter(ring.path)
    assert second.before == Totals(1, 2, 3, 4, 5)
    second.write(Totals(9, 9, 9, 9, 9))
    assert [record.steps for record in ring.read()] == [2, 9]


def test_another_file_at_the_path_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(RING_SIZE))
    with open(tmp_path / "data", "rb") as file, pytest.raises(RingError):
        RingWriter(f"/proc/self/fd/{file.fileno()}")
    own = Meter(str(tmp_path / "data"))
    own.before_step(None)
    own.after_step(Optimizer())
    assert not own.is_on
    assert (tmp_path / "data").read_bytes() == bytes(RING_SIZE)


def test_ring_is_not_inherited(ring: meter_reader.MeterReader) -> None:
    assert not os.get_inheritable(ring.number)
    assert os.readlink(ring.path).startswith(LINK)


def test_a_file_of_another_size_is_no_ring(ring: meter_reader.MeterReader) -> None:
    os.truncate(ring.path, RING_SIZE - 1)
    with pytest.raises(RingError):
        RingWriter(ring.path)
    assert ring.read() == []


def test_meter_writes_at_the_first_step_and_never_raises(
    ring: meter_reader.MeterReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, optimizer = Meter(ring.path), Optimizer()
    own.before_step(None)
    own.after_step(optimizer)
    assert [record.steps for record in ring.read()] == [1]
    monkeypatch.setattr(own.counter, "after_step", lambda *_: 1 / 0)
    own.before_step(None)
    own.after_step(optimizer)
    assert not own.is_on


def test_steps_of_a_pause_do_not_count(ring: meter_reader.MeterReader) -> None:
    own, optimizer = Meter(ring.path), Optimizer()

    def take_steps(count: int) -> None:
        for _ in range(count):
            own.on_batch(own, tensor(8), 5)
            own.before_step(None)
            own.after_step(optimizer)

    take_steps(2)
    own.pause()
    take_steps(3)
    own.finish()
    own.resume()
    own.resume()
    take_steps(1)
    own.finish()
    records = ring.read()
    assert [record.is_paused for record in records if record.steps == 2] == [True, False]
    assert (records[-1].steps, records[-1].samples, records[-1].wait) == (3, 24, 15)
    assert not any(record.unknown for record in records)


def test_meter_without_a_ring_is_off() -> None:
    own = Meter("/proc/self/fd/none")
    own.before_step(None)
    own.after_step(Optimizer())
    assert not own.is_on


def test_fused_steps_of_ipex_count(ring: meter_reader.MeterReader, monkeypatch: pytest.MonkeyPatch) -> None:
    own, module = Meter(ring.path), ModuleType("tables")
    monkeypatch.setattr("ipexctl.inrank.meter.meter", lambda: own)

    def adam_step(optimizer: Any, closure: Any = None) -> str:
        "Fused."
        return f"loss {closure}"

    module.OPTIMIZER_FUSED_STEP_MAPPING_CPU = {Optimizer: adam_step}  # type: ignore[attr-defined]
    module.OPTIMIZER_FUSED_STEP_MAPPING_XPU = {Optimizer: adam_step}  # type: ignore[attr-defined]
    watch_fused_steps(module)
    tables = module.OPTIMIZER_FUSED_STEP_MAPPING_CPU, module.OPTIMIZER_FUSED_STEP_MAPPING_XPU
    assert tables[0][Optimizer] is tables[1][Optimizer]
    assert tables[0][Optimizer].__doc__ == "Fused."
    assert tables[0][Optimizer](Optimizer(), closure=3) == "loss 3"
    assert own.counter.steps == 1


class Model:
    """With parameters, as DDP has them."""

    def __init__(self, *parameters: tuple[str, int, bool]) -> None:
        self._parameters = parameters

    def parameters(self) -> list[Any]:
        return [
            SimpleNamespace(dtype=dtype, requires_grad=trained, numel=lambda n=n: n, element_size=lambda: 4)
            for dtype, n, trained in self._parameters
        ]


def test_a_record_has_the_bytes_of_gradients_that_could_be_fewer(ring: meter_reader.MeterReader) -> None:
    meter, optimizer = Meter(ring.path), Optimizer()
    model = Model(("torch.float32", 1 << 20, True), ("torch.float32", 1 << 30, False), ("torch.bfloat16", 999, True))
    meter.on_model(model)
    other = Model(("torch.float64", 1, True))
    meter.on_model(other)
    meter.before_step(None)
    meter.after_step(optimizer)
    (record,) = ring.read()
    assert record.gradients == (4 << 20) + (1 << 16)
    assert record.unknown == 0
    assert record.thread


def test_a_model_without_parameters_ends_the_meter_and_not_the_script(ring: meter_reader.MeterReader) -> None:
    meter = Meter(ring.path)
    meter.on_model(Optimizer())
    assert not meter.is_on


class Node:
    def __init__(self, name: str, dtype: str = "torch.float32", *before: Node | None) -> None:
        self._name = name
        self._input_metadata = [SimpleNamespace(dtype=dtype)]
        self.next_functions = [(node, 0) for node in before]

    def name(self) -> str:
        return self._name


def loss_of(*products: tuple[str, str]) -> Any:
    nodes = [Node(name, dtype) for name, dtype in products]
    shared = Node("AddBackward0", "torch.float32", None, *nodes)
    return SimpleNamespace(grad_fn=Node("SumBackward0", "torch.float32", shared, shared))


FLOAT, BFLOAT = "torch.float32", "torch.bfloat16"
LAYERS = (("AddmmBackward0", FLOAT), ("ConvolutionBackward0", FLOAT))


def torch_of(precision: str, **mkldnn: str) -> SimpleNamespace:
    """`mkldnn`: settings of its products, which torch has since 2.9."""
    own = {"matmul": SimpleNamespace(**mkldnn)} if mkldnn else {}
    backends = SimpleNamespace(mkldnn=SimpleNamespace(**own))
    compiler = SimpleNamespace(is_compiling=lambda: False)
    return SimpleNamespace(backends=backends, get_float32_matmul_precision=lambda: precision, _utils=compiler)


@pytest.mark.parametrize(
    ("products", "torch", "ipex", "is_fp32"),
    [
        (LAYERS, torch_of("highest"), "FP32", True),
        (LAYERS, torch_of("", fp32_precision="none"), None, True),
        ((*LAYERS, ("MmBackward0", BFLOAT)), torch_of("highest"), None, False),
        ((("BmmBackward0", BFLOAT),), torch_of("highest"), None, False),
        ((("NativeLayerNormBackward0", FLOAT), ("CompiledFunctionBackward", FLOAT)), torch_of("highest"), None, False),
        (LAYERS, torch_of("medium"), None, False),
        (LAYERS, torch_of("highest", fp32_precision="bf16"), None, False),
        (LAYERS, torch_of("highest"), "BF32", False),
    ],
)
def test_the_first_backward_shows_whether_matrices_are_multiplied_in_fp32(
    ring: meter_reader.MeterReader,
    monkeypatch: pytest.MonkeyPatch,
    products: tuple[tuple[str, str], ...],
    torch: SimpleNamespace,
    ipex: str | None,
    is_fp32: bool,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    mode = SimpleNamespace(get_fp32_math_mode=lambda device: SimpleNamespace(name=ipex))
    monkeypatch.setitem(sys.modules, "intel_extension_for_pytorch", mode if ipex else None)
    meter = Meter(ring.path)
    monkeypatch.setattr("ipexctl.inrank.meter._meter", meter)
    called: list[Any] = []
    module = SimpleNamespace(backward=called.append)
    watch_backward(module)
    for each in (loss_of(), [loss_of(*products)]):
        module.backward(each)
    for _ in range(MOST_GRAPHS):
        module.backward("not looked at")
    assert len(called) == 2 + MOST_GRAPHS
    meter.before_step(None)
    meter.after_step(Optimizer())
    (record,) = ring.read()
    assert (record.flags & FP32, record.is_fp32, record.unknown) == (FP32 * is_fp32, is_fp32, 0)
