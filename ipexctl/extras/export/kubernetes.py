"""Shared by the exports for Kubernetes: names, resources, variables that a pod can have, YAML. Pure.

What belongs to single machines cannot move: interfaces, affinities and paths of the environment are left out and listed
in notes, because pods have others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ipexctl.extras.export.common import common_settings, differing_settings, header, omitted, title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.node.common.plan import Plan, Setting

HOST_SETTINGS: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_WORKER_AFFINITY", "LD_PRELOAD")
RESERVE: Final = 0.1
"""The part of a machine's memory that its pods do not get: Kubernetes and the system need it."""


def label(name: str) -> str:
    """A valid Kubernetes service name: a-z, 0-9 and -, a letter first; short enough for a suffix like `-worker-12`."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not text[:1].isalpha():
        text = f"run-{text}"
    return text[:40].strip("-")


def literal(text: str) -> str:
    """Escape a text for a command, its arguments or a variable, where Kubernetes replaces `$(NAME)` and `$$`."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def limits_of(plan: Plan, threads_per_core: int, memory: int | None) -> dict[str, int | str]:
    """The limits of a pod with one host's ranks. `memory`: bytes of the smallest host."""
    cores = max(sum(len(rank.cores) + len(rank.ccl_cores) for rank in host.ranks) for host in plan.hosts) or 1
    # Kubernetes counts threads.
    limits: dict[str, int | str] = {"cpu": cores * threads_per_core}
    if memory is not None:
        limits["memory"] = f"{max(1, int(memory * (1 - RESERVE)) >> 30)}Gi"
    return limits


def to_give(limits: dict[str, int | str]) -> str:
    """The resources that a cluster node needs for a pod, in the sentence at the top of a manifest."""
    return f"a node with {' and '.join(f'{value} of {name}' for name, value in limits.items())} to give"


def pod_variables(plan: Plan, *, without: Sequence[str] = ()) -> dict[str, str]:
    settings = common_settings(plan, without=(*HOST_SETTINGS, *without))
    return {
        setting.name: setting.value
        for setting in settings
        if setting.value is not None and not _is_image_path(plan, setting)
    }


def settings_left_out(plan: Plan, *, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Notes about the variables that are not in a manifest; the caller has its own notes about some."""
    noted = {*HOST_SETTINGS, *without}
    in_image = [
        setting.name for setting in plan.settings if _is_image_path(plan, setting) and setting.name not in noted
    ]
    differing = [name for name in differing_settings(plan) if name not in {*noted, *in_image}]
    of_hosts = [name for name in HOST_SETTINGS if name not in without]
    return (
        *omitted(plan, of_hosts, "left out, they belong to the machines of this plan and not to pods"),
        *omitted(plan, dict.fromkeys(in_image), "left out, the image has its own"),
        *omitted(plan, differing, "left out, hosts differ in it"),
    )


def _is_image_path(plan: Plan, setting: Setting) -> bool:
    """True if the setting holds a path of the hosts, which the image has elsewhere."""
    prefix = plan.python.rpartition("/bin/")[0]
    return setting.prepend or (bool(prefix) and prefix in (setting.value or ""))


def manifest(plan: Plan, image: Sequence[str], cluster: str, job: dict[str, Any]) -> str:
    """The YAML of a job, below comments with its plan and what the image and the cluster must have."""
    import yaml  # costs start-up

    text = yaml.dump(job, Dumper=_dumper(), sort_keys=False, width=110)
    return "\n".join([f"# {title(plan)}", *image, *header(cluster), text])


def _dumper() -> Any:
    """A YAML dumper that writes multi-line texts in block style."""
    import yaml

    class Lines(yaml.SafeDumper):
        pass

    def lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Lines.add_representer(str, lines)
    return Lines
