# Sends the signal $2 to the supervisor of the run in the directory $1, which is found by its command line, and waits for
# $3 seconds. Fails unless the supervisor was there, and has ended.
supervisors() {
    for process in /proc/[0-9]*; do
        [ -O "$process" ] && tr '\0' ' ' <"$process/cmdline" | grep -qF " $1/agent.zip run.supervisor " &&
            echo "${process#/proc/}"
    done 2>/dev/null
}
kill -"$2" $(supervisors "$1") 2>/dev/null || exit 1
left=$3
while [ "$(supervisors "$1")" ]; do
    [ $((left -= 1)) -ge 0 ] || exit 1
    sleep 1
done
