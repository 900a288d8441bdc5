# Facts of the machine that a shell can read, and the output of kernel.awk.

kernel_says() {
    getent=
    ! have getent || getent=1
    kernel_output=$(awk -v node="$node" -v peers="$peers" -v getent=$getent "$kernel_awk" \
        /usr/lib/systemd/logind.conf /etc/systemd/logind.conf /usr/lib/systemd/logind.conf.d/*.conf \
        /run/systemd/logind.conf.d/*.conf /etc/systemd/logind.conf.d/*.conf)
    held="$held$kernel_output
"
    case $kernel_output in
    *"
names"*)
        names_left=${kernel_output##*"
names"}
        ;;
    *) # No usable awk: every name is looked up.
        number=0
        for name in $node $peers; do
            names_left="$names_left $number:$name"
            number=$((number + 1))
        done
        ;;
    esac
}

libc() { # unless kernel.awk has found it
    case $kernel_output in *"
libc "*) return ;; esac
    libc=$(getconf GNU_LIBC_VERSION)
    # musl's ldd prints its version on stderr, and has no --version.
    [ -n "$libc" ] || libc=$(ldd --version 2>&1 | while read -r line; do printf '%s ' "$line"; done)
    buffer libc "$libc"
}

account() {
    buffer shell "$SHELL"
    buffer user "${LOGNAME:-${USER:-$(id -un)}}"
    buffer login_home "$HOME"
    buffer session "${XDG_SESSION_ID:-none}"
    # The third word of CLIENT PORT SERVER PORT.
    reached=${SSH_CONNECTION% *}
    buffer reached "${reached##* }"
    [ ! -d /run/systemd/system ] || buffer logind present
    [ ! -e "/var/lib/systemd/linger/${LOGNAME:-$USER}" ] || buffer logind linger
    [ ! -e /run/firewalld ] && [ ! -e /var/run/firewalld.pid ] || buffer firewall firewalld
    [ ! -d /sys/module/nf_tables ] || buffer firewall nftables
    [ ! -d /sys/module/iptable_filter ] || buffer firewall iptables
}

# Every level from the process's own cgroup up to the root may have a limit. In a container that path is often not
# visible, and the mount point is the own cgroup.
up_the_tree() { # mount path file...
    mount=$1 at=$1$2 period=
    shift 2
    case $at in */..*) at=$mount ;; esac
    while :; do
        for file; do
            get "$at/$file"
            case $file in *_period_us) period=$got && continue ;; esac
            buffer "cgroup.$file" "$got${got:+ $period}"
        done
        [ "$at" != "$mount" ] || break
        at=${at%/*}
    done
}

# What a group has left of a limit, on each level that has one. Memory that the kernel can take back is not used.
left_up_the_tree() { # key mount path limit used cache
    key=$1 mount=$2 at=$2$3 limit=$4 used=$5
    case $at in */..*) at=$mount ;; esac
    while :; do
        get "$at/$limit"
        case $got in
        '' | max | *[!0-9]* | ????????????????*) ;; # v1 prints the largest number if there is no limit
        *)
            left=$got
            get "$at/$used"
            [ -z "$got" ] || left=$((left - got))
            [ -z "$6" ] || left=$((left + $(awk "/^($6) /"'{sum += $2} END {printf "%.0f", sum}' "$at/memory.stat")))
            buffer "cgroup.$key.left" "$((left > 0 ? left : 0))"
            ;;
        esac
        [ "$at" != "$mount" ] || break
        at=${at%/*}
    done
}

cgroup() {
    groups=/sys/fs/cgroup
    [ -d $groups ] || return
    while IFS=: read -r number controllers path; do
        [ "$path" != / ] || path=
        case $number:,$controllers, in
        0:*)
            at=$groups
            [ -r $at/cgroup.controllers ] || at=$groups/unified
            up_the_tree $at "$path" cpu.max memory.max memory.high cpuset.cpus.effective
            left_up_the_tree memory $at "$path" memory.max memory.current 'inactive_file|active_file|slab_reclaimable'
            left_up_the_tree pids $at "$path" pids.max pids.current ''
            ;;
        *,cpu,*)
            [ -d "$groups/$controllers" ] || controllers=cpu
            # The period first: it is printed after the quota.
            up_the_tree "$groups/$controllers" "$path" cpu.cfs_period_us cpu.cfs_quota_us
            ;;
        *,memory,*)
            up_the_tree $groups/memory "$path" memory.limit_in_bytes
            left_up_the_tree memory $groups/memory "$path" memory.limit_in_bytes memory.usage_in_bytes 'total_(in)?active_file'
            ;;
        *,pids,*) left_up_the_tree pids $groups/pids "$path" pids.max pids.current '' ;;
        *,cpuset,*) up_the_tree $groups/cpuset "$path" cpuset.effective_cpus ;;
        esac
    done </proc/self/cgroup
}

network() {
    interfaces
    for at in /sys/class/infiniband/*; do
        [ -d "$at" ] || continue
        row=
        for file in state link_layer rate; do
            get "$at/ports/1/$file"
            row="$row|$got"
        done
        for nic in "$at"/device/net/*; do
            [ ! -d "$nic" ] || row="$row|${nic##*/}"
        done
        buffer rdma "${at##*/}$row"
    done
    if have ip; then
        buffer == "ip.addr
$(ip -o addr)"
    else
        for file in fib_trie route; do
            buffer == "proc.$file
$(cat /proc/net/$file)"
        done
    fi
    held="$held==
"
    buffer 'done' network
}
