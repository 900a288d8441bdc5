"""Refusals of the resolver, of bindings and of uv: the hosts, the rule and the fix."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lock_helpers import answer_of, plan
from lock_helpers import index as source_at
from stack_helpers import AVX, AVX2, AVX512, PYPI, host, index, planned, refused

from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.node.env.env_replies import SourceFailure
from ipexctl.remote.outcome import HostError
from ipexctl.stack.catalog import minor, rows, version_key
from ipexctl.stack.expected_stack import check_stack_request
from ipexctl.stack.lock.stack_locking import needed_builds
from ipexctl.stack.lock.wheel_lock import LacksPackage, LacksVersion, LacksWheel, explain_refusal
from ipexctl.stack.lock.wheels import Availability, lacks_oneccl
from ipexctl.stack.resolve.compatibility import incompatibility, usable_pythons
from ipexctl.stack.resolve.constraints import stacks
from ipexctl.stack.resolve.model import StackPlan, StackRequest
from ipexctl.stack.resolve.resolver import indexes, projects, resolve
from message_data import missing

# Any mix of hosts, requests and wheels gives a plan for all hosts, or a refusal with a reason


LINES = [row.line for row in rows()]
PYTHONS = [f"3.{number}" for number in range(6, 17)]
hosts_ = st.one_of(
    st.just(Facts()),
    st.builds(
        lambda glibc, pythons, flags, arch, libc, kernel: host(
            glibc, *pythons, flags=flags, arch=arch, libc=libc, kernel=kernel
        ),
        st.sampled_from([None, "2.12", "2.17", "2.27", "2.28", "2.36"]),
        st.lists(st.sampled_from(PYTHONS), min_size=1, max_size=5),
        st.sampled_from([frozenset[str](), AVX, AVX2, AVX512]),
        st.sampled_from([None, "x86_64", "x86_64", "x86_64", "aarch64"]),
        st.sampled_from([None, "glibc", "glibc", "glibc", "musl"]),
        st.sampled_from([None, "Linux", "Linux", "Linux", "Darwin"]),
    ),
)
versions_ = [patch for row in rows() for patch in (*row.torch_patches, row.line)]
requests_ = st.builds(
    StackRequest,
    torch=st.none() | st.sampled_from(versions_) | st.text(max_size=6),
    stack=st.none() | st.sampled_from(["ipex", "torch", *stacks(rows())]) | st.text(max_size=8),
    ipex=st.none() | st.sampled_from([build.version for row in rows() for build in row.ipex_builds]),
    oneccl=st.none() | st.sampled_from([build.version for row in rows() for build in row.oneccl_builds]),
    python=st.none() | st.sampled_from(PYTHONS),
    require_oneccl=st.booleans(),
)
wheels_ = [
    *PYPI,
    *(f"oneccl_bind_pt-{line}.0+cpu-cp311-cp311-linux_x86_64.whl" for line in LINES),
    *(f"torch-{line}.0+cpu-cp{python}-cp{python}-linux_x86_64.whl" for line in LINES for python in (39, 311, 313)),
    "intel_extension_for_pytorch-2.3.100-cp39-cp39-manylinux2014_x86_64.whl!",
    "torch-2.8.0-garbage.whl",
    "torch.tar.gz-1-x",
    "intel_extension_for_pytorch-2.8.0+xpu-cp311-cp311-linux_x86_64.whl",
]
obtainables_ = st.none() | st.builds(lambda names: index(*names), st.lists(st.sampled_from(wheels_), max_size=40))


@given(requests_, st.dictionaries(st.sampled_from("abcdef"), hosts_, max_size=5), obtainables_)
@settings(max_examples=200, deadline=None)
def test_any_request_gives_a_plan_for_all_hosts_or_a_refusal_with_a_reason(
    request: StackRequest, hosts: dict[str, Facts], availability: Availability | None
) -> None:
    outcome = resolve(request, hosts, availability)
    if not isinstance(outcome, StackPlan):
        why = refused(outcome)
        assert why.reason
        assert why.hosts == outcome.hosts
        assert set(why.hosts) <= set(hosts)
        assert all(name in why.reason or "more" in why.reason for name in why.hosts[:1])
        assert outcome.is_wrong_call == (why.exit_code == 2)
        assert (projects(request) == ()) >= outcome.is_wrong_call
        return
    for name, facts in hosts.items():
        assert incompatibility(outcome.row, facts) is None
        known = {minor(python.version) for python in usable_pythons(facts) if python.version}
        assert not known or outcome.python in known
        assert outcome.interpreters[name]
        assert version_key(outcome.glibc) <= version_key(facts.system.libc_version or "9.9")
    assert outcome.python in outcome.row.without_oneccl().pythons
    assert (outcome.backend == "ccl") == bool(outcome.oneccl)
    assert outcome.requirements[0] == f"torch=={outcome.torch}"
    assert outcome.reason.text
    assert all(note.text for note in outcome.notes)
    assert set(projects(request)) >= {"torch", "uv"}
    assert indexes(request)
    if outcome.ipex:
        assert minor(outcome.ipex) == minor(outcome.torch)
    if outcome.oneccl:
        assert minor(outcome.oneccl) == minor(outcome.torch)
        assert (outcome.torch[:6], outcome.oneccl[:7]) != ("1.12.1", "1.12.0+")
    if request.require_oneccl:
        assert outcome.backend == "ccl"
    if request.python:
        assert outcome.python == request.python
    if availability is not None:
        have = {
            f"{each.project.replace('_', '-')}=={each.version}"
            for part in availability.candidates.values()
            for each in part
        }
        assert {pin for pin in outcome.requirements if "==" in pin and "openmp" not in pin} <= have


@given(st.dictionaries(st.sampled_from("abcdef"), hosts_, min_size=1, max_size=5), obtainables_)
@settings(max_examples=50, deadline=None)
def test_result_does_not_depend_on_the_order_of_hosts(
    hosts: dict[str, Facts], availability: Availability | None
) -> None:
    one = resolve(StackRequest(), hosts, availability)
    other = resolve(StackRequest(), dict(reversed(hosts.items())), availability)
    assert isinstance(one, StackPlan) == isinstance(other, StackPlan)
    if isinstance(one, StackPlan) and isinstance(other, StackPlan):
        assert (one.row.name, one.python, one.requirements) == (other.row.name, other.python, other.requirements)


WHEEL = "oneccl_bind_pt-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"


def answer(*, oneccl: bool | None) -> Availability:
    """PyPI, and a directory with bindings that have oneCCL inside or not."""
    found = index(*PYPI, WHEEL)
    (wheel,) = found.of("oneccl-bind-pt")
    mpi = "2021.15" if oneccl else ""
    wheels = {**found.candidates, "oneccl-bind-pt": (wheel._replace(oneccl=oneccl, mpi=mpi),)}
    return replace(found, candidates=wheels)


def plan_of(available: Availability) -> StackPlan:
    return planned(resolve(StackRequest(stack="ipex-2.8"), {"n1": host()}, available))


@pytest.mark.parametrize(
    ("oneccl", "extras"),
    [
        (True, ()),
        (None, ()),  # of an index: the verification shows it
        (False, ("oneccl==2021.15.2", "impi-rt==2021.15.*")),
        (False, ("oneccl", "transformers", "impi_rt")),
    ],
)
def test_others_are_not_refused(oneccl: bool | None, extras: tuple[str, ...]) -> None:
    available = answer(oneccl=oneccl)
    assert lacks_oneccl(plan_of(available), extras, available) is None


def test_packages_of_one_kind_alone_are_not_enough() -> None:
    available = answer(oneccl=False)
    assert lacks_oneccl(plan_of(available), ("impi-rt==2021.15.*",), available) is not None


END = "we can conclude that your requirements are unsatisfiable."


def error_for(messages: str, *extras: str) -> HostError | UserError:
    answered = answer_of(source_at("https://me:secret@mirror/simple", "the mirror"))
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
    answered = answer_of(source_at("https://a/simple"), failures=(SourceFailure("Intel's index", "REASON"),))
    messages = f"Because oneccl-bind-pt was not found in the package registry and you require oneccl-bind-pt, {END}"
    return explain_refusal(messages, plan("oneccl-bind-pt==2.7.0"), (), {}, answered, "node1")


@pytest.mark.parametrize(
    "messages",
    [
        "Because impi-rt was not found in the provided package locations and you require impi-rt==2021.18.1, ",
        "Because tqmd was not found in the package registry and you require tqmd, ",
    ],
)
def test_an_index_that_cannot_be_reached_is_the_error(messages: str) -> None:
    failures = (SourceFailure("PyPI", "refused, through the proxy p:9"),)
    answered = answer_of(source_at("https://a/simple"), failures=failures)
    error = explain_refusal(messages + END, plan(), ("tqmd",), {}, answered, "node1")
    assert isinstance(error, HostError)
    assert error.reason.startswith("PyPI can't be reached from node1: refused, through the proxy p:9;")
    assert error.fix.startswith("check the network of node1, and correct or unset its proxy (HTTPS_PROXY")


SYMPY = "Because torch>=2.13.0 depends on sympy>=1.13.3 and you require sympy==1.13.1, "


@pytest.mark.parametrize(
    ("messages", "line", "reason"),
    [
        (SYMPY, "sympy==1.13.1", "sympy==1.13.1 (from r.txt:4) can't be installed with"),
        ("Because all versions of gruut[de] have no usable wheels and you require gruut[de], ", "gruut[de]",
         "gruut has no wheel for Python"),
        ("Because numpy==1.17.4 has no usable wheels and you require numpy==1.17.4, ", "numpy==1.17.4",
         "numpy==1.17.4 (from r.txt:4) can't be installed with"),
        ("Because there is no version of peft==99 and you require peft==99, ", "peft==99", "PyPI can't be reached"),
    ],
)  # fmt: skip
def test_a_silent_index_is_the_reason_only_for_a_package_that_was_missed(messages: str, line: str, reason: str) -> None:
    answered = answer_of(source_at("https://a/simple"), failures=(SourceFailure("PyPI", "REASON"),))
    error = explain_refusal(messages + END, plan("numpy"), (line,), {line: "r.txt:4"}, answered, "node1")
    assert text_of(error).startswith(reason)
    assert ("REASON" in text_of(error)) == (reason == "PyPI can't be reached")


@pytest.mark.parametrize("source", ["PyTorch's CPU index", "https://download.pytorch.org/whl/cpu/torch_stable.html"])
def test_an_index_of_torch_is_no_reason_for_another_package(source: str) -> None:
    answered = answer_of(source_at("https://a/simple"), failures=(SourceFailure(source, "REASON"),))
    messages = "Because there is no version of peft==99 and you require peft==99, "
    error = explain_refusal(messages + END, plan("numpy"), ("peft==99",), {}, answered, "node1")
    assert isinstance(error, LacksVersion)


def test_the_end_of_a_long_message_is_kept_as_a_build_prints_its_error_there() -> None:
    lines = ["Failed to build `deep`", *[f"line {number} of the build" for number in range(60)], "error: no mpicc"]
    text = text_of(error_for("\n".join(lines)))
    assert missing(text, "Failed to build … no mpicc") == []
    assert "line 30 " not in text


def test_a_damaged_wheel_is_named_with_what_to_do() -> None:
    wheel = "peft-1-py3-none-any.whl"
    error = error_for(f"Failed to read `peft @ file:///w/{wheel}`\n cause: Failed to extract archive: {wheel}")
    assert isinstance(error, HostError)
    assert missing(f"{error.reason} {error.advice}", "peft-1-py3-none-any.whl damaged remove download") == []


def test_unknown_uv_messages_are_shortened_without_secrets_and_uv_options() -> None:
    lines = ["something new at https://me:secret@mirror/simple", "hint: try `--prerelease=allow`", *["x" * 5000] * 50]
    began = time.process_time()
    text = text_of(error_for("\n".join(lines)))
    assert time.process_time() - began < 1, "a long word takes no time by the square of its length"
    assert missing(text, "something new") == []
    assert "secret" not in text and "--prerelease" not in text
    assert len(text) < 4000


def test_package_of_which_no_version_has_a_wheel_can_be_built() -> None:
    error = error_for(
        f"Because all versions of fair-seq have no usable wheels and you require fair-seq, {END}", "fair-seq"
    )
    assert isinstance(error, LacksWheel)
    assert error.package == "fair-seq"


def test_a_version_that_no_index_has_names_its_package() -> None:
    error = error_for(f"Because there is no version of peft==99 and you require peft==99, {END}", "peft==99")
    assert isinstance(error, LacksVersion)
    assert error.package == "peft"


def test_name_that_no_index_has_is_to_be_corrected() -> None:
    error = error_for(f"Because tqmd was not found in the package registry and you require tqmd, {END}", "tqmd")
    assert missing(text_of(error), "no index tqmd --with") == []
    assert isinstance(error, LacksPackage)
    assert error.package == "tqmd"
    assert missing(error.fix, "did you mean tqdm? name --extra-index-url") == []


@pytest.mark.parametrize(
    ("lacking", "conflict", "needed"),
    [
        (["a"], False, ["a"]),
        (["a", "b"], False, ["a", "b"]),
        (["a", "a"], False, ["a"]),  # named by the user: a stub cannot stand for it
        (["a"], True, []),
        (list("abcdefghijklm"), False, []),
    ],
)
def test_builds_that_are_proposed_have_led_to_a_lock(lacking: list[str], needed: list[str], *, conflict: bool) -> None:
    tried: list[set[str]] = []

    def make(stubs: set[str]) -> None:
        tried.append(set(stubs))
        if len(tried) < len(lacking):
            raise LacksWheel(lacking[len(tried)], "no wheel")
        if conflict:
            raise HostError("no solution")

    assert needed_builds(LacksWheel(lacking[0], "no wheel"), ("built",), make) == needed
    assert all("built" in stubs for stubs in tried)


@pytest.mark.parametrize(("torch", "guess"), [("1.0", ""), ("3.0", ""), ("latest", ""), ("1.14", "did you mean 1.13?")])
def test_the_advice_for_an_unknown_torch_is_a_request_that_hosts_can_meet(torch: str, guess: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_stack_request(StackRequest(torch=torch), rows())
    assert "ipexctl install --stack torch;" in str(refusal.value.fix)
    assert ("did you mean" in str(refusal.value.fix)) is bool(guess)
    assert guess in str(refusal.value.fix)
    assert isinstance(resolve(StackRequest(stack="torch"), {"a": host("2.36", "3.11")}, None), StackPlan)
