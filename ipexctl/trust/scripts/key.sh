# Creates node0's key if it is missing; the private key never leaves this directory. Prints the public key.
# $1 the --home directory
LC_ALL=C
export LC_ALL
ipexctl_home=$1
made= path=$ipexctl_home
while [ -n "$path" ] && [ ! -d "$path" ]; do
    made="$path
$made"
    path=${path%/*}
done
umask 077
use_home "$ipexctl_home" || refuse_home
check_ssh "$ipexctl_home/ssh" || refuse_home
[ -d "$ipexctl_home/ssh" ] || output=$(mkdir "$ipexctl_home/ssh" 2>&1) || [ -d "$ipexctl_home/ssh" ] || fail_by_output "${output#mkdir: }"
output=$(chmod 700 "$ipexctl_home/ssh" 2>&1) || fail_by_output "${output#chmod: }"
lock "$ipexctl_home/ssh/.lock"
# Record the new directories, so that --revoke removes them.
if [ -n "$made" ] && [ ! -e "$ipexctl_home/ssh/made" ]; then
    printf '%s' "$made" >text && mv text "$ipexctl_home/ssh/made" || fail "$ipexctl_home/ssh can't be written to"
fi
key=$ipexctl_home/ssh/id_ed25519
if [ ! -e "$key" ]; then
    output=$(ssh-keygen -q -t ed25519 -N '' -C "ipexctl $(id -un)@$(uname -n)" -f key 2>&1 </dev/null) ||
        fail_by_output "ssh-keygen: $output"
    ssh-keygen -y -P '' -f key >/dev/null 2>&1 </dev/null || fail "$ipexctl_home/ssh: the key could not be written completely"
    sync key 2>/dev/null
    mv key.pub "$key.pub" && mv key "$key" || fail "$ipexctl_home/ssh can't be written to"
fi
public=$(ssh-keygen -y -P '' -f "$key" 2>&1 </dev/null) || fail "$key can't be read as a key: $public" bad-key
[ -s "$key.pub" ] || printf '%s\n' "$public" >"$key.pub"
chmod 600 "$key"
printf '%s\n' "$public"
