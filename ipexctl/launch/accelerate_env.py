"""What each generation of accelerate sets for its ranks from a configuration, so that `Accelerator()` behaves as there.

By its own code, asked of every generation from 0.19 to 1.15: `docs/accelerate.md` has the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from packaging.version import InvalidVersion, Version

from ipexctl.launch.plan import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.launch.accelerate_config import AccelerateConfig

PROJECT: Final = "accelerate"
IPEX: Final = "intel-extension-for-pytorch"
DYNAMO: Final[Mapping[str, str]] = {
    "backend": "no",
    "mode": "default",
    "use_fullgraph": "False",
    "use_dynamic": "False",
    "use_regional_compilation": "False",
}
"""Each with what accelerate sets where the file says nothing."""
WITHOUT_IPEX: Final = "1.13"
"""The first accelerate that knows no IPEX, no oneCCL and no `ipex_config`."""
WITHOUT_PREPARE: Final = "1.8"
"""The first that no longer calls ipex.optimize by itself."""
FIRST_IPEX: Final = "0.20"
"""Before that it was IPEX_ENABLED."""
WITHOUT_XPU: Final = "1.6"
"""Up to it, an IPEX that is installed is kept from looking for GPUs."""
FIRST_DEBUG: Final = "0.22"
FIRST_REGIONAL: Final = "1.7"


def variables_of(config: AccelerateConfig, packages: Mapping[str, str]) -> tuple[Setting, ...]:
    """The variables of the ranks, for the accelerate that is in their environment."""
    return tuple(_words(config, packages.get(PROJECT), has_ipex=IPEX in packages))


def misunderstandings(config: AccelerateConfig, packages: Mapping[str, str]) -> tuple[str, ...]:
    """What the file asks for and the accelerate of the environment can't do any more, or can't do yet."""
    version = packages.get(PROJECT)
    if version is None:
        return ("the environment has no accelerate: its variables are set all the same, for whoever reads them",)
    said = []
    asks = config.ipex or config.ipex_enabled
    if asks and not before(version, WITHOUT_IPEX):
        said.append(
            f"accelerate {version} knows no IPEX ({config.path}: ipex): call ipex.optimize in the script, "
            "or ipexctl install --with 'accelerate<1.13'"
        )
    elif asks and IPEX not in packages:
        said.append(f"{config.path} asks for IPEX, which the environment doesn't have: ipexctl install without --stack")
    elif asks and not before(version, WITHOUT_PREPARE):
        said.append(f"accelerate {version} doesn't call ipex.optimize by itself any more: call it in the script")
    if config.ccl_workers and not before(version, WITHOUT_IPEX):
        said.append(f"accelerate {version} knows no oneCCL: mpirun_ccl sets CCL_WORKER_COUNT, and it talks over gloo")
    return tuple(said)


def before(version: str, other: str) -> bool:
    """A version nobody can read is taken for a new one."""
    try:
        return Version(version) < Version(other)
    except InvalidVersion:
        return False


def _words(config: AccelerateConfig, version: str | None, *, has_ipex: bool) -> Iterator[Setting]:
    def said(key: str) -> str:
        return f"{config.path}: {key}"

    yield Setting("ACCELERATE_MIXED_PRECISION", config.mixed_precision, said("mixed_precision"))
    for name, default in DYNAMO.items():
        if name == "use_regional_compilation" and version is not None and before(version, FIRST_REGIONAL):
            continue
        value = config.dynamo.get(name, default)
        if name == "backend":
            value = value.upper()
        elif name.startswith("use_"):
            value = str(value.lower() in ("true", "yes", "1"))
        yield Setting(f"ACCELERATE_DYNAMO_{name.upper()}", value, said("dynamo_config"))
    if config.debug and (version is None or not before(version, FIRST_DEBUG)):
        yield Setting("ACCELERATE_DEBUG_MODE", "true", said("debug"))
    if config.ccl_workers is not None:
        yield Setting("CCL_WORKER_COUNT", str(config.ccl_workers), said("mpirun_ccl"))
    yield from _ipex(config, version, has_ipex=has_ipex)


def _ipex(config: AccelerateConfig, version: str | None, *, has_ipex: bool) -> Iterator[Setting]:
    ipex, why = config.ipex if config.ipex is not None else config.ipex_enabled, f"{config.path}: ipex_config"
    if version is not None and before(version, FIRST_IPEX):
        if ipex:
            yield Setting("IPEX_ENABLED", "true", why)
    elif has_ipex and (version is None or before(version, WITHOUT_IPEX)):
        # accelerate launch says false here, too, where the file says nothing: without it, IPEX would be used
        yield Setting("ACCELERATE_USE_IPEX", str(bool(ipex)).lower(), why)
        if version is not None and before(version, WITHOUT_XPU):
            yield Setting("ACCELERATE_USE_XPU", "false", f"{config.path}: use_cpu")
