#!/bin/sh
# The first minutes with ipexctl, from a fresh clone: this machine examined, then a training run on it in two ranks.
#   sh examples/start.sh                    doctor and a training run
#   sh examples/start.sh exec -- uname -r   ipexctl with these arguments
. "$(dirname -- "$0")/../.ci/environment"

environment tests/requirements.txt
ipexctl=.venv/bin/ipexctl
[ $# -gt 0 ] && exec "$ipexctl" "$@"

show() { printf '\n$ ipexctl %s\n' "$*"; "$ipexctl" "$@"; }

# find_torch: torch wheels that lie here or in Downloads count besides the directories of pip's settings.
find_torch() {
  for directory in wheelhouse wheels . "$HOME/Downloads"; do
    for wheel in "$directory"/torch-*.whl; do
      [ -f "$wheel" ] || continue
      links=$(.venv/bin/python -m pip config list 2>/dev/null | sed -n "s/.*find-links='\(.*\)'/\1/p" | tr '\n' ' ')
      PIP_FIND_LINKS="$links$(cd "$directory" && pwd)"
      export PIP_FIND_LINKS
      return
    done
  done
}

show doctor --hosts localhost || say "doctor's findings above may slow down the run or stop it"

find_torch
show run --hosts localhost -n 2 --install examples/train_digits.py --fresh
rc=$?
if [ $rc = 0 ]; then
  say "" "two ranks trained on this machine; the accuracy is above"
else
  say "" "left out: the training run (exit code $rc, its reason is above)" \
    "PyTorch for CPUs is one large file. If the network is slow or absent, put the wheel into ./wheelhouse and" \
    "call this script again: complete downloads are kept"
fi
say "" "To go on (ipexctl is $root/$ipexctl):" \
  "  sh examples/lab.sh                     the same commands on a lab of three SSH hosts on this machine" \
  "  ipexctl run -H my-hostfile --install examples/train_digits.py" \
  "                                         hosts that you can ssh to, one name per line: docs/guides/start.md" \
  "  docs/index.md                          the pages; ipexctl --help has all commands"
exit $rc
