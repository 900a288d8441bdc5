"""List the launchers and the tools that start ranks: their names, the options that ipexctl translates, and what runs in
each rank.

Names of options have no leading dashes, and `_` for `-`. The target of an option is the field name of ipexctl's option,
or a word that `line_options.py` knows (`variable`, `ignored` …). An option that is not listed is refused, because it is
not known whether the next word is its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from ipexctl.node.common.fix import Fix
from ipexctl.node.common.run_options import Allocator, OpenMp

NUMBERS: Final = ("n", "ppn", "nodes", "min_hosts", "omp", "ccl_workers", "master_port", "max_restarts")
"""Targets whose value must be a number."""
MPI_FRAMEWORKS: Final = frozenset(("btl", "pml", "mtl", "coll", "osc", "io", "opal", "mpi", "ucx"))
"""First words of Open MPI's parameters that its library reads in the ranks."""
FLAGS: Final[Mapping[str, tuple[str, int]]] = {
    "one_host": ("nodes", 1),
    "oversubscribe": ("oversubscribe", True),
    "one_rank_a_host": ("ppn", 1),
}
"""Target of an option without a value → ipexctl's option and the value it gets."""
CHOICES: Final = {"allocator": get_args(Allocator), "openmp": get_args(OpenMp)}
"""Target → the values that it allows."""
LEFT_OUT: Final[Mapping[str, str]] = {
    "who": "each rank gets its own",
    "how_many": "-n N or --ppn N before the line sets the number of ranks",
    "starts": "the ranks are there already",
    "gpus": "the ranks run on CPUs; the number of ranks: --ppn N before the line",
}
"""Kind of variable that is left out → why."""
ACCELERATE: Final = {
    "main_process_ip": "main_ip", "main_process_port": "main_port", "mixed_precision": "mixed_precision",
    "mpirun_ccl": "ccl_workers", "mpirun_hostfile": "hostfile", "num_machines": "machines",
    "num_processes": "processes", "ipex": "ipex", "ipex_enabled": "ipex_enabled",
}  # fmt: skip
"""Option of accelerate → field of `AccelerateConfig`."""


@dataclass(frozen=True, slots=True)
class LauncherRow:
    """A launcher, or a tool that starts ranks."""

    name: str
    """Name in messages; empty in rows that are refused, which are named as they are typed."""
    commands: tuple[tuple[str, ...], ...]
    """The words of each command that starts it, with a subcommand or as `-m MODULE`."""
    options: Mapping[str, tuple[str, bool]] = field(default_factory=dict, hash=False)
    """Option → target, and True if a value follows."""
    meanings: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Option that is refused → what to type instead."""
    runs_commands: bool = False
    """True if a command follows the options, as after `mpirun`; False if a Python script or module does."""
    module: str = ""
    """Module that the launcher runs; empty if the line names one."""
    has_options_anywhere: bool = False
    """True if the options may also stand behind the program."""
    runs_itself: bool = False
    """True if each rank runs the launcher itself, without the options that start ranks."""
    of_fabric: bool = False
    """True if the launcher sets the variables by which Lightning's Fabric knows how it was started."""
    of_accelerate: bool = False
    """True if the launcher reads accelerate's config file. It may stand behind mpirun, and then starts no further
    ranks."""
    local_rank: str = ""
    """The option with which each rank gets its local rank, unless the line says otherwise; empty if ranks read a
    variable.
    """
    is_tool: bool = False
    """True if the name is a tool's command. Its module runs in each rank, without the tool's own start of ranks."""
    words: frozenset[str] = frozenset()
    """Words without a dash that may stand between the options."""
    module_of_files: str = ""
    """The module that ranks run if the first argument is a settings file; its arguments are the subcommand and the
    file.
    """
    arguments: tuple[str, ...] = ()
    """Arguments that the tool appends for ranks that exist already."""
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variable that only this tool reads → target, as in `VARIABLES`."""
    only_one_rank: str = ""
    """Why several ranks would train several models; empty if they would not."""
    starts_copies: bool = False
    """True if the launcher starts independent copies, unless an option makes it distributed."""
    advice: str = ""
    """What to type instead of a launcher that ipexctl cannot translate; empty for all others."""
    environment: str = ""
    """What to type instead of a program that only chooses a local environment, as `uv run`; empty for all others."""


_NOTHING: Final[Mapping[str, Any]] = {}


def _named(names: str) -> tuple[tuple[str, ...], ...]:
    """Parse the names of commands: `torchrun, -m torch.distributed.run`."""
    return tuple(tuple(name.split()) for name in names.split(","))


def _options(values: str, flags: str = "") -> dict[str, tuple[str, bool]]:
    """Parse texts of `TARGET: NAME…; …`: `values` are options with a value, `flags` without."""
    options: dict[str, tuple[str, bool]] = {}
    for text, has_value in ((values, True), (flags, False)):
        for part in text.split(";"):
            target, _, names = part.partition(":")
            options |= {name: (target.strip(), has_value) for name in names.split()}
    return options


def _tool(
    names: str,
    module: str,
    options: Mapping[str, tuple[str, bool]] = _NOTHING,
    meanings: Mapping[str, str] = _NOTHING,
    **others: Any,
) -> LauncherRow:
    """Return the row of a tool's command. Its options may stand anywhere among the arguments of the module."""
    commands = _named(names)
    return LauncherRow(
        " ".join(commands[0]),
        commands,
        options,
        meanings,
        module=module,
        has_options_anywhere=True,
        is_tool=True,
        **others,
    )


VARIABLES: Final[Mapping[str, str]] = {
    name: target
    for name, (target, _) in _options(
        "nodes: NNODES; ppn: NPROC_PER_NODE LOCAL_WORLD_SIZE; master_addr: MASTER_ADDR; master_port: MASTER_PORT; "
        "who: NODE_RANK RANK LOCAL_RANK GROUP_RANK ROLE_RANK; how_many: WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE; "
        "starts: FORCE_TORCHRUN TORCHELASTIC_RUN_ID; "
        "gpus: CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ASCEND_RT_VISIBLE_DEVICES"
    ).items()
}
"""Variable before a command that says who is who → the option that it sets, or a key of `LEFT_OUT`."""
_MASTER: Final = "; master_addr: master_addr; master_port: master_port"
_MODULE: Final = "module: m module"
_IPEXRUN: Final = _options(
    "n: ninstances; omp: ncores_per_instance; nodes: nnodes; ppn: nprocs_per_node nproc_per_node; hostfile: hostfile; "
    "ccl_workers: ccl_worker_count; allocator: memory_allocator; openmp: omp_runtime" + _MASTER,
    "distributed: distributed; " + _MODULE,
)
_TORCHX: Final = _options(
    "size: j; script: script; module_name: m; max_restarts: max_retries; "
    "ignored: s scheduler cfg scheduler_args workspace image name h cpu gpu memMB rdzv_port rdzv_backend mounts tee",
    "ignored: dryrun wait log debug",
)
_TORCHRUN: Final = _options(
    "ppn: nproc_per_node; nodes: nnodes; max_restarts: max_restarts; "
    "ignored: node_rank rdzv_backend rdzv_endpoint rdzv_id rdzv_conf log_dir tee redirects r t local_ranks_filter "
    "role local_addr monitor_interval start_method" + _MASTER,
    "one_host: standalone; use_env: use_env; command: no_python; ignored: run_path; " + _MODULE,
)
_IN_FRONT: Final = "before the line"
_LOCKED: Final = "-r uv.lock or -r pyproject.toml before the line"
_EXPORTED: Final = "-r pyproject.toml before the line, or -r requirements.txt after poetry export"
_ON_HOSTS: Final = "the same environment on the hosts: --python PATH before the line; packages of pip: -r FILE"

LAUNCHERS: Final = (
    LauncherRow(
        "mpirun",
        _named("mpirun, mpiexec, mpiexec.hydra, orterun"),
        _options(
            "n: n np c; ppn: ppn perhost grr N npernode; hostfile: f hostfile machinefile; hosts: hosts host H; "
            "iface: iface; variable: genv env x; mca: mca gmca prtemca pmixmca; bind_to: bind_to; "
            "ignored: map_by output_filename outfile_pattern errfile_pattern prepend_pattern bootstrap bootstrap_exec "
            "launcher launcher_exec rmk demux binding tmpdir localhost prefix display genvexcl envexcl",
            "oversubscribe: oversubscribe; one_rank_a_host: pernode; "
            "ignored: allow_run_as_root report_bindings l prepend_rank tag_output timestamp_output genvall genvnone "
            "envall envnone print_rank_map print_all_exitcodes rr v verbose q quiet nolocal ordered_output "
            "silent_abort display_map display_allocation nooversubscribe use_hwthread_cpus bynode byslot bycore "
            "bysocket",
        ),
        {
            "timeout": f"--time-limit {_IN_FRONT}, also in seconds",
            **dict.fromkeys(("genvlist", "envlist"), f"-x {_IN_FRONT}, once for each variable"),
            **dict.fromkeys(("cpus_per_proc", "cpus_per_rank", "cpus_per_task"), f"--omp N {_IN_FRONT}"),
            "npersocket": f"--ppn N and --bind socket {_IN_FRONT}",
            **dict.fromkeys(("configfile", "app"), "paste the line of that file"),
            **dict.fromkeys(("wdir", "wd"), f"ranks start in the project; to name another: --cwd {_IN_FRONT}"),
        },
        runs_commands=True,
    ),
    LauncherRow("torchrun", _named("torchrun, -m torch.distributed.run, oumi distributed torchrun"), _TORCHRUN),
    LauncherRow(
        "torch.distributed.launch", _named("-m torch.distributed.launch"), _TORCHRUN, local_rank="--local-rank"
    ),
    LauncherRow(
        "accelerate launch",
        _named(
            "accelerate launch, accelerate-launch, -m accelerate.commands.launch, "
            "-m accelerate.commands.accelerate_cli launch"
        ),
        _options(
            f"config_file: config_file; accelerate: {' '.join(ACCELERATE)}; omp: num_cpu_threads_per_process; "
            "ignored: machine_rank rdzv_backend",
            "accelerate: ipex cpu use_cpu ipex_enabled; ipex_key: ipex_fusion_enabled; command: no_python; "
            "ignored: same_network multi_gpu enable_cpu_affinity; " + _MODULE,
        ),
        {
            "use_fsdp": "leave it and the other options of FSDP out: accelerate has no FSDP on CPUs, each rank keeps "
            "the whole model; torch's own fully_shard works there: examples/fsdp_train.py",
            "gpu_ids": f"leave it out, there are no GPUs; the number of ranks: --ppn {_IN_FRONT}",
        },
        of_accelerate=True,
    ),
    LauncherRow(
        "accelerate test",
        _named("accelerate test, -m accelerate.commands.accelerate_cli test"),
        _options("config_file: config_file"),
        module="accelerate.test_utils.scripts.test_script",
        of_accelerate=True,
    ),
    LauncherRow(
        "ipexrun",
        _named("ipexrun cpu, ipexrun, -m intel_extension_for_pytorch.cpu.launch"),
        _IPEXRUN,
        starts_copies=True,
    ),
    LauncherRow("run_cpu", _named("-m torch.backends.xeon.run_cpu"), _IPEXRUN, starts_copies=True),
    LauncherRow(
        "deepspeed",
        _named("deepspeed, -m deepspeed.launcher.runner"),
        _options(
            "hostfile: H hostfile; nodes: num_nodes; ppn: num_gpus num_accelerators; include: i include; "
            "exclude: e exclude; ignored: node_rank bind_core_list launcher" + _MASTER,
            "use_env: no_local_rank; command: no_python; "
            "ignored: bind_cores_to_rank force_multi no_ssh no_ssh_check; " + _MODULE,
        ),
        local_rank="--local_rank",
    ),
    LauncherRow(
        "fabric run",
        _named("fabric run model, fabric run, lightning run model, lightning run, -m lightning.fabric.cli run"),
        _options(
            "ppn: devices; nodes: num_nodes; fabric: strategy precision accelerator; master_addr: main_address; "
            "master_port: main_port; ignored: node_rank"
        ),
        has_options_anywhere=True,
        of_fabric=True,
    ),
    LauncherRow(
        "composer",
        _named("composer"),
        _options(
            "ppn: n nproc; n: world_size; ignored: base_rank node_rank stdout stderr" + _MASTER,
            "command: c command_mode; module: m module_mode; ignored: v verbose",
        ),
    ),
    LauncherRow(
        "colossalai run",
        _named("colossalai run"),
        _options(
            "hosts: H host; hostfile: hostfile; nodes: num_nodes; ppn: nproc_per_node" + _MASTER,
            "module: m",
        ),
        {
            "ssh_port": f"--port {_IN_FRONT}",
            "include": f"-l HOSTS {_IN_FRONT}",
            "exclude": f"-l '!HOST' {_IN_FRONT}",
            "extra_launch_args": "leave it out: ipexctl starts the ranks itself",
        },
    ),
    LauncherRow(
        "horovodrun",
        _named("horovodrun, -m horovod.runner.launch"),
        _options(
            "n: np num_proc; hosts: H hosts; hostfile: hostfile; iface: network_interface; "
            "ignored: start_timeout output_filename cycle_time_ms cache_capacity",
            "ignored: gloo mpi verbose disable_cache",
        ),
        {"p": f"--port {_IN_FRONT}", "ssh_port": f"--port {_IN_FRONT}"},
        runs_commands=True,
    ),
    LauncherRow("torchx run", _named("torchx run"), _TORCHX, words=frozenset(("dist.ddp", "dist.spmd", "spmd"))),
    LauncherRow("tune run", _named("tune run"), _TORCHRUN, runs_itself=True),
    *(_tool(f"swift {name}", f"swift.cli.{name}", module_of_files="swift.cli.main") for name in ("sft", "pt", "rlhf")),
    _tool(
        "llamafactory-cli train, lmf train",
        "llamafactory.launcher",
        variables={
            "MAX_RESTARTS": "max_restarts",
            "RDZV_ID": "starts",
            "MIN_NNODES": "min_hosts",
            "MAX_NNODES": "nodes",
        },
    ),
    _tool(
        "axolotl train",
        "axolotl.cli.train",
        _options(
            "n: num_processes; nodes: nnodes num_machines; ppn: nproc_per_node; master_port: main_process_port; "
            "ignored: launcher rdzv_backend rdzv_endpoint rdzv_id node_rank machine_rank main_process_ip" + _MASTER,
            "ignored: multi_gpu",
        ),
        {
            "cloud": "leave it out: the ranks run on the hosts of the call",
            "sweep": "leave it out: one run for each configuration",
        },
        only_one_rank="it trains in one process on CPUs: over several, it loads the model on GPUs",
    ),
    _tool(
        "xtuner train",
        "xtuner.tools.train",
        _options("ignored: launcher"),
        arguments=("--launcher", "pytorch"),
        variables={"ADDR": "who", "PORT": "master_port"},
    ),
    *(
        _tool(
            f"litgpt {name}",
            "litgpt",
            only_one_rank="it trains in one process on CPUs: over several, it shards for GPUs",
        )
        for name in (
            *("finetune", "finetune_lora", "finetune_full", "finetune_adapter", "finetune_adapter_v2", "pretrain"),
        )
    ),
    _tool(
        "mim train",
        "",
        _options("ignored: G gpus"),
        {"launcher": "leave it out, as mim would start ranks itself; for ranks on all hosts: the package's train.py"},
        runs_itself=True,
    ),
    _tool("lerobot-train", "", runs_itself=True),  # the module's name differs between versions
    _tool("fairseq-train", "fairseq_cli.train"),
    _tool("fairseq-hydra-train", "fairseq_cli.hydra_train"),
    *(
        LauncherRow(
            f"trl {name}",
            _named(f"trl {name}"),
            _options(
                f"config_file: accelerate_config config_file; accelerate: {' '.join(ACCELERATE)}",
                "accelerate: cpu; ignored: multi_gpu same_network",  # its scripts have their own --use_cpu
            ),
            module=f"trl.scripts.{name}",
            has_options_anywhere=True,
            of_accelerate=True,
        )
        for name in ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation")
    ),
    LauncherRow(
        "uv run",
        _named("uv run"),
        _options(
            "packages: with; extras: extra group; ignored: p python project directory",
            "ignored: isolated no_project frozen locked no_sync active no_dev offline q quiet v verbose s script; "
            + _MODULE,
        ),
        runs_commands=True,
        environment=f"its packages: {_LOCKED}",
    ),
    LauncherRow("poetry run", _named("poetry run"), runs_commands=True, environment=f"its packages: {_EXPORTED}"),
    LauncherRow(
        "pixi run",
        _named("pixi run"),
        _options("ignored: e environment manifest_path", "ignored: frozen locked q quiet v verbose"),
        runs_commands=True,
        environment=_ON_HOSTS,
    ),
    LauncherRow(
        "conda run",
        _named("conda run, mamba run, micromamba run"),
        _options("ignored: n name p prefix", "ignored: no_capture_output live_stream s"),
        runs_commands=True,
        environment=_ON_HOSTS,
    ),
    LauncherRow(
        "",
        _named("accelerate config, -m accelerate.commands.accelerate_cli config"),
        advice="accelerate config on the control machine, because it asks questions and ranks have no stdin",
    ),
    LauncherRow(
        "",
        _named(
            "srun, sbatch, salloc, jsrun, lrun, prterun, prun, aprun, ibrun, yhrun, qrsh, mpirun_rsh, "
            "mpiexec.slurm, mpiexec.mpd, mpiexec.gforker, oshrun, shmemrun, flux, megatron, ray job submit, "
            "-m torch.distributed.launcher.api"
        ),
        advice=Fix(
            "give `ipexctl run` the script itself, with the hosts (-H) and the number of ranks (-n, --ppn); in a "
            "job of Slurm it takes the hosts of the allocation"
        ),
    ),
)
"""The first row that matches counts. The last rows cannot be translated: they are refused."""
