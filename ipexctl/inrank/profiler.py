"""Profile two optimizer steps of an unchanged script with torch's profiler, and measure what the cores can do.

A `StepProfiler` is put around the step meter's hooks: by `watch_steps` for `run --profile`, which begins after WARM_UP
steps, and by `begin` for `why --profile`, which names the step. The profile is of STEPS steps, or of one that needs
MUCH_MEMORY. An error here ends the profile, not the script: the reason is in the rank's document, and with
`run --profile` rank 0 prints it once.

- torch's profiler belongs to the thread that starts it. A process that exits while the profiler is on crashes. So did
  one in four processes in which a second profile, with shapes, followed the first without them (torch 2.13).
- A script with a profiler of its own keeps it: ours ends as soon as the script makes one.
- A forked process would go on recording, so the profile starts over at a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import gzip
import json
import os
import sys
import threading
import time
from statistics import median
from typing import Any, Callable, Iterator, Protocol

from . import profile_parts
from .gloo_threads import wait_for_gloo
from .lever_times import HALF, is_half_left, measure_levers
from .profile_parts import Event

VARIABLE = "IPEXCTL_PROFILE"
"""Path of the document, which the rank wrapper reads."""
WARM_UP = 5
STEPS = 2
MUCH_MEMORY = 64 << 20
"""That a step's events take, from which no other step is profiled."""
MOST_EVENTS = 300_000
"""Events of all steps, from which there is no profile."""
MOST_SECONDS, MOST_MEMORY = 30.0, 512 << 20
"""A window ends at the next batch, backward or step once it has taken more time or memory."""
MOST_STARTS = 4
PEAK_SECONDS = 0.3
"""Seconds for each type in which the peak is measured."""
BUSY = 0.1
"""Share of the window from which waiting for a processor means that other programs compute here."""
SIZES = (64, 128, 256, 512, 1024, 2048)
LEAST_PRODUCTS = 3
OTHER_PROFILER = "the script has a profiler of its own, which it keeps"


class SteppedMeter(Protocol):
    """What a profiler needs of the step meter, which starts it."""

    counter: Any
    made: int

    def before_step(self, optimizer: Any) -> None:
        """Note that an optimizer's step begins."""

    def after_step(self, optimizer: Any) -> None:
        """Count an optimizer's step."""

    def pause(self) -> None:
        """Count no steps until `resume`."""

    def resume(self) -> None:
        """Count steps again."""


class StepProfiler:
    """Profiles some steps of a script, and then puts everything back."""

    def __init__(self, own: SteppedMeter, path: str, start: int = 0) -> None:
        """`start`: the step after which a live run is profiled; 0 with `run --profile`."""
        self.meter, self._path = own, path
        self._torch = sys.modules["torch"]
        self._profile: Any = None
        self._is_live, self._start_after = start > 0, start or WARM_UP
        self.is_over = self._is_ours = False
        self._edges: list[int] = []
        self._marks: list[tuple[int, int]] = []
        self._stepping = self._starts = self._memory = self._first = 0
        self._steps = own.made
        self._paused = self._begun = self._cpu = 0.0
        self._thread: tuple[float, float] | None = None
        self._optimizer: Any = None
        self._ends = [time.monotonic()] if self._is_live else []
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    # What happens in the script

    def before_step(self, step: Callable[[Any], None], optimizer: Any) -> None:
        """Call the meter's own function before an optimizer's step, and note when the step begins. A window that has
        taken too much ends before that."""
        self.check_limits()
        if self._profile is not None:
            self._stepping = time.time_ns()
        step(optimizer)

    def after_step(self, step: Callable[[Any], None], optimizer: Any) -> None:
        """Call the meter's own function after an optimizer's step, and begin or end the window if it is time."""
        before = self.meter.counter.steps
        step(optimizer)
        if self.is_over:
            return
        if self._profile is not None and self._stepping:
            self._marks.append((self._stepping, time.time_ns()))
            self._optimizer = optimizer
        if self.meter.counter.steps > before:
            self.run_guarded(self._on_step)

    def run_guarded(self, action: Callable[[], None]) -> None:
        """Do something; if it fails, end the profile and let the script train on."""
        try:
            action()
        except Exception as error:  # noqa: BLE001
            self.end(f"{type(error).__name__}: {error}")

    def _on_step(self) -> None:
        """Count a step, and begin or end the window after it."""
        self._steps += 1
        if threading.current_thread() is not threading.main_thread():
            self.end("the script trains in another thread than its main one")
        elif self._profile is None:
            self._ends = [*self._ends, time.monotonic()][-WARM_UP:]
            if self._steps >= self._start_after:
                self._paused, self._first = time.monotonic(), self._steps
                self.meter.pause()
                self._start()
        else:
            self._edges.append(time.time_ns())
            if len(self._edges) > STEPS or resident_memory() - self._memory > MUCH_MEMORY:
                self._finish(self._stop())

    def check_limits(self) -> None:
        """Called where a window can end inside a step."""
        if self._profile is None or threading.current_thread() is not threading.main_thread():
            return
        if time.monotonic() - self._begun > MOST_SECONDS or resident_memory() - self._memory > MOST_MEMORY:
            self.run_guarded(self._cut)

    def before_fork(self) -> None:
        """End the window, to begin again later: the child would go on recording."""
        if self._profile is not None and threading.current_thread() is threading.main_thread():
            self.run_guarded(self._start_over)

    def after_fork(self) -> None:
        """Called in the child, which trains only if the parent has made no step."""
        if self._steps:
            self.is_over, self._profile = True, None

    def on_other_profiler(self) -> None:
        """Give way to a profiler that the script makes."""
        if self._is_ours or self.is_over:
            return
        if threading.current_thread() is threading.main_thread():
            self.end(OTHER_PROFILER)
        else:
            self._begun = 0.0  # the window ends at the next batch, backward or step

    def at_exit(self) -> None:
        """Say that the script ended too early for a profile, if it made a step and has none."""
        if self._steps and not self.is_over:
            steps = f"{self._steps} optimizer step{'s' * (self._steps != 1)}"
            end = f"the profile begins after {self._start_after} and takes {STEPS}"
            self.end(f"the script ended after {steps}; {end}")

    # The window

    def _start(self) -> None:
        """Begin the window, unless another profiler is on, or forks have ended it too often."""
        autograd = self._torch.autograd
        self._starts += 1
        if autograd._profiler_enabled():
            self.end("another profiler is on in this process")
            return
        if self._starts > MOST_STARTS:
            self.end("the script starts processes every few steps")
            return
        self._is_ours = True
        try:
            profile = autograd.profiler.profile(record_shapes=True, use_kineto=True)
            # Before torch 2.6, this makes an object of each event at the end, which takes 0.1 ms an event.
            profile._parse_kineto_results = lambda *_: []
            profile._is_of_ipexctl = True
            self._watch_window()
            self._marks, self._stepping = [], 0
            self._memory, self._begun, self._cpu = resident_memory(), time.monotonic(), time.process_time()
            self._thread = thread_times()
            profile.__enter__()
            self._profile = profile
        finally:
            self._is_ours = False
        self._edges = [time.time_ns()]

    def _stop(self) -> Any:
        """Stop the profiler and return its results. The caller has noted the end of the window in `_edges`."""
        profile, self._profile = self._profile, None
        self._cpu, before, now = time.process_time() - self._cpu, self._thread, thread_times()
        self._thread = (now[0] - before[0], now[1] - before[1]) if now is not None and before is not None else None
        self._put_back()
        wait_for_gloo()  # a thread that notes the end of its collective later writes into memory that torch has freed
        profile.__exit__(None, None, None)
        return profile.kineto_results

    def _cut(self) -> None:
        """End the window at its limit: of a whole step in it, only that counts."""
        is_cut = len(self._edges) == 1
        if is_cut:
            self._edges.append(time.time_ns())
        self._finish(self._stop(), is_cut=is_cut)

    def _start_over(self) -> None:
        """Drop the window and begin again after WARM_UP steps."""
        self._stop()
        self.meter.resume()
        self._ends, self._start_after = [], self._steps + WARM_UP

    def _watch_window(self) -> None:
        """Until the window ends, check its limits at each batch and backward, and name the all-reduce of `ddp.py`."""
        autograd = self._torch.autograd
        loaders, ddp = sys.modules.get("torch.utils.data.dataloader"), sys.modules.get(f"{__package__}.ddp")
        checked = [(autograd, "backward"), (getattr(loaders, "_BaseDataLoaderIter", None), "__next__")]
        for owner, name in checked:
            if owner is not None:
                self._replace(owner, name, _checking(self.check_limits, getattr(owner, name)))
        if ddp is not None:
            named = autograd.profiler.record_function(profile_parts.ALL_REDUCE)
            self._replace(ddp.Gradients, "reduce", named(ddp.Gradients.reduce))

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        self._replaced.append((owner, name, function, getattr(owner, name)))
        setattr(owner, name, function)

    def _put_back(self) -> None:
        while self._replaced:
            owner, name, function, before = self._replaced.pop()
            if getattr(owner, name) is function:  # else the script has replaced it, too
                setattr(owner, name, before)

    def _finish(self, results: Any, *, is_cut: bool = False) -> None:
        """Reduce the window to its document, and measure what the cores can do. A window with too many events gives no
        profile."""
        count = len(results.events())
        if count > MOST_EVENTS:
            self.end(f"{len(self._edges) - 1} of its steps have more than {MOST_EVENTS:,} events")
            return
        events = [event for event in read_events(results) if event.begin < self._edges[-1]]
        times = profile_parts.split_window(events, self._edges, self._marks)
        types = ("fp32", *(HALF if is_half_left() else ()))
        operators = profile_parts.sum_operators(events, types)
        trace = self._save_trace(results)
        del events, results
        peak, spread = self._measure_peak(operators.dtype)
        seconds = (self._edges[-1] - self._edges[0]) / 1e9
        levers = measure_levers(
            self._torch,
            operators.forwards,
            operators.multiplied / 1e9,
            self._optimizer,
            times.optimizer / 1e9,
            is_busy=self._thread is not None and self._thread[1] > BUSY * seconds,
        )
        self._optimizer = None
        usual = median(after - before for before, after in zip(self._ends, self._ends[1:]))
        write_document(
            self._path,
            first_step=self._steps - len(self._edges) + 2 + is_cut,
            steps=0 if is_cut else len(self._edges) - 1,
            seconds=seconds,
            usual=usual,
            **{name: spent / 1e9 for name, spent in times._asdict().items() if name != "communication"},
            communication=[waited / 1e9 for waited in times.communication],
            cpu=self._cpu,
            thread_cpu=self._thread and self._thread[0],
            queued=self._thread and self._thread[1],
            cores=own_cores(),
            threads=self._torch.get_num_threads(),
            load=os.getloadavg()[0],
            operators=operators.rows,
            is_compiled=operators.is_compiled,
            flops=operators.flops,
            dtype=operators.dtype,
            products=operators.products,
            product_seconds=operators.product_time / 1e9,
            peak=max(peak, operators.fastest) if peak else 0.0,
            peak_spread=spread,
            levers=levers,
            events=count,
            trace=trace,
            cost=max(0.0, time.monotonic() - self._paused - usual * (self._steps - self._first)),
        )
        self._leave()

    def _save_trace(self, results: Any) -> str:
        """Write a Chrome trace without paths of the home; returns its name, or why it is missing after `!`."""
        directory = os.path.join(os.environ.get("IPEXCTL_RUN_DIR", ""), "profile")
        name = f"rank-{os.environ.get('RANK', '0')}.json.gz"
        part = os.path.join(directory, f".{name}.part")
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            results.save(part)
            pack_trace(part, os.path.join(directory, name))
        except (OSError, RuntimeError) as error:
            return f"!{error}"
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)
        return name

    def _measure_peak(self, dtype: str) -> tuple[float, float]:
        """Return the FLOP/s of the fastest matrix product, and how many times slower the median one of its size was;
        zeros for an unknown type."""
        torch = self._torch
        types = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
        if dtype not in types:
            return 0.0, 0.0
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return fastest_product(torch, types[dtype])

    def end(self, reason: str) -> None:
        """End without a profile."""
        if self._profile is not None:
            with contextlib.suppress(Exception):  # what it measured is dropped
                self._stop()
        with contextlib.suppress(OSError, ValueError):
            if not os.path.exists(self._path):
                write_document(self._path, note=reason[:300])
            if os.environ.get("RANK", "0") == "0" and not self._is_live:
                print(f"ipexctl: --profile is off: {reason[:300]}", file=sys.stderr, flush=True)  # noqa: T201
        self._leave()

    def _leave(self) -> None:
        """Put everything back; the meter counts again."""
        self.is_over = True
        self._put_back()
        self.meter.resume()
        self.meter.__dict__.pop("before_step", None)
        self.meter.__dict__.pop("after_step", None)


def _checking(check: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a call of `check` before it."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check()
        return function(*args, **kwargs)

    return checked


def read_events(results: Any) -> Iterator[Event]:
    """Yield the events of torch's results, in nanoseconds in all versions."""
    for event in results.events():
        if hasattr(event, "start_ns"):
            begin, duration = event.start_ns(), event.duration_ns()
        else:  # before torch 2.4
            begin, duration = event.start_us() * 1000, event.duration_us() * 1000
        yield Event(
            event.name(),
            begin,
            begin + duration,
            event.start_thread_id(),
            event.scope(),
            event.sequence_nr(),
            event.fwd_thread_id(),
            event.is_async(),
            event.shapes(),
            event.dtypes(),
            event.concrete_inputs() if event.name() in profile_parts.WITH_OPTIONS else (),
        )


def fastest_product(torch: Any, dtype: Any) -> tuple[float, float]:
    """Return the FLOP/s of the fastest matrix product, and how many times slower the median one of its size was."""
    until = time.monotonic() + PEAK_SECONDS
    best, spread = 0.0, 1.0
    for size in SIZES:
        first, result = (torch.ones((size, size), dtype=dtype, device="cpu") for _ in range(2))
        times: list[float] = []
        while len(times) < LEAST_PRODUCTS or (time.monotonic() < until and len(times) < 10 * LEAST_PRODUCTS):
            begun = time.perf_counter()
            torch.mm(first, first, out=result)
            times.append(time.perf_counter() - begun)
            if time.monotonic() > until + PEAK_SECONDS:
                break
        rate = 2 * size**3 / min(times)
        if rate > best:
            best, spread = rate, median(times) / min(times)
        if time.monotonic() > until:
            break
    return best, spread


def own_cores() -> int:
    """Return the cores that this rank may use, or its share of the host's if it is not bound."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    share = (os.cpu_count() or 1) // max(1, int(ranks) if ranks.isdigit() else 1)
    return min(len(os.sched_getaffinity(0)), max(1, share))


def thread_times() -> tuple[float, float] | None:
    """Return the seconds of the main thread on a processor, and in a run queue; None if this kernel does not tell."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            ran, waited, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return (ran / 1e9, waited / 1e9) if ran else None


def resident_memory() -> int:
    """Return the bytes of memory that this process has."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pack_trace(source: str, target: str) -> None:
    """Write a compressed copy of a trace, without paths of the run and of the account's home."""
    directory, home = os.fsencode(os.path.dirname(source)), os.fsencode(os.path.expanduser("~"))
    with open(source, "rb") as text, open_private(target) as file, gzip.open(file, "wb", 5) as packed:
        for line in text:
            packed.write(line.replace(directory, b".").replace(home, b"~"))


def open_private(path: str) -> Any:
    """Open a file to write, which only this account may read if it is new."""
    return open(path, "wb", opener=functools.partial(os.open, mode=0o600))


def write_document(path: str, **fields: Any) -> None:
    """Write the document of a profile. It is renamed into place, so that the wrapper reads all of it or nothing."""
    with open_private(f"{path}.part") as file:
        file.write(json.dumps(fields).encode())
    os.replace(f"{path}.part", path)


_profiler: StepProfiler | None = None
_watched: set[type] = set()
"""Classes of profilers whose instances are noticed."""


def watch_steps(own: SteppedMeter) -> None:
    """Begin to profile for `run --profile`; the path of the document is in $IPEXCTL_PROFILE."""
    _put_around(StepProfiler(own, os.environ[VARIABLE]))


def begin(own: SteppedMeter, path: str, start: int) -> None:
    """Profile a live run after its step `start`. One that is not over yet serves the request, too."""
    if _profiler is None or _profiler.is_over:
        profiler = StepProfiler(own, path, start)
        profiler.run_guarded(functools.partial(_begin, profiler, start))


def _begin(profiler: StepProfiler, start: int) -> None:
    """Put a profiler around the meter, unless the request came too late or the script has a profiler of its own."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # as in rank_hooks.py; read at the first profile
    for name in ("torch.autograd.profiler", "torch.profiler.profiler"):
        if name in sys.modules:
            watch_profilers(sys.modules[name])
    kinds = tuple(_watched)
    if profiler.meter.made >= start:
        profiler.end(f"the request came after step {start}, when it was to begin: try again")
    elif any(issubclass(type(other), kinds) and not hasattr(other, "_is_of_ipexctl") for other in gc.get_objects()):
        profiler.end(OTHER_PROFILER)
    else:
        _put_around(profiler)


def _put_around(profiler: StepProfiler) -> None:
    """Put a profiler around the meter's hooks."""
    global _profiler
    _profiler, own = profiler, profiler.meter
    before, after = own.before_step, own.after_step
    own.before_step = functools.partial(profiler.before_step, before)  # type: ignore[method-assign]
    own.after_step = functools.partial(profiler.after_step, after)  # type: ignore[method-assign]
    atexit.register(profiler.at_exit)
    os.register_at_fork(before=profiler.before_fork, after_in_child=profiler.after_fork)


def watch_profilers(module: Any) -> None:
    """Give way to each profiler that the script makes from now on. `module`: one of torch that has profilers."""
    for name in ("profile", "_KinetoProfile"):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and kind not in _watched:
            _watched.add(kind)
            kind.__init__ = _noticing(kind.__init__)  # type: ignore[misc]


def _noticing(construct: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of a profiler of the script, which ends ours."""

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if _profiler is not None:
            _profiler.on_other_profiler()
        construct(self, *args, **kwargs)

    return __init__


def name_kernels(config: Any) -> None:
    """Let compiled kernels have their names in the profile. They use C++ objects of torch then, which fails with the
    compiler of `install --with-compiler`."""
    if not os.environ.get("CXX", "").endswith("/compiler/c++"):
        config.cpp.enable_kernel_profile = True
