"""Ansible names that playbooks do not have here, each with its replacement, and supported facts; for error messages.

A module added to `modules/` must leave this list.
"""

from __future__ import annotations

from typing import Final

ANSIBLE_FACTS: Final = (
    *("hostname", "nodename", "fqdn", "distribution", "distribution_version", "os_family", "kernel"),
    *("architecture", "processor_vcpus", "memtotal_mb", "user_id", "user_dir"),
)
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

UNSUPPORTED: Final = {
    "roles": "put the role's tasks in a file: include_tasks: FILE",
    "serial": "it belongs to the play",
    "async": "a run that outlives the play: the module run with detach: true",
    "poll": "a run that outlives the play: the module run with detach: true",
    "connection": "hosts are reached by ssh; delegate_to: localhost, with --local, is this machine",
    "remote_user": "--user NAME, or user= in the hostfile",
    "become_method": "become is sudo here",
    "become_flags": "become is sudo -n here",
    "local_action": "the module itself, and below it delegate_to: localhost; --local lets that be",
    "gather_subset": "facts are one probe, always whole",
    "max_fail_percentage": "any_errors_fatal: true ends the play at the first failure",
    "throttle": "-f N for the whole call, or serial: N on the play",
    "collections": "take it out: modules have no collections here",
    "module_defaults": "say it with each task",
    "vars_prompt": "-e NAME=VALUE, or {{ lookup('env', 'NAME') }}",
    "ignore_unreachable": "a host that can't be reached leaves the play, the others go on",
    "any_errors_fatal": "it belongs to the play",
    "delegate_facts": "hostvars: {{ hostvars.NAME.VARIABLE }} has those of every host",
    "with_subelements": "loop: over things | map(attribute='parts') | flatten",
    "with_indexed_items": "loop, and loop_control: {index_var: n}",
    "with_list": "loop",
    "with_flattened": 'loop: "{{ lists | flatten }}"',
    "with_lines": "a command with register, then loop: over its stdout_lines",
    "with_dict": 'loop: "{{ mapping | dict2items }}"',
    "with_fileglob": "name the files in a loop",
    "with_sequence": 'loop: "{{ range(1, 5) }}"',
    "with_together": 'loop: "{{ one | zip(other) }}"',
    "with_nested": 'loop: "{{ one | product(other) }}"',
    "first_found": "name the file",
    "port": "--port, or port= in the hostfile",
    "force_handlers": "a task under always: runs whatever happened",
    "debugger": "--step asks before each task",
    "order": "hosts are taken in the order of the hostfile",
}


_OWNED: Final = "files belong to the login account; to change that, add a task command: chown {}, with become: true"
NOT_OPTIONS: Final = {
    "owner": _OWNED.format("NAME FILE"),
    "group": _OWNED.format(":NAME FILE"),
    "directory_mode": "file: {path: DIR, state: directory, mode: MODE}, before it",
    "recurse": "command: chmod -R MODE DIR",
    "remote_src": "command: cp FROM TO, with args: {creates: TO}",
    "validate": "a command after it that looks at the file",
    "force": "take it out: what differs is replaced",
    "executable": "a list: [bash, -c, LINE]",
    "warn": "take it out: nothing is warned of",
    "content_encoding": "take it out",
    "resume": "fewer: true, and play it again: the script continues from its checkpoint on the hosts that answer",
}
"""Options of Ansible's modules that the modules here lack, and one of `ipexctl run`, which takes command-line words."""

NOT_MODULES: Final = {
    "pip": "install: {with: [PACKAGE]} puts it into the environment of all hosts",
    **dict.fromkeys(
        ("apt", "yum", "dnf", "package"),
        "exec: 'apt-get install -y NAME', with become: true on the task; install brings packages of Python",
    ),
    "synchronize": "sync brings a project to the hosts",
    "script": "sync brings the project, exec runs it",
    "raw": "exec needs nothing but sh on the host",
    **dict.fromkeys(("setup", "gather_facts"), "facts are gathered where something uses them: {{ facts.cpu.tier }}"),
    **dict.fromkeys(("lineinfile", "blockinfile", "replace"), "template, or exec with sed"),
    "user": "exec: 'id NAME || useradd -m NAME', with become: true on the task",
    "group": "exec: 'getent group NAME || groupadd NAME', with become: true on the task",
    **dict.fromkeys(("service", "systemd"), "exec: 'systemctl restart NAME', with become: true on the task"),
    "mount": "exec: 'mountpoint -q DIR || mount DIR', with become: true on the task",
    "sysctl": "tune, with become: true",
    **dict.fromkeys(("include_role", "import_role"), "put the role's tasks in a file: include_tasks: FILE"),
    "include": "include_tasks: FILE",
    "get_url": "exec: curl -fsSLo FILE URL, with args: {creates: FILE}",
    "unarchive": "exec: tar -xf FILE, with args: {creates: DIR}",
    "git": "sync uploads the project from the control machine",
    "wait_for_connection": 'wait_for: {port: 22, host: "{{ ansible_host }}"}, with delegate_to: node0',
    "tempfile": "exec: mktemp, with register",
    "slurp": "fetch brings it to the control machine; exec: cat FILE, with register and changed_when: false",
    "find": "exec: find DIR -name PATTERN, with register and changed_when: false",
    "cron": "exec: crontab -",
    "uri": "exec: curl -fsS URL, with register and changed_when: false",
    "mpi": "run",
}
