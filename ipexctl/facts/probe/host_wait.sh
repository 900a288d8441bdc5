# A place in the queue for this host, for the run $1, which waits for at most $2 seconds. Its place is the start of the process named $4,
# as the kernel knows it. That process begins while the call is alone in entering the queues of all its hosts, so any two
# calls are in the same order on each host that both want. $3: the directory whose lock says who enters; an account that
# keeps this lock delays the others by five seconds. It ends with stdin, or after a minute without a line there: a killed
# call waits for nothing, nor does one that is suspended or cut off.
exec 2>/dev/null 3<&0
command -v timeout >/dev/null || timeout() { shift; "$@"; }
if [ -d "$3" ]; then
    exec 9<"$3"
    flock -w 5 9
fi
echo entered
[ -n "$(timeout 60 head -n 1 9<&-)" ] || exit 1
/bin/sh -c 'echo placed; while [ -n "$(timeout 60 head -n 1)" ]; do :; done' "$4" "$1" "$2" <&3 3<&- 9<&- &
exec 3<&- 9<&-
wait
