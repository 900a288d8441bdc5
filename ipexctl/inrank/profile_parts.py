"""What a profiled window of training spent its time on, from the profiler's events. Pure; times in nanoseconds.

Each instant of the training thread has one part, so the parts add up to the window. The first that applies counts:

- data: inside the DataLoader's range
- communication: inside a collective, or idle while one is queued
- backward: autograd's nodes and DDP's or FSDP's work around them; on CPUs they run on the training thread
- forward: operators that a node of this backward names, and what lies between them
- optimizer: between the hooks of its step
- rest
"""

from __future__ import annotations

import bisect
import re
from typing import Any, Collection, Iterable, NamedTuple, Sequence

Spans = Sequence["tuple[int, int]"]

DATA = "enumerate(DataLoader)#"
NODE = "autograd::engine::evaluate_function"
ALL_REDUCE = "ipexctl::all_reduce"
"""Range around the all-reduce of `ddp.py`, which uses no collective of torch."""
FORWARD = ("DistributedDataParallel.forward", "FSDP::pre_forward", "FSDP::root_pre_forward")
COLLECTIVE = re.compile(r"(_?c10d(_functional)?(_autograd)?|ipexctl|oneccl_bindings_for_pytorch|torch_ccl)::")
QUEUED = re.compile(r"(gloo|mpi|xccl|ccl|ucc|oneccl)[:_]")
"""Collectives on threads of the backend."""
TAIL = re.compile(r"torch(\.|::)distributed(\.ddp|)(\.|::)reducer::|FSDP::|_?c10d(_functional)?::|ipexctl::")
"""Work that belongs to the backward that it follows."""
COMPILED = re.compile(
    r"CompiledFunction|## Call Compiled|Call CompiledFxGraph|Torch-Compiled Region|cpp_fused|graph_\d"
)
FUNCTION, NODE_SCOPE, USER = 0, 1, 7
"""Kinds of events: operators, autograd's nodes, named ranges."""
DTYPES = {"float": "fp32", "double": "fp64", "c10::BFloat16": "bf16", "c10::Half": "fp16"}
WITH_OPTIONS = (
    "aten::convolution_backward",
    "aten::mkldnn_convolution",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
)
MOST_OPERATORS = 10
SHORTEST = 20_000
"""Nanoseconds below which the length of an event is not accurate."""
MOST_TEXT = 120
PRODUCTS = {
    "aten::mm": (0, 1, -1),
    "aten::bmm": (0, 1, -1),
    "aten::addmm": (1, 2, -1),
    "aten::baddbmm": (1, 2, -1),
    "aten::_addmm_activation": (1, 2, -1),
    "mkldnn::_linear_pointwise": (0, 1, 0),
    "aten::mkldnn_linear": (0, 1, 0),
}
"""Operator → which inputs it multiplies, and the dimension of the second that the result gets."""


class Event(NamedTuple):
    """An event of the profiler, with times in nanoseconds."""

    name: str
    begin: int
    end: int
    thread: int
    scope: int = FUNCTION
    sequence: int = -1
    """Of the autograd node that an operator makes, or that runs."""
    forward_thread: int = 0
    is_async: bool = False
    shapes: Any = ()
    dtypes: Any = ()
    concrete: Any = ()


class Parts(NamedTuple):
    """Nanoseconds of each part of a window."""

    data: int
    forward: int
    backward: int
    optimizer: int
    rest: int
    communication: tuple[int, ...]
    """For each step."""
    gaps: int
    """Time without an operator, a collective or the DataLoader: Python."""


class Operators(NamedTuple):
    """What the operators of a window did."""

    rows: list[dict[str, Any]]
    """The operators with most time, as the document has them."""
    flops: int
    """Floating-point operations of all products."""
    dtype: str
    """The type in which most of them are."""
    products: int
    """Number of matrix products, and how long they took."""
    product_time: int
    fastest: float
    """FLOP/s of the fastest product: under load, the peak that is measured afterwards may be lower."""
    is_compiled: bool
    forwards: dict[Any, list[float]]
    """Product in fp32 outside of a backward, as in `forward_of`, → its seconds and calls; None for the others."""
    multiplied: int
    """How long all products took, attention included."""


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans sorted and without overlaps; spans that touch become one, and empty ones are left out."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > begin:
            joined.append((begin, end))
    return joined


def subtract_spans(spans: Spans, others: Spans) -> list[tuple[int, int]]:
    """Return what of `spans` is in none of `others`; both sorted and without overlaps, as from `merge_spans`."""
    left, at = [], 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        position = at
        while position < len(others) and others[position][0] < end:
            if others[position][0] > begin:
                left.append((begin, others[position][0]))
            begin = max(begin, others[position][1])
            position += 1
        if begin < end:
            left.append((begin, end))
    return left


def intersect_spans(spans: Spans, others: Spans) -> list[tuple[int, int]]:
    """Return what is in both; both sorted and without overlaps, as from `merge_spans`."""
    return subtract_spans(spans, subtract_spans(spans, others))


def spans_of(events: Iterable[Event]) -> list[tuple[int, int]]:
    """Return the times of the events as merged spans."""
    return merge_spans((event.begin, event.end) for event in events)


def total_length(spans: Spans) -> int:
    """Return the sum of the lengths. Spans that overlap would count twice."""
    return sum(end - begin for begin, end in spans)


def training_thread(events: Iterable[Event]) -> int | None:
    """Return the thread with most events, by the profiler's own number; None if there are no events."""
    counts: dict[int, int] = {}
    for event in events:
        if not event.is_async:
            counts[event.thread] = counts.get(event.thread, 0) + 1
    return max(counts, key=lambda thread: counts[thread]) if counts else None


def split_window(events: Sequence[Event], edges: Sequence[int], optimizer: Spans) -> Parts:
    """Divide a window into its parts. `edges`: begin and end of each step. `optimizer`: where the hooks saw an
    optimizer's step."""
    thread, window = training_thread(events), [(edges[0], edges[-1])]
    own = [event for event in events if event.thread == thread and not event.is_async]
    own.sort(key=lambda event: (event.begin, -event.end))
    data = spans_of(event for event in own if event.name.startswith(DATA))
    busy = spans_of(filter(is_work, own))
    stepped = merge_spans([*optimizer, *spans_of(event for event in own if event.name.startswith("Optimizer."))])
    idle = subtract_spans(merge_spans(_open(events, own, thread)), busy)
    waited = merge_spans([*spans_of(event for event in own if COLLECTIVE.match(event.name)), *idle])
    tops, top_of = _top_level(own)
    backward = _backward(tops, data)
    named = spans_of(event for event in own if event.name.startswith(FORWARD))
    forward = merge_spans([*named, *_forward(own, tops, top_of, backward, [data, backward, stepped])])
    left: Spans = window
    parts: list[Spans] = []
    for spans in (data, waited, backward, forward, stepped):
        parts.append(intersect_spans(left, spans))
        left = subtract_spans(left, parts[-1])
    return Parts(
        data=total_length(parts[0]),
        forward=total_length(parts[3]),
        backward=total_length(parts[2]),
        optimizer=total_length(parts[4]),
        rest=total_length(left),
        communication=tuple(total_length(intersect_spans([step], parts[1])) for step in zip(edges, edges[1:])),
        gaps=total_length(subtract_spans(window, merge_spans([*busy, *data, *waited]))),
    )


def is_work(event: Event) -> bool:
    """True for an operator or a compiled graph; false for a node, whose operators follow, and for named ranges."""
    is_node = event.scope == NODE_SCOPE or event.name.startswith(NODE)
    return bool(COMPILED.search(event.name)) or not (is_node or event.scope == USER)


def _open(events: Iterable[Event], own: Iterable[Event], thread: int | None) -> list[tuple[int, int]]:
    """Return when collectives were under way, from the end of the operator that queued each: a thread of the backend
    may begin it later."""
    queued = sorted(event.end for event in own if COLLECTIVE.match(event.name))
    waits = []
    for event in events:
        if (event.is_async or event.thread != thread) and QUEUED.match(event.name):
            at = bisect.bisect_right(queued, event.begin) - 1
            waits.append((queued[at] if at >= 0 else event.begin, event.end))
    return waits


def _top_level(own: Sequence[Event]) -> tuple[list[Event], dict[int, int]]:
    """Return the outermost events, and for each event the index of the one around it. Named ranges do not count."""
    tops: list[Event] = []
    places: dict[int, int] = {}
    for index, event in enumerate(own):
        if event.scope == USER and not event.name.startswith("FSDP::") and event.name != ALL_REDUCE:
            continue
        if not tops or event.begin >= tops[-1].end:
            tops.append(event)
        places[index] = len(tops) - 1
    return tops, places


def _backward(tops: Sequence[Event], data: Spans) -> list[tuple[int, int]]:
    """Return the backward passes: runs of autograd's nodes with the work of DDP or FSDP behind them, divided where a
    batch was taken."""
    edges = sorted(edge for span in data for edge in span)
    runs: list[list[int]] = []
    is_open = False
    for event in tops:
        if event.name.startswith(NODE):
            if not is_open or bisect.bisect_left(edges, runs[-1][1]) != bisect.bisect_right(edges, event.begin):
                runs.append([event.begin, event.end])
            is_open = True
            runs[-1][1] = max(runs[-1][1], event.end)
        elif is_open and TAIL.match(event.name):
            runs[-1][1] = max(runs[-1][1], event.end)
        else:
            is_open = False
    return merge_spans((begin, end) for begin, end in runs)


def _forward(
    own: Sequence[Event], tops: Sequence[Event], top_of: dict[int, int], backward: Spans, others: Sequence[Spans]
) -> list[tuple[int, int]]:
    """Return the forward passes: from the first to the last operator that a node names by its sequence number, without
    the other parts between. An operator that is not differentiated has the next number, so the last one before the node
    counts."""
    begins = [begin for begin, _ in backward]
    last: dict[tuple[int, int], int] = {}
    matched = set()
    for index, event in enumerate(own):
        at = bisect.bisect_right(begins, event.begin) - 1
        if event.name.startswith(NODE):
            operator = last.get((event.forward_thread, event.sequence))
            if operator is not None:
                matched.add(operator)
        elif event.scope == FUNCTION and event.sequence >= 0 and not (at >= 0 and event.begin < backward[at][1]):
            last[event.thread, event.sequence] = top_of.get(index, -1)
    cuts = sorted(edge for spans in others for span in spans for edge in span)
    pieces: dict[int, tuple[int, int]] = {}
    for top in (tops[number] for number in matched if number >= 0):
        cut = bisect.bisect_right(cuts, top.begin)
        begin, end = pieces.get(cut, (top.begin, top.end))
        pieces[cut] = min(begin, top.begin), max(end, top.end)
    return list(pieces.values())


def count_flops(event: Event) -> int:
    """Return the floating-point operations of a matrix product; 0 for any other operator. The backward of a convolution
    counts as its forward, because its event does not show the size of the result."""
    name, shapes = event.name, event.shapes
    try:
        if name in PRODUCTS:
            first, second, dimension = PRODUCTS[name]
            return 2 * multiply(shapes[first]) * int(shapes[second][dimension])
        if name in ("aten::mv", "aten::dot"):
            return 2 * multiply(shapes[0])
        if "scaled_dot_product" in name and "_for_cpu" in name:
            is_backward = name.endswith("backward")
            query, key, value = shapes[is_backward : 3 + is_backward]
            return int((2.5 if is_backward else 1) * 2 * multiply(query[:-1]) * key[-2] * (query[-1] + value[-1]))
        if name == "aten::convolution_backward":
            mask = event.concrete[-1] if event.concrete else (True, True)
            results = 1 + bool(mask[0]) + bool(mask[1])
            return 2 * multiply(shapes[0]) * multiply(shapes[2]) // int(shapes[2][0]) * results
        if name.startswith("aten::mkldnn_rnn_layer"):
            inputs, weights = shapes[0], multiply(shapes[1]) + multiply(shapes[2])
            return (4 if name.endswith("backward") else 2) * int(inputs[0]) * int(inputs[1]) * weights
    except (IndexError, TypeError, ValueError):  # another version of torch may have other inputs
        return 0
    return 0


def multiply(sizes: Iterable[int]) -> int:
    """Return the product of the sizes; 1 if there are none."""
    result = 1
    for size in sizes:
        result *= int(size)
    return result


def is_product(event: Event) -> bool:
    """True for a matrix product or a convolution. Attention does not count."""
    return event.name in PRODUCTS or event.name.startswith(("aten::mkldnn_convolution", "aten::convolution_backward"))


def forward_of(event: Event, types: Collection[str] = ("fp32",)) -> Any:
    """Return name, shapes, options and type of a product, to repeat it; None for another operator, or in another
    type."""
    kind, dtype = kind_of(event), describe_inputs(event)[1]
    return None if kind is None or dtype not in types else (*kind, dtype)


def kind_of(event: Event) -> Any:
    """Return name, shapes and options of a product, as `forward_of` has them; None for another operator, and for one
    whose inputs are unknown here."""
    name, shapes = event.name, event.shapes
    try:
        if name in PRODUCTS:
            first, second, dimension = PRODUCTS[name]
            if "bmm" in name:
                return "bmm", (tuple(shapes[first]), tuple(shapes[second])), None
            *rows, columns = shapes[first]
            return "linear", ((multiply(rows), columns), (shapes[second][dimension], columns)), None
        if name == "aten::mkldnn_convolution":
            padding, stride, dilation, groups = event.concrete[3:7]
            sizes = (tuple(stride), tuple(padding), tuple(dilation), groups)
            return "conv", (tuple(shapes[0]), tuple(shapes[1])), sizes
        if name.endswith("attention_for_cpu"):
            return "attention", tuple(tuple(shape) for shape in shapes[:3]), bool(event.concrete[4])
    except (IndexError, TypeError, ValueError):  # as in `count_flops`
        return None
    return None


def sum_operators(events: Iterable[Event], types: Collection[str] = ("fp32",)) -> Operators:
    """Return the operators with most time of their own, and the FLOPs. An operator inside a counted one does not count.
    `types`: of products to be repeated."""
    times: dict[tuple[str, str, str], list[int]] = {}
    of_dtype: dict[str, int] = {}
    forwards: dict[Any, list[float]] = {}
    products = product_time = multiplied = 0
    fastest = 0.0
    is_compiled = False
    stacks: dict[int, list[tuple[int, list[int], bool, bool]]] = {}
    for event in sorted(events, key=lambda event: (event.begin, -event.end)):
        is_compiled = is_compiled or bool(COMPILED.search(event.name))
        if event.is_async or (event.scope == USER and not COMPILED.search(event.name)):
            continue
        stack = stacks.setdefault(event.thread, [])
        while stack and stack[-1][0] <= event.begin:
            stack.pop()
        duration = event.end - event.begin
        shapes, dtype = describe_inputs(event)
        own = times.setdefault((event.name[:MOST_TEXT], shapes, dtype), [0, 0]) if is_work(event) else [0, 0]
        if stack:
            stack[-1][1][0] -= duration
        own[0] += duration
        own[1] += 1
        is_counted = bool(stack) and stack[-1][2]
        is_backward = event.name.startswith(NODE) or (bool(stack) and stack[-1][3])
        flops = 0 if is_counted else count_flops(event)
        if flops:
            of_dtype[dtype] = of_dtype.get(dtype, 0) + flops
            fastest = max(fastest, flops / max(duration, SHORTEST) * 1e9)
        if not is_counted and (flops or is_product(event)):
            multiplied += duration
            if not is_backward:
                of_kind = forwards.setdefault(forward_of(event, types), [0.0, 0])
                of_kind[0] += duration / 1e9
                of_kind[1] += 1
        if not is_counted and is_product(event):
            products, product_time, is_counted = products + 1, product_time + duration, True
        stack.append((event.end, own, is_counted or flops > 0, is_backward))
    top = sorted(times, key=lambda key: -times[key][0])[:MOST_OPERATORS]
    rows = [
        {"name": n, "shapes": s, "dtype": d, "calls": times[n, s, d][1], "seconds": times[n, s, d][0] / 1e9}
        for n, s, d in top
    ]
    dtype = max(of_dtype, key=lambda name: of_dtype[name]) if of_dtype else ""
    return Operators(
        rows, sum(of_dtype.values()), dtype, products, product_time, fastest, is_compiled, forwards, multiplied
    )


def describe_inputs(event: Event) -> tuple[str, str]:
    """Return shapes, such as `64x512 512x512`, and the type of the inputs; both empty if the event does not show
    them."""
    shapes = " ".join("x".join(map(str, shape)) for shape in event.shapes if shape and not isinstance(shape[0], list))
    # A bias comes first, in the type of the others; a mask of another type does too.
    types = [DTYPES[dtype] for dtype in event.dtypes if dtype in DTYPES]
    return shapes[:MOST_TEXT], types[0] if types else next((d for d in event.dtypes if d and "Scalar" not in d), "")
