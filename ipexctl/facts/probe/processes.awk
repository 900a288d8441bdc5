# Functions that the programs about processes have in common; appended to each of them.

# The fields of a stat file that follow the name, which may have line breaks: 1 state, 2 parent, 12 and 13 the ticks of
# processor time, 20 the start in ticks since the boot. Returns their number, 0 if the process is gone.
function read_stat(pid, field, file, line, more) {
    file = "/proc/" pid "/stat"
    line = ""
    while (line !~ /\) [A-Z] [0-9]/ && (getline more < file) > 0) line = line more
    close(file)
    return sub(/.*\) /, "", line) ? split(line, field, " ") : 0
}

# Name, State, PPid and Uid of a status file, into `status`. Returns 0 if the process is gone.
function read_status(pid, status, file, line, key) {
    split("", status)
    file = "/proc/" pid "/status"
    while (!("Uid" in status) && (getline line < file) > 0) {
        key = line
        sub(/:.*/, "", key)
        sub(/^[^:]*:[ \t]*/, "", line)
        if (key != "Name") sub(/[ \t].*/, "", line)
        status[key] = line
    }
    close(file)
    return "Uid" in status
}
