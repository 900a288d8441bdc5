put_account() { # uid pid
    name=$(limit id -nu "$1")
    # busybox's id accepts no numbers.
    [ -n "$name" ] || name=$(limit stat -c %U "/proc/$2")
    put run.account "$1 $name"
}

# Runs that are alive on this host, of every account whose processes are visible: their supervisors and rank wrappers,
# calls of `run --exclusive` that hold the host (host_lock.sh), and those that wait for it (host_wait.sh). Records are not
# read: those of other accounts can't be.
live_runs() {
    programs=
    [ -d /proc/self ] || return
    # hidepid: the runs of other accounts are unknown.
    [ -r /proc/1/cmdline ] || put run.hidden yes
    # The first search is cheap, and usually the only one.
    alike=$(grep -lasE -e '/agent\.zip.run\.(rank|supervisor)' -e 'ipexctl-host-(lock|wait)[[:cntrl:]]' /proc/[0-9]*/cmdline)
    [ -n "$alike" ] || return
    # From the first argument on: mpirun has the words of a rank wrapper in its line, too.
    programs=$(grep -asoHE \
        -e '^[^[:cntrl:]]+[[:cntrl:]]-IS?[[:cntrl:]][^[:cntrl:]]*/runs/[A-Za-z0-9_-]+/agent\.zip[[:cntrl:]]run\.(rank|supervisor)[[:cntrl:]](limit=[0-9]+[[:cntrl:]])?' \
        -e '[[:cntrl:]]ipexctl-host-(lock|wait)[[:cntrl:]][A-Za-z0-9_-]+[[:cntrl:]]([0-9]+[[:cntrl:]])?' \
        $alike | tr '\0' ' ' | while read -r line; do
        pid=${line#/proc/}
        pid=${pid%%/*}
        limit=
        case $line in
        *' run.supervisor limit='*) limit=${line##* limit=} line=${line% limit=*} ;;
        esac
        case $line in
        *' run.rank' | *' run.supervisor')
            run=${line##*/runs/}
            printf '%s ' "$pid:${line##* run.}:${run%%/*}:$limit"
            ;;
        *ipexctl-host-lock*)
            set -- ${line##*ipexctl-host-lock }
            printf '%s ' "$pid:lock:$1:"
            ;;
        *ipexctl-host-wait*)
            set -- ${line##*ipexctl-host-wait }
            printf '%s ' "$pid:wait:$1:$2"
            ;;
        esac
    done)
    [ -n "$programs" ] || return
    awk -v programs="$programs" "$runs_awk" /proc/[0-9]*/status | {
        ranks= files=
        while read -r key value; do
            case $key in
            rank)
                ranks="$ranks $value"
                put run.rank "${value%:*}"
                for at in "/proc/${value#*:}/task"/*/status; do
                    files="$files $at"
                done
                ;;
            script) [ -z "$1" ] || put run.script "${value%:*} $(program_of "${value#*:}")" ;;
            account) put_account $value ;;
            *) put "$key" "$value" ;;
            esac
        done
        [ -z "$ranks" ] || awk -v ranks="$ranks" "$runs_awk" $files
    }
}
