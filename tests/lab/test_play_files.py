"""`ipexctl play`: files that tasks copy and fetch, idempotence, and --check."""

from __future__ import annotations

import os

import pytest

from lab_helpers import ask
from lab_play_helpers import Site, counts, statuses

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


FILES = """\
- name: text
  copy: {content: "for {{ inventory_hostname }}\\n", dest: PLACE/a/text, mode: 0640}
- name: file
  copy: {src: here.bin, dest: PLACE/, mode: "0755"}
- name: tree
  copy: {src: tree, dest: PLACE/}
- name: big
  copy: {src: big.bin, dest: PLACE/big.bin}
- name: filled
  template: {src: conf.j2, dest: PLACE/conf}
- name: made
  exec: echo made > PLACE/made
  args: {creates: PLACE/made}
- name: home
  fetch: {src: PLACE/conf, dest: brought}
- name: answers
  wait_for: {port: 22, seconds: 5}
- name: there
  wait_for: {path: PLACE/made, seconds: 5}
"""


def lay_out(site: Site) -> None:
    (site.directory / "here.bin").write_bytes(bytes(range(256)))
    (site.directory / "big.bin").write_bytes(os.urandom(600_000))
    (site.directory / "tree" / "sub").mkdir(parents=True)
    (site.directory / "tree" / "one").write_text("1")
    (site.directory / "tree" / "sub" / "two words").write_text("2")
    (site.directory / "conf.j2").write_text("{% for g in names %}\nname={{ g }}\n{% endfor %}\non={{ node0 }}\n")


NAMES = "  vars: {names: [a, b]}\n"


def test_file_tasks_are_applied_and_idempotent(site: Site) -> None:
    lay_out(site)
    first = site.report(FILES, head=NAMES)
    assert counts(first, "node2") == (9, 7, 0, 0, 0)
    assert site.on(1, "cat PLACE/a/text; stat -c %a PLACE/a/text PLACE/here.bin") == "for node2\n640\n755\n"
    assert site.on(2, "cat PLACE/conf PLACE/tree/one 'PLACE/tree/sub/two words'") == "name=a\nname=b\non=node1\n12"
    assert site.on(0, "sha256sum <PLACE/here.bin").split()[0] in site.on(1, "sha256sum <PLACE/here.bin")
    assert int(site.on(0, "wc -c <PLACE/big.bin")) == 600_000
    brought = site.directory / "brought" / "node3" / site.place.lstrip("/") / "conf"
    assert brought.read_text() == "name=a\nname=b\non=node1\n"
    second = site.report(FILES, head=NAMES)
    assert {name: row["changed"] for name, row in second["recap"].items()} == {"node1": 0, "node2": 0, "node3": 0}
    assert counts(second)[0] == 9


def test_copy_follows_no_link_of_another_account(site: Site) -> None:
    (site.directory / "tree" / "sub").mkdir(parents=True)
    (site.directory / "tree" / "sub" / "file").write_text("1")
    site.on(0, "mkdir -p PLACE/target PLACE/into")
    for link in ("PLACE/link", "PLACE/into/sub"):
        command = f"ln -s PLACE/target {link} && chown -h 65534 {link}".replace("PLACE", site.place)
        assert ask(site.lab.hosts[0], command, as_root=True).rc == 0
    for task in ("{content: x, dest: PLACE/link}", "{content: x, dest: PLACE/link/}", "{src: tree/, dest: PLACE/into}"):
        report = site.report(f"- name: put\n  copy: {task}", "-l", "node1", rc=1)
        assert statuses(report, "put") == {"node1": "failed"}, task
        assert "follow: true" in report["tasks"][0]["hosts"]["node1"]["fix"]
    assert site.on(0, "ls PLACE/target") == ""
    site.report("- copy: {content: x, dest: PLACE/link, follow: true}", "-l", "node1")
    assert site.on(0, "ls PLACE/target") == "content\n"


def test_fetch_task_limits_modes_of_a_host_by_the_umask(site: Site) -> None:
    site.on(
        0, "mkdir -p PLACE/d && echo x >PLACE/d/w.sh && cp PLACE/d/w.sh PLACE/own && chmod 6777 PLACE/d/w.sh PLACE/d"
    )
    site.on(0, "chmod 600 PLACE/own")
    tasks = "".join(f"- fetch: {{src: PLACE/{name}, dest: got/, flat: true}}\n" for name in ("d/w.sh", "own", "d"))
    site.report(tasks, "-l", "node1")
    modes = {name: (site.directory / "got" / name).stat().st_mode & 0o7777 for name in ("w.sh", "own", "d", "d/w.sh")}
    assert modes == {"w.sh": 0o755, "own": 0o600, "d": 0o755, "d/w.sh": 0o755}


def test_large_files_are_fetched_to_the_same_paths_as_small_ones(site: Site) -> None:
    for index in range(3):
        site.on(index, f"mkdir -p PLACE && head -c {17 << 20} /dev/zero >PLACE/w.pt")
    tasks = """\
- fetch: {src: PLACE/w.pt, dest: brought}
- fetch: {src: PLACE/w.pt, dest: "brought/{{ inventory_hostname }}.pt", flat: true}
"""
    assert counts(site.report(tasks))[1] == 2
    brought = site.directory / "brought"
    assert (brought / "node2" / site.place.lstrip("/") / "w.pt").stat().st_size == 17 << 20
    assert (brought / "node2.pt").stat().st_size == 17 << 20
    assert counts(site.report(tasks))[1] == 0


@pytest.mark.core
def test_check_mode_changes_nothing_and_diff_shows_changes(site: Site) -> None:
    lay_out(site)
    ran = site.play(FILES.split("- name: there")[0], "--check", "--diff", head=NAMES)
    assert "+for node1" in ran.out
    assert "+name=a" in ran.out
    assert site.on(0, "ls -A PLACE 2>/dev/null | wc -l").strip() == "0"
    assert not (site.directory / "brought").exists()
    site.play('- copy: {content: "one\\ntwo\\n", dest: PLACE/x}')
    changed = site.play('- copy: {content: "one\\n2\\n", dest: PLACE/x, backup: true}', "--diff")
    assert "-two\n+2\n" in changed.out
    assert site.on(0, "cat PLACE/x.*.bak") == "one\ntwo\n"
