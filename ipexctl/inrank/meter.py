"""The step meter of a rank: counts optimizer steps, DataLoader samples, and time spent waiting for data; and notes
whether the script multiplies in fp32. `rank_hooks.py` calls a `watch_…` function once a module of torch or IPEX is
imported.

- An error here never reaches the script: the meter stops, and the script continues.
- The first optimizer that steps counts. Another optimizer replaces it if the first is gone, or did not step during
  SWITCH steps of the other.
- A step gets the samples of the iterator that was used last before it. Batches from other iterators belong to an
  evaluation, or are a second input for the same samples.
- The type of matrix products is read from the graph of the first backward. A compiled graph shows no type.
- IPEX's fused steps bypass all hooks, because `ipex.optimize` takes functions from its tables.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import math
import mmap
import os
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, Callable, Iterator, NamedTuple

from .acted import acting_levers, is_rounding
from .evidence import COLLECTIVES, PEER_TO_PEER, TrainingEvidence
from .progress import first_step, planned_steps

SLOTS = 1024
WORDS = 9
RECORD_SIZE = 8 * WORDS
RING_SIZE = SLOTS * RECORD_SIZE
DOCUMENT = RING_SIZE + 4096
FILE_SIZE = DOCUMENT + 8192
"""After the ring: the step after which to profile (0 without a request), the process's optimizer steps, and the path of
the profile's document, which a zero byte ends. Then a document in JSON, which a zero byte ends, too: what the levers
did, and the evidence of a wrong training (`node/common/training.py`)."""
ASKED, MADE, PATH = RING_SIZE // 8, RING_SIZE // 8 + 1, RING_SIZE + 16
SALT = 0x69706578_6D657472
LINK = "/memfd:ipexctl-meter"
MASK = (1 << 64) - 1
_RECORD = struct.Struct("@9Q")
_BODY = struct.Struct("@8Q")


class Totals(NamedTuple):
    """Times in nanoseconds. `steps` to `reduce` are sums since the meter started."""

    wall: int
    steps: int = 0
    samples: int = 0
    wait: int = 0
    reduce: int = 0
    flags: int = 0
    training: int = 0


class RingError(Exception):
    """This process can't write the ring; the text is the reason."""


def check_of(number: int, totals: Totals) -> int:
    """Return the last word of a record, by which a reader sees that the record is complete."""
    check = SALT ^ number
    for word in totals:
        check ^= word
    return check & MASK


class RingWriter:
    """Writes the step meter's ring: a small shared file with the newest records.

    The rank wrapper creates the file (path in $IPEXCTL_METER) and reads it (`node/run/meter/meter_reader.py`). The
    writer holds the file's lock. If another process takes over, it continues from the totals in the newest record. A
    record is 9 words of 64 bits in machine order:

        NUMBER, WALL, STEPS, SAMPLES, WAIT, REDUCE, FLAGS, TRAINING, CHECK

    NUMBER counts from 1; the record is at place (NUMBER - 1) % SLOTS. WALL is CLOCK_MONOTONIC in nanoseconds, WAIT the
    time spent waiting for data, REDUCE the time spent waiting for other ranks in the shared-memory all-reduce. FLAGS
    has, from the lowest bit: 6 bits for why the samples since the last record are unknown, PAUSED, FP32, three bytes
    for the DDP models' gradients in units of 65,536 bytes, and the thread that stepped in the upper half. TRAINING has
    in its lower half the number of ranks in the largest process group so far, 0 before ALONE_STEPS steps or if unknown;
    then UNUSED, APART, and in the upper 24 bits the first step of those until now whose loss is nan, or 0. CHECK is the
    exclusive or of the other words and SALT.

    The writer clears NUMBER, writes the other words, then NUMBER. On x86-64 others see stores in this order, so a
    reader of an incomplete record sees NUMBER 0, two different readings, or a wrong CHECK.
    """

    def __init__(self, path: str) -> None:
        # In a container with its own pids, the path may belong to another file.
        if not os.readlink(path).startswith(LINK):
            raise RingError("the step meter's path belongs to another file")
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(self._file).st_size != FILE_SIZE:
                raise RingError("the step meter's file has the wrong size")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RingError("another process of this rank has the step meter") from None
            self._map = mmap.mmap(self._file, FILE_SIZE)
        except BaseException:
            os.close(self._file)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._number, self.before = self._find_newest()
        self._words[ASKED] = 0  # that was for a process before

    def _find_newest(self) -> tuple[int, Totals]:
        """Return number and totals of the newest complete record; zeros if there is none."""
        newest, totals = 0, Totals(0)
        for fields in _RECORD.iter_unpack(self._map[:RING_SIZE]):
            number, candidate = fields[0], Totals(*fields[1:8])
            if number > newest and check_of(number, candidate) == fields[8]:
                newest, totals = number, candidate
        return newest, totals

    def write(self, totals: Totals) -> None:
        """Write the next record over the oldest one."""
        number = self._number + 1
        offset = (number - 1) % SLOTS * RECORD_SIZE
        check = check_of(number, totals)
        self._words[offset // 8] = 0
        _BODY.pack_into(self._map, offset + 8, *totals, check)
        self._words[offset // 8] = number
        self._number = number

    def exchange_steps(self, made: int) -> int:
        """Publish the steps of this process; return the one after which to profile, or 0."""
        self._words[MADE] = made
        return self._words[ASKED]

    def profile_path(self) -> str:
        """Return where the user's request wants the document of the profile."""
        return os.fsdecode(self._map[PATH:DOCUMENT].partition(b"\0")[0])

    def write_document(self, text: bytes) -> None:
        """Replace the document. One that is too long is dropped, and the old one stays."""
        if len(text) < FILE_SIZE - DOCUMENT:
            self._map[DOCUMENT : DOCUMENT + len(text) + 1] = text + b"\0"

    def close(self) -> None:
        """Give up the file and its lock, so that another process of this rank can write."""
        self._words.release()
        self._map.close()
        os.close(self._file)


DOCUMENT_INTERVAL = 1_000_000_000
"""Minimum nanoseconds between documents."""
INTERVAL = 20_000_000
"""Minimum nanoseconds between records. Faster steps share a record, so that the ring lasts 20 s."""
SWITCH = 16
ALONE_STEPS = 20
"""Steps of an optimizer after which a rank without a process group counts as training alone."""
UNUSED, APART = 1 << 32, 1 << 33
"""Flags: the process has ended without a training step, although its code has a backward; it has stepped without any
collective."""
NAN, MOST_NAN = 40, 0xFFFFFF
"""Place and highest value of the step since which the loss is nan."""
OTHER_WAYS = ("mpi4py", "horovod", "byteps", "bagua", "hivemind", "ray")
"""Modules that may exchange gradients without a process group of torch."""
OLDEST, COMPILER, NUMBERED = (2, 1), (2, 3), (2, 13)
"""Versions of torch from which there are the hooks, and `torch.compiler.is_compiling`; and in which gloo was seen to
number its collectives."""
PREFETCHED, MIXED, UNSIZED = 1, 2, 4
"""Flags: another thread takes batches from the loader; several iterators feed each step; a batch has no known size."""
PAUSED = 64
"""A flag: the time until the next record does not count."""
FP32 = 128
"""A flag that is never cleared: matrices are multiplied in fp32, without rounding their values."""
PRODUCTS = ("mm", "linear", "convolution")
"""Parts of the lower-case names of matrix product nodes: AddmmBackward0, BmmBackward0, ConvolutionBackward0."""
MOST_NODES, MOST_GRAPHS = 20_000, 4
COMPARED, ELEMENTS = 16, 4096
"""Parameters that backwards compare, and elements of each."""
ROWS = "_ipexctl_rows"
"""Attribute of a DataLoader's iterator: rows of the dataset in each batch that was begun."""
DEPTH, ITEMS = 4, 16
"""How deep, and in how many items of a batch, the first tensor is searched for."""
MOST_ITERATORS = 64
WIDE = ("torch.float32", "torch.float64")
WAITING, SHARED = f"{__package__}.waiting", f"{__package__}.collectives"
"""Modules that count the waiting in shared memory, and the calls there. The rank may not have imported them."""


def size_of(batch: Any, depth: int = DEPTH) -> int | None:
    """Return the first dimension of the first tensor in a batch that has one; None if there is none, or if it is nested
    too deep."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if not depth:
        return None
    if isinstance(batch, Mapping):
        items = batch.values()
    elif isinstance(batch, (tuple, list)):
        items = batch  # type: ignore[assignment]
    else:
        return None
    for _, item in zip(range(ITEMS), items):
        size = size_of(item, depth - 1)
        if size is not None:
            return size
    return None


def tokens_in(batch: Any) -> int:
    """Return the tokens of a batch for a language model, without padding; 0 if it is for another model."""
    tokens: Any = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if len(getattr(tokens, "shape", ())) != 2:
        return 0
    mask = batch.get("attention_mask")
    return int(mask.sum()) if getattr(mask, "shape", None) == tokens.shape else int(tokens.numel())


def size_of_group() -> int:
    """Return the ranks in torch's default process group; 1 without one, 0 if ranks may train together without it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    is_agent_set = getattr(sys.modules.get("torch.distributed.rpc"), "_is_current_rpc_agent_set", lambda: False)
    return 0 if is_agent_set() or any(name in sys.modules for name in OTHER_WAYS) else 1


def count_collectives() -> int | None:
    """Return the collectives, sends and receives of all process groups so far; None if gloo alone does not make or
    number them."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not is_new_enough(str(sys.modules["torch"].__version__), NUMBERED):
        return None
    groups = c10d._world.pg_map
    if any(backend != "gloo" for backend, _ in groups.values()):
        return None
    shared = sys.modules.get(SHARED)
    in_shared_memory = sum(shared.taken.values()) if shared is not None else 0
    return in_shared_memory + sum(int(group._get_sequence_number_for_group()) for group in groups)


def is_training_script(path: str, *, beside: bool) -> bool:
    """True if the main script, or also a module `beside` it, trains by itself, and has started no process that may."""
    processes = sys.modules.get("multiprocessing.process")
    if path == "/" or (processes is not None and next(processes._process_counter) > 1):
        return False
    files, directory = [path], os.path.join(os.path.dirname(path), "")
    for module in list(sys.modules.values()) if beside else ():
        file = str(getattr(module, "__file__", None) or "")
        if file.startswith(directory) and "site-packages" not in file:
            files.append(file)
    return any(map(has_backward, files))


def has_backward(path: str) -> bool:
    """True if the text of a script has a backward. Raises an OSError if it can't be read."""
    with open(path, "rb") as file:
        return b".backward(" in file.read()


class StepCounter:
    """Decides which steps count, and with which samples. Does not use torch or a clock."""

    def __init__(self) -> None:
        self.steps = self.samples = self.wait = self.flags = 0
        self._counted: Callable[[], Any] = lambda: None
        self._candidate: Callable[[], Any] = lambda: None
        self._candidate_steps = 0
        self._is_stepping = False
        self._pending: dict[int, list[int]] = {}
        self._last = 0
        self._batch_thread = 0
        self._mixed_steps = 0
        self._unknown = 0
        self.has_batches = False

    def before_step(self) -> None:
        """Note that a step begins. It is called twice if an optimizer's step calls its base class's step."""
        self._is_stepping = True

    def after_step(self, optimizer: Any, thread: int) -> bool:
        """Return True if the step that ends counts. It counts once, and not if it is of another optimizer than the
        counted one."""
        if not self._is_stepping:
            return False
        self._is_stepping = False
        counted = self._counted()
        if counted is not optimizer and counted is not None and not self._replaces(optimizer):
            return False
        if counted is not optimizer:
            self._counted = weakref.ref(optimizer)
        self._candidate_steps = 0
        self._take_samples(thread)
        self.steps += 1
        return True

    def _replaces(self, optimizer: Any) -> bool:
        """True if another optimizer should count from now on. Only the first other one since the last counted step is
        considered, because there may be one per parameter."""
        if not self._candidate_steps:
            self._candidate = weakref.ref(optimizer)
        if self._candidate() is optimizer or self._candidate() is None:
            self._candidate_steps += 1
        return self._candidate_steps >= SWITCH and self._candidate() is optimizer

    def _take_samples(self, thread: int) -> None:
        """Add the samples and the waiting of the last iterator to the step, and note what makes them doubtful."""
        self._mixed_steps = self._mixed_steps + 1 if len(self._pending) > 1 else 0
        if self._mixed_steps > 1:  # one such step follows each evaluation
            self.flags |= MIXED
        if self._pending and self._batch_thread != thread:
            self.flags |= PREFETCHED
        self.flags |= self._unknown
        samples, wait = self._pending.get(self._last, (0, 0))
        self.samples += samples
        self.wait += wait
        self._pending.clear()
        self._unknown = 0

    def on_batch(self, iterator: int, size: int | None, wait: int, thread: int) -> None:
        """Note a batch for the next step. `iterator`: identifies the loader's iterator. `size`: samples, None if
        unknown. `wait`: nanoseconds that the script waited for it."""
        self.has_batches = True
        if len(self._pending) >= MOST_ITERATORS:
            self._pending.clear()
        self._last, self._batch_thread = iterator, thread
        pending = self._pending.setdefault(iterator, [0, 0])
        pending[1] += wait
        if size is None:
            self._unknown |= UNSIZED
        else:
            pending[0] += size


class Meter:
    """The step meter of this process. The hooks call its methods."""

    def __init__(self, path: str) -> None:
        self.is_on = True
        self.counter = StepCounter()
        self._path = path
        self._ring: RingWriter | None = None
        self._before = Totals(0)
        self._models: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._stepped_at = self._written_at = 0
        self._products = 0
        self._types: set[str] = set()
        """Of the matrix products in the first backward; empty if unknown."""
        self._optimizers: set[str] = set()
        """Names of their classes."""
        self.evidence = TrainingEvidence()
        self._documented_at = 0
        self._tokens = self._token_samples = 0
        self._group = self._apart = 0
        self._planned = self._resumed = 0
        self._began = 0, False
        """Steps of the whole training, and those before this process."""
        self._last_loss: float | None = None
        self._largest = 0
        """Ranks of the largest process group in the first steps."""
        self._collectives: int | None = None
        """Before the first step; None if unknown, or if ranks have exchanged something since."""
        self._loss: Any = None
        self._nan_since = self._inf_since = 0
        """Step since which each loss is nan, or was inf before it; 0 if the last one is a number."""
        self.made = 0
        """Optimizer steps, also those that were profiled."""
        self._asked = 0
        self._paused: tuple[int, int, int] | None = None
        self.is_used = False  # until a module is built, a backward made, or a batch taken
        self.is_training = False  # until an optimizer is built; after a backward, until a later one finds no change
        self._kept: list[tuple[weakref.ref[Any], Any]] | None = None
        """Parameters of the first backward and their values; empty if unknown, or if they have changed since."""
        # Python removes it when the script ends, before the functions of atexit.
        self._script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or "/")
        os.register_at_fork(after_in_child=self._leave_ring)
        atexit.register(self.finish)

    def turn_off(self) -> None:
        """Stop metering for good, and drop the evidence. The script continues."""
        self.is_on = False
        self.evidence.turn_off()

    def _leave_ring(self) -> None:
        """Turn off in a forked child if the parent has the ring. Otherwise the child may be the one that trains."""
        if self._ring is not None:
            self.turn_off()

    def on_model(self, model: Any) -> None:
        """Note how many bytes of a DDP model's gradients could be sent encoded."""
        try:
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            wide = [parameter for parameter in parameters if str(parameter.dtype) in WIDE]
            self._models[model] = sum(parameter.numel() * parameter.element_size() for parameter in wide)
            self.gather(watch_inputs, self)
        except Exception:  # noqa: BLE001
            self.turn_off()

    def _gradients(self) -> int:
        """Return the bytes of all models' gradients in units of 65,536, rounded up."""
        return min(-(-sum(self._models.values()) >> 16), 0xFFFFFF)

    def on_backward(self, tensors: Any) -> bool:
        """Find the type of the matrix products in a graph; return False if none are visible."""
        self._types = types = product_types(tensors)
        if types == {"torch.float32"} and not is_rounding(sys.modules["torch"]):
            self._products = FP32
        return bool(types)

    def note_loss(self, tensors: Any) -> None:
        """Keep the sum of the backwards' losses until the step, without their graphs."""
        is_loss = hasattr(tensors, "numel") and tensors.numel() == 1 and tensors.device.type == "cpu"
        before, self._loss = self._loss, tensors.detach() if is_loss else None
        if self.evidence.is_on:
            self.evidence.before_backward(self._loss, nodes_of(tensors))
            if not self._stepped_at:
                self.evidence.note_models(list(self._models))
        if before is not None and self._loss is not None:  # Trainer and Lightning divide each by their number
            self._loss = before + self._loss

    def compare_parameters(self, tensors: Any, is_training: bool) -> None:
        """Set `is_training` if the parameters of the first backward have not changed since."""
        kept, self._kept = self._kept, []
        if kept is None:
            if (is_training or self._models) and not self._stepped_at:
                self._kept = parameters_of(tensors)
        elif kept and not self._stepped_at and all(is_unchanged(*each) for each in kept):
            self._kept, self.is_training = kept, True

    def _has_changed(self) -> bool:
        return any(ref() is not None and not is_unchanged(ref, value) for ref, value in self._kept or ())

    def gather(self, note: Callable[..., None], *args: Any, **options: Any) -> None:
        """Call a function of the evidence."""
        if self.is_on and self.evidence.is_on:
            try:
                note(*args, **options)
            except Exception:  # noqa: BLE001  # a torch or tensors without what it reads
                self.evidence.turn_off()

    def before_step(self, optimizer: Any) -> None:
        """Note that an optimizer's step begins, with what is seen before it."""
        self.counter.before_step()
        self.gather(self.evidence.before_step, optimizer, list(self._models))

    def after_step(self, optimizer: Any) -> None:
        """Count an optimizer's step, and from time to time write a record, the document, and take a request to
        profile."""
        if not self.is_on:
            return
        try:
            if self.counter.after_step(optimizer, threading.get_ident()):
                self._stepped_at = time.monotonic_ns()
                self.made += 1
                if self._ring is not None:
                    self._ring.exchange_steps(self.made)
                self._check_loss()
                self._optimizers.add(type(optimizer).__name__)
                self.evidence.after_step()
                for lever in acting_levers.values():
                    lever.after_step()
                if self.counter.steps == 1:
                    self._collectives, self._began = count_collectives(), first_step(optimizer)
                if self.counter.steps < ALONE_STEPS:
                    self._find_group()
                if self._stepped_at - self._written_at >= INTERVAL or self.counter.steps == ALONE_STEPS:
                    self._find_group()
                    self._write(self._stepped_at)
                    self._take_request()
                    if self._stepped_at - self._documented_at >= DOCUMENT_INTERVAL:
                        if not self._planned:
                            self._planned, self._resumed = planned_steps(self.made)
                        self._write_document()
        except Exception:  # noqa: BLE001  # the script trains without the meter
            self.turn_off()

    def on_batch(self, iterator: Any, batch: Any, wait: int, rows: int | None = None) -> None:
        """Note a batch that a DataLoader gave. `rows`: of the dataset, which a batch may have packed; None if
        unknown."""
        try:
            if self.evidence.is_on:
                self.evidence.on_batch(iterator, batch)
            is_sized = getattr(iterator, "_auto_collation", True)  # else an item may be a sample or a batch
            size = (rows or size_of(batch)) if is_sized else None
            self.counter.on_batch(id(iterator), size, wait, threading.get_ident())
            if size and (tokens := tokens_in(batch)):
                self._tokens += tokens
                self._token_samples += size
        except Exception:  # noqa: BLE001
            self.turn_off()

    def pause(self) -> None:
        """Count no steps until `resume`."""
        self.counter.flags |= PAUSED
        self._write(time.monotonic_ns())
        self._paused = self.counter.steps, self.counter.samples, self.counter.wait

    def resume(self) -> None:
        """Count steps again, from where `pause` stopped counting. It does nothing unless `pause` was called."""
        if self._paused is not None:
            self.counter.steps, self.counter.samples, self.counter.wait = self._paused
            self._paused = None
            self._stepped_at = time.monotonic_ns()
            self._write(self._stepped_at)

    def _write(self, now: int) -> None:
        """Write a record with all totals, unless the meter is paused, off, or without a ring."""
        if self._paused is not None or not self.is_on:
            return
        if not self._has_ring():
            return
        self._written_at = now
        counter, before = self.counter, self._before
        waiting = sys.modules.get(WAITING)
        assert self._ring is not None
        self._ring.write(
            Totals(
                now,
                before.steps + counter.steps,
                before.samples + counter.samples,
                before.wait + counter.wait,
                before.reduce + (waiting.slept[0] if waiting is not None else 0),
                threading.get_native_id() << 32 | self._gradients() << 8 | self._products | counter.flags,
                self._group | self._apart | self._nan_since << NAN,
            )
        )
        counter.flags = 0

    def _has_ring(self) -> bool:
        """True if this process writes the ring; the first call opens it. If another process has it, the meter is turned
        off."""
        if self._ring is None and self.is_on:
            try:
                self._ring = RingWriter(self._path)
            except (RingError, OSError):
                self.turn_off()
                return False
            self._before = self._ring.before
        return self.is_on

    def _write_document(self) -> None:
        """Write what the levers did, the progress and the evidence, if there is something to tell."""
        notes = [lever.note(self._reason_of(lever.name)) for lever in acting_levers.values()]
        if os.environ.get("IPEXCTL_FP32_MATH"):
            reason = self._reason_against_rounding()
            steps = 0 if reason else self.made
            notes.append({"name": "fp32_math", "acted": not reason, "steps": steps, "reason": reason})
        if not self._stepped_at:
            self.evidence.fields["is_changed"] = not self._kept or self._has_changed()
        is_told = notes or self._stepped_at or self.evidence.fields["backwards"]
        if is_told and self._has_ring() and self._ring is not None:
            self._documented_at = time.monotonic_ns()
            tokens = self._tokens / self._token_samples if self._token_samples else None
            progress = {"step": self.made, "before": self._resumed, "planned": self._planned, "loss": self._last_loss}
            progress["began"], progress["is_of_trainer"] = self._began
            more = {"tokens_per_sample": tokens, "progress": progress}
            document = {"levers": notes, **more, **self.evidence.document()}
            self._ring.write_document(json.dumps(document, separators=(",", ":")).encode())

    def _reason_of(self, name: str) -> str:
        """Return why a lever did not act, for a lever that noted no reason."""
        if name != "fused_optimizer":
            return "no model with fp32 parameters was called" if name == "autocast" else "no model was wrapped"
        names = " and ".join(sorted(self._optimizers)[:4])
        return f"the optimizer is {names}" if names else "no optimizer made a step"

    def _reason_against_rounding(self) -> str:
        if not is_rounding(sys.modules["torch"]):
            return "the precision was set back"
        is_product = not self._types or "torch.float32" in self._types
        return "" if is_product else f"the matrix products are {' and '.join(sorted(self._types))}"

    def _take_request(self) -> None:
        """Profile steps if a user has asked for that since the last record."""
        asked = self._ring.exchange_steps(self.made) if self._ring is not None else 0
        if asked != self._asked and self._ring is not None:
            from .profiler import begin  # few runs are profiled

            self._asked = asked
            begin(self, self._ring.profile_path(), asked)

    def _check_loss(self) -> None:
        """Note since which step the loss is undefined or infinite, and the last finite loss."""
        if self._loss is None:
            return
        value, self._loss = float(self._loss), None
        self.evidence.on_loss(value)
        step = min(self._before.steps + self.counter.steps, MOST_NAN)
        if math.isfinite(value):
            self._last_loss = value
            self._nan_since = self._inf_since = 0
        elif value != value:
            self._nan_since = self._nan_since or self._inf_since or step
        else:
            self._inf_since = self._inf_since or step

    def _find_group(self, fewest: int = ALONE_STEPS) -> None:
        """Note how many ranks train together, and whether this rank exchanges anything. `fewest`: steps from which a
        rank without a group trains alone."""
        size = size_of_group()
        self._largest = max(self._largest, size)
        if self.counter.steps < fewest:
            self._group = 0
            return
        self._group = self._largest if size else 0
        if self._collectives is not None and (self._models or count_collectives() != self._collectives):
            self._collectives = None
        is_known = self.counter.steps > 1  # the first step's collectives came before
        self._apart = APART if self._collectives is not None and is_known else 0

    def _is_training_script(self) -> bool:
        return is_training_script(self._script, beside=not self.counter.has_batches)

    def finish(self) -> None:
        """Write the steps since the last record, at exit. The script may have destroyed its group by now."""
        if not self.is_on:
            return
        if self._inf_since < self._before.steps + self.counter.steps:  # one alone may be of an overflow in fp16
            self._nan_since = self._nan_since or self._inf_since
        may_train = not self._stepped_at and (self.is_training or not self.is_used)
        try:
            if self._stepped_at > self._written_at or 0 < self.counter.steps < ALONE_STEPS or self._inf_since:
                self._find_group(min(ALONE_STEPS, self.counter.steps))
                self._write(max(self._stepped_at, self._written_at))
            elif may_train and not self._has_changed() and (self._kept or self._is_training_script()):
                self._group = UNUSED
                self._write(time.monotonic_ns())
            self.gather(self.evidence.end)
            if self.is_used or any(lever.has_acted for lever in acting_levers.values()):
                self._write_document()
        except Exception:  # noqa: BLE001
            self.turn_off()


_meter: Meter | None = None


def meter() -> Meter:
    """Return the meter of this process. The first call makes it."""
    global _meter
    if _meter is None:
        _meter = Meter(os.environ.get("IPEXCTL_METER", ""))
    return _meter


def watch_optimizers(module: Any) -> None:
    """Call the meter before and after each step of an optimizer. `module`: torch.optim.optimizer. It does nothing in a
    torch without these hooks."""
    own, torch = meter(), sys.modules["torch"]  # torch is still being imported, so its parts are looked up later
    version = str(getattr(torch, "__version__", ""))
    if not is_new_enough(version):
        return
    part = place_of_compiler(torch)

    def before(optimizer: Any, *_: Any) -> None:
        # torch.compile would trace this into a compiled step, so for torch.compile the function is empty.
        if not getattr(torch, part).is_compiling():
            own.before_step(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        if not getattr(torch, part).is_compiling():
            own.after_step(optimizer)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
    call_at_first(module.Optimizer, lambda: setattr(own, "is_training", True))


def place_of_compiler(torch: Any) -> str:
    """Return the name of the part of torch that has `is_compiling`."""
    return "compiler" if is_new_enough(str(getattr(torch, "__version__", "")), COMPILER) else "_utils"


def is_new_enough(version: str, oldest: tuple[int, int] = OLDEST) -> bool:
    """True if a version of torch is at least `oldest`. False for a version without two numbers."""
    major, minor = [*version.split("."), ""][:2]
    return major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= oldest


def watch_backward(module: Any) -> None:
    """Look at the graph of each backward before it is run. `module`: torch.autograd."""
    own, backward = meter(), module.backward
    graphs, is_seen = 0, False
    torch = sys.modules["torch"]
    part = place_of_compiler(torch)

    @functools.wraps(backward)
    def inspect_graph(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal graphs, is_seen
        is_training, own.is_used, own.is_training = own.is_training, True, False
        if own.is_on and not getattr(torch, part).is_compiling():
            try:
                own.note_loss(tensors)
                own.compare_parameters(tensors, is_training)
                if not is_seen and graphs < MOST_GRAPHS:
                    graphs += 1
                    is_seen = own.on_backward(tensors)
            except Exception:  # noqa: BLE001  # the type stays unknown then
                is_seen = True
        result = backward(tensors, *args, **kwargs)
        if not getattr(torch, part).is_compiling():
            own.gather(own.evidence.after_backward)
        return result

    module.backward = inspect_graph


def watch_modules(module: Any) -> None:
    """Note that the process uses torch, once it builds the first module. `module`: torch.nn.modules.module."""
    own = meter()
    call_at_first(module.Module, lambda: setattr(own, "is_used", True))


def call_at_first(kind: Any, note: Callable[[], None]) -> None:
    """Call `note` when the first object of a class is built. Others cost nothing."""
    build = kind.__init__

    @functools.wraps(build)
    def build_first(self: Any, *args: Any, **kwargs: Any) -> None:
        note()
        if kind.__init__ is build_first:
            kind.__init__ = build
        build(self, *args, **kwargs)

    kind.__init__ = build_first


def product_types(tensors: Any) -> set[str]:
    """Return the result types of the matrix products in a graph. Saved tensors are not read, because with checkpointing
    that would compute them."""
    types = set()
    for node in nodes_of(tensors):
        name = node.name().lower()
        if any(part in name for part in PRODUCTS):
            types |= {str(result.dtype) for result in node._input_metadata}
    return types


def nodes_of(tensors: Any) -> Iterator[Any]:
    """Yield up to MOST_NODES nodes of the graph of a tensor, or of several."""
    given = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
    nodes = [tensor.grad_fn for tensor in given if tensor.grad_fn is not None]
    seen = set(nodes)
    while nodes and len(seen) < MOST_NODES:
        node = nodes.pop()
        yield node
        unseen = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= unseen
        nodes.extend(unseen)


def parameters_of(tensors: Any) -> list[tuple[weakref.ref[Any], Any]]:
    """Return the smallest parameters of a graph with their values. Empty if the graph has other leaves, which may be
    the inputs of a saliency map, or DTensors."""
    leaves = [node.variable for node in nodes_of(tensors) if hasattr(node, "variable")]
    if any(type(parameter) is not sys.modules["torch"].nn.Parameter for parameter in leaves):
        return []
    smallest = sorted(leaves, key=lambda parameter: int(parameter.numel()))[:COMPARED]
    return [(weakref.ref(parameter), parameter.detach().reshape(-1)[:ELEMENTS].clone()) for parameter in smallest]


def is_unchanged(ref: weakref.ref[Any], value: Any) -> bool:
    """True if the parameter still exists and has these values."""
    now = ref()
    return now is not None and bool((now.detach().reshape(-1)[:ELEMENTS] == value).all())


def watch_loaders(module: Any) -> None:
    """Inspect and time each batch. All iterators, including accelerate's and torchdata's, pass batches through
    `__next__`."""
    base = getattr(module, "_BaseDataLoaderIter", None)
    if base is None:
        return
    own, clock, give, choose = meter(), time.monotonic_ns, base.__next__, getattr(base, "_next_index", None)
    torch = sys.modules["torch"]

    def _next_index(self: Any) -> Any:
        chosen = choose(self)  # type: ignore[misc]
        if isinstance(chosen, (list, tuple)) and getattr(self, "_dataset_kind", None) == 0:  # it has a length
            vars(self).setdefault(ROWS, deque()).append(len(chosen))
        return chosen

    @functools.wraps(give)
    def __next__(self: Any) -> Any:  # noqa: N807
        own.is_used, begun = True, clock()
        batch = give(self)
        rows = vars(self).get(ROWS)
        size = rows.popleft() if rows else None
        if own.is_on and torch.is_grad_enabled():  # an evaluation is under no_grad
            own.on_batch(self, batch, clock() - begun, size)
        return batch

    base.__next__ = __next__
    if choose is not None:
        base._next_index = _next_index


@functools.lru_cache(maxsize=None)
def watch_inputs(own: Meter) -> None:
    """See what models in DistributedDataParallel are fed."""
    torch = sys.modules["torch"]
    kind, part = torch.nn.parallel.DistributedDataParallel, place_of_compiler(torch)
    prepare = kind._pre_forward

    @functools.wraps(prepare)
    def _pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not getattr(torch, part).is_compiling():
            own.gather(own.evidence.on_forward, self, (inputs, kwargs))
        return prepare(self, *inputs, **kwargs)

    kind._pre_forward = _pre_forward


def watch_samplers(module: Any) -> None:
    """Note each pass over a DistributedSampler, and each epoch that the script tells it. `module`:
    torch.utils.data.distributed."""
    own, kind = meter(), module.DistributedSampler
    give = kind.__iter__

    @functools.wraps(give)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if own.evidence.is_on:
            own.evidence.on_sampler(self)
        return give(self)

    kind.__iter__ = __iter__
    set_epoch = kind.set_epoch

    @functools.wraps(set_epoch)
    def set_epoch_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
        own.gather(own.evidence.on_epoch, self)
        return set_epoch(self, *args, **kwargs)

    kind.set_epoch = set_epoch_and_note


def watch_collectives(module: Any) -> None:
    """Count what the script's own collectives send. DDP's are made in C++."""
    own, torch = meter(), module.torch
    part = place_of_compiler(torch)

    def counting(function: Callable[..., Any], *, is_peer_to_peer: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            # torch.compile would trace the counting, and compile anew for each count.
            is_traced = getattr(torch, part).is_compiling()
            if not is_traced and not is_called_by_us(sys._getframe(1)):
                is_sum = function.__name__.startswith("all_reduce")
                values = [*args, *kwargs.values()]
                own.gather(own.evidence.on_collective, values, is_peer_to_peer=is_peer_to_peer, is_sum=is_sum)
            return function(*args, **kwargs)

        return counted

    for name in (*COLLECTIVES, *PEER_TO_PEER):
        if hasattr(module, name):
            setattr(module, name, counting(getattr(module, name), is_peer_to_peer=name in PEER_TO_PEER))


def is_called_by_us(frame: Any) -> bool:
    """Return True for `ddp.py`. `gpu_ranks.py` only passes on what a script has called."""
    while frame.f_globals.get("__name__") == f"{__package__}.gpu_ranks":
        frame = frame.f_back
    return bool(frame.f_globals.get("__package__") == __package__)


def watch_fused_steps(module: Any) -> None:
    """Count fused steps. The names of IPEX's tables, class of optimizer → function, differ between versions."""
    own = meter()
    wrapped: dict[Any, Any] = {}
    for name, table in list(vars(module).items()):
        if not name.startswith("OPTIMIZER_FUSED_STEP_MAPPING") or not isinstance(table, dict):
            continue
        for kind, step in table.items():
            wrapped[step] = wrapped.get(step) or _counting(step, own)
            table[kind] = wrapped[step]


def _counting(step: Callable[..., Any], own: Meter) -> Callable[..., Any]:
    """Return a fused step that the meter counts."""

    @functools.wraps(step)
    def counted(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        own.before_step(optimizer)
        result = step(optimizer, *args, **kwargs)
        own.after_step(optimizer)
        return result

    return counted
