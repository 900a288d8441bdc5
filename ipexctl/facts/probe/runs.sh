put_account() { # uid pid
    name=$(limit id -nu "$1")
    # busybox's id accepts no numbers.
    [ -n "$name" ] || name=$(limit stat -c %U "/proc/$2")
    put run.account "$1 $name"
}

# What the call of a process says about itself, as JSON: to its own account in the environment of one that holds or waits
# for the host, else in the plan of the run; to others in the arguments of the supervisor.
put_call() { # PID:KIND
    if ! [ -O "/proc/${1%:*}" ]; then
        call=$(tr '\0' '\n' <"/proc/${1%:*}/cmdline" | sed -n 's/^call=\({"script": "[^"]*", "tag": "[^"]*"}\)$/\1/p')
        [ -z "$call" ] || put run.call "${1%:*} $(printf %s "$call" | head -n 1 | cut -c 1-999)"
        return
    fi
    case $1 in
    *:rank | *:supervisor)
        plan=$(tr '\0' '\n' <"/proc/${1%:*}/cmdline" | sed -n 's,/agent\.zip$,/plan.json,p')
        call={$(sed -n -e '/^ "asked": {$/,/^ }/s/^  \("tag": ".*"\),*$/\1,/p' \
            -e '/^ "asked": {$/,/^ }/{/^  "argv": \[$/{n;s/^   \(".*"\),*$/"script": \1,/p;};}' \
            -e '/^ "by": {$/,/^ }/s/^  \("[a-z]*": ".*"\),*$/\1,/p' "$plan")'"": ""}'
        ;;
    *) call=$(tr '\0' '\n' <"/proc/${1%:*}/environ" | sed -n 's/^IPEXCTL_CALL=//p') ;;
    esac
    [ -z "$call" ] || put run.call "${1%:*} $(printf %s "$call" | tr -d '\n')"
}

# The words of a start or a wait of ipexctl behind the first argument. Any account can write them, so whose process has
# them is always printed.
host_words='[[:cntrl:]]ipexctl-host-(lock|pass|wait)[[:cntrl:]][A-Za-z0-9_-]{1,63}[[:cntrl:]]'

# The process that holds the lock of this host, unless `live_runs` prints it as a start of ipexctl.
lock_holder() {
    awk "$locks_awk$processes_awk" /proc/self/mountinfo /proc/locks | while read -r pid uid start name; do
        grep -aqsE "$host_words" "/proc/$pid/cmdline" && continue
        put run.holder "$pid $uid $start $name"
        put_account "$uid" "$pid"
    done
}

# Prints what an awk program finds in the files of processes; its last line is `seen`. mawk exits if a process ends while
# mawk reads its file, which happens on busy hosts, so it gets three tries.
read_processes() { # program, lines of its input
    program=$1
    shift
    for answer in 1 2 3; do
        answer=$(printf '%s\n' "$@" | awk "$program$processes_awk")
        case $answer in *seen) break ;; esac
    done
    printf '%s\n' "$answer"
}

# Runs that are alive on this host, of every account whose processes are visible: their supervisors and rank wrappers,
# calls of `run --exclusive` that hold the host (host_lock.sh) or pass its lock over, and those that wait for it
# (host_wait.sh). Records of other accounts can't be read. Fails if it can't look. A stranger's arguments are of any
# number and length: they go through pipes, and each process counts once.
live_runs() {
    programs=
    [ -d /proc/self ] || return
    # hidepid: the runs of other accounts are unknown.
    [ -r /proc/1/cmdline ] || put run.hidden yes
    # The first search is cheap, and usually the only one. For the probe (places.sh), it also looks for --home.
    alike=$(grep -lasE -e '/agent\.zip.run\.(rank|supervisor)' -e "$host_words" ${in_home:+-e "$in_home"} \
        /proc/[0-9]*/cmdline)
    [ $? -lt 126 ] || return
    [ -n "$alike" ] || return 0
    # From the first argument on: mpirun has the words of a rank wrapper in its line, too.
    programs=$(grep -asoHE \
        -e '^[^[:cntrl:]]+[[:cntrl:]]-IS?[[:cntrl:]][^[:cntrl:]]*/runs/[A-Za-z0-9_-]{1,63}/agent\.zip[[:cntrl:]]run\.(rank|supervisor)[[:cntrl:]](limit=[0-9]+[[:cntrl:]])?' \
        -e "$host_words([0-9]+[[:cntrl:]])?" \
        $alike | tr '\0' ' ' | awk -F : '$1 != last { print; last = $1 } END { print "seen" }' | while read -r line; do
        pid=${line#/proc/}
        pid=${pid%%/*}
        limit=
        case $line in
        seen) printf seen ;;
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
        *ipexctl-host-pass*)
            set -- ${line##*ipexctl-host-pass }
            printf '%s ' "$pid:pass:$1:"
            ;;
        *ipexctl-host-wait*)
            set -- ${line##*ipexctl-host-wait }
            printf '%s ' "$pid:wait:$1:$2"
            ;;
        esac
    done)
    case $programs in *seen) programs=${programs%seen} ;; *) return 1 ;; esac
    [ -n "$programs" ] || return 0
    read_processes "$runs_awk" $programs /proc/[0-9]*/status | {
        ranks= seen=
        while read -r key value; do
            case $key in
            rank)
                ranks="$ranks $value"
                put run.rank "${value%:*}"
                ;;
            seen) seen=yes ;;
            script) [ -z "$1" ] || put run.script "${value%:*} $(program_of "${value#*:}")" ;;
            call) put_call "$value" ;;
            account) put_account $value ;;
            *) put "$key" "$value" ;;
            esac
        done
        [ -z "$ranks" ] || for rank in $ranks; do
            printf '%s\n' "rank:$rank" "/proc/${rank#*:}/task"/*/status
        done | awk "$runs_awk$processes_awk"
        [ -n "$seen" ]
    }
}
