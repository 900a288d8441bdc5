# Logs into every node from node0, many at once and each for a bounded time. Answers "number code hex" as they end.
# $1 the config to go by, or empty for the account's own   $2 the question   $3… the nodes, as mpirun names them
LC_ALL=C
export LC_ALL
config=$1 question=$2
shift 2
limit=
command -v timeout >/dev/null && limit="timeout 25"

login() { # number, node
    if [ -n "$config" ]; then
        said=$($limit ssh -F "$config" -T -x -- "$2" "$question" 2>&1 </dev/null)
    else
        # It is only a question: no key is learnt by it, and no connection stays open for others.
        said=$($limit ssh -o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=yes -o UpdateHostKeys=no \
            -o ControlMaster=no -T -x -- "$2" "$question" 2>&1 </dev/null)
    fi
    code=$?
    # One write, so that the answers of many don't mix.
    printf '%s %s %s\n' "$1" $code "$(printf '%s' "$said" | tail -c 1500 | od -An -v -tx1 | tr -d ' \n')"
    return $code
}

# Where the question is whether all can be reached as things are, the first no is the answer.
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
