# The first process of a host: starts sshd, prints "ready" on stdout once it listens, then reaps orphaned
# processes and outlives sshd. Signals from its own namespace can't end it; `lab down` does.
cd /
umount -l /.old && rmdir /.old
give_up() {
    tail -n 2 /var/log/sshd.log >&2
    exit 1
}
exec 3>&1 >/dev/null </dev/null
/usr/sbin/sshd -E /var/log/sshd.log 3>&- || give_up
tries=0
until [ -s /run/sshd.pid ]; do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || give_up
    sleep 0.02
done
echo ready >&3
exec 3>&- 2>/dev/null
while :; do
    sleep 86400 &
    wait $!
done
