"""Nothing remains after `down`, after a failed or interrupted `up`, or after SIGKILL of `up`."""

from __future__ import annotations

import pytest

from lab_helpers import new_leftovers, run_in_namespaces
from message_data import missing

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("make_lab")]  # left out where no lab can be made


# An `up` in a process of its own that prints how far it is.
_UP = """
import importlib
from ipexctl.addons.lab.lab_plan import LabSpec
up = importlib.import_module("ipexctl.addons.lab.up")

def then_print(step, work):
    def call(*args, **options):
        result = work(*args, **options)
        print(step, flush=True)
        return result
    return call

up.lab_record.save = then_print("planned", up.lab_record.save)
up.lab_files.openssh_version = then_print("wired", up.lab_files.openssh_version)
up._start = then_print("host", up._start)
up.up(LabSpec(hosts=6, name="tst-a", cpus=("haswell",), shared_home=True, internal=True))
"""


@pytest.mark.core
def test_down_removes_everything_of_a_lab_in_use() -> None:
    answer = run_in_namespaces("""
spec = LabSpec(hosts=3, name="tst-a", cpus=("haswell",), shared_home=True, bastion=True)
made = up(spec)
for fault in reversed(FAULTS):
    if fault.clashes != "shell" and fault.name not in ("sshd-dead", "changed-host-key", "full-disk"):
        break_host(made.hosts[0], fault.name)
session = subprocess.Popen(ssh_argv(made.hosts[1], ["sleep", "60"]), stdin=subprocess.DEVNULL)
time.sleep(1)
result["during"] = snapshot()
result["removed"] = down("tst-a").labs
session.wait(10)
down()
""")
    during = answer["during"]
    assert during["namespaces"] == [f"ipx-tst-a-{name}" for name in ("bastion", "node1", "node2", "node3", "switch")]
    assert len(during["loops"]) == 5, "four disks and a home"
    assert answer["removed"] == ["tst-a"]
    assert new_leftovers(answer) == {}


@pytest.mark.parametrize("step", ["planned", "wired", "host"])
def test_down_removes_leftovers_of_a_killed_up(step: str) -> None:
    answer = run_in_namespaces(f"""
making = child({_UP!r})
for line in making.stdout:
    if line.strip() == {step!r}:
        break
making.kill()
making.wait()
result["left"] = [made.ready for made in load_all()]
result["removed"] = down().labs
""")
    assert answer["left"] == [False]
    assert answer["removed"] == ["tst-a"]
    assert new_leftovers(answer) == {}


@pytest.mark.parametrize("hidden", ["/var/lib/ipexctl", "/var/lib/ipexctl /run"])
def test_down_leaves_labs_alone_whose_records_another_view_of_this_network_has(hidden: str) -> None:
    """As from a container or `unshare --mount`."""
    answer = run_in_namespaces(f"""
made = up(LabSpec(hosts=1, name="tst-a"))
other = '''
from ipexctl.addons.lab.down import down, find_labs
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.up import up
up(LabSpec(hosts=1, name="tst-b"))
print([found.name for found in find_labs()], down().labs, down().labs)
'''
hide = "for place in {hidden}; do mount -t tmpfs lib $place; done; exec \\"$@\\""
argv = ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", other]
result["other"] = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
result["reached"] = subprocess.run(ssh_argv(made.hosts[0], ["echo", "here"]), stdout=subprocess.PIPE, text=True).stdout
result["removed"] = down().labs
""")
    assert answer["other"] == "['tst-b'] ('tst-b',) ()\n"
    assert (answer["reached"], answer["removed"]) == ("here\n", ["tst-a"])
    assert new_leftovers(answer) == {}


# A pytest with a temporary lab; the code that follows says how it ends.
_SESSION = """
test = Path("/run/test_inner.py")
test.write_text("import sys, time\\nfrom ipexctl.addons.lab.lab_plan import LabSpec\\n"
                "from ipexctl.addons.lab.up import up\\ndef test_inner():\\n"
                "    up(LabSpec(hosts=1, name='tst-a', temporary=True))\\n    time.sleep(100)\\n")

def session(*program):
    argv = [sys.executable, *program, "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(test)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not [made for made in find_labs() if made.lab and made.lab.ready]:
        time.sleep(0.05)
    return process
"""


def test_killed_pytest_leaves_a_lab_that_anybody_may_remove() -> None:
    answer = run_in_namespaces(f"""{_SESSION}
tests = session("-m", "pytest")
try:
    down()
except UserError as error:
    result["said"] = error.message
tests.kill()
tests.wait()
result["left"] = [(made.name, made.condition) for made in find_labs()]
result["removed"] = remove_abandoned().labs
down()
""")
    assert missing(answer["said"], "tst-a") == []
    assert answer["left"] == [["tst-a", "abandoned"]]
    assert answer["removed"] == ["tst-a"]
    assert new_leftovers(answer) == {}


@pytest.mark.signals
def test_interrupted_tests_leave_no_lab_even_if_pytest_does_not_end() -> None:
    answer = run_in_namespaces(f"""{_SESSION}
tests = session("tests/rerun_failed.py", "--once")
child, = (Path(f"/proc/{{tests.pid}}/task/{{tests.pid}}/children").read_text().split()[:1])
os.kill(int(child), signal.SIGSTOP)
tests.send_signal(signal.SIGINT)
time.sleep(1)
tests.send_signal(signal.SIGTERM)
result["said"], _ = tests.communicate(timeout=40)
result["rc"] = tests.returncode
result["left"] = [made.name for made in find_labs()]
down()
""")
    assert (answer["rc"], answer["left"]) == (130, []), answer["said"]
    assert "Traceback" not in answer["said"]
    assert new_leftovers(answer) == {}


def test_interrupted_up_cleans_up() -> None:
    answer = run_in_namespaces(f"""
making = child({_UP!r})
for line in making.stdout:
    if line.strip() == "wired":
        break
time.sleep(0.1)
making.send_signal(signal.SIGINT)
_, said = making.communicate(timeout=20)
result["rc"], result["said"] = making.returncode, said[-200:]
os.rmdir("/var/lib/ipexctl/labs")
""")
    assert "KeyboardInterrupt" in answer["said"]
    assert new_leftovers(answer) == {}


def test_failed_up_reports_the_reason_and_leaves_nothing() -> None:
    answer = run_in_namespaces("""
from ipexctl.addons.lab import lab_files
lab_files.sshd_config = lambda openssh: "Nonsense yes\\n"
try:
    up(LabSpec(hosts=2, name="tst-a"))
except UserError as error:
    result["said"] = error.message
os.rmdir("/var/lib/ipexctl/labs")
""")
    assert "did not start: " in answer["said"]
    assert "Nonsense" in answer["said"] or "Bad configuration" in answer["said"]
    assert new_leftovers(answer) == {}


def test_host_with_killed_init_is_named_and_removed() -> None:
    answer = run_in_namespaces("""
made = up(LabSpec(hosts=2, name="tst-a"))
from ipexctl.addons.lab.lab_system import init_of
os.kill(init_of(made.hosts[0].netns), signal.SIGKILL)
time.sleep(0.3)
try:
    break_host(made.hosts[0], "noisy-rc")
except UserError as error:
    result["said"] = error.message
down()
""")
    assert missing(answer["said"], "node1") == []
    assert new_leftovers(answer) == {}


def test_down_removes_a_lab_without_a_record() -> None:
    answer = run_in_namespaces("""
import shutil
made = up(LabSpec(hosts=2, name="tst-a"))
shutil.rmtree(made.dir)
result["removed"] = down().labs
""")
    assert answer["removed"] == ["tst-a"]
    assert new_leftovers(answer) == {}


def test_labs_created_in_parallel_have_different_names_and_networks() -> None:
    answer = run_in_namespaces("""
code = "from ipexctl.addons.lab.lab_plan import LabSpec; from ipexctl.addons.lab.up import up"
code += "; lab = up(LabSpec(hosts=1))"
code += "; print(lab.name, lab.block)"
makings = [child(code) for _ in range(3)]
result["made"] = sorted(making.communicate(timeout=40)[0].strip() for making in makings)
try:
    down()
except UserError as error:
    result["said"] = error.message
result["left"] = sorted(made.name for made in load_all())
result["removed"] = down(remove_all=True).labs
""")
    assert sorted(line.split()[0] for line in answer["made"]) == ["lab", "lab2", "lab3"]
    assert len({line.split()[1] for line in answer["made"]}) == 3
    assert missing(answer["said"], "lab lab2 lab3") == []
    assert answer["left"] == answer["removed"] == ["lab", "lab2", "lab3"]
    assert new_leftovers(answer) == {}


def test_down_of_an_unknown_lab_is_refused() -> None:
    answer = run_in_namespaces("""
try:
    down("nothing")
except UserError as error:
    result["said"] = error.message
result["removed"] = down().labs
""")
    assert "'nothing'" in answer["said"]
    assert answer["removed"] == []


def test_tmpfs_is_used_if_disk_images_cannot_be_mounted() -> None:
    answer = run_in_namespaces("""
import ipexctl.addons.lab.up as up_module
up_module.can_mount_images = lambda: False
made = up(LabSpec(hosts=2, name="tst-a", shared_home=True))
def ask(text):
    argv = ssh_argv(made.hosts[0], [text])
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
result["disk"] = ask("stat -f -c %T /var/tmp; echo x >~/x; cat ~/x").stdout
break_host(made.hosts[0], "full-disk")
result["full"] = ask("head -c 1000000 /dev/zero >/var/tmp/new").stderr
mend_host(made.hosts[0])
result["mended"] = ask("head -c 1000000 /dev/zero >/var/tmp/new").returncode
down()
""")
    assert answer["disk"] == "tmpfs\nx\n"
    assert "No space left" in answer["full"]
    assert answer["mended"] == 0
    assert new_leftovers(answer) == {}
