# Precedes every fault's script. LOGIN and HOME_DIR are the login account of the hostfile and its home.
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# In memory, because the disk may be full; removed when the host ends.
SAVE=/run/lab-faults/$2

homes() {
    echo /root
    [ "$HOME_DIR" = /root ] || echo "$HOME_DIR"
}

signal_sshd() { # signal
    for process in /proc/[0-9]*; do
        name=
        read -r name 2>/dev/null <"$process/comm" || continue
        case $name in
        sshd | sshd-session | sshd-auth) kill "-$1" "${process#/proc/}" 2>/dev/null || : ;;
        esac
    done
}

start_sshd() {
    [ ! -s /run/sshd.pid ] || ! kill -0 "$(cat /run/sshd.pid)" 2>/dev/null || return 0
    rm -f /run/sshd.pid
    mkdir -p /run/sshd
    /usr/sbin/sshd -E /var/log/sshd.log </dev/null >/dev/null 2>&1
    tries=0
    until [ -s /run/sshd.pid ]; do
        tries=$((tries + 1))
        [ $tries -lt 250 ] || { echo "sshd does not start" >&2 && return 1; }
        sleep 0.02
    done
}

restart_sshd() { # sessions stay
    if [ -s /run/sshd.pid ]; then
        listener=$(cat /run/sshd.pid)
        kill "$listener" 2>/dev/null || :
        while kill -0 "$listener" 2>/dev/null; do sleep 0.01; done
    fi
    start_sshd
}
