# Creates node0's key if it is missing; the private key never leaves this directory. Prints the public key.
# $1 the --home directory
LC_ALL=C
export LC_ALL
ours=$1
made= path=$ours
while [ -n "$path" ] && [ ! -d "$path" ]; do
    made="$path
$made"
    path=${path%/*}
done
said=$(mkdir -p "$ours" 2>&1) || fail "${said#mkdir: }"
umask 077
[ -d "$ours/ssh" ] || said=$(mkdir "$ours/ssh" 2>&1) || [ -d "$ours/ssh" ] || fail "${said#mkdir: }"
said=$(chmod 700 "$ours/ssh" 2>&1) || fail "${said#chmod: }"
lock "$ours/ssh/.lock"
# Record the new directories, so that --revoke removes them.
if [ -n "$made" ] && [ ! -e "$ours/ssh/made" ]; then
    printf '%s' "$made" >"$held/text" && mv "$held/text" "$ours/ssh/made" || fail "$ours/ssh can't be written to"
fi
key=$ours/ssh/id_ed25519
if [ ! -e "$key" ]; then
    said=$(ssh-keygen -q -t ed25519 -N '' -C "ipexctl $(id -un)@$(uname -n)" -f "$held/key" 2>&1 </dev/null) ||
        fail "ssh-keygen: $said"
    ssh-keygen -y -P '' -f "$held/key" >/dev/null 2>&1 </dev/null || fail "$ours/ssh: the key could not be written whole"
    sync "$held/key" 2>/dev/null
    mv "$held/key.pub" "$key.pub" && mv "$held/key" "$key" || fail "$ours/ssh can't be written to"
fi
public=$(ssh-keygen -y -P '' -f "$key" 2>&1 </dev/null) || fail "$key is no key that can be read: $public"
[ -s "$key.pub" ] || printf '%s\n' "$public" >"$key.pub"
chmod 600 "$key"
printf '%s\n' "$public"
