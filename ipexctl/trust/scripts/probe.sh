# Prints the state of a host that trust needs, as records "name value" that end with a NUL byte; the content of a file
# is in hex. It starts few programs, because on a small machine each costs as much as all the rest.
# $1 the --home directory: absolute, or ~/…
# $2 node0 on node0, which has key and config; else empty
# $3 local if no ssh connection has verified a host key; else empty
LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
export LC_ALL PATH

tell() { printf '%s %s\000' "$1" "$2"; }
file() { [ -f "$2" ] && [ -r "$2" ] && { printf '%s ' "$1" && od -An -v -tx1 <"$2"; printf '\000'; }; }

user=$LOGNAME # by sshd
[ -z "$3" ] && [ -n "$user" ] || user=$(id -un)
uid=
while read -r key value _; do
    [ "$key" != Uid: ] || { uid=$value && break; }
done 2>/dev/null </proc/self/status
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
tell uid "${uid:-$(id -u)}"
tell home "$home"
tell ipexctl_home "$ipexctl_home"
tell came "$SSH_CONNECTION"
boot= name=
{ read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
{ read -r name </proc/sys/kernel/hostname; } 2>/dev/null || name=$(uname -n)
tell is "$user $name $boot $(readlink /proc/self/ns/net 2>/dev/null)"

# The identity of the home's store: the source of a network filesystem, else the machine.
store() { # inode
    set -f
    # shellcheck disable=SC2046 # its words
    set -- "$1" $(df -P "$home/." 2>/dev/null)
    set +f
    case $9 in
    *:* | //*) tell store "$9 $1" ;;
    *) tell store "${boot:-$name} $(stat -c %d "$home/." 2>/dev/null) $1" ;;
    esac
}

lines() { # size
    if [ ! -f "$keys" ]; then
        tell keys.bad "$keys is not a file"
    elif [ ! -r "$keys" ]; then
        tell keys.bad "$keys can't be read"
    elif [ "$1" -gt 1048576 ]; then
        tell keys.bad "$keys is larger than 1 MiB"
    else
        file keys "$keys"
    fi
}

keys=$home/.ssh/authorized_keys
ls -lLdin "$home/." "$home/.ssh/." "$keys" 2>/dev/null | while read -r inode mode links owner _ size path; do
    case $path in
    *"$keys") tell ls.keys "$mode $links $owner" && lines "$size" ;;
    *"$home/.ssh/.") tell ls.ssh "$mode $links $owner" ;;
    *"$home/.") tell ls.home "$mode $links $owner" && store "$inode" ;;
    esac
done
tell store "${boot:-$name} without a home"

if command -v ip >/dev/null; then
    tell ip "$(ip -o addr show up 2>/dev/null || ip -o addr show 2>/dev/null)"
else
    file fib_trie /proc/net/fib_trie
    file routes /proc/net/route
fi

[ ! -e "$home/.ssh" ] || [ -d "$home/.ssh" ] || tell keys.bad "$home/.ssh is not a directory"
real=$keys
[ ! -h "$keys" ] || real=$(readlink -f "$keys" 2>/dev/null)
for litter in "$home"/.ipexctl-trust* "${real%/*}"/.ipexctl-trust*; do
    [ ! -d "$litter" ] || { tell litter "$litter" && break; }
done

if [ -n "$3" ]; then
    for key in /etc/ssh/ssh_host_*_key.pub; do file hostkey "$key"; done
fi
if [ -n "$2" ]; then
    command -v ssh >/dev/null && command -v ssh-keygen >/dev/null && tell client yes
    # Older clients don't know ^ and stop reading the config.
    ssh -G -F /dev/null -o KexAlgorithms=^curve25519-sha256 -o Ciphers=^aes128-gcm@openssh.com localhost \
        >/dev/null 2>&1 </dev/null && tell quick yes
    check_home "$ipexctl_home" && check_ssh "$ipexctl_home/ssh" || {
        tell home.problem "$home_problem"
        tell home.detail "$home_detail"
    }
    if [ -z "$home_problem" ]; then
        [ ! -d "$ipexctl_home/ssh" ] || tell dir "$(ls -ldn "$ipexctl_home/ssh/.")"
        if [ -e "$ipexctl_home/ssh/id_ed25519" ]; then
            tell key "$(ssh-keygen -y -P '' -f "$ipexctl_home/ssh/id_ed25519" 2>/dev/null </dev/null)"
        fi
        file config "$ipexctl_home/ssh/config"
        file known_hosts "$ipexctl_home/ssh/known_hosts"
    fi
fi
tell end ok
