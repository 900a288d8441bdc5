# Logs into every node from node0, all at once, within a time limit. Prints "number code hex" as each login ends, or
# "number 0 =identity".
# $1 ssh config of trust, or empty for that of the account   $2 command   $3 seconds   $4… nodes as mpirun names them
LC_ALL=C
export LC_ALL
config=$1 command=$2 seconds=$3
shift 3
newline='
'
limit=
command -v timeout >/dev/null && limit="timeout $((seconds + 1))"

login() { # number, node
    if [ -n "$config" ]; then
        set -- "$1" "$2" -F "$config"
    else
        # A check only: it stores no host key, and leaves no connection open.
        set -- "$1" "$2" -o BatchMode=yes -o StrictHostKeyChecking=yes -o UpdateHostKeys=no -o ControlMaster=no
    fi
    number=$1 node=$2
    shift 2
    output=$($limit ssh -o ConnectTimeout="$seconds" "$@" -T -x -- "$node" "$command" 2>&1 </dev/null)
    code=$?
    text=
    # A longer output may be any number of megabytes, on which patterns take minutes; and no line may exceed PIPE_BUF.
    if [ ${#output} -le 1500 ]; then
        last=${output##*"$newline"}
        case $code/$last in
        *[!\ -~]*) ;;
        0/ipexctl-is*) text="=$last" ;;
        esac
    fi
    # Most logins succeed, and need none of these programs.
    [ -n "$text" ] || text=$(printf '%s' "$output" | tail -c 1500 | od -An -v -tx1 | tr -d ' \n')
    # One write, so that lines of several logins don't mix.
    printf '%s %s %s\n' "$number" $code "$text"
}

number=0
for node do
    login $number "$node" &
    number=$((number + 1))
done
wait
