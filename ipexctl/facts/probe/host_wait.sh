# A place in this host's queue for the run $1, which waits for at most $2 seconds. The place is the start time of the
# process named $4. That process starts while its call alone enters the queues of all its hosts, so two calls are in the
# same order on each host that both want. The lock of the directory $3 says who may enter; an account that keeps it
# delays the others by five seconds. The place ends with stdin, or after a minute without a line, so a call that was
# killed, suspended or cut off keeps no place.
exec 2>/dev/null 3<&0
command -v timeout >/dev/null || timeout() { shift; "$@"; }
if [ -d "$3" ]; then
    exec 9<"$3"
    flock -w 5 9
fi
echo entered
IPEXCTL_CALL=$(timeout 60 head -n 1 9<&-) # describes the call to its own account
[ -n "$IPEXCTL_CALL" ] || exit 1
export IPEXCTL_CALL
/bin/sh -c 'echo placed; while [ -n "$(timeout 60 head -n 1)" ]; do :; done' "$4" "$1" "$2" <&3 3<&- 9<&- &
exec 3<&- 9<&-
wait
