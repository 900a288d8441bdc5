"""Define names of Hugging Face repositories, and the versions of their libraries that changed something for ipexctl.

The versions were read from the wheels on PyPI in November 2026. All messages take versions and commands from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command
from ipexctl.node.common.hub_cache import HF_HOME, folder_of, is_repo_id, is_revision

RepoKind = Literal["model", "dataset"]
PREFIXES: Final[dict[str, RepoKind]] = {"hf:": "model", "hf-dataset:": "dataset"}
"""Prefix of a repository in a command → its kind."""
DEFAULT_REVISION: Final = "main"

LAST_DDP_CCL: Final = "5.0.0"
"""The last transformers that takes `--ddp_backend ccl`; 5.1 refuses it as an invalid choice."""
WITHOUT_DDP_CCL: Final = "5.1"
RESUMES_ON_CPU: Final = "5.18"
"""The first transformers whose Trainer loads the optimizer to `cpu`; older ones load it to the device, such as `cpu:0`.
"""
INDEXED_CPU: Final = "0.29"
"""The first accelerate that gives each of several CPU ranks an indexed device (`cpu:1`), which torch.load refuses."""
LAST_ACCELERATE: Final = "1.12.0"
WITHOUT_IPEX: Final = "1.13"
"""The first accelerate without IPEX, oneCCL and `ipex_config`."""
OPTIMIZES_BY_TORCH: Final = "1.8"
"""The first accelerate that calls ipex.optimize only for an older torch; before, it did for every torch."""
OPTIMIZED_TORCH: Final = "2.7"
"""The first torch for which accelerate 1.8 to 1.12 no longer calls ipex.optimize."""

RESUMING_TRL: Final = "1.14.1"
"""The first trl whose scripts read --resume_from_checkpoint."""
DTYPE_TRL: Final = "0.23"
"""The first trl whose scripts read --dtype; older ones read --torch_dtype."""
LEAST_USEFUL: Final = {"trl": RESUMING_TRL}
"""Package → the version that an install prefers where only the name is asked for."""


class HubRepo(NamedTuple):
    kind: RepoKind
    repo_id: str
    """`ORG/NAME`, or `NAME`."""
    revision: str = DEFAULT_REVISION
    """A branch, tag or commit."""

    @property
    def word(self) -> str:
        """Return the repository as `push` takes it: `hf:org/model@v2`, without `@main`."""
        prefix = next(prefix for prefix, kind in PREFIXES.items() if kind == self.kind)
        return prefix + self.repo_id + (f"@{self.revision}" if self.revision != DEFAULT_REVISION else "")

    @property
    def folder(self) -> str:
        """Return its directory in a cache: `models--org--model`."""
        return folder_of(self.kind, self.repo_id)


def is_repo_word(text: str) -> bool:
    """True if an argument of `push` names a repository, not a path."""
    return text.startswith(tuple(PREFIXES))


def parse_repo(text: str) -> HubRepo:
    """Read an argument such as `hf:org/model@v2`, for which `is_repo_word` is true.

    Raises a UserError if its name or revision can be none.
    """
    prefix, _, name = text.partition(":")
    repo_id, at, revision = name.partition("@")
    if not is_repo_id(repo_id) or (at and not is_revision(revision)):
        fix = Fix("name it as its page on the hub does: `ipexctl push hf:org/model`")
        raise UserError(f"{text[:200]!r} can't be a hub repository", fix=fix)
    return HubRepo(PREFIXES[f"{prefix}:"], repo_id, revision or DEFAULT_REVISION)


def push_command(repos: Iterable[HubRepo]) -> FixCommand:
    """Return the command that copies these repositories to the hosts."""
    return ipexctl_command("push", *(repo.word for repo in repos))


def load_call(repo: HubRepo) -> str:
    """Return Python code that loads a pushed dataset from the cache of a host.

    It is not `load_dataset("org/name")`, because that asks the hub first (datasets 5.2).
    """
    revision = f', revision="{repo.revision}"' if repo.revision != DEFAULT_REVISION else ""
    return f'load_dataset(snapshot_download("{repo.repo_id}", repo_type="dataset"{revision}))'


def hf_home(home: str) -> str:
    """Return the HF_HOME of the ranks in a home of ipexctl."""
    return f"{home}/{HF_HOME}"
