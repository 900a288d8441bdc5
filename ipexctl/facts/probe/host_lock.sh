# Holds the lock of this host for the run $1, until $2 seconds after the last line on stdin, because sshd may keep a lost
# connection for hours. It runs below flock, is visible to all accounts, and ends with its stdin, so that a killed call
# holds nothing. A line with the run's directory says that the run has started: the lock then stays until a program of
# the run has appeared or the file of its job is gone, because a short run may already be over. A line that begins with
# a brace describes the call to its own account, which alone can read the environment of a process.
exec 2>/dev/null
echo held
command -v timeout >/dev/null || timeout() { shift; "$@"; }
# Descriptor 3 is the lock, which must end with this shell. `read` takes one line; head would take those after it, too.
rundir='still here'
while :; do
    case $rundir in
    'still here') ;;
    '{'*) export IPEXCTL_CALL="$rundir" ;;
    *) break ;;
    esac
    rundir=$(timeout "$2" /bin/sh -c 'read -r line && printf "%s\n" "$line"' "$0" "$1" 3<&-)
done
[ -n "$rundir" ] || exit 0
exec </dev/null >/dev/null
left=50
while [ $left -gt 0 ] && [ -e "$rundir/job.json" ]; do
    ! grep -aqsE "/runs/$1/agent\.zip.run\.(rank|supervisor)" /proc/[0-9]*/cmdline || break
    sleep 0.3 || sleep 1
    left=$((left - 1))
done &
