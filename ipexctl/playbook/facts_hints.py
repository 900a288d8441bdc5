"""Ansible's names of facts: those that are supported, and a replacement for each of the others."""

from __future__ import annotations

from typing import Final

ANSIBLE_FACTS: Final = (
    *("hostname", "nodename", "fqdn", "distribution", "distribution_version", "os_family", "kernel"),
    *("architecture", "processor_vcpus", "memtotal_mb", "user_id", "user_dir"),
)
"""Facts available under Ansible's names."""
_LEFT_OUT: Final = "gather_facts: false in this play leaves it out"
HINTS: Final = {
    **{f"ansible_{name}": _LEFT_OUT for name in ANSIBLE_FACTS},
    "ansible_env": "a variable of the host: exec: printenv NAME, with register and changed_when: false",
    "ansible_default_ipv4": "ansible_host, or facts.network.default_route and facts.network.nics",
    "ansible_all_ipv4_addresses": "facts.network.nics",
    "ansible_interfaces": "facts.network.nics | map(attribute='name')",
    "ansible_domain": "ansible_fqdn",
    "ansible_date_time": "exec: date +%F, with register and changed_when: false; or facts.clock",
    "ansible_processor_cores": "facts.cpu.cores, of all sockets",
    "ansible_processor_count": "facts.cpu.sockets",
    "ansible_processor": "facts.cpu.model_name",
    "ansible_memfree_mb": "facts.memory.available / 1048576",
    "ansible_memory_mb": "facts.memory, in bytes",
    "ansible_swaptotal_mb": "facts.memory.swap, in bytes",
    "ansible_mounts": "facts.home, facts.tmp",
    "ansible_machine": "ansible_architecture",
    "ansible_system": "facts.system",
    "ansible_distribution_major_version": "ansible_distribution_version",
    "ansible_distribution_release": "ansible_distribution_version",
    "ansible_pkg_mgr": "facts.system.distro",
    "ansible_service_mgr": "facts.logind",
    "ansible_python_version": "facts.software.pythons",
    "ansible_managed": "a line of your own",
    "ansible_local": "exec: cat FILE, with register",
    "inventory_dir": "playbook_dir, or here",
    "role_path": "playbook_dir",
}
