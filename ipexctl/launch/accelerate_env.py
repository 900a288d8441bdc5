"""Makes the variables that accelerate sets for its ranks from its config file, as versions 0.19 to 1.15 do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from packaging.version import InvalidVersion, Version

from ipexctl.hub.hugging_face import OPTIMIZED_TORCH, OPTIMIZES_BY_TORCH, WITHOUT_IPEX
from ipexctl.launch.spec import AccelerateConfig
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import Setting

PROJECT: Final = "accelerate"
IPEX: Final = "intel-extension-for-pytorch"
DYNAMO: Final[Mapping[str, str]] = {
    "backend": "no",
    "mode": "default",
    "use_fullgraph": "False",
    "use_dynamic": "False",
    "use_regional_compilation": "False",
}
FIRST_IPEX: Final = "0.20"
"""Versions before this one read IPEX_ENABLED."""
WITHOUT_XPU: Final = "1.6"
"""Versions before this one keep an installed IPEX from looking for GPUs."""
FIRST_DEBUG: Final = "0.22"
FIRST_REGIONAL: Final = "1.7"


def variables_of(config: AccelerateConfig, packages: Mapping[str, str]) -> tuple[Setting, ...]:
    return tuple(_settings(config, packages.get(PROJECT), has_ipex=IPEX in packages))


def unsupported_settings(config: AccelerateConfig, packages: Mapping[str, str]) -> tuple[str, ...]:
    """Notes on settings of the file that the environment's accelerate does not support."""
    version = packages.get(PROJECT)
    if version is None:
        return ("the environment has no accelerate; its variables are set anyway, for scripts that read them",)
    if not (config.ipex or config.ipex_enabled):
        return ()
    note = no_optimize(packages, f"{config.path}: ipex")
    return (note,) if note else ()


def no_optimize(packages: Mapping[str, str], request: str) -> str:
    """Why this environment's accelerate does not call ipex.optimize, and what to type; empty if it does."""
    version, torch = packages.get(PROJECT, ""), packages.get("torch", "")
    if version and not before(version, WITHOUT_IPEX):
        return Fix(
            f"{request} does nothing: accelerate {version} does not support IPEX; call ipex.optimize in "
            f"the script, or `ipexctl install --with 'accelerate<{WITHOUT_IPEX}'`"
        )
    if IPEX not in packages:
        return Fix(f"{request} asks for IPEX, and the environment has none: `ipexctl install --stack ipex`")
    if version and torch and not before(version, OPTIMIZES_BY_TORCH) and not before(torch, OPTIMIZED_TORCH):
        return Fix(
            f"{request} does nothing: accelerate {version} calls ipex.optimize only for torch before "
            f"{OPTIMIZED_TORCH}, and this is {torch}; call it in the script, or `ipexctl install --with "
            f"'accelerate<{OPTIMIZES_BY_TORCH}'`"
        )
    return ""


def before(version: str, other: str) -> bool:
    """True for an older version; an unreadable one counts as new."""
    try:
        return Version(version) < Version(other)
    except InvalidVersion:
        return False


def _settings(config: AccelerateConfig, version: str | None, *, has_ipex: bool) -> Iterator[Setting]:
    def source(key: str) -> str:
        return f"{config.path}: {key}"

    yield Setting("ACCELERATE_MIXED_PRECISION", config.mixed_precision, source("mixed_precision"))
    for name, default in DYNAMO.items():
        if name == "use_regional_compilation" and version is not None and before(version, FIRST_REGIONAL):
            continue
        value = config.dynamo.get(name, default)
        if name == "backend":
            value = value.upper()
        elif name.startswith("use_"):
            value = str(value.lower() in ("true", "yes", "1"))
        yield Setting(f"ACCELERATE_DYNAMO_{name.upper()}", value, source("dynamo_config"))
    if config.debug and (version is None or not before(version, FIRST_DEBUG)):
        yield Setting("ACCELERATE_DEBUG_MODE", "true", source("debug"))
    if config.ccl_workers is not None:
        yield Setting("CCL_WORKER_COUNT", str(config.ccl_workers), source("mpirun_ccl"))
    yield from _ipex(config, version, has_ipex=has_ipex)


def _ipex(config: AccelerateConfig, version: str | None, *, has_ipex: bool) -> Iterator[Setting]:
    ipex, reason = config.ipex if config.ipex is not None else config.ipex_enabled, f"{config.path}: ipex_config"
    if version is not None and before(version, FIRST_IPEX):
        if ipex:
            yield Setting("IPEX_ENABLED", "true", reason)
    elif has_ipex and (version is None or before(version, WITHOUT_IPEX)):
        # like accelerate launch, also if the file does not mention it: without it, IPEX would be used
        yield Setting("ACCELERATE_USE_IPEX", str(bool(ipex)).lower(), reason)
        if version is not None and before(version, WITHOUT_XPU):
            yield Setting("ACCELERATE_USE_XPU", "false", f"{config.path}: use_cpu")
