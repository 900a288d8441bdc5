"""Turn a list of machines you can ssh to into one PyTorch training job."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipexctl.api.cluster import Cluster as Cluster
    from ipexctl.api.run_handle import OutputLine as OutputLine
    from ipexctl.api.run_handle import Run as Run
    from ipexctl.errors import CallError as CallError
    from ipexctl.errors import IpexctlError as IpexctlError
    from ipexctl.errors import UserError as UserError
    from ipexctl.node.common.frames import Chunk as Chunk
    from ipexctl.node.common.frames import Note as Note
    from ipexctl.node.common.records import RunStatus as RunStatus
    from ipexctl.remote.outcome import Notice as Notice
    from ipexctl.run.follow_run import RunEnded as RunEnded

__version__ = "0.5.0"

_MODULES = {
    "Cluster": "api.cluster",
    "Run": "api.run_handle",
    "OutputLine": "api.run_handle",
    "IpexctlError": "errors",
    "CallError": "errors",
    "UserError": "errors",
    "Chunk": "node.common.frames",
    "Note": "node.common.frames",
    "Notice": "remote.outcome",
    "RunStatus": "node.common.records",
    "RunEnded": "run.follow_run",
}
"""Names of the Python interface, each imported on first use: a command needs few of their modules."""
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ipexctl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"ipexctl.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
