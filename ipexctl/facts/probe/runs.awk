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

function find_programs(part, i, pid, file, line, field, parent, uid, state) {
    for (i = 1; i <= count; i++) {
        split(list[i], part, ":")
        if (!(part[1] in kinds)) order[++total] = part[1]
        kinds[part[1]] = part[2]
        runs[part[1]] = part[3]
        limits[part[1]] = part[4]
    }
    for (i = 1; i <= file_count; i++) {
        file = pid = files[i]
        gsub(/[^0-9]/, "", pid)
        parent = uid = state = ""
        while ((getline line < file) > 0) {
            split(line, field, "[ \t]+")
            if (field[1] == "State:") state = field[2]
            else if (field[1] == "PPid:") parent = field[2]
            else if (field[1] == "Uid:") {
                uid = field[2]
                break
            }
        }
        close(file)
        if (state == "Z" || state == "X") continue
        if (pid in kinds) uids[pid] = uid
        else if ((parent in kinds) && kinds[parent] == "rank") {
            print "rank " parent ":" pid
            if (!((runs[parent], uid) in begun)) print "script " parent ":" pid
            begun[runs[parent], uid] = 1
        }
    }
    print "run.boot " boot_time()
    for (i = 1; i <= total; i++) {
        pid = order[i]
        if (uids[pid] == "") continue
        print "run.program " pid " " kinds[pid] " " runs[pid] " " uids[pid] " " start_of(pid) " " limits[pid]
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

# In kernel ticks since the boot.
function start_of(pid, line, field, file) {
    file = "/proc/" pid "/stat"
    line = ""
    getline line < file
    close(file)
    sub(/.*\) /, "", line)
    split(line, field, " ")
    return field[20]
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
