# A call of `run --exclusive` holds this host as long as this process lives: it is visible to other calls, of whatever
# account, and ends with its stdin, so that a killed call holds nothing.
#
# $run is the run; stdin is descriptor 3. Prints the live runs after itself has become visible, and again for each line
# `look`. After `started RUNDIR` it stays until a program of the run takes its place, or has: ranks that have read their
# job remove its file, and a short run may be over by then.
looked() {
    live_runs
    put looked yes
}
looked
while read -r word rundir <&3; do
    case $word in
    look) looked ;;
    started)
        (
            left=50
            while [ $left -gt 0 ] && [ -e "$rundir/job.json" ]; do
                ! grep -aqsE "/runs/$run/agent\.zip.run\.(rank|supervisor)" /proc/[0-9]*/cmdline || break
                sleep 0.3 || sleep 1
                left=$((left - 1))
            done
        ) >/dev/null 3<&- &
        exit 0
        ;;
    esac
done
