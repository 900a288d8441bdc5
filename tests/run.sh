#!/bin/sh
# The checks and the tests, on this machine as it is. System packages that tests on real hosts lack are installed if you
# agree at the terminal or say so: sh tests/run.sh --install-packages [any of these arguments].
#   sh tests/run.sh                 checks, unit tests, and each command once on real hosts: about six minutes on two cores
#   sh tests/run.sh --changed       checks, and the tests nearest to what differs from main; it says what it leaves out
#   sh tests/run.sh --all           everything: all tests on real hosts, the pages, Ansible, Slurm, real wheels
#   sh tests/run.sh --machines      doctor, plans and trainings on machines of QEMU: sockets, SNC, HBM, limits of cgroups
#   sh tests/run.sh --ci            after the plain call: what changed since the last landing, and a share of the rest
#   sh tests/run.sh -k hostfile     any other arguments go to pytest
. "$(dirname -- "$0")/../.ci/environment"

if [ "${1:-}" = --install-packages ]; then
  export IPEXCTL_TESTS_PACKAGES=yes
  shift
fi
environment tests/requirements.txt

system_packages() {
  packages git:git || say "left out: the tests that need git"
  if lab_packages; then
    packages tcsh:tcsh fish:fish jq:jq parallel:parallel ||
      say "left out: the tests with csh, fish, jq and GNU parallel"
  else
    say "left out: the tests on real hosts (they need root on Linux with sshd and iproute2)"
  fi
}

# needs_packages ARGUMENT…: 1 if these arguments of pytest name only files that are absent or whose tests need none.
needs_packages() {
  named=
  for argument in "$@"; do
    path=${argument%%::*}
    case $path in
      -* | */../*) ;;
      tests/unit | tests/unit/* | tests/checks | tests/checks/*) named=yes ;;
      tests | tests/* | ./* | /* | *.py) named=yes; [ ! -e "$path" ] || return 0 ;;
    esac
  done
  [ -z "$named" ]
}

# Most tests wait for hosts, not for a processor: three or four files at a time, in order: a long file would be last.
# The files of tests that failed run once more, and a test that passes then is named as flaky. The tests see nothing of
# the caller, and Ctrl-C ends them with their labs and processes: exec, so that a signal to this process arrives there too.
pytest() { exec .venv/bin/python tests/rerun_failed.py "$@"; }
at_a_time="--dist loadfile --no-loadscope-reorder -n"
most="tests/lab tests/package tests/process tests/unit"

# An image of Debian takes 12 minutes beside other work and 2 GB, once. Without KVM a machine takes minutes to boot and to train.
machine_images() {
  packages qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm qemu-aarch64-static:qemu-user-static \
    debootstrap:debootstrap mke2fs:e2fsprogs ip:iproute2 ssh:openssh-client &&
    for image in bookworm bookworm-arm64 trixie; do
      [ -e /var/cache/ipexctl-machines/$image ] || .venv/bin/python -m tools.machines build $image || return 1
    done
}
has_kvm() { [ -w /dev/kvm ] && { [ -e /sys/module/kvm_intel ] || [ -e /sys/module/kvm_amd ]; }; }

# shellcheck disable=SC2086
set -e
case "${1:-}" in
  "")
    system_packages
    # In a landing's bare system, a share of the unit tests: .ci/run asks for it, and other landings have the others.
    [ -z "${IPEXCTL_TESTS_SHARE:-}" ] || most="${most% *} $(.venv/bin/python tests/selection.py units)"
    pytest $at_a_time 3 --whole /dev/null tests/checks $most
    ;;
  --changed)
    files=$(.venv/bin/python tests/selection.py changed)
    ! needs_packages tests/checks $files || system_packages
    pytest --once -q -n 2 --dist loadfile tests/checks $files
    ;;
  --all)
    system_packages
    machines=
    if has_kvm && machine_images; then
      machines=tests/machines
      export IPEXCTL_TESTS_MACHINES=yes
    else
      say "left out: machines of QEMU, which take hours without KVM (sh tests/run.sh --machines)"
    fi
    pytest $at_a_time 3 tests/checks tests/stack $machines $most
    ;;
  --machines)
    export IPEXCTL_TESTS_MACHINES=yes
    machine_images
    pytest --once --durations 0 tests/machines
    ;;
  --ci)
    system_packages
    .venv/bin/python tests/selection.py ci >.venv/whole-files
    # The plain call has run the other unit tests; each worker would take 14 s to collect them.
    needing=$(grep -rl 'needs(' tests/unit --include='test_*.py')
    pytest $at_a_time 4 --after-plain .venv/whole-files tests/stack ${most% *} $needing
    ;;
  *)
    ! needs_packages "$@" || system_packages
    case " $* " in
      *" --pdb"*|*" --trace "*) exec .venv/bin/python -m pytest "$@" ;; # at the terminal
      *) pytest --once "$@" ;;
    esac
    ;;
esac
