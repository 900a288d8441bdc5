# Replaces authorized_keys by a new text if it still has the old text.
# $1 the account's home   $2, $3 the SHA-256 of the old text and of the new one; the new one may be none
# $4 rmdir: remove ~/.ssh too if it is empty
# Stdin: the new text. Prints done, same, or moved (the file no longer has the old text). Starts few programs, like probe.sh.
LC_ALL=C
export LC_ALL
umask 077
home=$1 old=$2 new=$3
keys=$home/.ssh/authorized_keys
real=$keys
[ ! -h "$keys" ] || real=$(readlink -f "$keys" 2>/dev/null)
[ -n "$real" ] || fail "$keys is a broken link"
place=${real%/*}
for litter in "$home/.ipexctl-trust".* "$place/.ipexctl-trust".*; do
    [ ! -d "$litter" ] || rm -rf "$litter"
done
lock "$place/.ipexctl-trust"
# A stale lock of an interrupted call from before ~/.ssh existed.
[ "$place" = "$home" ] || [ ! -d "$home/.ipexctl-trust" ] || (lock "$home/.ipexctl-trust") || :

command -v sha256sum >/dev/null || fail "there is no sha256sum, which is in coreutils" no-sha256sum
newline='
'

sum_of() { # file: sets $sum
    sum=$(sha256sum 2>/dev/null <"$1")
    sum=${sum%% *}
}
receive() { # file that keeps its mode and owner: the new text, which arrives on stdin
    reason="the connection was cut while the text arrived"
    if ! output=$(dd of="$1" bs=65536 conv=fsync 2>&1); then
        reason=${output%%"$newline"*}
        reason="$place: ${reason##*: }"
    fi
    sum_of "$1"
    [ "$sum" != "$new" ] || return 0
    case $output in
    *fsync*) # An old dd doesn't know it, and has read nothing.
        reason="the connection was cut while the text arrived"
        output=$(cat 2>&1 >"$1") || reason="$place: ${output##*: }"
        sum_of "$1"
        ;;
    esac
    [ "$sum" = "$new" ] || fail_by_output "$reason"
}
end_unchanged() { # "same" or "moved"
    echo "$1"
    exit
}
end_unless_old() { # Called last: another program may change the file while the new text comes.
    sum=none
    [ ! -e "$real" ] || sum_of "$real"
    [ "$sum" != "$new" ] || end_unchanged same
    [ "$sum" = "$old" ] || end_unchanged moved
}

[ -f "$real" ] || end_unchanged moved
[ "$old" != "$new" ] || end_unless_old
[ -w "$real" ] || fail "$real is read-only" read-only

if [ "$new" = none ]; then
    end_unless_old
    output=$(rm -f "$real" 2>&1) || fail_by_output "${output#rm: }"
    unlock
    [ "$4" != rmdir ] || rmdir "$home/.ssh" 2>/dev/null
else
    output=$(cp -p "$real" next 2>&1) || fail_by_output "${output#cp: }"
    # shellcheck disable=SC2012
    listed=$(ls -ldn "$real" next)
    {
        read -r mode1 _ owner1 group1 _
        read -r mode2 _ owner2 group2 _
    } <<END
$listed
END
    # Ten characters; behind them is a mark for an ACL. Some shells need a file for the text above: then all is empty.
    [ -n "$group2" ] &&
        [ "${mode1%"${mode1#??????????}"} $owner1 $group1" = "${mode2%"${mode2#??????????}"} $owner2 $group2" ] ||
        fail "$real belongs to another account or group, which can't be kept" owner
    receive next
    [ ! -e /sys/fs/selinux/enforce ] || chcon --reference="$real" next 2>/dev/null || :
    end_unless_old
    output=$(mv -f next "$real" 2>&1) || fail_by_output "${output#mv: }"
fi
sync "$place" 2>/dev/null
echo "done"
