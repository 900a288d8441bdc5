# Replaces authorized_keys by a new text if it still has the old text.
# $1 the account's home   $2 bytes of the old text, or none   $3 bytes of the new text, or none
# $4 rmdir: remove ~/.ssh too if it is empty
# Stdin: the old text and the new one. Prints: done, same, moved (it no longer has the old text).
LC_ALL=C
export LC_ALL
umask 077
home=$1 old=$2 new=$3
keys=$home/.ssh/authorized_keys
real=$keys
[ ! -h "$keys" ] || real=$(readlink -f "$keys" 2>/dev/null)
if [ -d "$home/.ssh" ]; then
    [ -n "$real" ] || fail "$keys is a link that leads nowhere"
    place=${real%/*} fresh=
else
    real=$keys place=$home fresh=yes
fi
for litter in "$home/.ipexctl-trust".* "$place/.ipexctl-trust".*; do
    [ ! -d "$litter" ] || rm -rf "$litter"
done
lock "$place/.ipexctl-trust"
# A stale lock of an interrupted call from before ~/.ssh existed.
[ "$place" = "$home" ] || [ ! -d "$home/.ipexctl-trust" ] || (lock "$home/.ipexctl-trust") || :

wanted=0
[ "$old" = none ] || wanted=$old
skip=$wanted
[ "$new" = none ] || wanted=$((wanted + new))
output=$(cat 2>&1 >all) || fail "$place: ${output##*: }"
[ "$(wc -c <all)" -eq "$wanted" ] || fail "the connection was cut while the text came"
head -c "$skip" all >old || fail "$place can't be written to"
tail -c +$((skip + 1)) all >new || fail "$place can't be written to"

end_unchanged() { # "same" or "moved"
    echo "$1"
    exit
}
is_new() { [ "$new" != none ] && [ -f "$real" ] && cmp -s "$real" new; }

if [ -n "$fresh" ] && [ -d "$home/.ssh" ]; then
    end_unchanged moved
elif [ "$old" = none ]; then
    [ ! -e "$real" ] || { is_new && end_unchanged same; } || end_unchanged moved
else
    # Texts of different sizes differ.
    [ "$old" != "$new" ] || ! is_new || end_unchanged same
    cmp -s "$real" old || { is_new && end_unchanged same; } || end_unchanged moved
    [ -w "$real" ] || fail "$real is read-only"
fi

if [ "$new" = none ]; then
    output=$(rm -f "$real" 2>&1) || fail "${output#rm: }"
    unlock
    [ "$4" != rmdir ] || rmdir "$home/.ssh" 2>/dev/null
elif [ "$old" != none ]; then
    output=$(cp -p "$real" next 2>&1) || fail "${output#cp: }"
    # shellcheck disable=SC2012
    ls -ldn "$real" next | {
        read -r mode1 _ owner1 group1 _
        read -r mode2 _ owner2 group2 _
        # Ten characters; behind them is a mark for an ACL.
        [ "${mode1%"${mode1#??????????}"} $owner1 $group1" = "${mode2%"${mode2#??????????}"} $owner2 $group2" ]
    } || fail "$real belongs to another account or group, which can't be kept"
    written new next
    [ ! -e /sys/fs/selinux/enforce ] || chcon --reference="$real" next 2>/dev/null || :
    output=$(mv -f next "$real" 2>&1) || fail "${output#mv: }"
elif [ -n "$fresh" ]; then
    mkdir ssh && : >ssh/authorized_keys || fail "$home can't be written to"
    written new ssh/authorized_keys
    output=$(mv ssh "$home/.ssh" 2>&1) || fail "${output#mv: }"
    if [ -d "$home/.ssh/ssh" ]; then
        # Another process created ~/.ssh meanwhile, so the new directory was moved into it.
        rm -f "$home/.ssh/ssh/authorized_keys"
        rmdir "$home/.ssh/ssh"
        echo moved
        exit
    fi
    command -v restorecon >/dev/null && restorecon -R "$home/.ssh" >/dev/null 2>&1
else
    : >next || fail "$place can't be written to"
    written new next
    output=$(mv next "$real" 2>&1) || fail "${output#mv: }"
    command -v restorecon >/dev/null && restorecon "$real" >/dev/null 2>&1
fi
sync "$place" 2>/dev/null
echo "done"
