# Runs that are alive on this host, of every account whose processes are visible: their supervisors and rank wrappers,
# and calls of `run --exclusive` that hold the host (host_lock.sh). Records are not read: those of other accounts can't be.
live_runs() {
    [ -d /proc/self ] || return
    # hidepid: nothing is known about the runs of other accounts.
    [ -r /proc/1/cmdline ] || put run.hidden yes
    # The first look is cheap, and mostly the only one.
    alike=$(grep -lasE -e '/agent\.zip.run\.(rank|supervisor)' -e 'ipexctl-host-lock[[:cntrl:]]' /proc/[0-9]*/cmdline)
    [ -n "$alike" ] || return
    # From the first argument on: mpirun has the words of a rank wrapper in its line, too.
    programs=$(grep -asoHE \
        -e '^[^[:cntrl:]]+[[:cntrl:]]-IS?[[:cntrl:]][^[:cntrl:]]*/runs/[A-Za-z0-9_-]+/agent\.zip[[:cntrl:]]run\.(rank|supervisor)[[:cntrl:]]' \
        -e '[[:cntrl:]]ipexctl-host-lock[[:cntrl:]][A-Za-z0-9_-]+[[:cntrl:]]' \
        $alike | tr '\0' ' ' | while read -r line; do
        pid=${line#/proc/}
        pid=${pid%%/*}
        case $line in
        *' run.rank' | *' run.supervisor')
            run=${line##*/runs/}
            printf '%s ' "$pid:${line##* run.}:${run%%/*}"
            ;;
        *ipexctl-host-lock*) printf '%s ' "$pid:lock:${line##*ipexctl-host-lock }" ;;
        esac
    done)
    [ -n "$programs" ] || return
    awk -v programs="$programs" "$runs_awk" /proc/[0-9]*/status | {
        ranks= files=
        while read -r key value; do
            case $key in
            rank)
                ranks="$ranks $value"
                for at in "/proc/${value#*:}/task"/*/status; do
                    files="$files $at"
                done
                ;;
            account)
                name=$(limit id -nu "${value% *}")
                # That of busybox knows no numbers.
                [ -n "$name" ] || name=$(limit stat -c %U "/proc/${value#* }")
                put run.account "${value% *} $name"
                ;;
            *) put "$key" "$value" ;;
            esac
        done
        [ -z "$ranks" ] || awk -v ranks="$ranks" "$runs_awk" $files
    }
}
