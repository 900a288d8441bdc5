# Prints what `trust` of earlier versions may have left on a host, as records "name value" that end with a NUL byte; the
# content of a file is in hex.
# $1 the --home directory: absolute, or ~/…
# $2 node0 on node0, which has key and config; else empty
LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
export LC_ALL PATH

tell() { printf '%s %s\000' "$1" "$2"; }
file() { [ -f "$2" ] && [ -r "$2" ] && { printf '%s ' "$1" && od -An -v -tx1 <"$2"; printf '\000'; }; }

user=$LOGNAME # by sshd
[ -n "$SSH_CONNECTION" ] && [ -n "$user" ] || user=$(id -un)
# The account's home as sshd uses it: $HOME may differ, for example under sudo.
case $user in
'' | *[!A-Za-z0-9._-]* | -*) home=$HOME ;;
*) eval "home=~$user" ;;
esac
[ -d "$home" ] || home=$HOME
case $1 in
'~') ipexctl_home=$HOME ;;
'~/'*) ipexctl_home=$HOME/${1#'~/'} ;;
*) ipexctl_home=$1 ;;
esac
tell user "$user"
tell home "$home"
tell ipexctl_home "$ipexctl_home"

# The identity of the home's store: the source of a network filesystem, else the machine.
boot= name=
{ read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
{ read -r name </proc/sys/kernel/hostname; } 2>/dev/null || name=$(uname -n)
# shellcheck disable=SC2012
inode=$(ls -ldi "$home/." 2>/dev/null | awk '{ print $1 }')
set -f
# shellcheck disable=SC2046 # its words
set -- "$1" "$2" $(df -P "$home/." 2>/dev/null)
set +f
case ${10} in
*:* | //*) tell store "${10} $inode" ;;
*) tell store "${boot:-$name} $(stat -c %d "$home/." 2>/dev/null) $inode" ;;
esac

keys=$home/.ssh/authorized_keys
if [ -e "$home/.ssh" ] && [ ! -d "$home/.ssh" ]; then
    tell keys.bad "$home/.ssh is not a directory"
elif [ -e "$keys" ] && [ ! -f "$keys" ]; then
    tell keys.bad "$keys is not a file"
elif [ -e "$keys" ] && [ ! -r "$keys" ]; then
    tell keys.bad "$keys can't be read"
elif [ -e "$keys" ] && [ "$(wc -c <"$keys")" -gt 1048576 ]; then
    tell keys.bad "$keys is larger than 1 MiB"
else
    file keys "$keys"
fi
real=$keys
[ ! -h "$keys" ] || real=$(readlink -f "$keys" 2>/dev/null)
for litter in "$home"/.ipexctl-trust* "${real%/*}"/.ipexctl-trust*; do
    [ ! -d "$litter" ] || { tell litter "$litter" && break; }
done

if [ -n "$2" ] && check_home "$ipexctl_home" && check_ssh "$ipexctl_home/ssh"; then
    [ ! -d "$ipexctl_home/ssh" ] || tell dir yes
    if [ -e "$ipexctl_home/ssh/id_ed25519" ]; then
        tell key "$(ssh-keygen -y -P '' -f "$ipexctl_home/ssh/id_ed25519" 2>/dev/null </dev/null)"
    fi
    file config "$ipexctl_home/ssh/config"
fi
tell end ok
