# Prints `PID UID START PERCENT NAME` for processes that use a tenth of a core or more for half a second.
#
# Input: PID:… of the programs of runs, which are left out with all that they started, then the stat files of all
# processes. Prints `seen` at the end.
/^\// { files[++file_count] = $0; next }
{
    split($0, part, ":")
    of_run[part[1]] = 1
}
END {
    seconds = -sample(before)
    system("sleep 0.5 || sleep 1")
    seconds += sample(now)
    for (pid in now) {
        percent = (pid in before) && seconds > 0 ? int((now[pid] - before[pid]) / seconds) : 0
        if (percent >= 10 && !belongs_to_run(pid)) describe(pid, percent)
    }
    print "seen"
}

# Ticks of each process; returns the seconds since the boot.
function sample(ticks, i, line, part, field) {
    for (i = 1; i <= file_count; i++) {
        split(files[i], part, "/")
        if (!read_stat(part[3], field)) continue
        parents[part[3]] = field[2]
        starts[part[3]] = field[20]
        ticks[part[3]] = field[12] + field[13]
    }
    getline line < "/proc/uptime"
    close("/proc/uptime")
    split(line, field, " ")
    return field[1]
}

function belongs_to_run(pid, steps) {
    for (steps = 0; pid > 1 && steps < 100; steps++) {
        if (pid in of_run) return 1
        pid = parents[pid]
    }
    return 0
}

function describe(pid, percent, status) {
    if (!read_status(pid, status)) return
    gsub(/[[:cntrl:]]/, "?", status["Name"])
    print pid " " status["Uid"] " " starts[pid] " " percent " " status["Name"]
}
