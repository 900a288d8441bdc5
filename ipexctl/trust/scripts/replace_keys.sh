# Replaces authorized_keys by a new text if it still has the old text.
# $1 the account's home   $2, $3 the SHA-256 of the old text and of the new one, or none
# $4 rmdir: remove ~/.ssh too if it is empty
# Stdin: the new text. Prints done, same, or moved (the file no longer has the old text). Starts few programs, like probe.sh.
LC_ALL=C
export LC_ALL
umask 077
home=$1 old=$2 new=$3
keys=$home/.ssh/authorized_keys
real=$keys
[ ! -h "$keys" ] || real=$(readlink -f "$keys" 2>/dev/null)
if [ -d "$home/.ssh" ]; then
    [ -n "$real" ] || fail "$keys is a broken link"
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

if [ -n "$fresh" ] && [ -d "$home/.ssh" ]; then
    end_unchanged moved
elif [ "$old" != none ]; then
    [ -f "$real" ] || end_unchanged moved
    [ "$old" != "$new" ] || end_unless_old
    [ -w "$real" ] || fail "$real is read-only" read-only
fi

if [ "$new" = none ]; then
    end_unless_old
    output=$(rm -f "$real" 2>&1) || fail_by_output "${output#rm: }"
    unlock
    [ "$4" != rmdir ] || rmdir "$home/.ssh" 2>/dev/null
elif [ "$old" != none ]; then
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
elif [ -n "$fresh" ]; then
    mkdir ssh && : >ssh/authorized_keys || fail "$home can't be written to"
    receive ssh/authorized_keys
    output=$(mv ssh "$home/.ssh" 2>&1) || fail_by_output "${output#mv: }"
    if [ -d "$home/.ssh/ssh" ]; then
        # Another process created ~/.ssh meanwhile, so the new directory was moved into it.
        rm -f "$home/.ssh/ssh/authorized_keys"
        rmdir "$home/.ssh/ssh"
        end_unchanged moved
    fi
    command -v restorecon >/dev/null && restorecon -R "$home/.ssh" >/dev/null 2>&1
else
    : >next || fail "$place can't be written to"
    receive next
    end_unless_old
    output=$(mv next "$real" 2>&1) || fail_by_output "${output#mv: }"
    command -v restorecon >/dev/null && restorecon "$real" >/dev/null 2>&1
fi
sync "$place" 2>/dev/null
echo "done"
