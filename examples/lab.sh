#!/bin/sh
# Three real SSH hosts on this machine: PyTorch installed on them, a training run over all three, a rank killed on
# purpose, and why it failed. Everything is removed at the end. Needs root on Linux; two minutes once PyTorch's wheel is here.
. "$(dirname -- "$0")/../.ci/environment"

environment tests/requirements.txt
ipexctl=.venv/bin/ipexctl

show() { printf '\n$ ipexctl %s\n' "$*"; "$ipexctl" "$@"; }

if ! lab_packages; then
  say "a lab needs root on Linux with sshd and iproute2"
  exit 1
fi
printf '\n$ ipexctl lab up --hosts 3\n'
IPEXCTL_HOSTFILE=$("$ipexctl" lab up --hosts 3) || exit
export IPEXCTL_HOSTFILE
printf '%s\n' "$IPEXCTL_HOSTFILE"
lab=$(basename "$(dirname "$IPEXCTL_HOSTFILE")")
trap 'show lab down --lab "$lab"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "" "The hosts have addresses, accounts and files of their own; the commands are the same as on other machines."
# The hosts share the cores of this machine: with one thread for each rank they do not slow one another.
show run --omp 1 --install examples/train_digits.py --fresh || exit

say "" "The same again, but this time rank 1 is killed on its host in the second epoch."
show run --omp 1 --detach examples/train_digits.py --fresh --epochs 30 || exit
tries=0
until "$ipexctl" logs last 2>/dev/null | grep -q 'epoch 2/30' || [ $tries = 120 ]; do
  tries=$((tries + 1))
  sleep 1
done
# pgrep sees the processes of its own host only.
kill_rank='kill -KILL $(pgrep -f "python .*[t]rain_digits.py")'
printf "\n$ ipexctl exec -l node2 --shell '%s'\n" "$kill_rank"
"$ipexctl" exec -l node2 --shell "$kill_rank" || exit
"$ipexctl" attach last >/dev/null 2>&1
say "exit code of the run: $? (128 + 9, as for SIGKILL)"
show why last
say "" "This was a lab; with machines of yours in ./hostfile, leave out \"lab up\", \"lab down\" and \"--omp 1\": docs/guides/start.md"
