"""The section of a run's page about slow ranks and links."""

from __future__ import annotations

from report_samples import page
from slow_helpers import CALM, HEALTHY, changed, judged

from ipexctl.extras.report.html import page_html
from ipexctl.extras.slow.verdict import SlowVerdict
from ipexctl.hosts.host import Host
from ipexctl.run.registry import RunRecord

RECORD = RunRecord("train-1", Host(name="node1", address="a"), "/h", "/p", script="<b>.py", hosts=("node1", "node2"))
QUEUED = changed(HEALTHY, cpu=0.4, queue=0.1)
SLOW_LINK = CALM._replace(sent_per_s=6e7)


def html(verdict: SlowVerdict | None) -> str:
    return page_html(page(slow=verdict, record=RECORD))


def test_page_names_rank_host_cause_and_command() -> None:
    text = html(judged(changed(HEALTHY, cpu=0.4), QUEUED, hosts={"node1": SLOW_LINK, "node2": SLOW_LINK}))
    section = text.partition("Slow ranks")[2].partition("</section>")[0]
    for word in ("rank 1", "node2", "ipexctl slow last", "ip -s link"):
        assert word in section
    assert "<b>" not in section


def test_page_without_a_verdict_has_no_section() -> None:
    assert "Slow ranks" not in html(None)
    assert "Slow ranks" not in html(SlowVerdict(unjudged="too-short"))
    assert "Slow ranks" in html(judged(HEALTHY, HEALTHY))
