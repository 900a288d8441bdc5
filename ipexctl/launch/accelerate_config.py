"""Read the file that `accelerate config` writes, in every format since 0.19, and take over its options.

Options of the command override the file. A setting that machines with ssh and without GPUs cannot meet is an error that
points at its line. A key that has no effect here is ignored, and an unknown key gets a note.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import ACCELERATE, read_regular, read_typed
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.yaml_tree import Entry, YamlTree, is_null
from ipexctl.launch.spec import AccelerateConfig, RunSpec
from ipexctl.text import expand_tilde

CPU_KINDS: Final = ("NO", "MULTI_CPU")
"""Values of `distributed_type` that are possible."""
NESTED: Final[Mapping[str, tuple[str, ...]]] = {
    "ipex_config": ("ipex", "ipex_enabled", "ipex_fusion_enabled", "use_xpu"),
    "mpirun_config": ("mpirun_hostfile", "mpirun_ccl"),
    "dynamo_config": (
        "dynamo_backend",
        "dynamo_mode",
        "dynamo_use_fullgraph",
        "dynamo_use_dynamic",
        "dynamo_use_regional_compilation",
    ),
}
"""Section → its keys. A file copied from a web page often lacks their indentation."""
OLD_DYNAMO: Final = "dynamo_backend"
"""Top-level key of versions that have no section for it."""
USED: Final = (
    "compute_environment", "debug", "distributed_type", "machine_rank", "main_process_ip", "main_process_port",
    "mixed_precision", "num_machines", "num_processes", "use_cpu", "fp16",
)  # fmt: skip
"""Keys that are read."""
IGNORED: Final = (
    "command_file", "commands", "deepspeed_config", "downcast_bf16", "enable_cpu_affinity", "fp8_config", "fsdp_config",
    "gpu_ids", "main_training_function", "megatron_lm_config", "parallelism_config", "rdzv_backend", "same_network",
    "tp_config", "tpu_env", "tpu_name", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_zone",
)  # fmt: skip
"""Keys without effect, either on CPUs or because one command starts all ranks."""
_YES: Final = ("true", "yes", "on", "y", "1")
_NO: Final = ("false", "no", "off", "n", "0", "")
PRECISIONS: Final = ("no", "fp16", "bf16", "fp8")
"""Values of `mixed_precision`."""
DEFAULTS: Final = ("default_config.yaml", "default_config.json")
"""Names of accelerate's default file."""
LARGEST: Final = 1_000_000
"""The largest number that the file may have."""


def read_accelerate(text: str, path: str) -> AccelerateConfig:
    """Read YAML or JSON. `path`: of the file, for messages.

    Raises a FileError that points at the line if the text is neither, or not for CPUs; a UserError if it is empty.
    """
    tree = YamlTree(text, path)
    if tree.root is None:
        raise UserError(f"{path} is empty", fix="accelerate config writes one")
    return _AccelerateConfigReader(tree, path).config()


def read_accelerate_file(path: Path, *, is_typed: bool = False) -> AccelerateConfig:
    """Read an accelerate config. Raises a UserError if it cannot be read, and as `read_accelerate`.

    `is_typed`: True if the user named the file on this command line.
    """
    try:
        text = (read_typed if is_typed else read_regular)(expand_tilde(path), ACCELERATE).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UserError(
            f"the accelerate config {path}: {reason}", fix="the file that accelerate config wrote"
        ) from None
    return read_accelerate(text, str(path))


def with_config(spec: RunSpec, config: AccelerateConfig, hosts: int) -> RunSpec:
    """Return the spec with the options of the file that the command does not set.

    `num_processes` is the total. With `num_machines`, each host gets its share.
    """
    asked = spec.asked
    n, ppn, sources = asked.n, asked.ppn, dict(asked.sources)
    if n is None and ppn is None and config.processes is not None:
        n = config.processes
        sources["ranks"] = f"{config.path}: num_processes {n}"
        if config.machines > 1:
            ppn = -(-n // min(config.machines, hosts))
            sources["ranks"] += f", num_machines {config.machines}"
    backend = asked.backend
    if not config.is_distributed and n == 1 and ppn in (None, 1) and backend == "auto":
        backend = "none"
        sources["backend"] = f"{config.path}: distributed_type NO, with one process"
    if asked.master_port is None and config.main_port is not None:
        sources["master_port"] = f"{config.path}: main_process_port"
    master_port = asked.master_port or config.main_port
    asked = asked._replace(n=n, ppn=ppn, backend=backend, master_port=master_port, sources=sources)
    return replace(spec, asked=asked, accelerate=config)


def default_file(environ: Mapping[str, str]) -> Path | None:
    """Return accelerate's default file; None if the user has none."""
    cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    directory = expand_tilde(Path(environ.get("HF_HOME") or cache, "accelerate"))
    return next((file for name in DEFAULTS if (file := directory / name).is_file()), None)


def remarks(config: AccelerateConfig, hosts: int, node0: Collection[str]) -> tuple[str, ...]:
    """Return notes on the file for these hosts. `node0`: all names and addresses of the first host."""
    notes = list(config.notes)
    if config.machines > hosts:
        notes.append(
            f"{config.path} has num_machines: {config.machines}, but there are {hosts} hosts: all ranks go there"
        )
    if config.main_ip and config.main_ip not in node0:
        notes.append(
            f"main_process_ip {config.main_ip} of {config.path} is not the first host: rank 0 runs there, "
            "so MASTER_ADDR is its address"
        )
    return tuple(notes)


class _AccelerateConfigReader:
    """Reads one file. Values with a section are read from the section, or from the top level."""

    def __init__(self, tree: YamlTree, path: str) -> None:
        self._tree, self._path = tree, path
        assert tree.root is not None
        entries = tree.entries(tree.root, "an accelerate config")
        self._top = {entry.key: entry for entry in entries}
        self._notes: list[str] = []
        self._nested = {section: self._section(section) for section in NESTED}

    def config(self) -> AccelerateConfig:
        """Return the values of the file. Called once."""
        kind = self._distributed_type()
        self._note_unknown()
        if self._flag(self._top.get("use_cpu")) is False:
            line = f"{self._path}:{_line(self._top['use_cpu'])}"
            self._notes.append(f"{line}: use_cpu: false is ignored, ranks compute on CPUs")
        nested = self._nested
        precision = self._precision()
        if self._integer(self._top.get("machine_rank")):
            self._notes.append("machine_rank is ignored: one command starts the ranks of all machines")
        dynamo = {
            key.removeprefix("dynamo_"): self._tree.text(entry.value) for key, entry in nested["dynamo_config"].items()
        }
        if (old := self._top.get(OLD_DYNAMO)) is not None:
            dynamo.setdefault("backend", self._tree.text(old.value))
        hostfile = nested["mpirun_config"].get("mpirun_hostfile")
        return AccelerateConfig(
            path=self._path,
            hostfile=self._tree.text(hostfile.value) or None if hostfile else None,
            processes=self._count("num_processes"),
            machines=self._count("num_machines") or 1,
            is_distributed=kind != "NO",
            main_ip=self._text("main_process_ip") or None,
            main_port=self._port(),
            ccl_workers=self._integer(nested["mpirun_config"].get("mpirun_ccl")),
            mixed_precision=precision,
            ipex=self._flag(nested["ipex_config"].get("ipex")),
            ipex_enabled=self._flag(nested["ipex_config"].get("ipex_enabled")),
            debug=bool(self._flag(self._top.get("debug"))),
            dynamo={name: value for name, value in dynamo.items() if value},
            notes=tuple(self._notes),
        )

    def _section(self, name: str) -> dict[str, Entry]:
        """Return the keys of a section, and its keys that stand at the top level by mistake, with a note on these."""
        entry = self._top.get(name)
        keys: dict[str, Entry] = {}
        if entry is not None and not is_null(entry.value):
            keys = {item.key: item for item in self._tree.entries(entry.value, name)}
        misplaced = [
            key for key in NESTED[name] if key in self._top and (name, key) != ("dynamo_config", "dynamo_backend")
        ]
        if misplaced:
            verb = "belongs" if len(misplaced) == 1 else "belong"
            line = f"{self._path}:{_line(self._top[misplaced[0]])}"
            self._notes.append(f"{line}: {', '.join(misplaced)} {verb} below {name}, indented: read as if it were")
        return {**{key: self._top[key] for key in misplaced}, **keys}

    def _distributed_type(self) -> str:
        """Return the kind, in capitals; empty if the file has none.

        Raises a FileError for GPUs, TPUs, SageMaker and the like.
        """
        environment = self._top.get("compute_environment")
        if environment is not None and (where := self._tree.text(environment.value)) != "LOCAL_MACHINE":
            raise self._tree.error(
                environment.value,
                f"{quote(where)} is not supported: ranks run on machines that you can ssh to",
                fix="LOCAL_MACHINE",
            )
        kind = self._top.get("distributed_type")
        if kind is None:
            return ""
        name = self._tree.text(kind.value).upper()
        if name in ("FALSE", ""):  # `NO` without quotes is YAML's word for false
            name = "NO"
        if name == "MULTI_GPU":
            line = f"{self._path}:{_line(kind)}"
            self._notes.append(f"{line}: MULTI_GPU is read as MULTI_CPU, ranks compute on CPUs")
            name = "MULTI_CPU"
        if name not in CPU_KINDS:
            raise self._tree.error(
                kind.value,
                f"{quote(name)} is not for CPUs",
                fix="MULTI_CPU, and use_cpu: true; accelerate config asks for both",
            )
        return name

    def _note_unknown(self) -> None:
        """Add a note for each unknown key."""
        self._note_unknown_keys(
            self._top, (*USED, *IGNORED, *NESTED, *(key for keys in NESTED.values() for key in keys))
        )
        for section, keys in NESTED.items():
            short = (key.removeprefix("dynamo_") for key in keys)
            self._note_unknown_keys(self._nested[section], (*keys, *short))

    def _note_unknown_keys(self, entries: Mapping[str, Entry], known: Collection[str]) -> None:
        for key, entry in entries.items():
            if key not in known:
                line, meant = f"{self._path}:{_line(entry)}", did_you_mean(key, known, "leave it out")
                self._notes.append(f"{line}: {quote(key)} is not a key of accelerate: ignored; {meant}")

    def _precision(self) -> str:
        """Return `mixed_precision`; of old files, `fp16`. Notes that a precision is not possible on CPUs."""
        entry = self._top.get("mixed_precision")
        if entry is None:
            precision = "fp16" if self._flag(self._top.get("fp16")) else "no"
        else:
            precision = self._tree.text(entry.value).lower()
            precision = "no" if precision in (*_NO, "null") else precision
        if entry is not None and precision not in PRECISIONS:
            raise self._tree.error(entry.value, f"{quote(precision)} is not a precision", fix=", ".join(PRECISIONS))
        if precision in ("fp16", "fp8"):
            self._notes.append(f"mixed_precision {precision} is not possible on CPUs: choose bf16, or no")
        return precision

    def _text(self, key: str) -> str:
        """Return the text of a key at the top level; empty if the file does not have it."""
        entry = self._top.get(key)
        return self._tree.text(entry.value).strip() if entry is not None else ""

    def _port(self) -> int | None:
        """Return the port; None if there is none, or for 0, which means a free port."""
        entry = self._top.get("main_process_port")
        port = self._integer(entry)
        if entry is not None and port is not None and port > 65535:
            raise self._tree.error(entry.value, f"{port} is not a port", fix="1 to 65535, or 0 for a free one")
        return port or None

    def _count(self, key: str) -> int | None:
        """Return the number; None if there is none, or for -1, which leaves it to the command."""
        entry = self._top.get(key)
        number = self._integer(entry, minimum=-1)
        if entry is not None and number == 0:
            raise self._tree.error(entry.value, f"{key} is 0", fix="at least 1")
        return None if number == -1 else number

    def _integer(self, entry: Entry | None, minimum: int = 0) -> int | None:
        """Return the number; None if the file has no value.

        Raises a FileError if it is no number from `minimum` to `LARGEST`.
        """
        text = self._tree.text(entry.value).strip() if entry is not None else ""
        if entry is None or not text or text.lower() == "null":
            return None
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if not minimum <= number <= LARGEST:
            raise self._tree.error(entry.value, f"{entry.key} is a whole number, not {quote(text)}")
        return number

    def _flag(self, entry: Entry | None) -> bool | None:
        """Return the value; None if the file does not have the key.

        Raises a FileError if it is neither true nor false.
        """
        if entry is None:
            return None
        text = self._tree.text(entry.value).strip().lower()
        if text in _YES:
            return True
        if text in _NO:
            return False
        raise self._tree.error(entry.value, f"{entry.key} is true or false, not {quote(text)}")


def _line(entry: Entry) -> int:
    """Return the line number of the key."""
    return int(entry.key_node.start_mark.line) + 1
