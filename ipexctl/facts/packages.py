"""Commands that install a program on a host, by distribution. Pure.

Doctor, install and run share them, so a host without a usable Python gets the same advice everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Python

_32_BITS: Final = ("i386", "i486", "i586", "i686")
_APT: Final = frozenset({"debian", "ubuntu", "linuxmint", "pop", "raspbian"})
_DNF: Final = frozenset({"rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"})
_ZYPPER: Final = frozenset({"sles", "sled", "opensuse-leap", "opensuse-tumbleweed"})


def package_command(facts: Facts, apt: str, dnf: str, zypper: str) -> str:
    """For an unknown distribution, use Debian's package names."""
    distro = facts.system.distro_id
    if distro in _APT:
        return f"as root: apt-get install -y {apt}"
    if distro in _DNF:
        return f"as root: {'yum' if (facts.system.distro_version or '').startswith('7') else 'dnf'} install -y {dnf}"
    if distro in _ZYPPER:
        return f"as root: zypper install -y {zypper}"
    return f"as root, with this system's package manager, install {apt}"


def python_without_root(version: str) -> str:
    return (
        "without root, if you trust astral.sh: curl -LsSf https://astral.sh/uv/install.sh | sh && "
        f"~/.local/bin/uv python install {version}"
    )


def running_pythons(facts: Facts) -> list[Python]:
    return [
        python
        for python in facts.software.pythons
        if python.minor and python.libc != "musl" and python.arch not in _32_BITS
    ]


def ways_to_python(facts: Facts) -> str:
    """CentOS 7 has no package that is new enough."""
    if (facts.system.distro_version or "").startswith("7") and facts.system.distro_id in ("centos", "rhel"):
        return python_without_root("3.12")
    dnf = "python3" if facts.system.distro_id == "fedora" else "python3.11"
    return f"{package_command(facts, 'python3 python3-venv', dnf, 'python311')}; {python_without_root('3.12')}"
