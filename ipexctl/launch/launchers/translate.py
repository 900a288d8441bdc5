"""Makes options of ipexctl from the options of the launchers of a line. Pure.

A `PastedLine` and the variables of the user's shell come in; a `Translation` goes out: values by the name of our
option, variables for the ranks, options of accelerate, and what was ignored, with reasons. The outer launcher wins over
the inner one, as its ranks are those that start. The rule: nothing is guessed; a value that has no meaning here is
refused at its place in the line.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.names import quoted
from ipexctl.launch.launchers.line import read_mpi_options
from ipexctl.launch.request import Export
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.errors import CommandLineError
    from ipexctl.launch.launchers.line import GivenOption, LauncherCall, PastedLine

OF_SHELL: Final = ("CCL_WORKER_COUNT", "CCL_ATL_TRANSPORT", "MASTER_ADDR", "MASTER_PORT")
"""Variables that guides export before the launcher: they count if the user's shell has them."""
IPEX_KEY: Final = "ipex_config: {ipex: true}"
_OPTION: Final = {
    "n": "-n", "ppn": "--ppn", "hostfile": "-H", "hosts": "--hosts", "iface": "--iface", "omp": "--omp",
    "ccl_workers": "--ccl-workers", "master_port": "--master-port", "time_limit": "--time-limit",
    "max_restarts": "--max-restarts", "bind": "--bind", "backend": "--backend", "python": "--python",
    "setup": "--setup",
}  # fmt: skip
_BINDINGS: Final = {
    "none": "none", "socket": "socket", "package": "socket", "numa": "numa", "core": "cores", "hwthread": "cores",
    "user": "auto", "board": "auto", "machine": "none", "l3cache": "auto", "l2cache": "auto", "l1cache": "auto",
}  # fmt: skip
_INTERFACES: Final = ("btl_tcp_if_include", "oob_tcp_if_include", "prte_if_include")
_OF_OPEN_MPI: Final = ("btl", "pml", "mtl", "coll", "osc", "opal_", "mpi_")
_NUMBERS: Final = ("n", "ppn", "nodes", "omp", "ccl_workers", "max_restarts", "time_limit", "master_port")
_TEXTS: Final = ("hostfile", "hosts", "iface", "master_addr")
_CHOICES: Final = {
    "allocator": ("auto", "default", "tcmalloc", "jemalloc"),
    "openmp": ("auto", "default", "intel"),
}
_MOST: Final = 10_000_000
_CORES_OF_LATENCY_MODE: Final = 4


@dataclass(frozen=True, slots=True)
class TranslatedValue:
    """A value of a launcher's option for an option of ipexctl."""

    value: Any
    source: str
    """Where it comes from: `mpirun -n 16`."""
    text: str = ""
    """The option of ipexctl, as it would be typed: `-n 16`; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Translation:
    """What a pasted line asks of ipexctl."""

    options: Mapping[str, TranslatedValue] = field(default_factory=dict, hash=False)
    """By the name of the option: `n`, `ppn`, `hostfile` …"""
    exports: tuple[Export, ...] = ()
    of_shell: tuple[str, ...] = ()
    """Those of `exports`, and MASTER_ADDR, that the user's shell has."""
    accelerate: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Options of `accelerate launch`, which become keys of its configuration."""
    config_file: str | None = None
    ignored: tuple[tuple[str, str], ...] = ()
    """Options without effect, and why."""
    notes: tuple[str, ...] = ()


def translate(line: PastedLine, environ: Mapping[str, str]) -> Translation:
    """Raises a UserError for a value that can't be translated."""
    return _Translator(line, environ).result()


class _Translator:
    def __init__(self, line: PastedLine, environ: Mapping[str, str]) -> None:
        self._line, self._environ = line, environ
        self._options: dict[str, TranslatedValue] = {}
        self._exports: dict[str, Export] = {}
        self._accelerate: dict[str, str] = {}
        self._config_file: str | None = None
        self._ignored: list[tuple[str, str]] = []
        self._notes: list[str] = []

    def result(self) -> Translation:
        line = self._line
        for call in line.calls:
            for option in call.options:
                self._translate(call, option)
            if call.row.starts_copies:
                self._copies(call)
        for name, value in line.assignments:
            self._variable(name, value, "the line")
        for name, given in (("python", line.python), ("setup", line.setup)):
            if given is not None:
                self._set(name, given, "the line")
        if line.setup_arguments:
            self._ignored.append((shlex.join(line.setup_arguments), f"--setup sources {line.setup} without arguments"))
        of_shell = [name for name in OF_SHELL if self._environ.get(name) and not self._has(name)]
        for name in of_shell:
            self._variable(name, self._environ[name], "the shell")
        return Translation(
            self._options, tuple(self._exports.values()), tuple(of_shell), self._accelerate, self._config_file,
            tuple(self._ignored), tuple(self._notes),
        )  # fmt: skip

    def _has(self, name: str) -> bool:
        if name == "CCL_WORKER_COUNT" and "ccl_workers" in self._options:
            return True
        return name in self._exports or name.lower() in self._options

    def _translate(self, call: LauncherCall, option: GivenOption) -> None:
        effect, value = option.row.effect, option.values[-1] if option.values else option.row.value
        source = f"{call.row.name} {option.text}"
        if effect == "ignored":
            self._ignored.append((option.text, option.row.reason))
        elif effect in _NUMBERS:
            self._number(call, option, effect, value)
        elif effect in _TEXTS:
            self._set(effect, value, source)
        elif effect in ("variable", "export", "exports"):
            self._export(call, option, value)
        elif effect in _CHOICES:
            if value not in _CHOICES[effect]:
                raise self._wrong(call, option, "has no such value", ", ".join(_CHOICES[effect]))
            self._set(effect, value, source)
        elif effect == "config_file":
            self._config_file = value
        elif effect in ("accelerate", "cpu"):
            self._accelerate[option.name] = value
        elif effect == "ipex_key":
            self._ipex_key(option)
        else:
            self._of_mpi(call, option, value)

    def _of_mpi(self, call: LauncherCall, option: GivenOption, value: str) -> None:
        effect = option.row.effect
        if effect == "mca":
            self._mca(option)
        elif effect == "bind":
            self._bind(option, value)
        elif effect == "map_by":
            self._map_by(call, option, value)
        elif effect == "mpi_options":
            wrong = self._wrong(call, option, "can't be divided into words", "balance its quotation marks")
            for inner in read_mpi_options(value, wrong):
                self._translate(call, inner._replace(column=option.column))

    def _number(self, call: LauncherCall, option: GivenOption, effect: str, text: str) -> None:
        if effect == "ppn" and text in ("auto", "cpu", "gpu", ""):
            return
        if effect == "nodes" and ":" in text:  # torchrun's MIN:MAX
            text = text.rpartition(":")[2]
        least = 0 if effect in ("ccl_workers", "max_restarts", "nodes") else 1
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= _MOST):
            raise self._wrong(call, option, "is no number", f"a number from {least}, or leave it out")
        if effect == "nodes" and not int(text):
            return
        self._set(effect, int(text), f"{call.row.name} {option.text}")

    def _set(self, name: str, value: Any, source: str) -> None:
        """The first one counts: the outer launcher starts the ranks."""
        text = f"{_OPTION[name]} {shlex.quote(str(value))}" if name in _OPTION else ""
        self._options.setdefault(name, TranslatedValue(value, source, text))

    def _variable(self, name: str, value: str, source: str) -> None:
        if name in ("MASTER_ADDR", "MASTER_PORT"):
            if name == "MASTER_ADDR":
                self._set("master_addr", value, source)
            elif value.isascii() and value.isdecimal() and 0 < int(value) < 1 << 16:
                self._set("master_port", int(value), source)
            return
        self._exports.setdefault(name, Export(name, value, source=source))

    def _check_name(self, call: LauncherCall, option: GivenOption, name: str) -> None:
        if not is_variable_name(name):
            raise self._wrong(call, option, f"has no name of a variable: {quoted(name)}", "NAME VALUE, or NAME=VALUE")

    def _export(self, call: LauncherCall, option: GivenOption, text: str) -> None:
        """`-genv NAME VALUE`; `-x NAME`, `-x NAME=VALUE`; `-genvlist A,B`, of which unset ones are left out."""
        if option.row.effect == "variable":
            name, value = option.values
            self._check_name(call, option, name)
            self._variable(name, value, f"{call.row.name} {option.text.split()[0]}")
            return
        is_list = option.row.effect == "exports"
        for item in text.split(",") if is_list else [text]:
            name, equals, value = item.partition("=")
            self._check_name(call, option, name)
            source = f"{call.row.name} {option.text.split()[0]}"
            if equals and not is_list:
                self._variable(name, value, source)
            elif name in self._environ:
                self._exports.setdefault(name, Export(name, self._environ[name], secret=True, source=source))
            elif not is_list:
                raise self._wrong(call, option, "names a variable that is not set here", f"export {name}=…")

    def _mca(self, option: GivenOption) -> None:
        name, value = option.values
        if name in _INTERFACES:
            self._set("iface", value.split(",")[0], f"mpirun {option.text}")
        elif name.startswith(_OF_OPEN_MPI):
            self._variable(f"OMPI_MCA_{name}", value, f"mpirun {option.text.split()[0]}")
        else:
            self._ignored.append((option.text, "ipexctl starts mpirun on node0, with parameters of its own"))

    def _bind(self, option: GivenOption, value: str) -> None:
        target = value.partition(":")[0]
        if target in _BINDINGS:
            self._set("bind", _BINDINGS[target], f"mpirun {option.text}")
        else:
            self._ignored.append((option.text, "ipexctl binds each rank to cores of its own: --bind"))

    def _map_by(self, call: LauncherCall, option: GivenOption, value: str) -> None:
        """Open MPI's `ppr:N:node` has the ranks per host; other values choose cores."""
        parts = value.split(":")
        if parts[0] != "ppr":
            self._ignored.append((option.text, "ipexctl plans which host and cores a rank gets"))
        elif parts[2:3] == ["node"]:
            self._number(call, option, "ppn", parts[1])
        else:
            raise self._wrong(call, option, "counts ranks for a part of a host", "--ppn N: ranks per host")

    def _ipex_key(self, option: GivenOption) -> None:
        if option.name == "ipex_enabled":
            self._accelerate["ipex_enabled"] = "true"
            self._notes.append(f"{option.text}: only accelerate 0.19 has it; in the file it is {IPEX_KEY}")
        else:
            self._notes.append(
                f"{option.text}: no accelerate has it, as ipex.optimize fuses by itself; "
                f"in the file, {IPEX_KEY} turns IPEX on"
            )

    def _copies(self, call: LauncherCall) -> None:
        """Without `--nnodes`, ipexrun and run_cpu start independent copies: one, unless an option says how many."""
        given: dict[str, GivenOption] = {option.row.effect: option for option in call.options}
        if "nodes" in self._options or "ppn" in given:
            self._cores(call, given, is_distributed=True)
            return
        self._set("backend", "none", f"{call.row.name}, without --nnodes")
        instances = given.get("instances")
        count = instances.values[0] if instances is not None else ""
        if "latency_mode" in given:
            self._set("cores_per_rank", _CORES_OF_LATENCY_MODE, f"{call.row.name} {given['latency_mode'].text}")
        elif "throughput_mode" in given:
            return  # one for each NUMA node, as by default
        elif instances is not None and count not in ("0", "-1"):
            self._number(call, instances, "n", count)
            self._cores(call, given, is_distributed=True)
        elif not self._cores(call, given, is_distributed=False):
            self._set("n", 1, call.row.name)

    def _cores(self, call: LauncherCall, given: Mapping[str, GivenOption], *, is_distributed: bool) -> bool:
        """Whether the line says how many cores each copy has; without a number of copies, that decides how many."""
        option = given.get("cores_per_instance")
        if option is None or option.values[0] in ("0", "-1"):
            return False
        if is_distributed:
            self._number(call, option, "omp", option.values[0])
        else:
            self._number(call, option, "cores_per_rank", option.values[0])
        return True

    def _wrong(self, call: LauncherCall, option: GivenOption, what: str, fix: str) -> CommandLineError:
        return call.wrong(option, self._line.text, what, fix)
