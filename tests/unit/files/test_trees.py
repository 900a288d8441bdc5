"""What may happen to a tree, and what each command does then: stories on real directories.

A story names its commands, and each line is something that happens, in order:

    call, force, dry, data            the command, with its source; after | what it did and refused
    begun, killed                     the same, killed before the first file has its name, or after the last
    run, mal                          a run, or another account, changes these
    then run, then mal                the same in the middle of the next call
    there                             all that is there
    sticky                            everybody may write in the directory above
    umask

Each call is repeated: it does nothing more, and says the same of what it refuses. Nothing outside changes.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tree_calls import (
    STRANGER,
    Call,
    change,
    exchanged,
    fetched,
    left_over,
    make_account,
    parse,
    pushed,
    sync,
    target_of,
    written,
)

from ipexctl.node.files.place import Writer
from ipexctl.node.files.tree_upload import TreePlan

CALLS: Final[dict[str, Call]] = {"sync": sync, "push": pushed, "fetch": fetched, "checkpoint": exchanged}
STORIES = """
sync: files, modes, links and directories come, and go
    call    train.py=print() src/mod=1 run.sh=+755 .hidden=+600 empty/inner/ link>a out>/no | received 3, sent 6
    there   train.py=print() src/mod=1 run.sh=+755 .hidden=+600 empty/inner/ link>a out>/no
    call    src/mod=1 | deleted 5
    there   src/mod=1

sync: files that a run made stay, also below a directory that the project has no more
    call    train.py=1 out/readme=r
    run     out/epoch-1.pt=w ckpt.pt=w logs/a/b.txt=lines
    call    train.py=2 | received 1, sent 1, deleted 1
    there   train.py=2 out/epoch-1.pt=w ckpt.pt=w logs/a/b.txt=lines

sync: a file that a run changed stays while the project has the same
    call    ckpt.pt=old train.py=1
    run     ckpt.pt=trained
    call    ckpt.pt=old train.py=1 | kept ckpt.pt
    call    ckpt.pt=old train.py=2 | received 1, sent 1, kept ckpt.pt
    there   ckpt.pt=trained train.py=2

sync: a file that was changed on both sides is kept under the next free name
    call    f=0
    run     f=theirs-1
    call    f=1 | received 1, sent 1, moved f
    run     f=theirs-2
    call    f=2 | received 1, sent 1, moved f
    there   f=2 f.node-1=theirs-1 f.node-2=theirs-2

sync: what a run made is not overwritten, and not deleted with the project's
    call    train.py=1
    run     best.pt=run same=both dir/file=run
    call    train.py=1 best.pt=project same=both dir=file | blocked best.pt dir
    there   train.py=1 best.pt=run same=both dir/file=run
    call    train.py=1
    there   train.py=1 best.pt=run same=both dir/file=run

sync: files, directories and links replace each other
    call    x=file y/z=below w>x
    call    x/z=below y>x w=file
    there   x/z=below y>x w=file

sync: a directory with a file of a run is not replaced
    call    d/a=1
    run     d/run=w
    call    d=file | deleted 1, blocked d
    there   d/run=w

sync: nothing is written through a directory that was moved and replaced by a link
    call    data/a=1
    run     ../outside/a=1 data- data>../outside
    call    data/a=2 data/b=2 | kept data, blocked data/a data/b
    call
    there   data>../outside

sync: nothing is looked up or written through the link that a directory replaces
    call    d>../outside
    run     ../outside/key=mine ../outside/deep/key=mine ../outside/same=same
    call    d/key=project d/deep/key=project d/same=same+755 d/new=n | received 3, sent 4, deleted 1
    there   d/key=project d/deep/key=project d/same=same+755 d/new=n

sync: a mode is changed without a transfer, and one that a run has set stays
    call    run.sh=x a=1
    run     a=1+600
    call    run.sh=x+755 a=1
    there   run.sh=x+755 a=1+600

sync: only contents that are nowhere in the tree are received
    call    big=b small=s
    call    renamed=b small=t copy=t | received 1, sent 3, deleted 1
    there   renamed=b small=t copy=t

sync: an incomplete file of a killed sync is received again, a complete one is used
    call    a=1
    run     .ipexctl/stage/#22=2 .ipexctl/stage/#33=33
    call    a=22 b=33 | received 1, sent 2
    there   a=22 b=33

sync: what a killed sync has written is of a sync
    call    a=1 b=1 c=1
    killed  a=2 b=2 d=2
    run     b=host
    call    a=3 b=3 | received 1, sent 2, deleted 1, moved b
    there   a=3 b=3 b.node-1=host

sync: what a killed sync has not written yet is written, and what the host has there is kept
    call    a=1 b=1
    run     a=host
    begun   a=2 b=2 c=2
    run     c=host
    call    a=2 b=2 c=2 | sent 3, moved a c
    there   a=2 b=2 c=2 a.node-1=host c.node-1=host

sync: files in a data directory stay, and are known again without --data
    call    train.py=1 data/a=a database=d
    run     data/b=host
    data    train.py=2 database=d | received 1, sent 1
    run     data/a=changed
    data    train.py=2 database=d
    run     data/a=a
    call    train.py=2 data/a=new database=d | received 1, sent 1
    there   train.py=2 data/a=new data/b=host database=d

sync: what a killed sync has written into a data directory is known again, too
    killed  train.py=1 data/a=a
    data    train.py=1
    call    train.py=1 data/a=new | received 1, sent 1
    there   train.py=1 data/a=new

sync: a dry run writes nothing
    dry     a=1 b/c=1 | would_send a b/c
    there
    call    a=1 b=1
    dry     a=2 | would_send a, would_delete b
    there   a=1 b=1

sync: a directory that a run replaces by a link meanwhile is not entered
    call    out/a=1
    run     ../outside/a=theirs
    then run out- out>../outside
    call    out/a=2 | failed is a link
    there   out>../outside

push: everything comes, each content once, and a second push finds it
    call    a.txt=a empty/ large=l link>sub/b.txt sub/again=l sub/b.txt=b run=+755 | received 4, sent 6
    there   a.txt=a empty/ large=l link>sub/b.txt sub/again=l sub/b.txt=b run=+755

push: a single file
    call    .=model | received 1, sent 1
    there   .=model
    call    a=1 | failed is a file
    there   .=model

push: a single file in place of a directory
    run     d/a=1
    call    .=model | failed is a directory
    there   d/a=1

push: what differs stays, and with --force is replaced
    run     f=x
    call    f=a new=b | differing f
    there   f=x
    dry     f=a new=b | would_send f new
    force   f=a new=b | received 2, sent 2
    there   f=a new=b

push: a file that is made meanwhile stays
    then run f=x
    call    f=a | failed f was created there during the push
    there   f=x

push: a file or link that another call has written meanwhile is the same
    then run f=a l>a copy=a
    call    f=a l>a copy=a z=1 | received 2, sent 4
    there   f=a l>a copy=a z=1

push: a file of another account that is made meanwhile is not taken for it
    sticky
    then mal f=a
    call    f=a | failed belongs to another account
    there   f=a

push: a dry run writes nothing
    dry     a=1 sub/b=1 l>a | would_send a l sub/b
    there

push: a directory, a link to one, or a file in the way is not replaced or followed, also with --force
    run     ../outside/x=theirs sub>../outside a/y=mine f=mine
    force   sub/b=b a=a f/x=x | blocked a f sub
    there   sub>../outside a/y=mine f=mine

push: a FIFO that is made meanwhile is not replaced, also with --force
    then run f|
    force   f=a | failed f is a FIFO, socket or device
    there   f|

push checkpoint: with a FIFO in the place of one file, none is written
    run     d/
    then run d/f|
    call    a=1 d/f=2 z=3 | failed d/f is a FIFO, socket or device
    there   d/f|

checkpoint: with a directory in the place of one file, none is written
    run     a=0 f/x=mine
    call    a=1 f=2 z=3 | failed f
    there   a=0 f/x=mine

push: a FIFO in the place of a single file is not replaced
    run     .|
    force   .=model | blocked
    there   .|

push: a link that is made meanwhile is not followed
    run     ../outside/x=theirs
    then run sub- sub>../outside
    call    sub/b=b | failed link
    there   sub>../outside

push: a place that another account made in a directory where everybody can is refused
    sticky
    mal     ./
    call    | failed belongs to another account
    call    model=w | failed belongs to another account
    force   model=w | failed belongs to another account
    there

push: a place that another account makes there meanwhile gets no file
    sticky
    then mal ./
    call    a=1 | failed uid 61002
    there

push: a file of another account
    sticky
    mal     .=w
    call    .=w | failed belongs to another account
    there   .=w

push: a link of this account is followed
    run     ../real/ .>real
    call    a=1 | received 1, sent 1
    there   a=1

checkpoint: a link that is made meanwhile is not followed, in the path and below it
    run     ../outside/x=theirs .-
    then run .>outside
    call    step/last.pt=w | failed link
    run     .-
    run     ./
    then run step>../outside
    call    step/last.pt=w | failed link
    there   step>../outside

checkpoint: a link in the way is not followed
    run     ../outside/x=theirs step>../outside
    call    step/last.pt=w | failed link
    there   step>../outside

checkpoint: a place that another account made in a directory where everybody can is refused
    sticky
    mal     ./
    call    a.pt=w | failed uid 61002
    there

push checkpoint: modes are the source's without the umask, and the owner can write
    umask   027
    call    a=1+777 b=1+444 c=1
    there   a=1+750 b=1+640 c=1+640

fetch: modes are the source's without the umask
    umask   027
    call    a=1+777 b=1+444 c=1
    there   a=1+750 b=1+440 c=1+640

sync: modes are the source's
    umask   077
    call    a=1+777 b=1+444 c=1 d/+711
    there   a=1+777 b=1+444 c=1 d/+711

fetch: a FIFO that is made meanwhile is not replaced
    then run f|
    call    f=1 z=2 | sent 1, refused f
    there   f| z=2

fetch: links are made and replaced, and not followed
    run     ../outside/x=theirs l>../outside/x sub>../outside
    call    l=1 m>x l2>y sub/x=2 | sent 1, refused sub sub/x
    there   l=1 m>x l2>y sub>../outside
"""


def stories() -> Iterator[object]:
    for story in STORIES.strip().split("\n\n"):
        title, *lines = story.splitlines()
        commands, _, what = title.partition(": ")
        yield from (pytest.param(CALLS[name], lines, id=f"{name}: {what}") for name in commands.split())


DONE = re.compile(r"(received|sent|deleted|moved|would_send|would_delete)\b")


class Story:
    def __init__(self, top: Path, patch: pytest.MonkeyPatch, call: Call) -> None:
        self.top, self.patch, self.call, self.target = top, patch, call, target_of(top, call)
        make_account(top, patch)
        self.then = ""
        self.calls: dict[str, Call] = {
            "call": call,
            "force": functools.partial(call, force=True),
            "dry": functools.partial(call, is_dry=True),
            "begun": functools.partial(call, killed_in=(Writer, "__enter__")),
            "killed": functools.partial(call, killed_in=(TreePlan, "_record")),
            "data": functools.partial(call, data=("data",)),
        }

    def outside(self) -> dict[str, str]:
        return {path: text for path, text in written(self.top).items() if path.startswith(("outside", "home/code/out"))}

    def do(self, verb: str, text: str, says: str | None) -> None:
        if verb in self.calls:
            before, then, self.then = self.outside(), self.then, ""
            everything = {*self.top.rglob("*")}
            call = functools.partial(self.calls[verb], self.target, parse(text))
            said = call(then=lambda: self.happen(*then.split(" ", 1))) if then else call()
            check(said, says, verb)
            assert self.outside() == before
            assert verb != "dry" or {*self.top.rglob("*")} == everything
            if verb in ("call", "force", "data") and not then:
                there = written(self.target)
                assert call() == [word for word in said if not DONE.match(word)], "a second call"
                assert written(self.target) == there
            assert then or verb in ("begun", "killed") or left_over(self.top) == []
        elif verb == "there":
            assert written(self.target) == {path: str(node) for path, node in parse(text).items()}
        elif verb == "then":
            self.then = text
        elif verb == "sticky":
            self.target.parent.chmod(0o1777)
        elif verb == "umask":
            make_account(self.top, self.patch, int(text, 8))
        else:
            self.happen(verb, text)

    def happen(self, verb: str, text: str) -> None:
        try:
            change(self.target, parse(text), {"run": -1, "mal": STRANGER}[verb])
        except OSError as error:
            raise AssertionError(text) from error


def check(said: list[str], says: str | None, verb: str) -> None:
    if says is None:
        assert [word for word in said if not DONE.match(word)] == [], said
    elif says.startswith("failed "):
        assert [word for word in said if word.startswith("failed ") and says[7:] in word], said
    else:
        assert said == says.split(", "), verb


@pytest.mark.parametrize(("call", "lines"), [*stories()])
def test_a_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, lines: list[str]) -> None:
    if os.geteuid() != 0 and any("mal " in line for line in lines):
        pytest.skip("two accounts need root")
    story = Story(tmp_path, monkeypatch, call)
    umask = os.umask(0o022)
    try:
        for line in lines:
            action, bar, says = line.partition(" | ")
            verb, _, text = action.strip().partition(" ")
            story.do(verb, text.strip(), says.strip() if bar else None)
    finally:
        os.umask(umask)
