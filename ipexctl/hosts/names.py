"""Checks names of hosts, addresses and users before anything uses them, and quotes user text in messages. Names have no
leading dash, because ssh would read an option."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Final, TypeVar

from ipexctl.errors import UserError
from ipexctl.text import printable

Value = TypeVar("Value")
MAX_NAME: Final = 253
MAX_PORT: Final = 65_535
_CLIP: Final = 60

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4: Final = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_IPV4 = re.compile(IPV4)
_ZONE = re.compile(r"[A-Za-z0-9._-]+")
# Directory services have DOMAIN\name or name@realm; ssh accepts both.
_USER = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.@+\\-]*[A-Za-z0-9_.+$-])?")
_DIGITS_AND_DOTS = frozenset("0123456789.")


class WordError(UserError):
    def __init__(self, message: str, *, column: int = 1, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.column = column

    def moved(self, by: int) -> WordError:
        return WordError(self.message, column=self.column + by, fix=self.fix)


def read_at(column: int, parse: Callable[[str], Value], text: str) -> Value:
    """Parse `text`, which starts at `column` of a longer text; a WordError points into the longer one."""
    try:
        return parse(text)
    except WordError as error:
        raise error.moved(column - 1) from None


def quoted(text: str) -> str:
    shown = printable(text)
    return f"'{shown if len(shown) <= _CLIP else shown[: _CLIP - 1] + '…'}'"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6, behind: str = "") -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {quoted(near[0] + behind)}?" if near else otherwise


def describe(character: str) -> str:
    if character == "\t":
        return "a tab"
    if character == " ":
        return "a blank"
    if character.isprintable():
        return f"'{character}'"
    return f"{unicodedata.name(character, 'a control character')} (U+{ord(character):04X})"


def check_host(name: str) -> None:
    """Raise WordError unless ssh and a shell read it as a host name or an address."""
    if ":" in name:
        _check_ipv6(name)
        return
    if _NAME.fullmatch(name) is None:
        raise _bad_name(name)
    if len(name) > MAX_NAME:
        raise WordError(f"a host name has at most {MAX_NAME} characters, this one has {len(name)}")
    if name[0].isdigit() and _DIGITS_AND_DOTS.issuperset(name) and _IPV4.fullmatch(name) is None:
        if "." not in name:
            raise WordError(f"{quoted(name)} is a number, not a host")
        raise WordError(
            f"{quoted(name)} is not an IPv4 address",
            fix="four numbers from 0 to 255, without leading zeros, such as 10.0.0.12",
        )


def check_user(user: str) -> str:
    if not user:
        raise WordError("the user's name is missing")
    if _USER.fullmatch(user) is None:
        if user[0] == "-":
            raise WordError("a user's name can't begin with '-': ssh would read it as an option")
        for index, character in enumerate(user):
            if _USER.fullmatch("a" + character + "a") is None:
                raise WordError(f"{describe(character)} is not allowed in a user's name", column=index + 1)
        raise WordError(f"{quoted(user)} can't be a user's name")
    return user


def _bad_name(name: str) -> WordError:
    if not name:
        return WordError("the host's name is missing")
    if name[0] == "-":
        return WordError("a host name can't begin with '-': ssh would read it as an option")
    for index, character in enumerate(name):
        if _NAME.fullmatch("a" + character) is None:
            fix = ""
            if character.isalpha():
                fix = "write the name as the resolver knows it, in ASCII (xn--…), or an address"
            return WordError(f"{describe(character)} is not allowed in a host name", column=index + 1, fix=fix)
    return WordError(f"a host name can't begin with '{name[0]}'")


def _check_ipv6(name: str) -> None:
    address, percent, zone = name.partition("%")
    if percent and _ZONE.fullmatch(zone) is None:
        raise WordError(f"{quoted(zone)} is not a network interface", column=len(address) + 2)
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise WordError(
            f"{quoted(name)} is not an IPv6 address", fix="such as fe80::2, or [fe80::2]:4 with slots"
        ) from None
