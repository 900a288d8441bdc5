# Writes known_hosts and config on node0, each atomically.
# $1 the --home directory   $2, $3 the bytes of known_hosts and config, sent on stdin in this order
LC_ALL=C
export LC_ALL
umask 077

# Copy a file and fsync it, or fail.
written() { # from, to: the file that keeps its mode and owner
    output=$(dd if="$1" of="$2" bs=65536 conv=fsync 2>&1) && cmp -s "$1" "$2" && return
    output=$(cat "$1" 2>&1 >"$2") && cmp -s "$1" "$2" || fail_by_output "$locked/$2 could not be written: ${output##*: }"
}

use_home "$1" || refuse_home
ssh=$1/ssh
check_ssh "$ssh" || refuse_home
lock "$ssh/.lock"
output=$(cat 2>&1 >all) || fail_by_output "$ssh: ${output##*: }"
[ "$(wc -c <all)" -eq $(($2 + $3)) ] || fail "the connection was cut while the files arrived"
head -c "$2" all >part && : >known_hosts || fail "$ssh can't be written to"
written part known_hosts
tail -c +$(($2 + 1)) all >part && : >config || fail "$ssh can't be written to"
written part config
output=$(mv -f known_hosts "$ssh/known_hosts" 2>&1) || fail_by_output "${output#mv: }"
output=$(mv -f config "$ssh/config" 2>&1) || fail_by_output "${output#mv: }"
echo "done"
