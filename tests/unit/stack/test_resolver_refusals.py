"""Refusals of the stack resolver: the hosts, the rule and the fix."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from stack_helpers import AVX, AVX2, AVX512, PYPI, host, index, refused

from ipexctl.facts.facts import Facts
from ipexctl.stack.catalog.table import minor, rows, version_key
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.compatibility import incompatibility, usable_pythons
from ipexctl.stack.resolve.constraints import stacks
from ipexctl.stack.resolve.model import StackPlan, StackRequest
from ipexctl.stack.resolve.resolver import indexes, projects, resolve

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
