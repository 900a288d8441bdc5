"""The output of `ipexctl slow`: its JSON, what is safe to print, and what is safe to type."""

from __future__ import annotations

import json
import re

import pytest
from slow_helpers import CALM, HEALTHY, changed, hog, judged

from ipexctl.extras.slow.slow import SlowResult
from ipexctl.extras.slow.verdict import SlowVerdict
from ipexctl.extras.slow.view import VerdictOfRun, as_json, lines_of, section_of
from ipexctl.hosts.host import Host
from ipexctl.node.common.records import NetworkCost, WireAdvice
from ipexctl.node.run.replies import ProcessShare, SuspectLook
from ipexctl.run.registry import RunRecord
from ipexctl.ui.run.summary import network_text
from message_data import missing

HOST = Host(name="node1", address="10.0.0.1")
RECORD = RunRecord("train-1", HOST, "/h", "/env/bin/python", script="my train.py", hosts=("node1", "node2"))
QUEUED = changed(HEALTHY, cpu=0.5, queue=0.45)
LATE = changed(HEALTHY, cpu=0.4, queue=0.1)
HALF = changed(HEALTHY, cpu=0.4)
SLOW_LINK = CALM._replace(sent_per_s=6e7)
BOTH = {"node1": SLOW_LINK, "node2": SLOW_LINK}


def result(verdict: SlowVerdict) -> SlowResult:
    return SlowResult(RECORD, verdict, "running")


def test_names_that_processes_gave_themselves_are_made_printable() -> None:
    evil = SuspectLook((ProcessShare(7, "\x1b[2Jls\n", "e\x07ve", 0.5),), 0.0)
    verdict = judged(HEALTHY, QUEUED, looks={1: evil})
    for text in ("\n".join(lines_of(result(verdict))), json.dumps(as_json(result(verdict)), ensure_ascii=False)):
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.parametrize("looks", [{}, {1: hog()}])
def test_no_advice_ends_a_process(looks: dict[int, SuspectLook]) -> None:
    verdict = judged(HALF, LATE, looks=looks, hosts=BOTH)
    document = as_json(result(verdict))
    for found in (*document["findings"], *document["links"]):
        assert not re.search(r"\bp?kill(all)?\b|ipexctl stop", found["fix"])
        assert "my train.py" not in found["fix"]


def test_a_line_for_other_views() -> None:
    verdict = judged(HEALTHY, QUEUED)
    assert missing(VerdictOfRun(verdict).line("train-1", is_over=False), "1 node2 ipexctl slow train-1") == []
    assert VerdictOfRun(verdict).document() == {"rank": 1, "host": "node2", "percent": 24.0, "cause": "other-programs"}
    nothing = VerdictOfRun(judged(HEALTHY, HEALTHY))
    assert nothing.line("train-1", is_over=True) == ""
    assert nothing.document() is None


def test_section_of_a_page() -> None:
    section = section_of(RECORD, judged(HALF, LATE, hosts=BOTH), is_over=True)
    rank, link = section.entries
    assert missing(rank.headline, "1 node2") == missing(link.headline, "node[1-2]") == []
    assert (len(rank.details), len(link.details)) == (2, 0)
    assert section_of(RECORD, judged(HEALTHY, HEALTHY), is_over=True).entries == ()
    assert section_of(RECORD, judged(HEALTHY, HEALTHY), is_over=True).closing


# The network

COST = NetworkCost(0.61, 26.4e6, 0.94e9 / 8, "eth0", WireAdvice("bf16", 1.52))
ADVICE = (
    "gradients between hosts take 61 % of a step: 26.4 MB over eth0 at 0.94 Gbit/s; with --wire bf16 a step would be "
    "about 1.5x as fast"
)


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (COST, ADVICE),
        (
            COST._replace(advice=None),
            "transfers between hosts take 61 % of a step: 26.4 MB over eth0 at 0.94 Gbit/s",
        ),
        (COST._replace(iface="", share=0.2), ADVICE.replace("61 %", "20 %").replace(" over eth0", "")),
        (COST._replace(share=0.19), ""),
        (
            COST._replace(bytes_per_step=1850.0, advice=None),
            "ranks wait 61 % of a step: for one another, or asleep in the script; only 0.00185 MB go over eth0",
        ),
        (COST._replace(iface="e\x1b[2J", advice=None, rate=0.0), "at 0 Gbit/s"),
        (None, ""),
    ],
)
def test_the_network_is_named_where_it_takes_a_good_part_of_a_step(cost: NetworkCost | None, text: str) -> None:
    found = network_text(cost)
    assert "\x1b" not in found
    assert text in found
    assert bool(text) == bool(found)
    verdict = SlowVerdict(unjudged="too-short", network=cost)
    assert (found in list(lines_of(result(verdict)))) == bool(found)
    assert (found in section_of(RECORD, verdict, is_over=True).closing) == bool(found)


def test_programs_read_what_the_network_costs() -> None:
    document = json.loads(json.dumps(as_json(result(SlowVerdict(network=COST)))))
    advice = {"wire": "bf16", "speedup": 1.52}
    assert document["network"] == {**COST._asdict(), "advice": advice}
    assert json.loads(json.dumps(as_json(result(SlowVerdict()))))["network"] is None
