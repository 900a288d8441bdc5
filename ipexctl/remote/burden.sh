# What keeps a host busy now: its load, its processors, the percent of its memory that is available, and up to four lines
# COUNT STATE ACCOUNT PROGRAM of what computes (R) or waits for a disk or file server (D).
read -r load rest </proc/loadavg
set -- /sys/devices/system/cpu/cpu[0-9]*
echo "$load $# $(awk '/^MemTotal:/ { all = $2 } /^MemAvailable:/ { print int(100 * $2 / all) }' /proc/meminfo)"
LC_ALL=C ps -eo state=,user:32=,comm= |
    awk '($1 == "R" || $1 == "D") && $3 != "ps" { count[$0]++ } END { for (line in count) print count[line], line }' |
    sort -rn | head -n 4
