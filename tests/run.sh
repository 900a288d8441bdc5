#!/bin/sh
# The checks and the tests, on this machine as it is: what is missing is installed where we may, else left out.
#   sh tests/run.sh                 everything; the real wheels last, where there is room and a network for them
#   sh tests/run.sh -k hostfile     any arguments go to pytest, and the real wheels are left out
. "$(dirname -- "$0")/../.ci/environment"

environment tests/requirements.lock
if lab_packages; then
  packages tcsh:tcsh fish:fish || say "left out: the tests with csh and fish (these shells can't be installed)"
else
  say "left out: the tests on real hosts (they need root on Linux with sshd and iproute2)"
fi

set -e
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/lint-imports --no-cache
[ $# -eq 0 ] || exec .venv/bin/python -m pytest "$@"
# Most tests wait for hosts, not for a processor: three files at a time, those with hosts first.
.venv/bin/python -m pytest -n 3 --dist loadfile tests/lab tests/package tests/unit
exec .venv/bin/python -m pytest tests/stack --exitfirst --durations=0
