"""Make the variables that `accelerate launch` sets for its ranks from its config file, as versions 0.19 to 1.15 do.

ipexctl starts the ranks itself, so without these variables a script would train with another precision than its
accelerate config says.
"""

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
"""Key of the file's dynamo section → its default."""
FIRST_IPEX: Final = "0.20"
"""Versions before this one read IPEX_ENABLED."""
WITHOUT_XPU: Final = "1.6"
"""Versions before this one keep an installed IPEX from looking for GPUs."""
FIRST_DEBUG: Final = "0.22"
FIRST_REGIONAL: Final = "1.7"


def variables_of(config: AccelerateConfig, packages: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return the variables for a config.

    `packages`: of the environment, whose version of accelerate decides which it reads.
    """
    return tuple(_settings(config, packages.get(PROJECT), has_ipex=IPEX in packages))


def unsupported_settings(config: AccelerateConfig, packages: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on settings of the file that the environment's accelerate does not support."""
    version = packages.get(PROJECT)
    if version is None:
        return ("the environment has no accelerate; its variables are set anyway, for scripts that read them",)
    if not (config.ipex or config.ipex_enabled):
        return ()
    note = no_optimize(packages, f"{config.path}: ipex")
    return (note,) if note else ()


def no_optimize(packages: Mapping[str, str], request: str) -> str:
    """Return why this environment's accelerate does not call ipex.optimize, and what to type; empty if it does.

    `request`: what asks for IPEX, for the text.
    """
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
    """True if `version` is older than `other`. A version that cannot be parsed counts as new."""
    try:
        return Version(version) < Version(other)
    except InvalidVersion:
        return False


def _settings(config: AccelerateConfig, version: str | None, *, has_ipex: bool) -> Iterator[Setting]:
    """Yield the variables. `version`: of accelerate, None if the environment has none; then all are set."""

    def source(key: str) -> str:
        """Return the reason of a variable: the key of the file that sets it."""
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
    """Yield the variables that turn IPEX on or off."""
    uses_ipex = config.ipex if config.ipex is not None else config.ipex_enabled
    reason = f"{config.path}: ipex_config"
    if version is not None and before(version, FIRST_IPEX):
        if uses_ipex:
            yield Setting("IPEX_ENABLED", "true", reason)
    elif has_ipex and (version is None or before(version, WITHOUT_IPEX)):
        # like accelerate launch, also if the file does not mention it: without it, IPEX would be used
        yield Setting("ACCELERATE_USE_IPEX", str(bool(uses_ipex)).lower(), reason)
        if version is not None and before(version, WITHOUT_XPU):
            yield Setting("ACCELERATE_USE_XPU", "false", f"{config.path}: use_cpu")
