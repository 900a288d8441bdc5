#!/bin/sh
# A lab of three real SSH hosts on this machine: made, used and removed. Needs root on Linux.
. "$(dirname -- "$0")/../.ci/environment"

environment tests/requirements.lock
ipexctl=.venv/bin/ipexctl

show() { printf '\n$ ipexctl %s\n' "$*"; "$ipexctl" "$@"; }

if ! lab_packages; then
  say "a lab needs root on Linux with sshd and iproute2"
  exit 1
fi
printf '\n$ ipexctl lab up --hosts 3\n'
hostfile=$("$ipexctl" lab up --hosts 3) || exit
printf '%s\n' "$hostfile"
show exec -H "$hostfile" -- hostname && show exec -H "$hostfile" --gather -- uname -s
rc=$?
show lab down --lab "$(basename "$(dirname "$hostfile")")"
exit $rc
