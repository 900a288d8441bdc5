"""The command line for a login shell, and its output behind the marker."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import (
    Command,
    FenceFilter,
    ScriptError,
    encode_for_printf,
    end_session_script,
    login_line,
    script_error,
)
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import LoginCommand

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "ksh", "tcsh", "csh", "fish") if shutil.which(shell)]
SPECIAL_ARGUMENTS = [
    "it's",
    'say "hi"',
    "$HOME `id`",
    "a\\b",
    "wow!",
    "two\nlines",
    "tab\there",
    "ünïcode",
    "*",
    "%s %n",
    "",
    "-n",
]

text_without_nul = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


def run_in_shell(shell: str, line: str) -> bytes:
    done = subprocess.run([shell, "-c", line], capture_output=True, timeout=20, check=False)
    fence = FenceFilter("abc123")
    return fence.feed(done.stdout)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_passes_argv_unchanged(shell: str) -> None:
    command = Command.argv("printf", "<%s>", *SPECIAL_ARGUMENTS)
    assert run_in_shell(shell, login_line(command, "abc123")).decode() == "".join(
        f"<{word}>" for word in SPECIAL_ARGUMENTS
    )


def test_a_login_that_prints_without_end_is_an_error() -> None:
    call = LoginCommand(Command.argv("true"), lambda *_: None, Deadline(60))
    with pytest.raises(HostError, match="its login prints more than 1 MB before it runs a command"):
        for _ in range(40):
            call.forward("stdout", b"y\n" * 16384)


def test_a_command_may_print_as_much_as_it_likes() -> None:
    sizes: list[int] = []
    call = LoginCommand(Command.argv("true"), lambda _, data: sizes.append(len(data)), Deadline(60))
    fence = run_line(call.line)
    call.forward("stdout", b"motd\n" * 10_000 + fence)
    for _ in range(40):
        call.forward("stdout", b"y\n" * 16384)
    assert sum(sizes) == 40 * 32768


def run_line(line: str) -> bytes:
    return subprocess.run(["sh", "-c", line], capture_output=True, timeout=20, check=True).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_commands_run_in_sh_with_every_login_shell(shell: str) -> None:
    command = Command.shell('for i in 1 2; do echo "n$i"; done | tr n N; [ \'!\' = "!" ] && echo same')
    assert run_in_shell(shell, login_line(command, "abc123")) == b"N1\nN2\nsame\n"


@settings(max_examples=40, deadline=None)
@given(st.lists(text_without_nul, min_size=1, max_size=5))
def test_any_arguments_pass_through_bash_unchanged(words: list[str]) -> None:
    line = login_line(Command.argv("printf", "%s\\0", *words), "abc123")
    assert run_in_shell("bash", line) == b"".join(word.encode() + b"\0" for word in words)


@given(text_without_nul)
def test_encoded_script_is_safe_in_single_quotes(script: str) -> None:
    assert not set(encode_for_printf(script)) & set("'!\n")
    assert encode_for_printf(script).isascii()
    assert "\\" not in re.sub(r"\\0[0-7]{3}", "", encode_for_printf(script))


def test_scripts_get_no_positional_arguments() -> None:
    assert run_in_shell("sh", login_line(Command.shell("echo $#"), "abc123")) == b"0\n"


@pytest.mark.parametrize("cut", range(1, 40))
def test_fence_is_found_wherever_the_stream_is_split(cut: int) -> None:
    stream = b"Welcome!\n\x1e not it\n\x1eabc123 4711\nours\nmore\n"
    fence = FenceFilter("abc123")
    out = fence.feed(stream[:cut]) + fence.feed(stream[cut:])
    assert out == b"ours\nmore\n"
    assert fence.tag == b"4711"
    assert fence.noise == b"Welcome!\n\x1e not it\n"


def test_without_a_fence_only_the_end_of_the_output_is_kept() -> None:
    fence = FenceFilter("abc123")
    for _ in range(100):
        assert fence.feed(b"x" * 1000) == b""
    fence.feed(b"This account is currently not available.\n")
    assert not fence.passed
    assert fence.noise.endswith(b"not available.\n")
    assert len(fence.noise) < 10_000


@pytest.mark.skipif(not shutil.which("setsid"), reason="setsid(1) is not on this machine")
def test_end_session_script_kills_children_in_other_groups_that_ignore_sigterm() -> None:
    script = "trap '' TERM; set -m; sleep 341 & sleep 342 & echo ready; wait"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    done = subprocess.run(
        ["sh", "-c", end_session_script(process.pid, 0.3)], capture_output=True, timeout=20, check=True
    )
    assert done.stdout.strip() == b"0"
    assert process.wait(5) == -9
    process.stdout.close()


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        (b"\x1eread-only\x1e/home/me/keys is read-only\n", ScriptError("/home/me/keys is read-only", "read-only")),
        (b"mkdir: cannot\n\x1e\x1e/data can't be written to\n", ScriptError("/data can't be written to", "")),
        (b"\x1ebad-key\x1eK can't be read: error\nin libcrypto\n", ScriptError("K can't be read: error", "bad-key")),
        (b"welcome\n/data: No space left on device\n", ScriptError("/data: No space left on device", None)),
        (b"\x1eBAD CODE\x1etext\n", ScriptError("\x1eBAD CODE\x1etext", None)),
        (b"", ScriptError("", None)),
    ],
)
def test_error_of_a_script_has_its_code_and_other_programs_have_none(stderr: bytes, error: ScriptError) -> None:
    assert script_error(stderr) == error
