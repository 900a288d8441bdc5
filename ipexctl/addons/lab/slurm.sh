# Starts a host's part of Slurm. $1 controller|node: its daemons; wait NODES TENTHS: until so many nodes are idle.
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
show_log() { # log
    tail -n 3 "$1" >&2 2>/dev/null || :
    exit 1
}
case $1 in
wait)
    tenths=$3
    until sinfo -h -o %D.%T 2>/dev/null | grep -qx "$2.idle"; do
        tenths=$((tenths - 1))
        [ "$tenths" -gt 0 ] || { sinfo >&2; show_log /var/log/slurmctld.log; }
        sleep 0.1
    done
    ;;
*)
    mkdir -p /run/munge /var/lib/munge /var/log/munge /var/spool/slurmctld /var/spool/slurmd
    chown -R root: /etc/munge /var/lib/munge /var/log/munge /run/munge
    chmod 700 /etc/munge /var/lib/munge /var/log/munge
    chmod 400 /etc/munge/munge.key
    # The packages create these links after their installation, but here they may only be unpacked.
    for name in slurmctld slurmd slurmstepd; do
        [ -e "/usr/sbin/$name" ] || ln -sf "$name-wlm" "/usr/sbin/$name"
    done
    # --force: as root, where the account munge is missing.
    munged --force >/dev/null 2>&1 </dev/null || show_log /var/log/munge/munged.log
    case $1 in
    controller) slurmctld >/dev/null 2>&1 </dev/null || show_log /var/log/slurmctld.log ;;
    node) slurmd >/dev/null 2>&1 </dev/null || show_log /var/log/slurmd.log ;;
    esac
    ;;
esac
