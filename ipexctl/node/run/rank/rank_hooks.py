"""Hooks in each Python process of a rank: stack dumps on a signal, notes of uncaught errors, a wait for gloo at exit.

`sitecustomize.py` imports this as `ipexctl_hooks`. That takes one millisecond and prints nothing.

SIGNAL writes all threads' stacks to an unnamed file, which `process_stacks.py` reads through /proc. $IPEXCTL_NOTES is
`NUMBER:INODE` of an inherited pipe, which gets a line `PID CODE WORDS` for an uncaught error, `PID 0 left`, or `PID 0
child PID CODE` for a process that it has started.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the signal module costs another millisecond
import _thread
import atexit
import builtins
import faulthandler
import io
import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than the rest of this module
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

SIGNAL = 61
"""SIGRTMAX-3 on Linux."""
NUMBERS = range(249, 199, -1)
"""Descriptors that are usually free and that no library uses."""
NAME = "ipexctl-stacks"
DDP_MODULE = "torch.nn.parallel.distributed"
METERED = {
    "torch.optim.optimizer": "watch_optimizers",
    "torch.autograd": "watch_backward",
    "torch.nn.modules.module": "watch_modules",
    "torch.utils.data.dataloader": "watch_loaders",
    "torch.utils.data.distributed": "watch_samplers",
    "torch.distributed.distributed_c10d": "watch_collectives",
    "intel_extension_for_pytorch.optim._optimizer_utils": "watch_fused_steps",
}
"""Module → function in `ipexctl_inrank.meter` to call once the module is imported."""
PROFILED = {
    "torch.optim": "watch_steps",
    "torch.autograd.profiler": "watch_profilers",
    "torch.profiler.profiler": "watch_profilers",
    "torch._inductor.config": "name_kernels",
}
"""The same for `ipexctl_inrank.profiler`, with --profile; `watch_steps` gets the meter. `torch.optim` is imported after
its part in METERED."""
RENDEZVOUS = {
    "torch.distributed.rendezvous": "watch_rendezvous",
    "torch.distributed.distributed_c10d": "watch_groups",
}
"""The same for `ipexctl_inrank.tcp_store`."""
FP32_MATH = "IPEXCTL_FP32_MATH"
FP32_OPTION = FP32_MATH, "--fp32-math bf16"
OLDEST_ROUNDING = (2, 3)
"""The oldest torch whose "medium" precision also works on CPUs (pytorch#116015)."""
FAST = {
    "IPEXCTL_AUTOCAST": ("--autocast bf16", "autocast_models"),
    "IPEXCTL_FUSED_OPTIMIZER": ("--fused-optimizer", "fuse_optimizers"),
}
"""Variable → option, and function in `ipexctl_inrank.fast` to call once torch is imported."""
GPU_CODE = "IPEXCTL_GPU_CODE"
OF_GPUS = {
    "torch": "install",
    "torch.distributed.fsdp": "wrap_fsdp",
    "torch._dynamo": "keep_in_graphs",
    "torch.utils.cpp_extension": "refuse_kernels",
}
"""Module → function in `ipexctl_inrank.gpu_code` to call once the module is imported."""
OWN_RANKS = {"torch.multiprocessing.spawn": "start_processes", "torch.distributed.launcher.api": "launch_agent"}
"""Module → its function that starts processes which may be ranks: `mp.spawn`, and torchrun or accelerate."""
PACKAGE = "ipexctl_inrank"
DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def begin() -> None:
    """Install all hooks in this Python. One that can't be installed is left out."""
    # The gloo hook is registered first, so that it runs last.
    for install in (
        install_gloo_wait,
        install_stack_dumps,
        install_notes,
        install_gpu_code,
        install_own_ranks,
        install_ddp,
        install_collectives,
        install_weights,
        install_meter,
        install_profile,
        install_fp32_math,
        install_half_math,
        install_fast,
    ):
        try:
            install()
        except (
            OSError,
            ValueError,
            RuntimeError,
            AttributeError,
        ):  # a sandbox or an embedded Python, which runs without this hook
            continue


def install_gloo_wait() -> None:
    """Have `wait_for_gloo` run at exit, after all that is registered later."""
    atexit.register(wait_for_gloo)


def wait_for_gloo() -> None:
    """Wait, because gloo's threads can abort the process at exit: one takes the GIL to release tensors, and Python ends
    it inside a C++ destructor while the interpreter is finalized: "terminate called without an active exception"."""
    if "torch" in sys.modules:
        call_in_rank("gloo_threads", "wait_for_gloo")


def install_stack_dumps() -> None:
    """Write all threads' stacks on SIGNAL, and to stderr if the process crashes."""
    if not faulthandler.is_enabled() and sys.stderr is not None:
        faulthandler.enable(2)
    number = move_descriptor(unnamed_file())
    inode = os.fstat(number).st_ino

    def renew() -> None:
        """Give a forked child its own file, so that its stacks do not mix with its parent's."""
        nonlocal inode
        try:
            if os.fstat(number).st_ino == inode:
                fresh = unnamed_file()
                os.dup2(fresh, number, inheritable=False)
                os.close(fresh)
                inode = os.fstat(number).st_ino
        except OSError:
            return

    # The signal's default action kills, also at exit, once the interpreter has removed its handler. So it is ignored.
    _signal.signal(SIGNAL, _signal.SIG_IGN)
    faulthandler.register(SIGNAL, file=number, all_threads=True)
    os.register_at_fork(after_in_child=renew)


def unnamed_file() -> int:
    """Return the descriptor of a new file without a name. Raises an OSError if no place has room for it."""
    try:
        return os.memfd_create(NAME)
    except (AttributeError, OSError):  # Pythons built for an old glibc have no memfd_create
        pass
    for target in ("/dev/shm", "/tmp"):  # noqa: S108
        path = f"{target}/.{NAME}-{os.getpid()}-{os.urandom(8).hex()}"
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        os.unlink(path)
        return number
    raise OSError(0, "there is no room for a file")


def move_descriptor(number: int) -> int:
    """Move a descriptor to the first of NUMBERS that is free, and return its number; the old one if none is free."""
    for target in NUMBERS:
        try:
            os.fstat(target)
        except OSError:
            try:
                os.dup2(number, target, inheritable=False)
            except OSError:
                return number
            os.close(number)
            return target
    return number


def install_notes() -> None:
    """Watch how this Python ends, and note that in the pipe of $IPEXCTL_NOTES. Without that pipe, nothing is
    installed."""
    number, _, inode = os.environ.get("IPEXCTL_NOTES", "").partition(":")
    if not number.isdigit() or not inode.isdigit() or not is_pipe(int(number), int(inode)):
        return
    notes = Notes(int(number), int(inode))
    leave: Any = sys.exit
    quitter: Any = type(getattr(builtins, "exit", None))

    def exit(*status: Any) -> None:  # noqa: A001
        """Exit the interpreter by raising SystemExit(status)."""
        leaving = PendingExit(notes, *status)  # noqa: F841  # the exception's traceback keeps this frame
        leave(*status)

    if quitter.__name__ == "Quitter":
        by_name = quitter.__call__

        def quit_(self: Any, *status: Any) -> None:
            leaving = PendingExit(notes, *status)  # noqa: F841
            by_name(self, *status)

        quitter.__call__ = quit_
    exit.__module__, exit.__qualname__ = "sys", "exit"
    sys.exit = exit  # type: ignore[assignment]
    sys.excepthook = sys.__excepthook__ = (
        notes.excepthook
    )  # the same object: some libraries install their hook only then
    atexit.register(keep_tcp_store, notes)
    atexit.register(notes.at_end)
    for name in RENDEZVOUS:
        call_after_import(name, watch_tcp_store)
    call_after_import("multiprocessing.popen_fork", notes.watch_children)


def watch_tcp_store(module: Any) -> None:
    """Have rank 0's store watched in a module of RENDEZVOUS that is imported now."""
    call_in_rank("tcp_store", RENDEZVOUS[module.__name__], module)


def keep_tcp_store(notes: Notes) -> None:
    """Keep rank 0's store for the other ranks, unless the script failed, which ends them."""
    store: Any = sys.modules.get(f"{PACKAGE}.tcp_store")
    if store is not None and not notes.has_failed:
        try:
            store.keep_tcp_store_for_other_ranks()
        except Exception:  # noqa: BLE001  # the store ends with rank 0 then
            return


def install_gpu_code() -> None:
    """Install the hooks for code for GPUs. They must come before hooks of other parts for torch, so that these see the
    functions that the script calls."""
    if os.environ.get(GPU_CODE):
        for name in OF_GPUS:
            call_after_import(name, place_gpu_code)


def place_gpu_code(module: Any) -> None:
    """Let code for GPUs run on the CPU, in a module of OF_GPUS that is imported now. On failure, the first rank says
    that it is off."""
    try:
        getattr(load_in_rank("gpu_code"), OF_GPUS[module.__name__])(module)
    except Exception as error:  # noqa: BLE001  # the script runs without it, as with --gpu-code off
        if is_first():
            print(f"ipexctl: --gpu-code is off: {describe(error)}", file=sys.stderr)  # noqa: T201


def note_of_gpu(error: object, frames: str, at: object) -> str:
    """Return what the script's end has to do with GPUs; empty if `gpu_code` is not loaded. `frames`: name of the
    function of `gpu_end` that finds the frames for `at`."""
    if f"{PACKAGE}.gpu_code" not in sys.modules:
        return ""
    try:
        ends = load_in_rank("gpu_end")
        return str(ends.note_of(error, getattr(ends, frames)(at)))
    except Exception:  # noqa: BLE001  # an end that nobody explains
        return ""


def install_own_ranks() -> None:
    """Watch for a script that starts ranks itself, which each rank of the run would do."""
    if os.environ.get("WORLD_SIZE", "1") != "1" and is_first():
        for name in OWN_RANKS:
            call_after_import(name, watch_own_ranks)


def watch_own_ranks(module: Any) -> None:
    """Have a module of OWN_RANKS warn when it starts processes, once."""
    from functools import wraps

    name = OWN_RANKS[module.__name__]
    start = getattr(module, name)

    @wraps(start)
    def start_and_tell(*args: Any, **kwargs: Any) -> Any:
        setattr(module, name, start)  # said once
        text = f"each of {os.environ['WORLD_SIZE']} ranks starts processes of its own ({module.__name__}.{name})"
        print(f"ipexctl: {text}; if these are to train: -n 1", file=sys.stderr)  # noqa: T201
        return start(*args, **kwargs)

    setattr(module, name, start_and_tell)


def install_ddp() -> None:
    """Act on each new DistributedDataParallel model, if ipexctl sums gradients or the meter is on."""
    if adds_up() or os.environ.get("IPEXCTL_METER"):
        call_after_import(DDP_MODULE, wrap_ddp)


def adds_up() -> bool:
    """Return True if ipexctl may sum the gradients of DDP models itself, in shared memory or in a smaller wire
    format."""
    return os.environ.get("IPEXCTL_ALLREDUCE") in ("shared", "auto") or bool(os.environ.get("IPEXCTL_WIRE"))


def install_collectives() -> None:
    """Have the ranks of a host share memory for collectives, if IPEXCTL_ALLREDUCE is `shared` or `auto`."""
    if os.environ.get("IPEXCTL_ALLREDUCE") in ("shared", "auto"):
        call_after_import("torch.distributed.distributed_c10d", wrap_group_maker)


def wrap_group_maker(module: Any) -> None:
    """Give each new process group shared memory. torch is not imported yet, so that is loaded with the first group."""
    from functools import wraps

    make = getattr(module, "_new_process_group_helper", None)
    if make is None:
        return

    @wraps(make)
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        numbers = args[2] if len(args) > 2 else kwargs.get("global_ranks_in_group", ())
        load_on_group()(*made[:2], numbers)
        return made

    module._new_process_group_helper = _new_process_group_helper


def load_on_group() -> Any:
    """Return the function to call with each new process group; if it can't be loaded, one that does nothing."""
    try:
        return load_in_rank("collectives").on_group
    except Exception:  # noqa: BLE001  # all ranks have the same files and do without it
        return lambda *_: None


def install_weights() -> None:
    """Share frozen parameters between the ranks of a host once torch is imported, with `--share-weights`."""
    if os.environ.get("IPEXCTL_SHARE_WEIGHTS"):
        call_after_import("torch", lambda torch: call_in_rank("shared_weights", "install", torch))


def wrap_ddp(module: Any) -> None:
    """Have ipexctl's functions called with each new model of DistributedDataParallel."""
    if hasattr(module, "DistributedDataParallel"):
        wrap_constructor(module.DistributedDataParallel)


def install_meter() -> None:
    """Count steps, samples and waiting in the modules of METERED, if the meter is on."""
    if os.environ.get("IPEXCTL_METER"):
        for name in METERED:
            call_after_import(name, lambda module: call_in_rank("meter", METERED[module.__name__], module))


def install_profile() -> None:
    """Profile steps in the modules of PROFILED, with --profile. That needs the meter."""
    if os.environ.get("IPEXCTL_PROFILE") and os.environ.get("IPEXCTL_METER"):
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler prints two lines otherwise
        for name in PROFILED:
            call_after_import(name, start_profile)


def start_profile(module: Any) -> None:
    """Begin what the profiler does in a module of PROFILED. On failure, rank 0 says that --profile is off."""
    try:
        is_torch = module.__name__ == "torch.optim"
        watched = load_in_rank("meter").meter() if is_torch else module
        getattr(load_in_rank("profiler"), PROFILED[module.__name__])(watched)
    except Exception as error:  # noqa: BLE001  # the script trains without it
        if os.environ.get("RANK", "0") == "0":
            print(f"ipexctl: --profile is off: {describe(error)}", file=sys.stderr)  # noqa: T201


def install_fp32_math() -> None:
    """Set the precision when torch is imported, so that the script can change it later."""
    if os.environ.get(FP32_MATH):
        call_after_import("torch", round_inputs)
        call_after_import("intel_extension_for_pytorch", round_inputs_of_ipex)


def round_inputs(torch: Any) -> None:
    """Have torch round the inputs of fp32 matrix products to bf16. Rank 0 says whether that is on."""
    version = str(getattr(torch, "__version__", ""))
    try:
        major, minor = map(int, version.split(".")[:2])
        if (major, minor) < OLDEST_ROUNDING:
            tell(*FP32_OPTION, f"off: torch {version} supports it only on GPUs; CPUs need torch 2.3")
            return
        # For matmul also in torch 2.9: after `mkldnn.matmul.fp32_precision`, get_float32_matmul_precision() raises.
        torch.set_float32_matmul_precision("medium")
        if (major, minor) >= (2, 9):
            torch.backends.mkldnn.conv.fp32_precision = torch.backends.mkldnn.rnn.fp32_precision = "bf16"
    except Exception as error:  # noqa: BLE001  # the script trains without it
        tell(*FP32_OPTION, f"off: {describe(error)}")
    else:
        tell(*FP32_OPTION, "on")


def round_inputs_of_ipex(ipex: Any) -> None:
    """Set the precision for IPEX too, because it has its own kernels."""
    try:
        ipex.set_fp32_math_mode(ipex.FP32MathMode.BF32, device="cpu")
    except Exception as error:  # noqa: BLE001  # the script trains without it
        tell(*FP32_OPTION, f"off: {describe(error)}")
    else:
        tell(*FP32_OPTION, "on")


def install_half_math() -> None:
    """Have products of half types computed in fp32 where that is faster, if IPEXCTL_HALF_MATH is set."""
    if os.environ.get("IPEXCTL_HALF_MATH"):
        call_after_import("torch", lambda torch: call_in_rank("half_math", "watch_half_types", torch))


def tell(variable: str, option: str, state: str) -> None:
    """Print the option's state on rank 0, or in the first copy; `on` only once, and not from children."""
    if is_first() and os.environ.get(variable) != "told":
        if state == "on":
            os.environ[variable] = "told"
        print(f"ipexctl: {option} is {state}", file=sys.stderr)  # noqa: T201


def is_first() -> bool:
    """Return True on rank 0, or in the first copy of a run without ranks."""
    return os.environ.get("RANK", os.environ.get("IPEXCTL_COPY")) == "0"


def install_fast() -> None:
    """Begin autocast and fused optimizers once torch is imported, as far as they are asked for."""
    for variable in FAST:
        if os.environ.get(variable):
            call_after_import("torch", lambda torch, variable=variable: start_fast(variable, torch))


def start_fast(variable: str, torch: Any) -> None:
    """Begin what one variable of FAST asks for. On failure, rank 0 says that it is off."""
    option, function = FAST[variable]
    try:
        getattr(load_in_rank("fast"), function)(torch)
    except Exception as error:  # noqa: BLE001  # the script trains without it
        tell(variable, option, f"off: {describe(error)}")


def call_after_import(name: str, action: Any) -> None:
    """Call the action with a module once that is imported, or at once if it is imported already."""
    if name in sys.modules:  # a .pth file has imported it
        action(sys.modules[name])
        return
    if not _actions:
        sys.meta_path.insert(0, ModuleFinder)
    _actions.setdefault(name, []).append(action)


_actions: dict[str, list[Any]] = {}
_finding: set[tuple[str, int]] = set()
"""Module and thread of each search that `ModuleFinder` has passed on to the other finders."""


class ModuleFinder:
    """Finds a few modules as Python does, and calls their actions once after each is imported. A library may ask for
    the spec and import nothing, as transformers and datasets do for torch, so each spec gets the actions."""

    @staticmethod
    def find_spec(name: str, *_: Any, **__: Any) -> Any:
        """Find a module that has actions, for the import system. None leaves a module to the other finders."""
        search = name, _thread.get_ident()
        if name not in _actions or search in _finding:
            return None
        from importlib.util import find_spec

        _finding.add(search)
        try:
            spec: Any = find_spec(name)
        finally:
            _finding.discard(search)
        loader: Any = getattr(spec, "loader", None)
        run = getattr(loader, "exec_module", None)
        if run is None:
            return spec

        def exec_module(module: Any) -> None:
            run(module)
            if module.__name__ != name:  # the modules of a zip file share a loader
                return
            vars(loader).pop("exec_module", None)  # uncovers the class's method
            actions = _actions.pop(name, ())
            if not _actions and ModuleFinder in sys.meta_path:
                sys.meta_path.remove(ModuleFinder)
            for action in actions:
                action(module)

        loader.exec_module = exec_module
        return spec


def wrap_constructor(model_class: Any) -> None:
    """Call the actions for new models at the end of each construction. They are loaded with the first model."""
    from functools import wraps

    construct = model_class.__init__
    actions: Any = None

    @wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        nonlocal actions
        construct(self, *args, **kwargs)
        if actions is None:
            actions = [load_attach()] if adds_up() else []
            actions += [load_on_model()] if os.environ.get("IPEXCTL_METER") else []
        for action in actions:
            action(self)

    model_class.__init__ = __init__


def load_attach() -> Any:
    """Return the function of the run's `ipexctl_inrank` for a new model; one that does nothing if it can't be imported,
    which is so on all ranks."""
    try:
        return load_in_rank("ddp").attach
    except Exception as error:  # noqa: BLE001  # the script trains without it
        wire = os.environ.get("IPEXCTL_WIRE")
        way = f"--wire {wire}" if wire else "--allreduce shared"
        if os.environ.get("RANK") == "0" and (wire or os.environ.get("IPEXCTL_ALLREDUCE") == "shared"):
            print(f"ipexctl: {way} is off: {describe(error)}", file=sys.stderr)  # noqa: T201
        return id


def load_on_model() -> Any:
    """Return the meter's function for a new model; if it can't be loaded, one that does nothing."""
    try:
        return load_in_rank("meter").meter().on_model
    except Exception:  # noqa: BLE001  # nothing is measured then
        return id


def call_in_rank(name: str, function: str, *modules: Any) -> None:
    """Call a function of the run's own files, which all ranks have alike. The script runs without what fails."""
    try:
        getattr(load_in_rank(name), function)(*modules)
    except Exception:  # noqa: BLE001  # a torch without what it uses
        return


def load_in_rank(name: str) -> Any:
    """Import a module of `ipexctl_inrank` from the run's own files, whatever the script's path has. Raises what the
    import raises."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    if PACKAGE not in sys.modules:
        directory = f"{DIRECTORY}/{PACKAGE}"
        spec: Any = spec_from_file_location(PACKAGE, f"{directory}/__init__.py", submodule_search_locations=[directory])
        sys.modules[PACKAGE] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return import_module(f"{PACKAGE}.{name}")


def is_pipe(number: int, inode: int) -> bool:
    """True if the descriptor is still the pipe, and not another file with the same number."""
    try:
        stat = os.fstat(number)
    except OSError:
        return False
    return stat.st_ino == inode and stat.st_mode & 0o170000 == 0o010000


class Notes:
    def __init__(self, number: int, inode: int) -> None:
        self._pipe = number, inode
        self._pid = os.getpid()
        self._main = _thread.get_ident()
        self._is_over = self._has_gpu = False
        self.has_failed = False
        self._before = sys.excepthook

    def write(self, code: int, text: str) -> None:
        """Note the end: a code and what it is due to. Only the first end of this process's main thread is noted."""
        if self._is_over or os.getpid() != self._pid or _thread.get_ident() != self._main:
            return
        self._is_over, self.has_failed = True, bool(code)
        try:
            if is_pipe(*self._pipe):
                os.write(self._pipe[0], f"{self._pid} {code} {text}\n".encode("utf-8", "replace"))
        except OSError:
            return

    def note(self, text: str) -> None:
        """Note what is known before the end. The pipe takes lines of this length whole."""
        if self._is_over or os.getpid() != self._pid or _thread.get_ident() != self._main or not is_pipe(*self._pipe):
            return
        line = " ".join(text.split())[:LONGEST_FACT]
        os.write(self._pipe[0], f"{self._pid} 0 {line}\n".encode("utf-8", "replace"))

    def write_gpu(self, text: str) -> None:
        """Note once what the end has to do with GPUs, before the end itself."""
        if text and not self._has_gpu:
            self._has_gpu = True
            self.note(text)

    def watch_children(self, module: Any) -> None:
        """Note how the first process that fails has ended. A pool ends the others by SIGTERM."""
        poll = module.Popen.poll

        def poll_and_note(child: Any, *flag: int) -> Any:
            was_known, code = child.returncode is not None, poll(child, *flag)
            if code not in (None, 0, -15) and not was_known and os.getpid() == self._pid and is_pipe(*self._pipe):
                os.write(self._pipe[0], f"{self._pid} 0 child {child.pid} {code}\n".encode())
            return code

        module.Popen.poll = poll_and_note

    def excepthook(self, kind: type[BaseException], value: BaseException, traceback: TracebackType | None, /) -> None:
        """Handle an exception by displaying it with a traceback on sys.stderr."""
        hide_own_frames(value)
        try:
            self._before(kind, value, traceback)
        finally:
            self.raised(value, traceback)

    def raised(self, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Note an exception only if nothing caught it. Other code calls the hook only to print one."""
        if value is None or traceback is None or value is not getattr(sys, "last_value", None):
            return
        frame = traceback.tb_frame
        if frame.f_back is None and frame.f_code.co_name in ("<module>", "_run_module_as_main"):
            is_interrupt = isinstance(value, KeyboardInterrupt)
            # What is imported or evaluated now would let Python forget that SIGINT has to end it.
            for kind, text in () if is_interrupt else facts_of(value, traceback):
                self.note(f"fact {kind} {text}")
            code = 130 if is_interrupt else 1
            self.write_gpu("" if is_interrupt else note_of_gpu(value, "frames_of", traceback))
            first = innermost(value)
            place = describe_place(traceback if first is value else first.__traceback__)
            if not is_interrupt:
                self.note(f"fact raised {place.partition(' ')[2]}")
            self.write(code, f"raised {describe(value)}\t{place}")

    def at_end(self) -> None:
        """Note an uncaught exception at exit, as a user's hook may have replaced `excepthook`; else that the script
        has ended."""
        self.raised(getattr(sys, "last_value", None), getattr(sys, "last_traceback", None))
        self.write_gpu(note_of_gpu("", "frames_of", None))
        self.write(0, "left")
        self._is_over = True


def hide_own_frames(error: BaseException | None) -> None:
    """Remove the frames of these hooks from an exception's traceback and its causes'. The frame that raised stays."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        at = error.__traceback__
        while at is not None:
            following = at.tb_next
            while following is not None and following.tb_next is not None and is_own(following):
                following = following.tb_next
            if following is not at.tb_next:
                at.tb_next = following
            at = following
        error = error.__cause__ or error.__context__


def is_own(traceback: TracebackType) -> bool:
    """Return True if a frame is of ipexctl's files on the node, beside this one or below."""
    return traceback.tb_frame.f_code.co_filename.startswith(f"{DIRECTORY}/")


class PendingExit:
    """Exists as long as a SystemExit. If it is deleted while no frame is running, nothing caught the SystemExit."""

    def __init__(self, notes: Notes, status: Any = None, *more: Any) -> None:
        del more
        self._notes, self._code = notes, code_of(status)
        above = sys._getframe(1).f_back  # None in a thread that Python's own code has not started
        self._of_gpu = note_of_gpu(status, "frames_above", above) if above is not None else ""
        while above is not None and above.f_back is not None and is_of_library(above.f_code.co_filename):
            above = above.f_back
        self._place = f"{above.f_code.co_filename.rpartition('/')[2]}:{above.f_lineno}" if above is not None else ""

    def __del__(self) -> None:
        if sys._getframe().f_back is not None:
            return
        self._notes.write_gpu(self._of_gpu)
        if self._code:
            self._notes.note(f"fact exited {self._place}")
            self._notes.write(self._code, f"ended itself with exit code {self._code}")


def code_of(status: Any) -> int:
    """Return the exit code that Python makes of the argument of `sys.exit`."""
    if isinstance(status, SystemExit):
        status = status.code
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def describe_place(traceback: TracebackType | None) -> str:
    """Return a hash of all lines on the stack of an exception, then the innermost line outside of installed
    packages."""
    stack, shown = 0, ""
    while traceback is not None:
        name, line = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        stack = hash(
            (stack, line, sum(name.encode("utf-8", "replace")))
        )  # of numbers, so it is the same in each process
        if not shown or ("-packages/" not in name and not name.startswith(("<frozen", sys.base_prefix + "/lib"))):
            shown = f"{name.rpartition('/')[2]}:{line}"
        traceback = traceback.tb_next
    return f"{stack} {shown}"


READERS = (
    "f",
    "fp",
    "file",
    "filename",
    "path",
    "stream",
    "name_or_buffer",
    "filepath_or_buffer",
    "filepath",
    "source",
)
"""Names that functions of torch, NumPy, safetensors, json, yaml, PIL and pandas give to the file that they read."""
LOADING, WRITING = "load|read|open|parse", "save|dump|write"
"""Parts of names of functions that read a file, and of those that write one."""
LONGEST_FACT = 400
PAGES = (b"<!doctype html", b"<html")


def facts_of(error: Any, traceback: TracebackType) -> list[tuple[str, str]]:
    """Return kind and text of what an exception does not say itself: the file that was read, how that file begins if no
    reader would expect it, what was called with a wrong argument, when an existing file was made, the directory that a
    file would be in if there is none, and the size of a group that is larger than the run."""
    try:
        frames: list[tuple[Any, int]] = []
        at: Any = traceback
        while at is not None:
            frames.append((at.tb_frame, at.tb_lineno))
            at = at.tb_next
        called = called_by(error, frames[-1][0])
        facts = [("called", called)] if called else []
        ranks = int(os.environ.get("WORLD_SIZE", sys.maxsize))
        facts += [("group", f"{size}") for size in group_sizes(frames) if size > ranks]
        name = error.filename if isinstance(error, OSError) and isinstance(error.filename, str) else ""
        if name and isinstance(error, FileExistsError):
            return [*facts, *aged("made", name, "it was made")]
        if name and isinstance(error, FileNotFoundError):
            directory = os.path.dirname(name) or "."
            if not os.path.isdir(directory):
                return [*facts, ("directory", directory)]
            return [*facts, *aged("gone", directory, "its directory had changed")]
        is_of_system = isinstance(error, OSError) and error.errno
        if is_of_system and error.filename is None and (path := open_file(frames)):
            return [*facts, ("used", path)]
        path = "" if is_of_system else file_read_by(frames)
        if not path and isinstance(error, UnicodeDecodeError):
            path = open_file(frames)
        return [*facts, *describe_file(path)] if path else facts
    except Exception:  # noqa: BLE001  # objects of the script, whose code may fail; then there is no fact
        return []


def aged(kind: str, path: str, words: str) -> list[tuple[str, str]]:
    """Return a change of a file since this process began, as a fact; nothing of an older one."""
    from time import time

    with open("/proc/self/stat") as own, open("/proc/uptime") as boot:
        begun = int(own.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        age, lives = time() - os.stat(path).st_ctime, float(boot.read().split()[0]) - begun
    return [(kind, f"{words} {max(age, 0):.1f} s before")] if age < lives else []


def group_sizes(frames: list[tuple[Any, int]]) -> list[int]:
    """For how many ranks each torch.distributed.init_process_group on the stack waits."""
    calls = [frame.f_locals for frame, _ in frames if frame.f_code.co_name == "init_process_group"]
    return [size for variables in calls for size in [variables.get("world_size")] if isinstance(size, int)]


def called_by(error: Any, frame: Any) -> str:
    """Return the module of what lacks an attribute, or of the function that does not take its arguments; or empty."""
    if isinstance(error, AttributeError) and getattr(error, "obj", None) is not None:  # since Python 3.10
        owner = error.obj
        return str(getattr(owner, "__module__", None) or getattr(owner, "__name__", None) or "")
    name, separator, _ = str(error).partition("() ")
    if not isinstance(error, TypeError) or not separator:
        return ""
    name = name.rpartition(".__init__")[0] or name
    values = [*frame.f_locals.values(), *frame.f_globals.values()]
    modules = [value for value in values if isinstance(value, type(sys))]
    values += [vars(module).get(used) for module in modules for used in frame.f_code.co_names]
    known = (value for value in values if isinstance(value, (type, type(describe))))  # of others, code may run
    return next((str(value.__module__) for value in known if value.__qualname__ == name), "")


def file_read_by(frames: list[tuple[Any, int]]) -> str:
    """Return the file that a function below the script's own line loads, else what this line loads; or empty."""
    import linecache
    import re

    own = [at for at, (frame, _) in enumerate(frames) if not is_of_library(frame.f_code.co_filename)]
    inner = frames[own[-1] + 1 :] if own else []
    names = " ".join(frame.f_code.co_name for frame, _ in inner)
    if re.search(WRITING, names):
        return ""
    loading = [frame for frame, _ in reversed(inner) if re.search(LOADING, frame.f_code.co_name)]
    values = [frame.f_locals.get(name) for frame in loading for name in READERS]
    frame, number = frames[own[-1]] if own else frames[0]
    line = linecache.getline(frame.f_code.co_filename, number) if own else ""
    if re.search(LOADING, line) and not re.search(WRITING, line):
        values += [text for _, text in re.findall(r"(['\"])([^'\"]+)\1", line)]
        values += [frame.f_locals.get(name) for name in re.findall(r"\w+", line)]
    for value in values:
        path = value.name if isinstance(value, io.IOBase) and hasattr(value, "name") else value
        if isinstance(path, (str, os.PathLike)) and os.path.isfile(path):
            return os.fspath(path)
    return ""


def open_file(frames: list[tuple[Any, int]]) -> str:
    """Return the file that the script's own functions on the stack have open, or had; empty if there is none, or
    several."""
    own = [frame for frame, _ in frames if not is_of_library(frame.f_code.co_filename)]
    values = [value for frame in own for value in frame.f_locals.values() if isinstance(value, io.IOBase)]
    named = (getattr(value, "name", None) for value in values)
    opened = {name for name in named if isinstance(name, str) and os.path.exists(name)}
    return opened.pop() if len(opened) == 1 else ""


def is_of_library(name: str) -> bool:
    """Return True for code that is not the script's own: of an installed package, the standard library, ipexctl, or no
    file."""
    return "-packages/" in name or name.startswith(("<", sys.base_prefix + "/lib", DIRECTORY))


def describe_file(path: str) -> list[tuple[str, str]]:
    """Return that the file was read, and what is wrong with how it begins: a Git LFS pointer, a web page, or
    nothing."""
    with open(path, "rb") as file:
        begin = file.read(64)
    name = os.path.relpath(path)
    name = path if name.startswith("..") else name
    if begin.startswith(b"version https://git-lfs"):
        return [("read", name), ("lfs", f"{name} is a pointer of Git LFS")]
    if begin.lstrip().lower().startswith(PAGES) and not name.lower().endswith((".html", ".htm")):
        shown = begin.split(b">")[0].decode("ascii", "replace").strip()
        return [("read", name), ("content", f"{name} begins with {shown}>: it is a web page, not the file")]
    if not begin:
        return [("read", name), ("content", f"{name} is empty")]
    return [("read", name)]


def innermost(value: Any) -> Any:
    """Return the first exception in groups of exceptions, else the exception itself."""
    while type(value).__name__.endswith("ExceptionGroup") and getattr(value, "exceptions", None):
        value = value.exceptions[0]
    return value


def describe(value: object) -> str:
    """Return the name of an exception's type and the first line of its text."""
    name = type(value).__name__
    try:
        lines = str(value).strip().splitlines()
    except Exception:  # noqa: BLE001  # __str__ may be the user's code
        return name
    text = f"{name}: {lines[0][:200]}" if lines else name
    group: Any = getattr(value, "exceptions", None) if name.endswith("ExceptionGroup") else None
    return f"{text}, the first {describe(group[0])}" if group else text
