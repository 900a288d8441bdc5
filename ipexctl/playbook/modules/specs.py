"""The declarations of all modules: options, types, defaults. Data only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ipexctl.playbook.options import Option, Spec

if TYPE_CHECKING:
    from collections.abc import Mapping

TIERS: Final = ("avx2", "avx512", "avx512_bf16", "amx")
SYSCTL: Final = re.compile(r"[a-z0-9_]+(\.[a-zA-Z0-9_\-]+)+")


def _exec(given: Mapping[str, Any]) -> str | None:
    if isinstance(given.get("cmd"), list) and not given["cmd"][0]:
        return "the list has no program in front"
    return None


def _fetch(given: Mapping[str, Any]) -> str | None:
    if "path" in given and "run" not in given:
        return "'path' is a path of a run: say 'run', too, or 'src' for a file of the host"
    return None


def _wait(given: Mapping[str, Any]) -> str | None:
    if "port" in given and "path" in given:
        return "'port' and 'path' are two tasks"
    if "port" in given and given["port"] > 65535:
        return f"there is no port {given['port']}"
    if "host" in given and "port" not in given:
        return "'host' goes with 'port'"
    return None


def _file(given: Mapping[str, Any]) -> str | None:
    if ("src" in given) != (given.get("state") == "link"):
        return "'src' and state: link go together"
    if "mode" in given and given.get("state") in ("link", "absent"):
        return f"'mode' means nothing to state: {given['state']}"
    return None


def _env(given: Mapping[str, Any]) -> str | None:
    if "from" in given and given.get("state", "verified") != "named":
        return "'from' goes with state: named"
    if given.get("state") == "named" and "from" not in given:
        return "state: named needs 'from', the environment that is to have the name"
    return None


def _tune(given: Mapping[str, Any]) -> str | None:
    for name in given.get("sysctl") or {}:
        if not SYSCTL.fullmatch(name):
            return f"'{name}' is no sysctl; such as vm.swappiness"
    return None


def _run(given: Mapping[str, Any]) -> str | None:
    if "cmd" in given and "argv" in given:
        return "the command's words stand in 'cmd' already"
    return None


_COMMAND: Final[Mapping[str, Option]] = {
    "cmd": Option("command", required=True, aliases=("argv", "_raw_params")),
    "creates": Option("path"),
    "removes": Option("path"),
    "chdir": Option("path"),
    "stdin": Option("str"),
}
_FILE: Final[Mapping[str, Option]] = {
    "dest": Option("path", required=True),
    "mode": Option("mode"),
    "backup": Option("bool", default=False),
    "follow": Option("bool", default=False),
}

SPECS: Final[Mapping[str, tuple[Spec, ...]]] = {
    "shell": (
        Spec("exec", "host", _COMMAND, free="cmd", becomes=True, check=_exec),
        Spec("command", "host", _COMMAND, free="cmd", becomes=True, check=_exec),
    ),
    "copy": (
        Spec(
            "copy",
            "host",
            {"src": Option("local"), "content": Option("str"), **_FILE},
            one_of=("src", "content"),
            becomes=True,
        ),
        Spec("template", "host", {"src": Option("local", required=True), **_FILE}, becomes=True),
    ),
    "file": (
        Spec(
            "file",
            "host",
            {
                "path": Option("path", required=True, aliases=("dest", "name")),
                "state": Option("str", choices=("directory", "file", "link", "touch", "absent")),
                "src": Option("path"),
                "mode": Option("mode"),
            },
            becomes=True,
            check=_file,
        ),
        Spec(
            "stat",
            "host",
            {
                "path": Option("path", required=True, aliases=("dest", "name")),
                "follow": Option("bool", default=False),
                "get_checksum": Option("bool", default=True),
            },
            becomes=True,
        ),
        Spec("ping", "host", {}, becomes=True),
    ),
    "wait_for": (
        Spec(
            "pause",
            "control",
            {"seconds": Option("float", default=0.0, least=0), "minutes": Option("float", default=0.0, least=0)},
            once=True,
        ),
        Spec(
            "wait_for",
            "host",
            {
                "port": Option("int", least=1),
                "host": Option("str"),
                "path": Option("path"),
                "state": Option("str", default="started", choices=("started", "stopped", "present", "absent")),
                "seconds": Option("float", default=300.0, least=0, aliases=("timeout",)),
                "delay": Option("float", default=0.0, least=0),
            },
            becomes=True,
            check=_wait,
        ),
    ),
    "fetch": (
        Spec(
            "fetch",
            "host",
            {
                "src": Option("path"),
                "run": Option("str"),
                "path": Option("path"),
                "dest": Option("local", required=True),
                "flat": Option("bool", default=False),
                "fail_on_missing": Option("bool", default=True),
            },
            one_of=("src", "run"),
            becomes=True,
            check=_fetch,
        ),
    ),
    "debug": (
        Spec(
            "assert",
            "control",
            {
                "that": Option("exprs", required=True),
                "fail_msg": Option("str", aliases=("msg",)),
                "success_msg": Option("str"),
                "quiet": Option("bool", default=False),
            },
        ),
        Spec("fail", "control", {"msg": Option("str", default="asked to fail")}, free="msg"),
        Spec("debug", "control", {"msg": Option("any"), "var": Option("any"), "verbosity": Option("int", default=0)}),
        Spec("set_fact", "control", {}, any_option=True),
    ),
    "doctor_trust_sync": (
        Spec(
            "doctor",
            "all",
            {
                "require": Option("str", choices=TIERS),
                "network": Option("bool", default=True),
                "smoke": Option("bool", default=False),
                "warnings": Option("str", default="show", choices=("show", "fail")),
                "ignore": Option("list"),
            },
        ),
        Spec("trust", "all", {"state": Option("str", default="present", choices=("present", "absent"))}),
        Spec(
            "sync",
            "all",
            {
                "src": Option("local"),
                "exclude": Option("list"),
                "include": Option("list"),
                "data": Option("list"),
                "allow_big": Option("bool", default=False),
            },
            free="src",
        ),
    ),
    "stack": (
        Spec(
            "install",
            "all",
            {
                "torch": Option("str"),
                "stack": Option("str"),
                "ipex": Option("str"),
                "oneccl": Option("str"),
                "python": Option("str"),
                "require_oneccl": Option("bool", default=False),
                "env": Option("str", default="default", aliases=("name",)),
                "with": Option("list", aliases=("packages",)),
                "requirements": Option("list"),
                "index_url": Option("str"),
                "extra_index_url": Option("list"),
                "find_links": Option("list"),
                "wheelhouse": Option("str"),
                "offline": Option("bool", default=False),
                "upgrade": Option("bool", default=False),
            },
        ),
        Spec(
            "env",
            "all",
            {
                "name": Option("str", default="default"),
                "state": Option("str", default="verified", choices=("verified", "absent", "named")),
                "from": Option("str", aliases=("source",)),
            },
            free="name",
            check=_env,
        ),
    ),
    "run": (
        Spec(
            "run",
            "all",
            {
                "script": Option("local"),
                "module": Option("str"),
                "cmd": Option("command"),
                "argv": Option("list", aliases=("args",)),
                "n": Option("int", least=1),
                "ppn": Option("int", least=1),
                "env": Option("str", default="default"),
                "python": Option("path"),
                "setup": Option("path"),
                "backend": Option("str", default="auto", choices=("auto", "ccl", "gloo", "mpi")),
                "mpi": Option("str", default="auto"),
                "bind": Option("str", default="auto", choices=("auto", "socket", "numa", "cores", "none")),
                "omp": Option("int", least=1),
                "ccl_workers": Option("int", least=0),
                "master_port": Option("int", least=1),
                "cwd": Option("local"),
                "sync": Option("bool", default=True),
                "exclude": Option("list"),
                "include": Option("list"),
                "data": Option("list"),
                "allow_big": Option("bool", default=False),
                "time_limit": Option("float", least=1),
                "max_restarts": Option("int", default=0, least=0),
                "checkpoint": Option("str"),
                "hang_after": Option("float", default=600.0, least=0),
                "on_hang": Option("str", default="report", choices=("report", "dump", "stop")),
                "detach": Option("bool", default=False),
                "creates": Option("path"),
                "fewer": Option("bool", default=False),
            },
            free="script",
            is_cluster_job=True,
            one_of=("script", "module", "cmd"),
            check=_run,
        ),
    ),
    "tune": (
        Spec(
            "tune",
            "host",
            {
                "linger": Option("bool"),
                "thp": Option("str", choices=("always", "madvise", "never")),
                "governor": Option("str"),
                "sysctl": Option("dict"),
                "state": Option("str", default="present", choices=("present", "absent")),
            },
            becomes=True,
            check=_tune,
        ),
    ),
    "migrate": (
        Spec(
            "migrate",
            "all",
            {"src": Option("local", default="."), "apply": Option("bool", default=False)},
            free="src",
        ),
    ),
}
"""The modules of each file of this package."""
