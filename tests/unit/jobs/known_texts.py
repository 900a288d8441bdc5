"""Recorded output of real failures, by the id of the cause; docs/troubleshooting.md is made from it.

`python tests/unit/jobs/known_texts.py > docs/troubleshooting.md` writes that page anew.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[3])]

from ipexctl.jobs.why.diagnosis import Diagnosis, diagnose
from ipexctl.jobs.why.run_snapshot import read_snapshot
from ipexctl.node.common.frames import Chunk

HOSTS = ("node1", "node2", "node3")


@dataclass(frozen=True)
class Text:
    """What rank 1 on node2 prints, or mpirun, and how the run ends of it."""

    id: str
    text: str = ""
    by: str = "rank"
    """rank, mpirun (its log) or supervisor (its sentence)."""
    exit_code: int | None = 1
    signal: int | None = None
    kind: str = ""
    said_by: tuple[int, ...] = (1,)
    backend: str = "gloo"
    master: str = "10.0.0.1"
    state: str = "failed"
    oom: Any = None
    share: tuple[int, int] = (1, 8)
    """The ranks of node2, and its cores."""


CCL = "RuntimeError: oneCCL: api_wrapper.cpp:39 api_wrappers_init: EXCEPTION: "
PROXY = "[mpiexec@node1] Error: Unable to run bstrap_proxy on node2 (pid 4711, exit code "

SECTIONS: dict[str, tuple[Text, ...]] = {
    "mpirun doesn't start the ranks": (
        Text("mpi.ssh_failed", PROXY + "65280)", by="mpirun"),
        Text("mpi.not_there", PROXY + "32512)", by="mpirun"),
        Text("mpi.not_there", "bash: line 1: hydra_bstrap_proxy: No such file or directory", by="mpirun"),
        Text("mpi.node0_name", PROXY + "768)", by="mpirun"),
        Text("mpi.node0_name", "HYD_sock_connect: getaddrinfo returned error -3", by="mpirun"),
        Text(
            "mpi.firewall",
            "HYD_sock_connect: unable to connect to server 10.0.0.1 at port 40123 (check for firewalls!)",
            by="mpirun",
        ),
        Text("mpi.proxy_ended", PROXY + "9)", by="mpirun"),
        Text("mpi.no_interface", "HYD_sock_get_iface_ip: unable to find interface eth9", by="mpirun"),
        Text("mpi.no_hydra", "/opt/mpi/bin/mpirun: 109: mpiexec.hydra: not found", by="mpirun"),
        Text(
            "mpi.no_python",
            "[proxy:0:2@node2] HYD_spawn (hydra_spawn.c:151): execvp error on file /home/me/env/bin/python "
            "(No such file or directory)",
            by="mpirun",
        ),
        Text("mpi.no_daemon", "bash: line 1: prted: command not found", by="mpirun"),
        Text("mpi.no_slots", "There are not enough slots available in the system to satisfy the 8", by="mpirun"),
        Text("ssh.host_key", "Host key verification failed.", by="mpirun"),
        Text("ssh.denied", "me@node2: Permission denied (publickey).", by="mpirun"),
        Text("ssh.no_name", "ssh: Could not resolve hostname node2: Temporary failure in name resolution", by="mpirun"),
        Text(
            "run.no_way_back",
            "ipexctl: node2: the supervisor at 10.0.0.1:40177 can't be reached from here: timed out; is the port open "
            "between the nodes? ipexctl doctor checks that",
            by="mpirun",
        ),
        Text("run.wrong_mpi", "ipexctl: node2: mpirun says there are 1 ranks, and the plan 3", by="mpirun"),
        Text(
            "run.no_directory",
            "ipexctl: node2: /home/me/.ipexctl/code/p: No such file or directory; is the project synced to this path? "
            "(ipexctl sync)",
            exit_code=127,
        ),
        Text("run.no_command", "ipexctl: node2: ./train: Permission denied", exit_code=126),
        Text(
            "run.setup_failed",
            "ipexctl: node2: /opt/site.sh could not be sourced: module: command not found",
            exit_code=127,
        ),
        Text("run.not_begun", "rank 1 on node2 did not begin within 120 s", by="supervisor"),
        Text("mpi.cant_start", "mpirun can't be started: /opt/mpi/bin/mpirun: Permission denied", by="supervisor"),
        Text("mpi.ended", "mpirun was ended by SIGKILL while ranks 0-2 on node1, node2 ran", by="supervisor"),
        Text(
            "mpi.gave_up",
            "Abort(1090959) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Unknown error class",
            by="rank",
        ),
        Text(
            "mpi.rank_killed",
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
            "=   RANK 1 PID 8944 RUNNING AT 10.77.0.2\n=   KILLED BY SIGNAL: 9 (Killed)",
            by="mpirun",
        ),
        Text("mpi.downstream", "[mpiexec@node1] Downstream from host node2 exited abnormally", by="mpirun"),
    ),
    "oneCCL and its libraries": (
        Text("ccl.no_transport", CCL + "could not initialize any transport library"),
        Text("ccl.no_transport", "could not open the library: libmpi.so.12"),
        Text(
            "ccl.no_mpi_root",
            "check_impi_env: CCL/MPI uses Intel(R) MPI Library but neither I_MPI_ROOT nor ONEAPI_ROOT is set.\n"
            + CCL
            + "failed to initialize ATL",
        ),
        Text(
            "ccl.vars_not_setvars",
            "could not open the library: libfabric.so\n"
            "Abort(1090959) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Unknown error class",
        ),
        Text("ccl.setvars_in_dash", "/opt/intel/oneapi/setvars.sh: 107: prepend_path: not found"),
        Text(
            "ccl.no_provider",
            "Abort(2139535) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Unknown error class\n"
            "find_provider(2954): OFI fi_getinfo() failed (ofi_init.c:2954:find_provider:No data available)",
            exit_code=143,
        ),
        Text("ccl.no_provider", "atl_ofi_get_prov_list: fi_getinfo error: ret -61, providers 0"),
        Text("ccl.no_provider", "can't create providers for name verbs"),
        Text("ccl.no_libccl", "ImportError: libccl.so.1: cannot open shared object file: No such file or directory"),
        Text("ccl.not_imported", "AssertionError: Unknown backend type ccl"),
        Text(
            "ccl.other_torch",
            "ImportError: /env/lib/liboneccl_bindings_for_pytorch.so: undefined symbol: "
            "_ZN2at14RecordFunction6beforeEPKcl",
        ),
        Text(
            "ccl.newer_oneccl",
            "ImportError: /env/lib/libccl.so.1: undefined symbol: _ZNK4sycl3_V15queue30ext_oneapi_get_last_event",
        ),
        Text("ccl.newer_oneccl", "ImportError: libsycl.so.9: cannot open shared object file"),
        Text(
            "ccl.workers_unplaced",
            "oneCCL: env.cpp:1340 env_2_worker_affinity: EXCEPTION: unexpected number of values in "
            "CCL_WORKER_AFFINITY: expected 2, found 1",
        ),
        Text("ccl.no_start", "RuntimeError: oneCCL: atl_ofi.cpp:120 init: EXCEPTION: failed to initialize ATL"),
        Text("ccl.shm_only", "[0] MPI startup(): libfabric provider: shm", state="running"),
        Text(
            "ccl.not_under_mpirun",
            "|CCL_WARN| did not find MPI-launcher specific variables, switch to ATL/OFI, to force enable ATL/MPI set "
            "CCL_ATL_TRANSPORT=mpi",
            state="running",
        ),
        Text("library.openmp", "OSError: libiomp5.so: cannot open shared object file: No such file or directory"),
        Text("library.noexec", "ImportError: /env/lib/libtorch.so: failed to map segment from shared object"),
        Text("library.loaded_late", "ImportError: /env/lib/libgomp.so.1: cannot allocate memory in static TLS block"),
        Text("library.missing", "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"),
    ),
    "Memory, disks, limits, processors": (
        Text("memory.oom", exit_code=137, signal=signal.SIGKILL, kind="oom", oom={"by": "cgroup", "limit": 2 << 30}),
        Text("memory.killed", exit_code=137, signal=signal.SIGKILL, kind="signal"),
        Text("memory.dataloader", "RuntimeError: DataLoader worker (pid 5231) is killed by signal: Killed. "),
        Text(
            "memory.dataloader",
            "RuntimeError: DataLoader worker (pid 5231) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        ),
        Text("memory.dataloader", "RuntimeError: DataLoader worker (pid(s) 5231, 5232) exited unexpectedly"),
        Text("memory.shm", exit_code=135, signal=signal.SIGBUS, kind="signal"),
        Text("memory.shm", "=   KILLED BY SIGNAL: 7 (Bus error)", exit_code=135),
        Text(
            "memory.shm",
            "RuntimeError: unable to open shared memory object </torch_5231_14> in read-write mode: No space left on "
            "device (28)",
        ),
        Text(
            "memory.refused",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
        ),
        Text("disk.full", "OSError: [Errno 28] No space left on device: 'checkpoint.pt'"),
        Text("disk.full", "OSError: [Errno 28] No space left on device: '/dev/shm/torch_1'"),
        Text("disk.read_only", "OSError: [Errno 30] Read-only file system: '/data/out'"),
        Text("disk.stale", "OSError: [Errno 116] Stale file handle: 'train.idx'"),
        Text("limit.files", "OSError: [Errno 24] Too many open files"),
        Text("limit.threads", "RuntimeError: can't start new thread"),
        Text("limit.threads", "libgomp: Thread creation failed: Resource temporarily unavailable"),
        Text("cpu.illegal_instruction", exit_code=132, signal=signal.SIGILL, kind="signal"),
        Text("cpu.illegal_instruction", "Illegal instruction (core dumped)", exit_code=132),
        Text("process.crashed", exit_code=139, signal=signal.SIGSEGV, kind="signal"),
        Text("process.crashed", exit_code=139, signal=signal.SIGSEGV, kind="signal", backend="ccl"),
        Text(
            "process.aborted_at_exit",
            "terminate called without an active exception",
            exit_code=134,
            signal=signal.SIGABRT,
        ),
        Text(
            "process.aborted",
            "terminate called after throwing an instance of 'std::runtime_error'",
            exit_code=134,
            signal=signal.SIGABRT,
        ),
        Text("process.floating_point", exit_code=136, signal=signal.SIGFPE),
        Text("process.told_to_go", exit_code=143, signal=signal.SIGTERM, kind="signal"),
        Text("limit.cpu_time", exit_code=152, signal=signal.SIGXCPU),
        Text("node.lost", "node2 stopped responding (rank 1)", by="supervisor", exit_code=None, kind="lost"),
        Text(
            "run.too_many_ranks",
            "node2 stopped responding (ranks 1-64)",
            by="supervisor",
            exit_code=None,
            kind="lost",
            share=(64, 2),
        ),
        Text(
            "node.wrapper_killed",
            "rank 1 on node2 disconnected: its wrapper process was killed",
            by="supervisor",
            exit_code=None,
            kind="lost",
        ),
        Text(
            "node.cut_off",
            "no other node responds (ranks 1-2): the link of node1 is down, or the network",
            by="supervisor",
            exit_code=None,
            kind="lost",
            said_by=(),
        ),
    ),
    "The script, its modules, files and arguments": (
        Text("script.raised", "Traceback (most recent call last):\nValueError: the loss is not a number"),
        Text("script.exited", exit_code=3),
        Text("script.no_module", "ModuleNotFoundError: No module named 'sklearn'", said_by=(0, 1, 2)),
        Text("script.no_module", "ModuleNotFoundError: No module named 'frobnicate'"),
        Text("script.no_module", "ModuleNotFoundError: No module named 'oneccl_bindings_for_pytorch'"),
        Text(
            "script.no_name",
            "ImportError: cannot import name 'AdamW' from 'transformers' (/env/transformers/__init__.py)",
        ),
        Text(
            "script.no_trainer",
            "ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`: Please run "
            "`pip install transformers[torch]`",
        ),
        Text("script.no_program", "sh: 1: nvidia-smi: not found", exit_code=127),
        Text(
            "script.not_there",
            "python: can't open file '/p/train.py': [Errno 2] No such file or directory",
            exit_code=2,
        ),
        Text("script.syntax", "SyntaxError: invalid syntax"),
        Text("script.arguments", "train.py: error: unrecognized arguments: --ppn 2", exit_code=2),
        Text("script.wants_cuda", "AssertionError: Torch not compiled with CUDA enabled"),
        Text("script.wants_nccl", "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
        Text("script.wants_mpi", "RuntimeError: Distributed package doesn't have MPI built in."),
        Text(
            "script.no_compiler",
            "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in "
            "torch._inductor.config.cpp.cxx: (None, 'g++')",
        ),
        Text("script.no_compiler", "FileNotFoundError: [Errno 2] No such file or directory: 'g++'"),
        Text("script.other_checkpoint", "size mismatch for fc.weight: copying a param with shape torch.Size([10, 4])"),
        Text("file.not_there", "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"),
        Text("file.denied", "PermissionError: [Errno 13] Permission denied: '/data/out.pt'"),
        Text(
            "stack.ipex_other_torch",
            "ERROR! Intel® Extension for PyTorch* needs to work with PyTorch 2.8.*, but PyTorch 2.13.0+cpu is found. "
            "Please switch to the matching version and run again.\nTraceback (most recent call last):\n"
            "AttributeError: module 'os' has no attribute 'exit'",
        ),
        Text("stack.undefined_symbol", "ImportError: /env/torchvision/_C.so: undefined symbol: _ZN3c106detail"),
        Text("stack.numpy", "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.3.0 as it may crash."),
        Text(
            "stack.old_glibc",
            "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by /env/x.so)",
        ),
        Text("stack.old_glibc", "ImportError: /lib64/libstdc++.so: version `GLIBCXX_3.4' not found (required by /e)"),
        Text(
            "hf.unknown_argument",
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'use_ipex'",
        ),
        Text(
            "hf.unknown_argument",
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'no_cuda'",
        ),
        Text("hf.unknown_argument", "TypeError: Accelerator.__init__() got an unexpected keyword argument 'use_ipex'"),
        Text(
            "hf.unknown_argument",
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--ddp_backend', 'ccl']",
        ),
        Text("hf.precision", "ValueError: fp16 mixed precision requires a GPU (not 'cpu')."),
        Text("hf.precision", "ValueError: Your setup doesn't support bf16/gpu."),
        Text(
            "hf.ccl_workers",
            "ValueError: CPU distributed training backend is ccl. but CCL_WORKER_COUNT is not correctly set. Please "
            "use like 'export CCL_WORKER_COUNT = 1' to set.",
        ),
        Text(
            "hf.backend",
            "ValueError: CPU distributed training backend is not properly set. Please set '--ddp_backend' to either "
            "'mpi' or 'ccl' or 'gloo'.",
        ),
        Text(
            "hf.no_internet",
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
            "cached files.",
        ),
        Text(
            "hf.no_internet",
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/x: offline "
            "mode is enabled.",
        ),
        Text(
            "hf.not_allowed", "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hf.co/x"
        ),
        Text(
            "net.no_internet",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.org', port=443): Max retries "
            "exceeded with url: /d.tgz",
        ),
        Text(
            "net.no_internet", "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>"
        ),
        Text(
            "wandb.no_key",
            "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        ),
    ),
    "Ranks that don't meet, or have lost one another": (
        Text(
            "gloo.loopback",
            "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
            "error, remote=[127.0.0.1]:25310",
        ),
        Text(
            "gloo.no_mesh",
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] "
            "timed out connecting: SO_ERROR: Connection timed out, remote=[10.0.0.3]:41975",
        ),
        Text("gloo.no_interface", "RuntimeError: [enforce fail] rv != -1. Unable to find address for: eth9"),
        Text(
            "gloo.loopback_fallback",
            "[W ProcessGroupGloo.cpp:757] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
            "address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME.",
            state="running",
        ),
        Text(
            "meet.no_name",
            "torch.distributed.DistNetworkError: The IPv6 network addresses of (nosuch, 29511) cannot be retrieved "
            "(gai error: -3 - Temporary failure in name resolution).",
            master="nosuch",
        ),
        Text(
            "meet.no_name",
            "[W socket.cpp:764] [c10d] The IPv6 network addresses of (nosuch, 29511) cannot be retrieved (gai error: "
            "-2 - Name or service not known).\nTraceback (most recent call last):\n"
            "torch.distributed.DistNetworkError: The client socket has timed out after 4000ms while trying to connect "
            "to (nosuch, 29511).",
            master="nosuch",
        ),
        Text(
            "meet.nobody",
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
            "(10.0.0.9, 29511). The client socket has failed to connect to 10.0.0.9:29511 (errno: 113 - No route to "
            "host).",
        ),
        Text(
            "meet.timeout",
            "torch.distributed.DistNetworkError: The client socket has timed out after 40000ms while trying to connect "
            "to (127.0.0.1, 29511).",
        ),
        Text(
            "meet.timeout",
            "torch.distributed.DistNetworkError: The client socket has timed out after 40000ms while trying to connect "
            "to (10.0.0.7, 29511).",
        ),
        Text(
            "meet.timeout",
            "torch.distributed.DistNetworkError: The client socket has timed out after 40000ms while trying to connect "
            "to (10.0.0.1, 29511).",
        ),
        Text(
            "meet.too_few",
            "torch.distributed.DistStoreError: Timed out after 41 seconds waiting for clients. 1/3 clients joined.",
        ),
        Text(
            "meet.port_busy",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        ),
        Text("meet.port_busy", "OSError: [Errno 98] Address already in use"),
        Text(
            "meet.no_rank",
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
            "expected, but not set",
        ),
        Text(
            "meet.slow_names",
            "[W socket.cpp:462] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
            state="running",
        ),
        Text("net.unreachable", "OSError: [Errno 113] No route to host"),
        Text(
            "ddp.unused_parameters",
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        ),
        Text("ddp.models_differ", "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 6 params"),
        Text("ddp.steps_differ", "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running"),
        Text(
            "peer.gone",
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
            "[10.0.0.3]:47251. This is typically caused by a remote worker crashing.",
        ),
        Text(
            "peer.gone",
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the "
            "remote server shutdown or crash?",
        ),
        Text(
            "peer.timeout",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for "
            "recv operation to complete",
        ),
    ),
}
TEXTS = tuple(text for texts in SECTIONS.values() for text in texts)


def document(text: Text) -> tuple[dict[str, Any], list[Chunk]]:
    """As `node/run/run_snapshot.py` would tell of it."""
    has_first = text.by == "rank" or text.kind == "lost"
    first = {
        "kind": text.kind or ("exit" if not text.signal else "signal"),
        "rank": 1 if text.said_by else None,
        "host": "node2" if text.said_by else None,
        "exit_code": text.exit_code,
        "signal": text.signal,
        "oom": text.oom,
        "at": 1012.0,
    }
    running = text.state == "running"
    return account(
        [(row_state(text, rank), text.text if rank in text.said_by and text.by == "rank" else "") for rank in range(3)],
        first=first if has_first and not running else None,
        mpirun=text.text.splitlines() if text.by == "mpirun" else [],
        plan={
            "backend": text.backend,
            "python": "/env/bin/python",
            "tiers": {"node1": "amx", "node2": "avx2"},
            "shares": {"node2": list(text.share)},
        },
        state=text.state,
        reason=text.text if text.by == "supervisor" else "",
        master={"addr": text.master, "port": 29500},
        silent={"since": 900.0} if running else None,
    )


def row_state(text: Text, rank: int) -> dict[str, Any]:
    if text.state == "running":
        return {"state": "running"}
    if rank == 1 and text.by == "rank":
        return {"state": "failed", "exit_code": text.exit_code, "signal": text.signal}
    return {"state": "stopped", "exit_code": 143, "signal": 15}


def account(
    ranks: list[tuple[dict[str, Any], str]], *, out: dict[int, str] | None = None, **more: Any
) -> tuple[dict[str, Any], list[Chunk]]:
    """Each rank's row and what it wrote to stderr; what else is there by name."""
    given = dict(more)
    rows = [
        {"rank": rank, "host": HOSTS[rank % 3], "pid": 100 + rank, "exit_code": None, "signal": None, **row}
        for rank, (row, _) in enumerate(ranks)
    ]
    chunks = [Chunk(rank, "stderr", said.encode()) for rank, (_, said) in enumerate(ranks)]
    chunks += [Chunk(rank, "stdout", said.encode()) for rank, said in (out or {}).items()]
    status = {
        "id": "train-1",
        "state": given.pop("state", "failed"),
        "started": 1000.0,
        "ended": 1013.0,
        "exit_code": 1,
        "reason": given.pop("reason", ""),
        "first_failure": given.pop("first", None),
        "master": given.pop("master", {"addr": "10.0.0.1", "port": 29500}),
        "silent": given.pop("silent", None),
        "ranks": rows,
        **given.pop("status", {}),
    }
    sent_as = {str(rank): {"err": rank, "out": rank} for rank in range(len(ranks))}
    return {"status": status, "now": 1500.0, "ranks": sent_as, **given}, chunks


def verdict_of(text: Text) -> Diagnosis:
    return diagnose(read_snapshot(*document(text), "node1"))


_HEAD = """\
# When a run fails

`ipexctl why RUN` names the rank that failed first, how it ended and its last lines. It searches for the texts below in
the output of that rank and of mpirun, and in the output of the other ranks if that rank only reports a lost peer. Each
section has the text, its meaning, and what to do. The ids are in `why --json` and do not change. In the examples rank 1
on node2 printed the text, and the hosts are node[1-3].

For a run that hangs, `why` shows where its ranks wait; [run](run.md) has how that works and `--on-hang`.

A loss of NaN is not a failure: such a run ends normally. If a failed run printed no known text, `why` names the
exception or the exit code. It always shows the last 30 lines of the rank.
"""


def page() -> str:
    parts = [_HEAD]
    for heading, texts in SECTIONS.items():
        parts.append(f"## {heading}\n")
        seen: dict[str, list[tuple[str, str]]] = {}
        for text in texts:
            cause = verdict_of(text).cause
            assert cause is not None, text
            seen.setdefault(text.id, []).append(
                (_printed(text), f"Means ({cause.confidence}): {cause.sentence}.\n\n{cause.fix}")
            )
        for id_, examples in seen.items():
            parts.append(f"### {id_}\n")
            for at, (printed, means) in enumerate(examples):
                if printed:
                    parts.append(f"```text\n{printed}\n```\n")
                if at + 1 == len(examples) or examples[at + 1][1] != means:
                    sentence, _, fix = means.partition("\n\n")
                    parts += [f"{sentence}\n", f"To do: {fix}\n"]
    return "\n".join(parts)


def _printed(text: Text) -> str:
    if text.text:
        return text.text
    if text.signal:
        return f"(killed by {signal.Signals(text.signal).name}, without a message)"
    return f"(exit code {text.exit_code}, without an exception)"


if __name__ == "__main__":
    sys.stdout.write(page())
