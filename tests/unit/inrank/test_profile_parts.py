"""Parts of profiled steps, operators and FLOPs, from made-up events of the profiler."""

from __future__ import annotations

import pytest

from ipexctl.inrank.profile_parts import (
    USER,
    Event,
    count_flops,
    merge_spans,
    split_window,
    subtract_spans,
    sum_operators,
)

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
FORWARD = Event("aten::linear", 100, 200, 1, sequence=5)
BACKWARD = Event(NODE, 300, 400, 1, sequence=5, forward_thread=1)
LOADER = Event("enumerate(DataLoader)#_Iter.__next__", 0, 50, 1, scope=USER)


def test_each_instant_has_one_part_and_they_add_up_to_the_window() -> None:
    inside = Event("aten::mm", 310, 390, 1)
    events = [LOADER, FORWARD, BACKWARD, inside, Event("c10d::allreduce_", 400, 450, 1)]
    parts = split_window(events, (0, 500, 600), [(500, 580)])
    assert parts.data == 50
    assert parts.forward == 100
    assert parts.backward == 100
    assert parts.communication == (50, 0)
    assert parts.optimizer == 80
    assert parts.data + parts.forward + parts.backward + parts.optimizer + parts.rest + 50 == 600


def test_an_idle_thread_waits_while_a_queued_collective_is_open() -> None:
    queued = Event("c10d::allreduce_", 100, 110, 1)
    busy = Event("aten::mm", 150, 200, 1)
    of_worker = Event("gloo:all_reduce", 180, 300, 2, is_async=True)
    parts = split_window([queued, busy, of_worker, Event("aten::add", 320, 330, 1)], (0, 400), [])
    assert parts.communication == (10 + 40 + 100,)


def test_what_lies_between_operators_of_a_forward_is_forward_but_not_a_batch_between() -> None:
    first, second = Event("aten::relu", 60, 70, 1, sequence=1), Event("aten::sum", 120, 130, 1, sequence=2)
    nodes = [
        Event(NODE, 200, 210, 1, sequence=2, forward_thread=1),
        Event(NODE, 210, 220, 1, sequence=1, forward_thread=1),
    ]
    assert split_window([first, second, *nodes], (0, 300), []).forward == 70
    between = LOADER._replace(begin=80, end=110)
    assert split_window([first, second, between, *nodes], (0, 300), []).forward == 20


def test_a_frozen_forward_is_rest_and_python_without_an_operator_is_a_gap() -> None:
    parts = split_window([Event("aten::linear", 100, 200, 1, sequence=5)], (0, 400), [])
    assert (parts.forward, parts.rest, parts.gaps) == (0, 400, 300)


def test_no_events_are_a_window_of_rest() -> None:
    parts = split_window([], (0, 100), [])
    assert (parts.rest, parts.communication) == (100, (0,))


@pytest.mark.parametrize(
    ("name", "shapes", "concrete", "flops"),
    [
        ("aten::mm", [[2, 3], [3, 4]], (), 48),
        ("aten::addmm", [[4], [2, 3], [3, 4]], (), 48),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], (), 240),
        ("aten::mkldnn_linear", [[2, 3], [4, 3]], (), 48),
        ("aten::convolution_backward", [[1, 8, 6, 6], [1, 3, 8, 8], [8, 3, 3, 3]], ([False, True, True],), 31104),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [[1, 2, 4, 8]] * 3, (), 4 * 2 * 4 * 4 * 8),
        ("aten::add", [[2, 3], [2, 3]], (), 0),
        ("aten::mm", [[2, 3]], (), 0),
        ("aten::mm", ["x", None], (), 0),
    ],
)
def test_flops_of_matrix_products(name: str, shapes: object, concrete: object, flops: int) -> None:
    assert count_flops(Event(name, 0, 1, 1, shapes=shapes, concrete=concrete)) == flops


def test_operators_have_their_own_time_and_a_product_inside_another_counts_once() -> None:
    outer = Event("aten::addmm", 0, 100, 1, shapes=[[4], [2, 3], [3, 4]], dtypes=["float"] * 3)
    inner = Event("aten::mm", 20, 80, 1, shapes=[[2, 3], [3, 4]], dtypes=["float"] * 2)
    found = sum_operators([inner, outer, Event("gloo:x", 0, 900, 2, is_async=True)])
    assert (found.flops, found.dtype, found.products, found.product_time) == (48, "fp32", 1, 100)
    assert found.fastest == 48 / 20e-6
    assert [(row["name"], round(row["seconds"] * 1e9)) for row in found.rows] == [("aten::mm", 60), ("aten::addmm", 40)]
    assert found.rows[0]["shapes"] == "2x3 3x4"


def test_ten_operators_are_kept_and_compiled_code_is_noticed() -> None:
    many = [Event(f"aten::op{n}", 10 * n, 10 * n + 5, 1) for n in range(12)]
    found = sum_operators([*many, Event("## Call CompiledFxGraph x ##", 200, 300, 1, scope=USER)])
    assert len(found.rows) == 10
    assert found.is_compiled


CONV = [None, None, None, [1, 1], [2, 2], [1, 1], 1]


@pytest.mark.parametrize(
    ("event", "forward"),
    [
        (
            Event("aten::mm", 0, 9, 1, shapes=[[2, 3], [3, 4]], dtypes=["float"] * 2),
            ("linear", ((2, 3), (4, 3)), None, "fp32"),
        ),
        (
            Event("aten::addmm", 0, 9, 1, shapes=[[4], [2, 3], [3, 4]], dtypes=["float"] * 3),
            ("linear", ((2, 3), (4, 3)), None, "fp32"),
        ),
        (
            Event("aten::bmm", 0, 9, 1, shapes=[[5, 2, 3], [5, 3, 4]], dtypes=["float"] * 2),
            ("bmm", ((5, 2, 3), (5, 3, 4)), None, "fp32"),
        ),
        (
            Event(
                "aten::mkldnn_convolution",
                0,
                9,
                1,
                shapes=[[1, 8, 6, 6], [4, 8, 3, 3]],
                dtypes=["float"],
                concrete=CONV,
            ),
            ("conv", ((1, 8, 6, 6), (4, 8, 3, 3)), ((2, 2), (1, 1), (1, 1), 1), "fp32"),
        ),
        (
            Event(
                "aten::_scaled_dot_product_flash_attention_for_cpu",
                *(0, 9, 1),
                shapes=[[1, 2, 4, 8]] * 3,
                dtypes=["float"],
                concrete=[None] * 3 + [0.0, True],
            ),
            ("attention", ((1, 2, 4, 8),) * 3, True, "fp32"),
        ),
        (Event("aten::mm", 0, 9, 1, shapes=[[2, 3], [3, 4]], dtypes=["c10::BFloat16"] * 2), None),
        (Event("aten::mkldnn_rnn_layer", 0, 9, 1, shapes=[[2, 3, 4], [5], [6]], dtypes=["float"]), None),
    ],
)
def test_products_of_the_forward_can_be_repeated_and_those_of_a_backward_come_with_them(
    event: Event, forward: object
) -> None:
    of_backward = event._replace(begin=320, end=330)
    found = sum_operators([event, BACKWARD, of_backward])
    assert found.forwards == {forward: [9e-9, 1]}
    assert found.multiplied == 19


def test_products_in_half_are_repeated_if_asked_for() -> None:
    event = Event("aten::mm", 0, 9, 1, shapes=[[2, 3], [3, 4]], dtypes=["c10::BFloat16"] * 2)
    assert sum_operators([event], ("fp32", "bf16")).forwards == {("linear", ((2, 3), (4, 3)), None, "bf16"): [9e-9, 1]}


def test_spans() -> None:
    assert merge_spans([(5, 9), (1, 3), (2, 4), (7, 7)]) == [(1, 4), (5, 9)]
    assert subtract_spans([(0, 10), (20, 30)], [(2, 3), (8, 22), (29, 40)]) == [(0, 2), (3, 8), (22, 29)]
