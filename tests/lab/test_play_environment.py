"""`ipexctl play`: variables whose names come out of a template, and so perhaps out of what another host printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab_play_helpers import statuses

if TYPE_CHECKING:
    from lab_play_helpers import Site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
TASKS = """\
- name: print
  exec: "mkdir -p PLACE && printf %s {text}"
  register: printed
- name: use
  exec: printf %s "$X"
  environment: "{{{{ {{hostvars['node1'].printed.stdout: 'it is set'}} }}}}"
"""


@pytest.mark.parametrize(
    ("options", "head"), [((), ""), (("--user", "root"), "  become: true\n")], ids=["as-ipex", "as-root"]
)
@pytest.mark.core
def test_a_name_that_another_host_printed_is_no_command(options: tuple[str, ...], head: str, site: Site) -> None:
    where = ("-l", "node[1-2]", *options)
    report = site.report(TASKS.format(text="X"), *where, head=head)
    assert statuses(report, "use") == {"node1": "changed", "node2": "changed"}
    assert report["tasks"][1]["hosts"]["node2"]["result"]["stdout"] == "it is set"
    report = site.report(TASKS.format(text="'X=1; touch PLACE/marker #'"), *where, head=head, rc=1)
    assert statuses(report, "print") == {"node1": "changed", "node2": "changed"}
    assert statuses(report, "use") == {"node1": "failed", "node2": "failed"}
    assert "'environment'" in report["tasks"][1]["hosts"]["node2"]["reason"]
    for index in (0, 1):
        assert site.on(index, "ls PLACE") == ""


def test_an_environment_that_came_to_no_mapping_is_that_tasks_failure(site: Site) -> None:
    tasks = "- {name: print, exec: echo X=1, register: printed}\n- name: use\n  exec: 'true'\n"
    tasks += '  environment: "{{ printed.stdout }}"\n'
    report = site.report(tasks, "-l", "node1", rc=1)
    assert statuses(report, "use") == {"node1": "failed"}
