"""uv's complaints, word for word, and the data that a person is told; the sentences are in golden/install.txt."""

from __future__ import annotations

import pytest
from lock_helpers import asked, index, plan

from ipexctl.errors import UserError
from ipexctl.remote.outcome import HostError
from ipexctl.stack.lock.solver_errors import explain
from ipexctl.stack.resolve.availability import Silent
from message_data import missing

END = "we can conclude that your requirements are unsatisfiable."


def told(said: str, *extras: str, pins: tuple[str, ...] = ("torch==2.8.0", "impi-rt>=2021.14")) -> str:
    answered = asked(index("https://me:secret@mirror/simple", "the mirror"))
    error = explain(
        "error: No solution found when resolving dependencies\n  cause: " + said, plan(*pins), extras, {}, answered
    )
    assert isinstance(error, (HostError, UserError))
    return error.reason if isinstance(error, HostError) else error.message


SAID = """
Because libfabric was not found in the package registry and impi-rt==2021.19.0 depends on libfabric>=2.6, we can conclude
that impi-rt==2021.19.0 cannot be used.
And because you require impi-rt==2021.19.0, END
=> libfabric>=2.6 impi-rt 2021.19.0 ipex-2.8

Because there is no version of torch==2.8.0+cpu and you require torch==2.8.0+cpu, END
=> torch==2.8.0+cpu ipex-2.8

Because torch==2.8.0 has no wheels with a matching platform tag (e.g., `manylinux_2_17_x86_64`) and you require
torch==2.8.0, END
hint: Wheels are available for `torch` (v2.8.0) on the following platforms: `manylinux_2_28_x86_64`, `win_amd64`
=> torch 2.8.0 ipex-2.8 x86_64 2.31 manylinux_2_28_x86_64 win_amd64

Because antlr4-python3-runtime==4.9.3 has no usable wheels and you require antlr4-python3-runtime==4.9.3, END
hint: Wheels are required for `antlr4-python3-runtime` because building from source is disabled for all packages
=> antlr4-python3-runtime 4.9.3

Because impi-rt>=2021.19.0 depends on libfabric>=2.6 and you require impi-rt==2021.19.0, we can conclude that you require
libfabric>=2.6.
And because you require libfabric<2, END
=> impi-rt>=2021.19.0 ipex-2.8 libfabric>=2.6 libfabric<2

Because small==2.0 was yanked and only the following versions of small are available:
    small==2.0
    small>=3.0rc1
we can conclude that small<3.0rc1 cannot be used.
And because torch==2.8.0 depends on small and you require torch==2.8.0, END
=> small 2.0 torch 2.8.0 ipex-2.8

Because missing was not found in the package registry and all versions of needy depend on missing>=2.6, we can conclude
that all versions of needy cannot be used.
And because all versions of deep depend on needy and you require deep, END
=> missing>=2.6 needy deep --with
""".replace("END", END)  # noqa: E501 - sentences in one piece


@pytest.mark.parametrize("case", SAID.strip().split("\n\n"))
def test_what_uv_says_becomes_a_sentence_with_these_data(case: str) -> None:
    said, data = case.split("\n=> ")
    assert missing(told(said, "deep"), data) == []
    assert len(told(said, "deep")) < 150


CAUSES = (
    "client error (Connect)\n cause: dns error\n cause: failed to lookup address",
    "client error (Connect)\n cause: invalid peer certificate: UnknownIssuer",
    "operation timed out",
    "HTTP status client error (401 Unauthorized) for url (https://mirror/simple/torch/)",
    "connection closed before message completed",
)


def gone(cause: str) -> str:
    return told(f"Failed to fetch: https://mirror/simple/torch/\n  cause: error sending request\n  cause: {cause}")


def test_an_index_that_goes_away_is_named_and_each_cause_has_its_own_words() -> None:
    texts = [gone(cause) for cause in CAUSES]
    assert all(missing(text, "the mirror") == [] for text in texts)
    assert len(set(texts)) == len(texts)
    assert not any("secret" in text or "cause:" in text for text in texts)


def not_heard() -> str:
    answered = asked(index("https://a/simple"), silent=(Silent("Intel's index", "REASON"),))
    said = f"Because oneccl-bind-pt was not found in the package registry and you require oneccl-bind-pt==2.7.0, {END}"
    return str(explain(said, plan("oneccl-bind-pt==2.7.0"), (), {}, answered))


def test_what_was_not_heard_is_said_where_something_is_missing() -> None:
    assert missing(not_heard(), "oneccl-bind-pt ipex-2.8 Intel's REASON") == []


def test_words_we_do_not_know_are_kept_short_and_without_secrets() -> None:
    said = "something new at https://me:secret@mirror/simple happened " + "x" * 5000
    assert "secret" not in told(said)
    assert "something new" in told(said)
    assert len(told(said)) < 400
