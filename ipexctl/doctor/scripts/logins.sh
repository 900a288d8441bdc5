# Logs into every node from node0, all at once, and is through in a given time. Answers "number code hex" as they end.
# $1 trust's ssh config, or empty for the account's own   $2 the question   $3 seconds   $4… the nodes, as mpirun names them
# trust asks the same to decide what it has to do, and takes its time; here every node's own answer counts.
LC_ALL=C
export LC_ALL
config=$1 question=$2 seconds=$3
shift 3
limit=
command -v timeout >/dev/null && limit="timeout $((seconds + 1))"

login() { # number, node
    if [ -n "$config" ]; then
        set -- "$1" "$2" -F "$config"
    else
        # It is only a question: no key is learnt by it, and no connection stays open for others.
        set -- "$1" "$2" -o BatchMode=yes -o StrictHostKeyChecking=yes -o UpdateHostKeys=no -o ControlMaster=no
    fi
    number=$1 node=$2
    shift 2
    said=$($limit ssh -o ConnectTimeout="$seconds" "$@" -T -x -- "$node" "$question" 2>&1 </dev/null)
    code=$?
    # One write, so that the answers of many don't mix.
    printf '%s %s %s\n' "$number" $code "$(printf '%s' "$said" | tail -c 1500 | od -An -v -tx1 | tr -d ' \n')"
}

number=0
for node do
    login $number "$node" &
    number=$((number + 1))
done
wait
