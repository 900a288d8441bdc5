# Holds the lock of this host for the run $1, at most $2 seconds: sshd may keep a lost connection for hours. It runs below
# flock, is visible to all accounts, and ends with its stdin, so that a killed call holds nothing. A line there is the
# directory of the run, which has started: it stays then until a program of the run takes its place, or has: ranks that
# have read their job remove its file, and a short run may be over by then.
exec 2>/dev/null
echo held
command -v timeout >/dev/null || timeout() { shift; "$@"; }
# 3: the lock, which is to end with this shell.
rundir=$(timeout "$2" head -n 1 3<&-)
[ -n "$rundir" ] || exit 0
exec </dev/null >/dev/null
left=50
while [ $left -gt 0 ] && [ -e "$rundir/job.json" ]; do
    ! grep -aqsE "/runs/$1/agent\.zip.run\.(rank|supervisor)" /proc/[0-9]*/cmdline || break
    sleep 0.3 || sleep 1
    left=$((left - 1))
done &
