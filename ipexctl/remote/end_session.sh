# Ends every process of the sessions in $wanted: TERM, a grace time of $tenths, KILL. Prints the number of survivors. If
# no session is known, because the login shell is still starting, it ends everything else that the sshd process of this
# connection has started.

# each TEST: the pids of living processes for which TEST, given pid, parent and session, is true.
each() {
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        pid=${stat#/proc/}
        pid=${pid%/stat}
        fields=${line##*) } # state parent group session …
        test_=$1
        set -- $fields
        [ "$1" = Z ] || ! "$test_" "$pid" "$2" "$4" || echo "$pid"
        set -- "$test_"
    done
}
wanted() {
    for each_session in $wanted; do
        [ "$3" != "$each_session" ] || return 0
    done
    return 1
}
# In whole seconds; 0 where it can't be read. Looking for processes takes long on a busy machine, and counts as grace time.
uptime() {
    { read -r seconds rest </proc/uptime; } 2>/dev/null || seconds=0
    echo "${seconds%.*}"
}
sibling() { [ "$2" = "$PPID" ] && [ "$3" = "$1" ] && [ "$1" != "$$" ]; }

if [ ! -r /proc/self/stat ]; then
    [ -n "$wanted" ] || exit 1
    kill -TERM -- "-$wanted" 2>/dev/null && sleep 2 && kill -KILL -- "-$wanted" 2>/dev/null
    kill -0 -- "-$wanted" 2>/dev/null && echo some || echo 0
    exit 0
fi
[ -n "$wanted" ] || wanted=$(each sibling)
left=$(each wanted)
end=$(($(uptime) + (tenths + 19) / 10))
[ -z "$left" ] || kill -TERM $left 2>/dev/null
while [ -n "$left" ] && [ "$tenths" -gt 0 ] && [ "$(uptime)" -lt "$end" ]; do
    sleep 0.1
    tenths=$((tenths - 1))
    left=$(each wanted)
done
[ -z "$left" ] || { kill -KILL $left 2>/dev/null; sleep 0.1; }
set -- $(each wanted)
echo $#
