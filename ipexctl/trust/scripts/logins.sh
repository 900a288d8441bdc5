# Logs in from node0 to every node, many at once, each with a time limit. Prints "number code hex" as they end, or
# "number 0 =identity".
# $1 the ssh config, or empty for the account's own   $2 the command to run   $3… the nodes, as mpirun names them
LC_ALL=C
export LC_ALL
config=$1 question=$2
shift 2
newline='
'
limit=
command -v timeout >/dev/null && limit="timeout 25"

login() { # number, node
    if [ -n "$config" ]; then
        output=$($limit ssh -F "$config" -T -x -- "$2" "$question" 2>&1 </dev/null)
    else
        # Only a check: it adds no host key and leaves no shared connection open.
        output=$($limit ssh -o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=yes -o UpdateHostKeys=no \
            -o ControlMaster=no -T -x -- "$2" "$question" 2>&1 </dev/null)
    fi
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
    printf '%s %s %s\n' "$1" $code "$text"
    return $code
}

# Without a config, the check is whether all nodes can be reached already: the first failure decides.
for last do :; done
[ -n "$config" ] || login $(($# - 1)) "$last" || exit 0

number=0
for node do
    [ -z "$config" ] && [ $number -eq $(($# - 1)) ] && break
    login $number "$node" &
    number=$((number + 1))
    [ $((number % 64)) -ne 0 ] || wait
done
wait
