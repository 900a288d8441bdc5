# Removes node0's key and config, and the directories created for them if they are empty.
# $1 the --home directory   $2 default: it is the default home, so it was created by ipexctl
LC_ALL=C
export LC_ALL
ipexctl_home=$1
[ -d "$ipexctl_home/ssh" ] || { echo same && exit; }
check_home "$ipexctl_home" || refuse_home
check_ssh "$ipexctl_home/ssh" || { echo same && exit; }
lock "$ipexctl_home/ssh/.lock"
made=$(cat "$ipexctl_home/ssh/made" 2>/dev/null)
answer=same
for name in id_ed25519 id_ed25519.pub known_hosts config made; do
    [ ! -e "$ipexctl_home/ssh/$name" ] || answer=done
    output=$(rm -f "$ipexctl_home/ssh/$name" 2>&1) || fail_by_output "${output#rm: }"
done
rm -rf "$ipexctl_home/ssh/.lock".*
unlock
rmdir "$ipexctl_home/ssh" 2>/dev/null
# The mark of a home with nothing else in it.
if [ "$(ls -A "$ipexctl_home")" = "$home_mark" ]; then rm -f "$ipexctl_home/$home_mark"; fi
[ -z "$2" ] || rmdir "$ipexctl_home" 2>/dev/null
printf '%s\n' "$made" | awk '{ line[NR] = $0 } END { for (i = NR; i > 0; i--) print line[i] }' |
    while IFS= read -r path; do [ -z "$path" ] || rmdir "$path" 2>/dev/null; done
echo $answer
