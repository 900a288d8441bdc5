#!/bin/sh
# The first minute with ipexctl, from a fresh clone: on this machine alone, then on a lab of three hosts.
#   sh examples/start.sh                    the first look
#   sh examples/start.sh exec -- uname -r   ipexctl with these arguments
. "$(dirname -- "$0")/../.ci/environment"

environment tests/requirements.lock
ipexctl=.venv/bin/ipexctl
[ $# -gt 0 ] && exec "$ipexctl" "$@"

show() { printf '\n$ ipexctl %s\n' "$*"; "$ipexctl" "$@"; }

show exec -- uname -sr || exit
if lab_packages; then
  printf '\n$ ipexctl lab up --hosts 3\n'
  hostfile=$("$ipexctl" lab up --hosts 3) || exit
  printf '%s\n' "$hostfile"
  show exec -H "$hostfile" -- hostname && show exec -H "$hostfile" --gather -- uname -s
  rc=$?
  show lab down --lab "$(basename "$(dirname "$hostfile")")"
  exit $rc
fi
say "left out: a lab of real hosts on this machine (it needs root on Linux with sshd and iproute2)"
