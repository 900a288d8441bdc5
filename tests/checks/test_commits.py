"""The subjects of new commits: CONTRIBUTING, "Rules for a change"."""

from __future__ import annotations

import re

import pytest

from selection import base_of_submission, git_lines

LONGEST = 72
NO_VERBS = frozenset(
    [
        "A",
        "All",
        "An",
        "And",
        "Any",
        "Both",
        "By",
        "Each",
        "Every",
        "For",
        "From",
        "If",
        "In",
        "It",
        "Its",
        "More",
        "No",
        "Not",
        "Now",
        "On",
        "One",
        "Only",
        "Or",
        "Other",
        "Our",
        "Some",
        "Such",
        "That",
        "The",
        "There",
        "These",
        "This",
        "Those",
        "To",
        "Two",
        "We",
        "What",
        "When",
        "Where",
        "Which",
        "Who",
        "With",
    ]
)
VERB = re.compile(r"[A-Z][a-z]+(?<!ing)(?<!ed)(?<!ly)(?<![^s]s)")
"""A word that may be an imperative: no name in capitals ("README"), third person ("Tests") or participle."""


def fault_of(subject: str) -> str:
    """Return what is wrong with a commit's subject; empty if nothing is."""
    first = subject.partition(" ")[0]
    if len(subject) > LONGEST:
        return f"{len(subject)} characters; at most {LONGEST}"
    if ";" in subject or subject.endswith("."):
        return "one subject, without a full stop"
    if first in NO_VERBS or not VERB.fullmatch(first):
        return f"begins with {first!r}; a verb, as in 'Refuse a finished run's resume'"
    return ""


def test_new_commits_have_a_subject_that_begins_with_a_verb() -> None:
    subjects = git_lines("log", "--no-merges", "--format=%s", f"{base_of_submission()}..HEAD")
    assert not {subject: fault for subject in subjects if (fault := fault_of(subject))}


@pytest.mark.parametrize(
    ("subject", "is_right"),
    [
        ("Refuse a finished run's resume", True),
        ("Pass the run's name on", True),
        ("Address the node by its name", True),
        ("Feed each rank its own part", False),
        ("The resume of a finished run is refused", False),
        ("Tests read the plan", False),
        ("Refused resumes", False),
        ("README: two pictures", False),
        ("Refuse a resume; name the run", False),
        ("Refuse the resume of a run that has finished, and name the run that may be resumed", False),
    ],
)
def test_a_subject_is_told_by_its_length_and_first_word(subject: str, is_right: bool) -> None:
    assert (not fault_of(subject)) is is_right
