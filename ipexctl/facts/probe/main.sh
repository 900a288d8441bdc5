# The order of things. The clock comes first: its first byte is what our own clock is held against.
put clock "$(date +%s.%N)"
put probe 1
put peers "$peers"
put path "$login_path"
kernel=$(uname -s)
jobs='our_home our_envs our_jobs disks names software pythons mpis'
machine() {
    if [ "$kernel" = Linux ]; then
        for part in system cpu status cgroup memory rules network; do "$part"; done
    else
        other_kernel
    fi
}
start_jobs $jobs | {
    machine </dev/null
    collect $jobs
}
put end "$(date +%s.%N)"
