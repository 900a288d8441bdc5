# Writes known_hosts and config on node0, each atomically.
# $1 the --home directory   $2, $3 the bytes of known_hosts and config, sent on stdin in this order
LC_ALL=C
export LC_ALL
umask 077
ssh=$1/ssh
lock "$ssh/.lock"
output=$(cat 2>&1 >all) || fail "$ssh: ${output##*: }"
[ "$(wc -c <all)" -eq $(($2 + $3)) ] || fail "the connection was cut while the files came"
head -c "$2" all >part && : >known_hosts || fail "$ssh can't be written to"
written part known_hosts
tail -c +$(($2 + 1)) all >part && : >config || fail "$ssh can't be written to"
written part config
output=$(mv -f known_hosts "$ssh/known_hosts" 2>&1) || fail "${output#mv: }"
output=$(mv -f config "$ssh/config" 2>&1) || fail "${output#mv: }"
echo "done"
