"""A lab host that answers fetch with forged files: its PATH has another python3 before the real one."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator

from ipexctl.extras.lab.labs import LabHost
from lab_helpers import ask

Forged = tuple[str, str, str]
"""A name, its kind (d, f or l), and its content or target."""

_PLACE = "/usr/local/bin/python3"
_SENDER = """\
#!/usr/bin/python3
import json, os, sys, zlib
if "files.file_sender" not in sys.argv:
    os.execv("/usr/bin/python3", ["python3", *sys.argv[1:]])
FORGED = json.loads({forged!r})
sys.stdin.buffer.read(int(sys.argv[sys.argv.index("files.file_sender") - 2]))  # the agent
sys.stdin.buffer.readline()
out = sys.stdout.buffer

def say(event, **more):
    out.write(json.dumps(dict(event=event, **more)).encode() + b"\\n")

for i, (name, kind, content) in enumerate(FORGED):
    size = len(content) if kind == "f" else 0
    say("entry", row=[name, kind, 0o755, size, content if kind == "l" else "", 1])
say("listed", **{{"from": "/x", "single": len(FORGED) == 1, "since": 0}})
out.flush()
line = sys.stdin.buffer.readline()
for i, have, known in json.loads(line)["wants"] if line else ():
    content = FORGED[i][2].encode()
    place = dict(size=len(content), offset=0, length=len(content))
    say("part", i=i, **place, mode=0o755, mtime=1, crc=zlib.crc32(content), changed=False)
    out.write(content)
say("done")
"""


@contextlib.contextmanager
def forged_sender(host: LabHost, *entries: Forged) -> Iterator[None]:
    script = _SENDER.format(forged=json.dumps(entries))
    put = f"printf %s {shlex.quote(script)} >{_PLACE} && chmod 755 {_PLACE}"
    try:
        said = ask(host, put, as_root=True)
        assert said.rc == 0, said.err
        yield
    finally:
        ask(host, f"rm -f {_PLACE}", as_root=True)
