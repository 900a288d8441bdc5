"""The table of launchers: a row for each, with its names, its options, and what becomes of each option. Data only.

An option has names without their leading dashes, with `_` for `-`; the number of its values; and an effect, by which
`translate` knows which option of ipexctl it becomes. An option that is ignored or refused has the reason here, so that
the note and the message say it. The rule: what would change which ranks run, with which variables, and what they
execute is translated or refused; what only concerns the other launcher itself is ignored, with a reason.

A wrong number of values would shift the rest of a line, so names and numbers come from the programs. Each option that
mpiexec.hydra of Intel MPI 2021.18 and MPICH 5.0 and mpirun of Open MPI 5.0 know was tried with it. Those of Open MPI
4.1 are from its `--help full`; those of torch 2.13, IPEX 1.13 to 2.8, accelerate 0.19 to 1.15 and DeepSpeed 0.14 and
0.19 are from their parsers. `tests/unit/launch/launcher_options.json` has the lists. What is not in them was taken from
manuals of older versions. An option that has a value for one program and none for another is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Effect = Literal[
    "ignored", "refused",
    "n", "ppn", "nodes", "hostfile", "hosts", "iface", "master_addr", "master_port", "time_limit", "max_restarts",
    "variable", "export", "exports", "mca", "bind", "map_by",
    "omp", "ccl_workers", "allocator", "openmp",
    "instances", "cores_per_instance", "latency_mode", "throughput_mode", "mpi_options",
    "module", "command", "config_file", "accelerate", "ipex_key", "cpu",
]  # fmt: skip
Takes = Literal["nothing", "value", "pair", "two"]
"""`pair`: `NAME VALUE` or `NAME=VALUE`; `two`: always two words."""
Name = Literal[
    "mpirun", "torchrun", "accelerate launch", "accelerate test", "ipexrun", "torch.backends.xeon.run_cpu", "deepspeed"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option of a launcher."""

    takes: Takes
    effect: Effect
    value: str = ""
    """The value that a flag stands for."""
    reason: str = ""
    """Why it is ignored or refused."""
    fix: str = ""
    """What to type in place of a refused one."""


@dataclass(frozen=True, slots=True)
class LauncherRow:
    """A launcher."""

    name: Name
    commands: tuple[tuple[str, ...], ...]
    """Its names; a second word is a subcommand."""
    modules: tuple[str, ...]
    """Its names after `python -m`."""
    options: Mapping[str, OptionRow]
    """By name; a name that ends in `*` stands for all that begin with it."""
    separates: bool = False
    """True if `:` begins another program (MPMD)."""
    runs_commands: bool = False
    """True if a word behind its options is a command; else it is a script of Python."""

    module: str = ""
    """The module that it runs, in place of one on the line."""
    of_accelerate: bool = False
    """True if it reads accelerate's configuration. It may stand behind mpirun, whose ranks it does not multiply."""
    starts_copies: bool = False
    """True if it starts independent copies, unless an option makes it distributed."""

    def option(self, name: str) -> OptionRow | None:
        """The row of an option by its name without dashes."""
        if (row := self.options.get(name)) is not None:
            return row
        return next((row for key, row in self.options.items() if key[-1] == "*" and name.startswith(key[:-1])), None)


def _options(*rows: tuple[str, OptionRow]) -> dict[str, OptionRow]:
    return {name: row for names, row in rows for name in names.split()}


def _value(names: str, effect: Effect) -> tuple[str, OptionRow]:
    return names, OptionRow("value", effect)


def _flag(names: str, effect: Effect, value: str = "true") -> tuple[str, OptionRow]:
    return names, OptionRow("nothing", effect, value)


def _ignored(reason: str, *, flags: str = "", values: str = "", twos: str = "") -> Iterator[tuple[str, OptionRow]]:
    yield flags, OptionRow("nothing", "ignored", reason=reason)
    yield values, OptionRow("value", "ignored", reason=reason)
    yield twos, OptionRow("two", "ignored", reason=reason)


def _refused(names: str, reason: str, fix: str, takes: Takes = "value") -> tuple[str, OptionRow]:
    return names, OptionRow(takes, "refused", reason=reason, fix=fix)


_SHOWN: Final = "ipexctl shows the rank of each line"
_KEPT: Final = "the output of each rank is kept: ipexctl logs -r RANK"
_PRINTED: Final = "--dry-run prints ranks, cores and the mpirun line"
_BOUND: Final = "ipexctl binds each rank to cores of its own: --bind"
_STARTED: Final = "ipexctl starts mpirun on node0, with ssh to the other hosts"
_NAMED: Final = "ranks get the variables of the plan and those that are named: -x NAME adds one"
_MEETING: Final = "the ranks meet at an address and a free port of node0"
_ONE_CALL: Final = "one call starts the ranks of all hosts"
_WATCHED: Final = "ipexctl watches the ranks itself"
_NO_GPU: Final = "ranks compute on CPUs"
_FAILED: Final = "a run ends with its first failed rank: --max-restarts N starts all again"
_SET_IN_A_FILE: Final = "-x NAME=VALUE sets a variable, and --setup FILE sources a file of the hosts before each rank"
_DUMP: Final = "leave it out; ipexctl dump shows where each rank is"
_BLOCKS: Final = "each rank gets physical cores of one NUMA node where that is possible"

_HELP: Final = _refused("version V help h", "starts nothing", "leave it out; --dry-run shows the plan", "nothing")

_MPIRUN: Final = _options(
    _value("n np c", "n"),
    _value("ppn perhost grr N npernode", "ppn"),
    _flag("pernode", "ppn", "1"),
    _value("f hostfile machinefile default_hostfile", "hostfile"),
    _value("hosts host H hostlist machines machinelist", "hosts"),
    _value("iface", "iface"),
    _value("timeout", "time_limit"),
    ("genv env", OptionRow("pair", "variable")),
    _value("x", "export"),
    _value("genvlist envlist", "exports"),
    ("mca gmca omca gomca", OptionRow("two", "mca")),
    _value("bind_to bindto binding", "bind"),
    _flag("bind_to_none", "bind", "none"),
    _flag("bind_to_core", "bind", "core"),
    _flag("bind_to_socket", "bind", "socket"),
    _value("map_by mapby", "map_by"),
    *_ignored(_SHOWN, flags="l prepend_rank tag_output timestamp_output prepend_timestamp ordered_output xml "
              "merge_stderr_to_stdout", values="prepend_pattern output output_from stream_buffering xml_file"),
    *_ignored(_KEPT, values="outfile_pattern errfile_pattern outfile errfile output_filename output_directory"),
    *_ignored(_PRINTED, flags="print_rank_map print_all_exitcodes v verbose q quiet display_map "
              "display_allocation report_bindings display_devel_map display_devel_allocation display_diffable_map "
              "display_comm display_comm_finalize show_progress parsable parseable output_proctable prot profile "
              "debug silent_abort no_aggregate_help", values="display report_pid report_uri report_events"),
    *_ignored(_BOUND, flags="bycore bysocket bynode byslot use_hwthread_cpus",
              values="rank_by rankby cpus_per_proc cpus_per_rank cpu_set cpu_list slot_list rankfile rf cpu_bind "
              "membind topolib cartofile cf"),
    *_ignored("ipexctl plans how many ranks a host gets", flags="oversubscribe nooversubscribe"),
    *_ignored(_STARTED, flags="allow_run_as_root disable_hostname_propagation enable_hostname_propagation enable_x "
              "disable_x noprefix no_app_prefix pmi_aggregate pmi_noaggregate pmi_port noconf v6 cleanup prefork "
              "hybrid_hosts hetero_nodes novm use_regexp do_not_resolve fwd_mpirun_port enable_instant_on_support "
              "d debug_devel debug_daemons debug_daemons_file leave_session_attached",
              values="launcher launcher_exec bootstrap bootstrap_exec bootstrap_exec_args rsh rmk prefix "
              "app_pmix_prefix hosts_group branch_count tree_width localhost demux pmi_connect use_app_topology usize "
              "nameserver tmpdir launch_agent max_vm_size forward_signals personality pset rtos runtime_options hnp "
              "ompi_server", twos="prtemca pmixmca"),
    *_ignored(_FAILED, flags="disable_auto_cleanup enable_auto_cleanup dac continuous enable_recovery "
              "disable_recovery", values="max_restarts with_ft initial_errhandler"),
    *_ignored(_WATCHED, flags="get_stack_traces report_state_on_timeout report_child_jobs_separately",
              values="spawn_timeout"),
    *_ignored(_NAMED, flags="genvall envall genvnone envnone genvuser envuser fwd_environment",
              values="genvexcl envexcl"),
    *_ignored(_NO_GPU, values="gpus_per_proc gpu_subdevs_per_proc gpu_support memory_alloc_kinds"),
    *_ignored("ranks have no stdin", values="stdin"),
    _refused("s", "has a value for Intel MPI and none for Open MPI", "leave it out, with its value: ranks have no "
             "stdin"),
    _refused("machine", "names a file for Intel MPI and hosts for MPICH", "-f FILE, or -hosts A,B"),
    _refused("display_topo", "has a value for some versions and none for others",
             "leave it out; ipexctl doctor shows the cores of each host"),
    _refused("dvm", "starts the ranks with a server that runs already", "leave it out; " + _STARTED),
    _refused("rr", "places one rank on each host in turn", "--ppn N: ranks per host", "nothing"),
    _refused("rankmap order_nodes", "chooses the host of each rank", "leave it out: rank 0 runs on the first host of "
             "the hostfile"),
    _refused("npersocket ppr", "counts ranks for a part of a host", "--ppn N: ranks per host"),
    _refused("wdir gwdir wd dir", "ranks start in the project's directory", "leave it out, and call ipexctl in the "
             "project's directory, or name it: --cwd DIR"),
    _refused("set_cwd_to_session_dir", "ranks start in the project's directory", "leave it out", "nothing"),
    _refused("path gpath preload_files", "changes how each rank is started", "--setup FILE sources a file of "
             "the hosts before each rank"),
    _refused("umask", "changes the modes of the ranks' files", "leave it out, and call os.umask() in the script"),
    _refused("preload_binary", "copies the program to the hosts", "leave it out: ipexctl copies the project",
             "nothing"),
    _refused("unset_env", "changes variables of the ranks", _SET_IN_A_FILE),
    _refused("prepend_env append_env", "changes variables of the ranks", _SET_IN_A_FILE, "two"),
    _refused("nolocal skip_launch_node", "keeps ranks off node0", "-l '!NODE0' leaves a host out", "nothing"),
    _refused("configfile app", "names a file of several programs", "one program for all ranks, on the line itself"),
    _refused("soft index_argv_by_rank", "starts ranks that differ", "one program for all ranks", "nothing"),
    _refused("arch file", "starts ranks that differ", "one program for all ranks, on the line itself"),
    _refused("tune am", "names a file of settings of MPI", "-x NAME=VALUE sets a variable of MPI"),
    _refused("amca", "names a file of settings of MPI", "-x NAME=VALUE sets a variable of MPI", "two"),
    _refused("aps mps trace trace_imbalance trace_collectives trace_pt2pt check check_mpi", "measures or checks each "
             "rank with another program", "leave it out", "nothing"),
    _refused("gtool gtoolfile", "starts another program around ranks", "leave it out"),
    _refused("gdb gdb_ia idb tv stop_on_exec stop_in_init stop_in_app", "is for a debugger", _DUMP, "nothing"),
    _refused("gdb_args gdba tva debugger xterm", "is for a debugger", _DUMP),
    _refused("ilp64", "chooses another library of MPI", "leave it out", "nothing"),
    _refused("do_not_launch info", "starts nothing", "leave it out; --dry-run shows the plan", "nothing"),
    _HELP,
)  # fmt: skip

_TORCHRUN: Final = _options(
    _value("nproc_per_node", "ppn"),
    _value("nnodes", "nodes"),
    _value("master_addr", "master_addr"),
    _value("master_port", "master_port"),
    _value("max_restarts", "max_restarts"),
    _flag("m module", "module"),
    _flag("no_python", "command"),
    *_ignored(_MEETING, flags="standalone", values="rdzv_backend rdzv_endpoint rdzv_id rdzv_conf local_addr"),
    *_ignored(_ONE_CALL, values="node_rank"),
    *_ignored(_KEPT, values="log_dir r redirects t tee local_ranks_filter duplicate_stdout_filters "
              "duplicate_stderr_filters logs_specs"),
    *_ignored(_WATCHED, values="monitor_interval start_method event_log_handler role signals_to_handle "
              "shutdown_timeout"),
    *_ignored(_BOUND, values="numa_binding"),
    *_ignored("ranks have LOCAL_RANK in their environment", flags="use_env"),
    *_ignored("each rank is a process of its own", flags="run_path"),
    _refused("virtual_local_rank", "gives every rank LOCAL_RANK=0, for GPUs", "leave it out", "nothing"),
    _HELP,
)  # fmt: skip

_FOR_GPUS: Final = "is not for CPUs"
_ACCELERATE: Final = _options(
    _value("config_file", "config_file"),
    _value("mixed_precision num_processes num_machines main_process_ip main_process_port mpirun_ccl mpirun_hostfile "
           "dynamo_backend dynamo_mode", "accelerate"),
    _flag("debug ipex dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation", "accelerate"),
    _flag("ipex_enabled ipex_fusion_enabled", "ipex_key"),
    _value("num_cpu_threads_per_process", "omp"),
    _flag("m module", "module"),
    _flag("no_python", "command"),
    _flag("cpu use_cpu", "cpu"),
    *_ignored(_WATCHED, flags="q quiet", values="max_restarts monitor_interval role"),
    *_ignored(_KEPT, values="log_dir t tee"),
    *_ignored(_ONE_CALL, flags="same_network", values="machine_rank"),
    *_ignored(_MEETING, values="rdzv_backend rdzv_conf"),
    *_ignored(_BOUND, flags="enable_cpu_affinity"),
    *_ignored(_NO_GPU, flags="use_xpu downcast_bf16 fp8_use_autocast_during_eval tpu_cluster no_tpu_cluster "
              "tpu_use_sudo", values="gpu_ids vm env main_training_function aws_* fp8_* fsdp_* megatron_lm_* "
              "parallelism_config_* deepspeed_* zero_stage zero3_* offload_* gradient_accumulation_steps "
              "gradient_clipping tp_size"),
    _refused("multi_gpu tpu use_deepspeed use_fsdp use_megatron_lm use_parallelism_config use_tp", _FOR_GPUS,
             "leave it out", "nothing"),
    _HELP,
)  # fmt: skip

_IPEXRUN: Final = _options(
    _value("ninstances", "instances"),
    _value("ncores_per_instance ncore_per_instance", "cores_per_instance"),
    _flag("latency_mode", "latency_mode"),
    _flag("throughput_mode", "throughput_mode"),
    _value("nnodes", "nodes"),
    _value("nprocs_per_node nproc_per_node", "ppn"),
    _flag("distributed", "ppn", ""),
    _value("hostfile", "hostfile"),
    _value("ccl_worker_count", "ccl_workers"),
    _value("master_addr", "master_addr"),
    _value("master_port", "master_port"),
    _value("extra_mpi_params more_mpi_params", "mpi_options"),
    _value("memory_allocator", "allocator"),
    _flag("enable_tcmalloc", "allocator", "tcmalloc"),
    _flag("enable_jemalloc", "allocator", "jemalloc"),
    _flag("use_default_allocator", "allocator", "default"),
    _value("omp_runtime", "openmp"),
    _flag("disable_iomp", "openmp", "default"),
    _flag("m module", "module"),
    _flag("no_python", "command"),
    *_ignored(_KEPT, values="log_dir log_path log_file_prefix"),
    *_ignored(_BLOCKS, flags="bind_numa_node skip_cross_node_cores disable_numactl disable_taskset multi_instance",
              values="strategy multi_task_manager"),
    *_ignored("ipexctl gives ranks cores of all NUMA nodes that the account may use",
              values="node_id nodes_list socket_id"),
    *_ignored("ipexctl gives ranks physical cores, and no E-cores",
              flags="use_logical_cores use_logical_core use_e_cores"),
    *_ignored("oneCCL's workers get cores of their own: --ccl-workers",
              flags="logical_cores_for_ccl logical_core_for_ccl"),
    *_ignored("its values for jemalloc can end in out of memory", flags="benchmark"),
    *_ignored("the script says which precision it uses", values="dtype",
              flags="auto_ipex_verbose disable_ipex_graph_mode"),
    *_ignored(_PRINTED, flags="silent"),
    _refused("instance_idx rank", "starts one of several copies", "leave it out, and all copies start"),
    _refused("cores_list core_list", "names cores", "leave it out: ipexctl binds ranks to the cores the account may "
             "use; --bind none binds none"),
    _refused("auto_ipex", "changes the script", "call ipex.optimize in the script, and leave it out", "nothing"),
    _HELP,
)  # fmt: skip

_DEEPSPEED: Final = _options(
    _value("H hostfile", "hostfile"),
    _value("num_nodes", "nodes"),
    _value("num_gpus num_accelerators", "ppn"),
    _value("master_addr", "master_addr"),
    _value("master_port", "master_port"),
    _flag("module", "module"),
    _flag("no_python", "command"),
    *_ignored(_STARTED, flags="force_multi no_ssh no_ssh_check",
              values="launcher launcher_args ssh_port comment account venv_script"),
    *_ignored(_ONE_CALL, values="node_rank"),
    *_ignored("ranks have LOCAL_RANK in their environment", flags="no_local_rank"),
    *_ignored(_BOUND, flags="bind_cores_to_rank", values="bind_core_list"),
    *_ignored(_KEPT, values="enable_each_rank_log", flags="save_pid"),
    *_ignored("ipexctl has options of its own for what it prints: -q", values="log_level", flags="q quiet"),
    _refused("i include e exclude", "selects hosts", "-l HOSTS; -l '!HOST' leaves one out"),
    _refused("autotuning", "starts many runs", "leave it out"),
    _refused("elastic_training", "changes the number of ranks", "leave it out; --max-restarts N starts again",
             "nothing"),
    _refused("min_elastic_nodes max_elastic_nodes", "changes the number of ranks", "--num_nodes N"),
    _HELP,
)  # fmt: skip

LAUNCHERS: Final = (
    LauncherRow(
        "mpirun",
        tuple(
            (name,)
            for name in (
                "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich",
                "mpiexec.mpich",
            )
        ),
        (),
        _MPIRUN,
        separates=True,
        runs_commands=True,
    ),
    LauncherRow("torchrun", (("torchrun",),), ("torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    LauncherRow(
        "accelerate launch",
        (("accelerate", "launch"), ("accelerate-launch",)),
        ("accelerate.commands.launch",),
        _ACCELERATE,
        of_accelerate=True,
    ),
    LauncherRow(
        "accelerate test",
        (("accelerate", "test"),),
        ("accelerate.commands.test",),
        _options(_value("config_file", "config_file"), _HELP),
        module="accelerate.test_utils.scripts.test_script",
        of_accelerate=True,
    ),
    LauncherRow(
        "ipexrun",
        (("ipexrun", "cpu"), ("ipexrun",)),
        (
            "intel_extension_for_pytorch.cpu.launch", "intel_extension_for_pytorch.launcher",
            "intel_extension_for_pytorch.launch", "intel_pytorch_extension.launch",
        ),
        _IPEXRUN,
        starts_copies=True,
    ),
    LauncherRow("torch.backends.xeon.run_cpu", (), ("torch.backends.xeon.run_cpu",), _IPEXRUN, starts_copies=True),
    LauncherRow("deepspeed", (("deepspeed",), ("ds",), ("deepspeed.pt",)), ("deepspeed.launcher.runner",), _DEEPSPEED),
)  # fmt: skip

OPTIONS_OF_RANKS: Final = "give ipexctl the hosts and the number of ranks: -H HOSTFILE -n N --ppn N SCRIPT.py"
_IN_A_JOB: Final = "inside a job of Slurm ipexctl takes the hosts of the allocation: --ppn N SCRIPT.py"
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("srun", "sbatch", "salloc"), f"{_IN_A_JOB}; for a job script: ipexctl export slurm SCRIPT.py"),
    **dict.fromkeys(
        (
            "horovodrun", "jsrun", "lrun", "prterun", "prun", "aprun", "ibrun", "yhrun", "qrsh", "mpirun_rsh",
            "mpiexec.slurm", "mpiexec.mpd", "mpiexec.gforker", "oshrun", "shmemrun", "flux", "torchx", "composer",
            "colossalai",
        ),
        OPTIONS_OF_RANKS,
    ),
    "horovod.runner.launch": OPTIONS_OF_RANKS,
    "torch.distributed.launcher.api": OPTIONS_OF_RANKS,
}  # fmt: skip
"""Other commands and modules that start ranks → what to type."""
INTERACTIVE: Final = ("accelerate", "config")
"""It asks questions, and ranks have no stdin."""
