"""Writes the files of a CPU profile that hosts mount over /proc/cpuinfo and /sys/devices/system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.lab.cpu_profiles import find_cpu_profile
from ipexctl.lab.cpuinfo import cpuinfo
from ipexctl.lab.sysfs import sysfs, wrappers

if TYPE_CHECKING:
    from ipexctl.lab.state import Lab


def write_profiles(lab: Lab) -> None:
    """Write each CPU profile of the lab once, for all hosts that use it."""
    for name in sorted({host.cpu_profile for host in lab.nodes if host.cpu_profile}):
        _write_profile(profile_directory(lab, name), name)


def profile_directory(lab: Lab, name: str) -> Path:
    return lab.dir / f"costume-{name}"


def _write_profile(directory: Path, name: str) -> None:
    cpu_profile = find_cpu_profile(name)
    directory.mkdir()
    (directory / "cpuinfo").write_text(cpuinfo(cpu_profile))
    tree = sysfs(cpu_profile, memory_kb=memory_kb(Path("/proc/meminfo").read_text()))
    system = directory / "system"
    for parent in sorted({path.rpartition("/")[0] for path in (*tree.files, *tree.links)}):
        (system / parent).mkdir(parents=True, exist_ok=True)
    for path, text in tree.files.items():
        (system / path).write_text(text)
    for path, target in tree.links.items():
        (system / path).symlink_to(target)
    for program, text in wrappers(cpu_profile).items():
        script = directory / "bin" / program
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)


def memory_kb(meminfo: str) -> int:
    """MemTotal of a /proc/meminfo, in KB."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1])
    return 0
