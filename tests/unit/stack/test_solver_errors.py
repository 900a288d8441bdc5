"""Error messages of uv, verbatim; golden/install.txt has what we say of them."""

from __future__ import annotations

import time

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

Because missing was not found in the provided package locations and all versions of deep depend on missing>=2.6, END

Because only deep<=3.0rc1 is available and you require deep>=4, we can conclude that your requirements are unsatisfiable.

Because torch==2.8.0 has no wheels with a matching platform tag (e.g., `manylinux_2_17_x86_64`) and you require
torch==2.8.0, END
hint: Wheels are available for `torch` (v2.8.0) on the following platforms: `manylinux_2_28_x86_64`, `win_amd64`

Because deep==4.9.3 has no usable wheels and you require deep==4.9.3, END
hint: Wheels are required for `deep` because building from source is disabled for all packages

Because deep>=4.9,<=4.9.3 has no usable wheels and peft==1.3.8 depends on deep==4.9.*, END

Failed to build `deep==1.0`
  cause: The build backend returned an error
ModuleNotFoundError: No module named 'torch'

Because the requested Python version (>=3.11) does not satisfy Python>=3.12 and deep==1.0 depends on Python>=3.12, END

Because impi-rt>=2021.19.0 depends on libfabric>=2.6 and you require impi-rt==2021.19.0, we can conclude that you require
libfabric>=2.6.
And because you require libfabric<2, END
""".replace("END", END)  # noqa: E501 - sentences in one piece


CAUSES = (
    "client error (Connect)\n cause: dns error\n cause: failed to lookup address",
    "client error (Connect)\n cause: invalid peer certificate: UnknownIssuer",
    "HTTP status client error (401 Unauthorized) for url (https://mirror/simple/torch/)",
)


def unreachable(cause: str) -> HostError | UserError:
    return error_for(f"Failed to fetch: https://mirror/simple/torch/\n  cause: error sending request\n  cause: {cause}")


def full_disk() -> HostError | UserError:
    return error_for("failed to write to /h/tmp/lock-1/cache: No space left on device (os error 28)")


def index_without_answer() -> HostError | UserError:
    answered = answer_of(index("https://a/simple"), failures=(SourceFailure("Intel's index", "REASON"),))
    messages = f"Because oneccl-bind-pt was not found in the package registry and you require oneccl-bind-pt, {END}"
    return explain_refusal(messages, plan("oneccl-bind-pt==2.7.0"), (), {}, answered, "node1")


def test_unknown_uv_messages_are_shortened_without_secrets_and_uv_options() -> None:
    lines = ["something new at https://me:secret@mirror/simple", "hint: try `--prerelease=allow`", *["x" * 5000] * 50]
    began = time.process_time()
    text = text_of(error_for("\n".join(lines)))
    assert time.process_time() - began < 1, "a long word takes no time by the square of its length"
    assert missing(text, "something new") == []
    assert "secret" not in text and "--prerelease" not in text
    assert len(text) < 4000
