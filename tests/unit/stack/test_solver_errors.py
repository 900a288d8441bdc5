"""Error messages of uv, verbatim, and their data in our message; the sentences are in golden/install.txt."""

from __future__ import annotations

import time

import pytest
from lock_helpers import answer_of, index, plan

from ipexctl.errors import UserError
from ipexctl.node.env.replies import SourceFailure
from ipexctl.remote.outcome import HostError
from ipexctl.stack.lock.make_lock import explain_refusal
from message_data import missing

END = "we can conclude that your requirements are unsatisfiable."


def error_for(messages: str, *extras: str) -> HostError | UserError:
    answered = answer_of(index("https://me:secret@mirror/simple", "the mirror"))
    origins = {"peft": "requirements.txt:3"}
    return explain_refusal(f"error: No solution found\n  cause: {messages}", plan(), extras, origins, answered, "node1")


def text_of(error: HostError | UserError) -> str:
    return error.reason if isinstance(error, HostError) else error.message


CASES = """
Because libfabric was not found in the package registry and impi-rt==2021.19.0 depends on libfabric>=2.6, we can conclude
that impi-rt==2021.19.0 cannot be used.
And because you require impi-rt==2021.19.0, END
=> libfabric ipex-2.8 impi-rt==2021.19.0 => --wheelhouse

Because missing was not found in the provided package locations and all versions of deep depend on missing>=2.6, END
=> missing>=2.6 deep --with => --wheelhouse

Because only deep<=3.0rc1 is available and you require deep>=4, we can conclude that your requirements are unsatisfiable.
=> deep>=4 --with => --wheelhouse

Because torch==2.8.0 has no wheels with a matching platform tag (e.g., `manylinux_2_17_x86_64`) and you require
torch==2.8.0, END
hint: Wheels are available for `torch` (v2.8.0) on the following platforms: `manylinux_2_28_x86_64`, `win_amd64`
=> torch==2.8.0 ipex-2.8 2.31 manylinux_2_28_x86_64 win_amd64 => version

Because deep==4.9.3 has no usable wheels and you require deep==4.9.3, END
hint: Wheels are required for `deep` because building from source is disabled for all packages
=> deep==4.9.3 3.11 => --build

Because deep>=4.9,<=4.9.3 has no usable wheels and peft==1.3.8 depends on deep==4.9.*, END
=> deep 3.11 => --build

Failed to build `deep==1.0`
  cause: The build backend returned an error
ModuleNotFoundError: No module named 'torch'
=> deep node1 ModuleNotFoundError => pip wheel

Because the requested Python version (>=3.11) does not satisfy Python>=3.12 and deep==1.0 depends on Python>=3.12, END
=> deep==1.0 3.11 => version

Because impi-rt>=2021.19.0 depends on libfabric>=2.6 and you require impi-rt==2021.19.0, we can conclude that you require
libfabric>=2.6.
And because you require libfabric<2, END
=> impi-rt>=2021.19.0 ipex-2.8 libfabric>=2.6 libfabric<2 => versions
""".replace("END", END)  # noqa: E501 - sentences in one piece


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"))
def test_packages_and_requirements_are_named_and_uv_is_quoted(case: str) -> None:
    messages, data, fix = case.replace("\n=>", "=>").split("=>")
    error = error_for(messages, "deep")
    assert isinstance(error, HostError)
    assert missing(text_of(error), data) == []
    assert missing(error.fix, fix) == []
    assert messages.strip().splitlines()[-1] in text_of(error)


def test_user_requirement_that_excludes_the_stack_is_a_user_error_with_line() -> None:
    messages = f"Because all versions of peft depend on torch>=2.9 and you require torch==2.8.0 and peft, {END}"
    error = error_for(messages, "peft", "numpy")
    assert isinstance(error, UserError)
    assert missing(error.message.splitlines()[0], "peft requirements.txt:3 ipex-2.8") == []
    assert "numpy" not in error.message


CAUSES = (
    "client error (Connect)\n cause: dns error\n cause: failed to lookup address",
    "client error (Connect)\n cause: invalid peer certificate: UnknownIssuer",
    "HTTP status client error (401 Unauthorized) for url (https://mirror/simple/torch/)",
)


def unreachable(cause: str) -> HostError | UserError:
    return error_for(f"Failed to fetch: https://mirror/simple/torch/\n  cause: error sending request\n  cause: {cause}")


@pytest.mark.parametrize("cause", CAUSES)
def test_unreachable_index_is_named_with_the_cause(cause: str) -> None:
    error = unreachable(cause)
    assert isinstance(error, HostError)
    assert missing(error.reason.splitlines()[0], "the mirror") == []
    assert cause.splitlines()[-1].removeprefix(" cause: ") in error.reason
    assert missing(error.fix, "pip config" if "certificate" in cause else "--index-url") == []


def test_full_disk_error_suggests_another_home() -> None:
    error = error_for("failed to write to /h/tmp/lock-1/cache: No space left on device (os error 28)")
    assert missing(error.fix, "--home") == []


def index_without_answer() -> HostError | UserError:
    answered = answer_of(index("https://a/simple"), failures=(SourceFailure("Intel's index", "REASON"),))
    messages = f"Because oneccl-bind-pt was not found in the package registry and you require oneccl-bind-pt, {END}"
    return explain_refusal(messages, plan("oneccl-bind-pt==2.7.0"), (), {}, answered, "node1")


def test_missing_package_error_names_sources_without_an_answer() -> None:
    assert missing(text_of(index_without_answer()), "oneccl-bind-pt ipex-2.8 Intel's REASON") == []


def test_unknown_uv_messages_are_shortened_without_secrets_and_uv_options() -> None:
    lines = ["something new at https://me:secret@mirror/simple", "hint: try `--prerelease=allow`", *["x" * 5000] * 50]
    began = time.process_time()
    text = text_of(error_for("\n".join(lines)))
    assert time.process_time() - began < 1, "a long word takes no time by the square of its length"
    assert missing(text, "something new") == []
    assert "secret" not in text and "--prerelease" not in text
    assert len(text) < 4000
