"""Reads Ansible's connection variables of a host; all other variables are kept as text.

Jinja is not evaluated and vaults are not decrypted.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.attributes import read_count, read_path, read_port, read_ssh_config
from ipexctl.hosts.found_file import refused_argument
from ipexctl.hosts.host import Host
from ipexctl.hosts.hostword import read_address
from ipexctl.hosts.names import WordError, check_user, quoted

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.errors import FileError
    from ipexctl.hosts.source import Source

# The newer name first: it wins if a host has both.
_ADDRESS: Final = ("ansible_host", "ansible_ssh_host")
_USER: Final = ("ansible_user", "ansible_ssh_user")
_PORT: Final = ("ansible_port", "ansible_ssh_port")
_IDENTITY: Final = ("ansible_ssh_private_key_file", "ansible_private_key_file")
# In the order of ssh's command line, where the first value of an option counts.
_SSH_ARGS: Final = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_KNOWN_HOSTS: Final = "userknownhostsfile"


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable's value and its position in the file."""

    text: str
    line: int
    column: int
    problem: str = ""
    """The reason why it can't be used as one plain value, or empty."""


def host_from(
    source: Source, name: str, position: tuple[int, int], groups: tuple[str, ...], settings: dict[str, Setting]
) -> Host:
    """The host described by its merged variables; the variables that are read are removed from `settings`."""
    reader = _SettingReader(source, settings)
    address = reader.first(_ADDRESS)
    user = reader.first(_USER)
    port = reader.first(_PORT)
    identity = reader.first(_IDENTITY)
    slots = reader.first(("slots",))
    max_slots = reader.first(("max_slots", "max-slots"))
    internal = reader.first(("internal",))
    local = settings.get("ansible_connection")
    if local is not None and local.text == "local":
        del settings["ansible_connection"]
        address = Setting("localhost", local.line, local.column)
    ssh_config, known_hosts = reader.ssh_files()
    host = Host(
        name=name,
        address=name if address is None else reader.address(address),
        user=None if user is None else reader.user(user),
        port=None if port is None else reader.number(port, "port"),
        slots=None if slots is None else reader.number(slots, "slots"),
        max_slots=None if max_slots is None else reader.number(max_slots, "max_slots"),
        internal=None if internal is None else reader.address(internal),
        identity=None if identity is None else reader.path(identity),
        known_hosts=known_hosts,
        ssh_config=ssh_config,
        groups=groups,
        vars={key: setting.text for key, setting in settings.items()},
    )
    if host.slots and host.max_slots and host.slots > host.max_slots:
        line, column = position if slots is None else (slots.line, slots.column)
        raise source.error(line, column, f"slots={host.slots} is more than max_slots={host.max_slots}")
    return host


@dataclass(frozen=True, slots=True)
class _SettingReader:
    """Removes the connection variables from a host's settings; the rest becomes the host's `vars`."""

    source: Source
    settings: dict[str, Setting]

    def first(self, keys: tuple[str, ...]) -> Setting | None:
        present = [self.settings.pop(key) for key in keys if key in self.settings]
        for setting in present:
            if setting.problem or setting.text:
                self._check_usable(setting)
                return setting
        return None

    def address(self, setting: Setting) -> str:
        try:
            return read_address(setting.text)
        except WordError as error:
            raise self._file_error(setting, error) from None

    def user(self, setting: Setting) -> str:
        try:
            check_user(setting.text)
        except WordError as error:
            raise self._file_error(setting, error) from None
        return setting.text

    def number(self, setting: Setting, what: str) -> int:
        try:
            return read_port(setting.text, 1) if what == "port" else read_count(setting.text, what, 1)
        except WordError as error:
            raise self._file_error(setting, error) from None

    def path(self, setting: Setting, text: str = "") -> Path:
        try:
            return read_path(text or setting.text, self.source.base, 1)
        except WordError as error:
            raise self._file_error(setting, error) from None

    def ssh_files(self) -> tuple[Path | None, Path | None]:
        """The `-F` and UserKnownHostsFile of ssh's arguments; other arguments stay in the settings."""
        config = known_hosts = None
        for key in _SSH_ARGS:
            setting = self.settings.get(key)
            if setting is not None and self.source.found:
                self._refuse_found(setting)
            if setting is None or not ("-F" in setting.text or _KNOWN_HOSTS in setting.text.lower()):
                continue
            self._check_usable(setting)
            try:
                arguments = shlex.split(setting.text)
            except ValueError:
                raise self._error(setting, f"the quotes in {key} don't match") from None
            options, rest = _split_ssh_arguments(arguments)
            if "config" in options and config is None:
                config = self._config(setting, options["config"])
            if "known_hosts" in options and known_hosts is None:
                known_hosts = self.path(setting, options["known_hosts"])
            del self.settings[key]
            if rest:
                self.settings[key] = Setting(shlex.join(rest), setting.line, setting.column)
        return config, known_hosts

    def _refuse_found(self, setting: Setting) -> None:
        try:
            arguments = shlex.split(setting.text)
        except ValueError:
            arguments = setting.text.split()
        refused = refused_argument(arguments)
        if refused is not None:
            raise self.source.found_error(setting.line, setting.column, *refused)

    def _config(self, setting: Setting, text: str) -> Path:
        try:
            return read_ssh_config(text, self.source.base, 1)
        except WordError as error:
            raise self._file_error(setting, error) from None

    def _check_usable(self, setting: Setting) -> None:
        if setting.problem:
            raise self._error(setting, setting.problem)
        if "{{" in setting.text or "{%" in setting.text:
            raise self.source.error(
                setting.line,
                setting.column,
                f"{quoted(setting.text)} is a Jinja expression, which isn't evaluated here",
                fix="write the value itself, or let `ansible-inventory --list --yaml` write the file",
            )

    def _error(self, setting: Setting, what: str) -> FileError:
        return self.source.error(setting.line, setting.column, what)

    def _file_error(self, setting: Setting, error: WordError) -> FileError:
        return self.source.word_error(setting.line, error.moved(setting.column - 1))


def _split_ssh_arguments(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    rest: list[str] = []
    index = 0
    while index < len(arguments):
        flag, value, count = arguments[index][:2], arguments[index][2:], 1
        if flag in ("-F", "-o") and not value and index + 1 < len(arguments):
            value, count = arguments[index + 1], 2
        kind, text = _ssh_option(flag, value)
        if kind and text:
            options.setdefault(kind, text)
        else:
            rest.extend(arguments[index : index + count])
        index += count
    return options, rest


def _ssh_option(flag: str, value: str) -> tuple[str, str]:
    if flag == "-F":
        return "config", value
    key, _, file = value.replace("=", " ", 1).strip().partition(" ")
    file = file.strip().strip('"')
    # /dev/null and none mean "keep no keys", which --host-keys decides; several files don't fit in one path.
    if flag == "-o" and key.lower() == _KNOWN_HOSTS and file not in ("/dev/null", "none") and " " not in file:
        return "known_hosts", file
    return "", ""
