# The processes that hold the lock of this host, flock(2) on /proc: `PID UID START NAME` of each.
# The arguments are /proc/self/mountinfo and /proc/locks; the root of a procfs is inode 1.
FILENAME ~ /mountinfo$/ {
    if ($5 == "/proc") {
        split($3, device, ":")
        place = sprintf("%02x:%02x:1", device[1], device[2])
    }
    next
}

$2 == "FLOCK" && $6 == place {
    uid = ""
    while ((getline line < ("/proc/" $5 "/status")) > 0) {
        split(line, field, "[ \t]+")
        if (field[1] == "Name:") name = field[2]
        else if (field[1] == "Uid:") {
            uid = field[2]
            break
        }
    }
    line = ""
    getline line < ("/proc/" $5 "/stat")
    sub(/.*\) /, "", line)
    split(line, field, " ")
    if (uid != "") print $5 " " uid " " field[20] " " name
}
