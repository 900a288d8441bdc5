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
    if (read_status($5, status) && read_stat($5, field))
        print $5 " " status["Uid"] " " field[20] " " status["Name"]
}
