# Removes node0's key and config, and the directories created for them if they are empty.
# $1 the --home directory   $2 default: it is the default home, so it was created by ipexctl
LC_ALL=C
export LC_ALL
ours=$1
[ -d "$ours/ssh" ] || { echo same && exit; }
lock "$ours/ssh/.lock"
made=$(cat "$ours/ssh/made" 2>/dev/null)
answer=same
for name in id_ed25519 id_ed25519.pub known_hosts config made; do
    [ ! -e "$ours/ssh/$name" ] || answer=done
    said=$(rm -f "$ours/ssh/$name" 2>&1) || fail "${said#rm: }"
done
rm -rf "$ours/ssh/.lock".*
unlock
rmdir "$ours/ssh" 2>/dev/null
[ -z "$2" ] || rmdir "$ours" 2>/dev/null
printf '%s\n' "$made" | awk '{ line[NR] = $0 } END { for (i = NR; i > 0; i--) print line[i] }' |
    while IFS= read -r path; do [ -z "$path" ] || rmdir "$path" 2>/dev/null; done
echo $answer
