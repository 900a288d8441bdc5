#!/bin/sh
# The checks and the tests, on this machine as it is: missing packages are installed where that is allowed.
#   sh tests/run.sh                 checks, unit tests, and each command once on real hosts: about ten minutes on two cores
#   sh tests/run.sh --all           everything: all tests on real hosts, the pages, Ansible, Slurm, real wheels
#   sh tests/run.sh --rest          what --all has beyond the plain call
#   sh tests/run.sh -k hostfile     any other arguments go to pytest
. "$(dirname -- "$0")/../.ci/environment"

environment tests/requirements.lock
if lab_packages; then
  packages tcsh:tcsh fish:fish || say "left out: the tests with csh and fish (these shells can't be installed)"
else
  say "left out: the tests on real hosts (they need root on Linux with sshd and iproute2)"
fi

# Most tests wait for hosts, not for a processor: three files at a time, in order: a file of one long test would be last.
# A test that failed runs once more, alone, and is named as flaky if it passes then. The tests see nothing of the caller,
# and Ctrl-C ends them with their labs and processes: exec, so that a signal to this process arrives there too.
pytest() { exec .venv/bin/python tests/rerun_failed.py "$@"; }
three_at_a_time="-n 3 --dist loadfile --no-loadscope-reorder"
real_wheels="tests/stack --durations=0"

checks() {
  .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports --no-cache
}

# shellcheck disable=SC2086
set -e
case "${1:-}" in
  "") checks; pytest $three_at_a_time -m "not lab or core" tests/lab tests/process tests/unit ;;
  --all) checks; pytest $three_at_a_time tests/lab tests/package tests/process tests/unit --then $real_wheels ;;
  --rest) pytest $three_at_a_time -m "not core" tests/lab tests/package --then $real_wheels ;;
  *)
    checks
    case " $* " in
      *" --pdb"*|*" --trace "*) exec .venv/bin/python -m pytest "$@" ;; # at the terminal
      *) pytest --once "$@" ;;
    esac
    ;;
esac
