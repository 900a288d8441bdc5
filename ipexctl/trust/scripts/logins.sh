# Logs in from node0 to every node, many at once, each with a time limit. Prints "number code hex" as they end, or
# "number 0 =identity".
# $1 the ssh config, or empty for the account's own   $2 the command to run   $3 seconds to connect
# $4 seconds for a login   $5 how many at once   $6 "last" if no other node is tried when the login to the last one fails
# $7… the nodes, as mpirun names them
LC_ALL=C
export LC_ALL
config=$1 command=$2 connect=$3 seconds=$4 at_once=$5 decides=$6
shift 6
newline='
'
limit=
command -v timeout >/dev/null && limit="timeout $seconds"

login() { # number, node
    number=$1 node=$2
    if [ -n "$config" ]; then
        set -- -F "$config"
    else
        # This is only a check: it adds no host key and leaves no shared connection open.
        set -- -o BatchMode=yes -o StrictHostKeyChecking=yes -o UpdateHostKeys=no -o ControlMaster=no
    fi
    output=$($limit ssh -o ConnectTimeout="$connect" "$@" -T -x -- "$node" "$command" 2>&1 </dev/null)
    code=$?
    text=
    # An output may have many megabytes, on which patterns take minutes, and no line may exceed PIPE_BUF.
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
    return $code
}

count=$#
if [ "$decides" = last ]; then
    count=$(($# - 1))
    for node do :; done
    login $count "$node" || exit 0
fi

number=0
for node do
    [ $number -lt $count ] || break
    login $number "$node" &
    number=$((number + 1))
    [ $((number % at_once)) -ne 0 ] || wait
done
wait
