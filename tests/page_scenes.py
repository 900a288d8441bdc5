"""The table of hosts and preparations for the blocks of each page."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from doc_blocks import PAGES, ROOT, Block, blocks
from doc_shell import Shell

ALONE = "this machine, small wheels"
CLUSTER = "four hosts, small wheels and a real MPI"
BASTION = "hosts behind a bastion"
LAB = "a lab that the page makes"
LAB_SLURM = "a lab with Slurm that the page makes"
TO_LOGIN = "a Slurm, from a machine that reaches its login node"
ON_LOGIN = "a Slurm, on its login node"
REAL_HERE = "this machine, the real torch"
REAL_CCL = "two hosts, the real oneCCL bindings"
PACKAGE = "a checkout, a package index"
CHECKOUT = "a checkout, a package index; the site is not built"
"""tests/package/test_air_gapped.py"""
BARE = "a bare Debian, the program that was installed"
"""`.ci/bare`; tests/reader.py types the blocks."""
RUNTIMES = "two hosts, the real Ray, Dask, LightGBM and GNU parallel"
"""tests/lab/test_other_runtimes.py types the blocks section by section."""

REASONS = {
    "runs these tests": "a test can't",
    "downloads gigabytes": "IPEX, whose torch is the one with CUDA",
    "trains for minutes": "transformers and a model of theirs",
    "needs a live run": "tests/lab/test_run_refused.py does, beside runs of its own",
    "removes what other pages need": "tests/lab/test_uninstall.py does, on hosts of its own",
    "needs this project's address": "pyproject.toml has none yet; all that follows is typed in a clone",
    "needs a hub": "the page of the recipe has the same with a model that it makes",
}
"""The only reasons for blocks that are not executed."""


@dataclass(frozen=True)
class Scene:
    """Some or all blocks of a page, executed in one place."""

    page: str
    stage: str
    blocks: frozenset[int] | None = None
    """By number, of those with commands; None: all."""
    hosts: int = 2
    """How many names the hostfile has."""
    slots: str = ""
    home: bool = False
    """An empty home on the hosts, for this page alone: it installs what others shouldn't find."""
    take: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """File → the page's block it is: language and number."""
    before: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Block → what is typed before it."""
    after: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.page}, {self.stage}"

    def wanted(self) -> list[tuple[int, Block]]:
        return [
            (number, block)
            for number, block in enumerate(with_commands(self.page))
            if block.left_out is None and (self.blocks is None or number in self.blocks)
        ]

    def files(self) -> dict[str, str]:
        every = blocks(ROOT / self.page)
        return {
            name: [block for block in every if block.language == language][number].text
            for name, (language, number) in self.take.items()
        }


def with_commands(page: str) -> list[Block]:
    """The blocks with commands; a block with only output belongs to the command before it."""
    found: list[Block] = []
    for block in blocks(ROOT / page):
        if block.commands():
            found.append(block)
        elif block.language == "console":
            found[-1] = replace(found[-1], output=found[-1].output + block.text)
    return found


def uses(name: str, *, as_name: str | None = None) -> str:
    """The command that copies a file of tests/stand_ins/pages into the project."""
    return f"cp $PAGES/{name} {as_name or name}"


TRAIN = uses("train.py")
LONG = uses("goes_on.py", as_name="train.py")
PREPARED = (TRAIN, uses("default_config.yaml"), "mkdir mypackage && cp $PAGES/train.py mypackage/")
TINYLM = (
    f"mkdir -p ~/tinylm/src/tinylm && cp hostfile ~/tinylm && {uses('train.py', as_name='~/tinylm/src/tinylm/')}",
    r"printf '[project]\nname = \"tinylm\"\nversion = \"1\"\n' >~/tinylm/pyproject.toml",
    "head -c 96000 /dev/zero >~/tinylm/tokens.bin",
)
RESULTS = """echo 'Path(os.environ["IPEXCTL_RUN_DIR"], "loss.csv").write_text("1,0.5")' >> train.py"""
SHORT = "sed -i 's/default=3840/default=960/; s/default=64/default=16/' examples/train_digits.py"
"""A quarter of the pictures, in as many steps."""
SHORT_EXAMPLES = (
    SHORT,
    "sed -i 's/points(16384/points(4096/' examples/accelerate_train.py",
    "sed -i 's/default=64/default=16/' examples/fsdp_train.py",
    "sed -i 's/default=8)/default=1)/; s/default=20/default=1/' examples/inference.py",
    "sed -i 's/default=2000/default=400/; s/default=20)/default=2)/' examples/int8_inference.py",
    "printf '[run]\\nomp = 1\\n' > ipexctl.toml",
)
"""Fewer samples and rounds, the same steps; and one thread for each rank: two wait for each other on a busy machine."""
STEP = "optimizer.step()"
"""A pause follows it where a rank is killed: a fast machine trains an epoch before the signal comes."""
ALL_BEGUN = "until test $(ipexctl logs last 2>&1 | grep -c epoch) = 4; do sleep 0.5; done"
OUR_PYTHON = f"export PATH={Path(sys.executable).parent}:$PATH"
"""The `python` that has ipexctl; that of the environment has torch."""
INSTALLS = "mkdir -p ~/.config/ipexctl && printf '[run]\\ninstall = true\\n' >~/.config/ipexctl/config.toml"
"""Nobody is there to say yes."""
LOGIN = "login.example.org"
LACKS = "ipexctl exec --shell 'cd .ipexctl/envs/default/lib/python3.*/site-packages && {} tqdm.py' -l '!node3'"

# The guide on MPI and playbooks last: they install on two of the four hosts.
SCENES = (
    Scene("README.md", BARE),
    Scene("ipexctl/SKILL.md", CLUSTER, before={0: (TRAIN,)}),
    Scene("CONTRIBUTING.md", PACKAGE),
    Scene("docs/allreduce.md", CLUSTER, frozenset({0}), before={0: (TRAIN,)}),
    Scene("docs/commands.md", CLUSTER, hosts=4, before={0: ("echo 'ssh-ed25519 AAAA me@here' > key.pub",)}),
    Scene("docs/config.md", CLUSTER, hosts=4, take={"ipexctl.toml": ("toml", 0)}, before={1: ("rm ipexctl.toml",)}),
    Scene("docs/control-machine.md", BARE),
    Scene("docs/doctor.md", CLUSTER, hosts=4),
    Scene(
        "docs/examples.md",
        REAL_HERE,
        before={
            0: ("echo localhost > hostfile && touch pyproject.toml", *SHORT_EXAMPLES),
            2: (
                f"sed -i 's/{STEP}/&; time.sleep(0.05)/' examples/train_digits.py",
                "ipexctl run --plain -n 2 examples/train_digits.py | python3 $PAGES/kill_a_rank.py",
                f"sed -i 's/{STEP}.*/{STEP}/' examples/train_digits.py",
            ),
        },
    ),
    Scene(
        "docs/allreduce.md",
        REAL_HERE,
        frozenset({1}),
        before={1: ("sed -i 's/default=3.0/default=0.1/' examples/allreduce_bench.py",)},
    ),
    Scene("docs/events.md", CLUSTER, before={0: (TRAIN,)}),
    Scene(
        "docs/fetch.md",
        CLUSTER,
        hosts=4,
        before={0: (TRAIN, RESULTS, "ipexctl run train.py")},
    ),
    Scene(
        "docs/hub.md",
        CLUSTER,
        before={
            0: (
                "mkdir -p hub/models/org/tiny && echo '{}' >hub/models/org/tiny/config.json",
                "head -c 2000000 /dev/zero >hub/models/org/tiny/model.safetensors",
                "python $PAGES/../../hub_server.py hub 127.0.0.1 127.0.0.2 0 >endpoint 2>&1 & echo $! >hub.pid",
                "until grep -q http endpoint; do sleep 0.1; done",
                "export HF_ENDPOINT=$(tail -n 1 endpoint)",
                TRAIN,
            )
        },
        after=("kill $(cat hub.pid)",),
    ),
    Scene("docs/guides/air-gapped.md", CHECKOUT, frozenset({0, 2})),
    Scene("docs/guides/air-gapped.md", CLUSTER, frozenset({1, 3}), home=True),
    Scene("docs/guides/behind-a-bastion.md", BASTION),
    Scene(
        "docs/guides/fine-tune.md",
        REAL_HERE,
        take={"make_model.py": ("python", 0), "use.py": ("python", 1)},
        before={0: ("printf 'localhost slots=2\\n' > hostfile", "printf '[run]\\nomp = 1\\n' > ipexctl.toml")},
    ),
    Scene("docs/guides/start.md", REAL_HERE, frozenset({0}), before={0: (SHORT, INSTALLS)}),
    Scene("docs/guides/start.md", CLUSTER, frozenset({1}), take={"hostfile": ("text", 0)}, before={1: (TRAIN,)}),
    Scene("docs/hostfile.md", CLUSTER, hosts=4, slots=":2"),
    Scene("docs/install.md", CLUSTER, home=True, before={0: ("echo tqdm > requirements.txt",)}),
    Scene("docs/lab.md", BARE, frozenset({0})),
    Scene("docs/lab.md", LAB, frozenset(range(1, 5))),
    Scene("docs/launchers.md", CLUSTER, before={0: (TRAIN,), 1: (uses("infer.py"),), 2: PREPARED}),
    Scene(
        "docs/migration.md",
        ALONE,
        before={0: ("rm -r examples", uses("with_ipex.txt", as_name="train.py")), 2: (TRAIN,)},
    ),
    Scene("docs/oneccl.md", REAL_CCL, before={0: ("mkdir ~/wheels && cp $BINDINGS/*.whl ~/wheels/", SHORT)}),
    Scene("docs/other-runtimes.md", RUNTIMES),
    Scene("docs/projects.md", CLUSTER, before={0: TINYLM}),
    Scene("docs/python.md", CLUSTER, frozenset({0}), take={"sweep.py": ("python", 0)}, before={0: (TRAIN,)}),
    Scene("docs/python.md", REAL_HERE, frozenset({1}), before={1: (OUR_PYTHON,)}),
    Scene(
        "docs/report.md",
        CLUSTER,
        before={0: (TRAIN, uses("train.py", as_name="infer.py"), "ipexctl run train.py", "ipexctl run infer.py")},
    ),
    Scene(
        "docs/run.md",
        CLUSTER,
        frozenset(range(4)),
        hosts=4,
        before={
            0: PREPARED,
            1: (uses("imports_tqdm.py", as_name="train.py"), LACKS.format("touch")),
            2: (LACKS.format("rm"), LONG, "ipexctl run --detach train.py", ALL_BEGUN),
            3: (TRAIN, "(sleep 3; ipexctl stop last) >/dev/null 2>&1 &"),
        },
    ),
    Scene(
        "docs/run.md",
        CLUSTER,
        frozenset({5, 6}),
        before={
            5: (LONG, "export LOGNAME=ann XDG_STATE_HOME=$PWD/../ann IPEXCTL_HOSTFILE=hostfile"),
            6: (
                "until ipexctl logs last | grep -q 'epoch 1'; do sleep 0.5; done",
                "export LOGNAME=ben XDG_STATE_HOME=$PWD/../ben",
            ),
        },
        after=("test ! -e ../ben/ipexctl/runs || ! ls ../ben/ipexctl/runs/*.json",),
    ),
    Scene(
        "docs/run-watch.md",
        CLUSTER,
        hosts=4,
        before={
            0: (LONG,),
            1: (TRAIN,),
            2: ("printf '%s\\n' '#!/bin/sh' 'cat >~/posted' >../bin/curl && chmod 755 ../bin/curl",),
        },
        after=(
            """grep -q '"state": "ok"' ~/posted""",
            """ipexctl exec -l node1 -- grep -q '"state": "ok"' mail""",
        ),
    ),
    Scene(
        "docs/run-end.md",
        CLUSTER,
        hosts=4,
        before={
            0: (TRAIN,),
            1: (uses("imports_frobnicate.py", as_name="train.py"), "ipexctl run train.py || test $? = 1"),
            2: (uses("hang.py"), "ipexctl run --detach --ppn 2 hang.py", "sleep 3"),
        },
    ),
    Scene(
        "docs/slurm.md",
        TO_LOGIN,
        frozenset({0}),
    ),
    # After the one that has installed the environment.
    Scene("docs/slurm.md", ON_LOGIN, frozenset({1, 2, 3}), before={1: ("cd ~/train",)}),
    Scene("docs/slurm.md", LAB_SLURM, frozenset({4})),
    Scene(
        "docs/sync.md",
        CLUSTER,
        before={
            0: ("mkdir ~/train && head -c 2000 /dev/zero | tee ~/train/a.py >~/train/b.py",),
            1: ("mkdir ~/train/.ssh && touch ~/train/{.env,c.py,d.py}",),
        },
    ),
    Scene("docs/uninstall.md", CLUSTER),
    Scene("docs/versions.md", CLUSTER),
    Scene("docs/guides/mpi.md", CLUSTER, take={"ranks.py": ("python", 0)}),
    Scene(
        "docs/playbooks.md",
        CLUSTER,
        take={"site.yml": ("yaml", 0)},
        before={
            0: (TRAIN, "echo lr = 0.1 > train.toml.j2"),
            2: ("sed -i s/avx512_bf16/avx512bf16/ site.yml",),
        },
    ),
)


def scenes_in(*stages: str) -> list[Scene]:
    return [context for context in SCENES if context.stage in stages]


def scenes(*stages: str, first: str = "a", last: str = "z") -> pytest.MarkDecorator:
    """The scenes of pages whose names begin with a letter in this range."""
    wanted = [scene for scene in scenes_in(*stages) if first <= Path(scene.page).name[0].lower() <= last]
    return pytest.mark.parametrize("context", wanted, ids=lambda context: context.page)


def play(context: Scene, shell: Shell) -> list[str]:
    """Run all commands of a page; returns every difference."""
    for name, text in context.files().items():
        shell.write(name, text)
    for number, block in context.wanted():
        for line in context.before.get(number, ()):
            shell.type(line)
        shell.follow(block)
    for line in context.after:
        shell.type(line)
    return shell.differences


def left_out() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.left_out is not None]
