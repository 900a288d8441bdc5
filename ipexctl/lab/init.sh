# The first process of a host: starts sshd, says "ready" on stdout once it listens, then reaps what
# is orphaned and outlives sshd. The kernel shields it from signals of its own host: `lab down` ends it.
cd /
umount -l /.old && rmdir /.old
exec 3>&1 >/var/log/lab-init.log 2>&1 </dev/null
/usr/sbin/sshd -E /var/log/sshd.log 3>&-
tries=0
until [ -s /run/sshd.pid ]; do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || exit 1
    sleep 0.02
done
echo ready >&3
exec 3>&-
while :; do
    sleep 86400 &
    wait $!
done
