# Writes known_hosts and config on node0, each atomically.
# $1 the --home directory   $2, $3 the bytes of known_hosts and config, sent on stdin in this order
LC_ALL=C
export LC_ALL
umask 077
ssh=$1/ssh
lock "$ssh/.lock"
output=$(cat 2>&1 >"$held/all") || fail "$ssh: ${output##*: }"
[ "$(wc -c <"$held/all")" -eq $(($2 + $3)) ] || fail "the connection was cut while the files came"
head -c "$2" "$held/all" >"$held/part" && : >"$held/known_hosts" || fail "$ssh can't be written to"
written "$held/part" "$held/known_hosts"
tail -c +$(($2 + 1)) "$held/all" >"$held/part" && : >"$held/config" || fail "$ssh can't be written to"
written "$held/part" "$held/config"
output=$(mv -f "$held/known_hosts" "$ssh/known_hosts" 2>&1) || fail "${output#mv: }"
output=$(mv -f "$held/config" "$ssh/config" 2>&1) || fail "${output#mv: }"
echo "done"
