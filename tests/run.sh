#!/bin/sh
# The checks and the tests, on this machine as it is: what is missing is installed where we may, else left out.
#   sh tests/run.sh                 everything
#   sh tests/run.sh -k hostfile     any arguments go to pytest
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
exec .venv/bin/python -m pytest "$@"
