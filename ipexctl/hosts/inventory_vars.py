"""What Ansible's variables say about reaching a host; all others are carried along as text.

Which variables reach a host is decided in `inventory`; nothing here evaluates Jinja or decrypts a vault.
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

# The newer name first: it wins where a host has both.
_ADDRESS: Final = ("ansible_host", "ansible_ssh_host")
_USER: Final = ("ansible_user", "ansible_ssh_user")
_PORT: Final = ("ansible_port", "ansible_ssh_port")
_IDENTITY: Final = ("ansible_ssh_private_key_file", "ansible_private_key_file")
# In the order they come on ssh's command line, where the first word on a matter counts.
_SSH_ARGS: Final = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_KNOWN_HOSTS: Final = "userknownhostsfile"


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable's value and its place in the file."""

    text: str
    line: int
    column: int
    trouble: str = ""
    """Why it can't be used as one plain value, if it can't."""


def host_from(
    source: Source, name: str, place: tuple[int, int], groups: tuple[str, ...], settings: dict[str, Setting]
) -> Host:
    """The host its merged variables describe; `settings` is used up."""
    take = _Taker(source, settings)
    address = take.first(_ADDRESS)
    user = take.first(_USER)
    port = take.first(_PORT)
    identity = take.first(_IDENTITY)
    slots = take.first(("slots",))
    max_slots = take.first(("max_slots", "max-slots"))
    internal = take.first(("internal",))
    local = settings.get("ansible_connection")
    if local is not None and local.text == "local":
        del settings["ansible_connection"]
        address = Setting("localhost", local.line, local.column)
    ssh_config, known_hosts = take.ssh_files()
    host = Host(
        name=name,
        address=name if address is None else take.address(address),
        user=None if user is None else take.user(user),
        port=None if port is None else take.number(port, "port"),
        slots=None if slots is None else take.number(slots, "slots"),
        max_slots=None if max_slots is None else take.number(max_slots, "max_slots"),
        internal=None if internal is None else take.address(internal),
        identity=None if identity is None else take.path(identity),
        known_hosts=known_hosts,
        ssh_config=ssh_config,
        groups=groups,
        vars={key: setting.text for key, setting in settings.items()},
    )
    if host.slots and host.max_slots and host.slots > host.max_slots:
        line, column = place if slots is None else (slots.line, slots.column)
        raise source.error(line, column, f"slots={host.slots} is more than max_slots={host.max_slots}")
    return host


@dataclass(frozen=True, slots=True)
class _Taker:
    """Takes known variables out of a host's settings; what stays is the host's `vars`."""

    source: Source
    settings: dict[str, Setting]

    def first(self, keys: tuple[str, ...]) -> Setting | None:
        found = [self.settings.pop(key) for key in keys if key in self.settings]
        for setting in found:
            if setting.trouble or setting.text:
                self._refuse_trouble(setting)
                return setting
        return None

    def address(self, setting: Setting) -> str:
        try:
            return read_address(setting.text)
        except WordError as error:
            raise self._moved(setting, error) from None

    def user(self, setting: Setting) -> str:
        try:
            check_user(setting.text)
        except WordError as error:
            raise self._moved(setting, error) from None
        return setting.text

    def number(self, setting: Setting, what: str) -> int:
        try:
            return read_port(setting.text, 1) if what == "port" else read_count(setting.text, what, 1)
        except WordError as error:
            raise self._moved(setting, error) from None

    def path(self, setting: Setting, text: str = "") -> Path:
        try:
            return read_path(text or setting.text, self.source.base, 1)
        except WordError as error:
            raise self._moved(setting, error) from None

    def ssh_files(self) -> tuple[Path | None, Path | None]:
        """The `-F` and UserKnownHostsFile among ssh's arguments; arguments we don't take stay in the settings."""
        config = known_hosts = None
        for key in _SSH_ARGS:
            setting = self.settings.get(key)
            if setting is not None and self.source.found:
                self._refuse_found(setting)
            if setting is None or not ("-F" in setting.text or _KNOWN_HOSTS in setting.text.lower()):
                continue
            self._refuse_trouble(setting)
            try:
                words = shlex.split(setting.text)
            except ValueError:
                raise self._error(setting, f"the quotes in {key} don't match") from None
            taken, rest = _ssh_words(words)
            if "config" in taken and config is None:
                config = self._config(setting, taken["config"])
            if "known_hosts" in taken and known_hosts is None:
                known_hosts = self.path(setting, taken["known_hosts"])
            del self.settings[key]
            if rest:
                self.settings[key] = Setting(shlex.join(rest), setting.line, setting.column)
        return config, known_hosts

    def _refuse_found(self, setting: Setting) -> None:
        try:
            words = shlex.split(setting.text)
        except ValueError:
            words = setting.text.split()
        refused = refused_argument(words)
        if refused is not None:
            raise self.source.found_error(setting.line, setting.column, *refused)

    def _config(self, setting: Setting, text: str) -> Path:
        try:
            return read_ssh_config(text, self.source.base, 1)
        except WordError as error:
            raise self._moved(setting, error) from None

    def _refuse_trouble(self, setting: Setting) -> None:
        if setting.trouble:
            raise self._error(setting, setting.trouble)
        if "{{" in setting.text or "{%" in setting.text:
            raise self.source.error(
                setting.line,
                setting.column,
                f"{quoted(setting.text)} is a Jinja expression, which isn't evaluated here",
                fix="write the value itself, or let `ansible-inventory --list --yaml` write the file",
            )

    def _error(self, setting: Setting, what: str) -> FileError:
        return self.source.error(setting.line, setting.column, what)

    def _moved(self, setting: Setting, error: WordError) -> FileError:
        return self.source.word_error(setting.line, error.moved(setting.column - 1))


def _ssh_words(words: list[str]) -> tuple[dict[str, str], list[str]]:
    taken: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        flag, value, used = words[at][:2], words[at][2:], 1
        if flag in ("-F", "-o") and not value and at + 1 < len(words):
            value, used = words[at + 1], 2
        kind, text = _ssh_option(flag, value)
        if kind and text:
            taken.setdefault(kind, text)
        else:
            rest.extend(words[at : at + used])
        at += used
    return taken, rest


def _ssh_option(flag: str, value: str) -> tuple[str, str]:
    if flag == "-F":
        return "config", value
    key, _, file = value.replace("=", " ", 1).strip().partition(" ")
    file = file.strip().strip('"')
    # /dev/null and none mean "remember no keys", which is --host-keys' matter; several files can't be one path.
    if flag == "-o" and key.lower() == _KNOWN_HOSTS and file not in ("/dev/null", "none") and " " not in file:
        return "known_hosts", file
    return "", ""
