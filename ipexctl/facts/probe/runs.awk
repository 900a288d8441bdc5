# The programs of runs, and the cores of their ranks.
#
# Input: the lines below, then paths of status files.
#
# PID:KIND:RUN:LIMIT  of each program, and the status files of all processes. Prints for each
#           `run.program PID KIND RUN UID START LIMIT`, then `rank WRAPPER:PID` for each process that a rank wrapper
#           has started, `script WRAPPER:PID` for the first of a run, `call PID:KIND` for each but all wrappers after
#           the first of a run, `account UID PID` for each account, and `seen` at the end.
# rank:WRAPPER:PID    of those processes, and the status files of their threads, as OpenMP binds the
#           first thread to a part of the rank's cores. Prints `run.cores WRAPPER CORES`, each list once.
/^\// { files[++file_count] = $0; next }
/^rank:/ {
    split($0, part, ":")
    wrappers[part[3]] = part[2]
    next
}
{ list[++count] = $0 }
END {
    if (count) find_programs()
    else find_cores()
}

function find_programs(part, i, pid, status, parent, field) {
    for (i = 1; i <= count; i++) {
        split(list[i], part, ":")
        if (!(part[1] in kinds)) order[++total] = part[1]
        kinds[part[1]] = part[2]
        runs[part[1]] = part[3]
        limits[part[1]] = part[4]
    }
    for (i = 1; i <= file_count; i++) {
        pid = files[i]
        gsub(/[^0-9]/, "", pid)
        if (!read_status(pid, status) || status["State"] ~ /^[ZX]/) continue
        parent = status["PPid"]
        if (pid in kinds) uids[pid] = status["Uid"]
        else if ((parent in kinds) && kinds[parent] == "rank") {
            print "rank " parent ":" pid
            if (!((runs[parent], status["Uid"]) in begun)) print "script " parent ":" pid
            begun[runs[parent], status["Uid"]] = 1
        }
    }
    print "run.boot " boot_time()
    for (i = 1; i <= total; i++) {
        pid = order[i]
        if (uids[pid] == "" || !read_stat(pid, field)) continue
        print "run.program " pid " " kinds[pid] " " runs[pid] " " uids[pid] " " field[20] " " limits[pid]
        if (kinds[pid] != "rank" || !((runs[pid], uids[pid]) in called)) print "call " pid ":" kinds[pid]
        if (kinds[pid] == "rank") called[runs[pid], uids[pid]] = 1
        if (!(uids[pid] in named)) print "account " uids[pid] " " pid
        named[uids[pid]] = 1
    }
    print "seen"
}

function boot_time(line, field) {
    while ((getline line < "/proc/stat") > 0)
        if (line ~ /^btime /) {
            split(line, field, " ")
            return field[2]
        }
}

function find_cores(i, line, field, path) {
    for (i = 1; i <= file_count; i++) {
        split(files[i], path, "/")
        while ((getline line < files[i]) > 0)
            if (line ~ /^Cpus_allowed_list:/) {
                split(line, field, "[ \t]+")
                if (!((path[3], field[2]) in seen)) print "run.cores " wrappers[path[3]] " " field[2]
                seen[path[3], field[2]] = 1
            }
        close(files[i])
    }
}
