# What the kernel tells in files that are always at hand: quick, and printed at once.

system() {
    put uname "$(uname -s -n -r -m)"
    while IFS= read -r line; do
        case $line in
        ID=* | VERSION_ID=* | PRETTY_NAME=*) put os_release "$line" ;;
        esac
    done </etc/os-release
    libc=$(getconf GNU_LIBC_VERSION)
    # musl's ldd says what it is on stderr, and has no --version.
    [ -n "$libc" ] || libc=$(ldd --version 2>&1 | while read -r line; do printf '%s ' "$line"; done)
    put libc "$libc"
    get /proc/sys/kernel/random/boot_id
    put boot_id "$got"
    put netns "$(readlink /proc/self/ns/net)"
    put shell "$SHELL"
    put user "${LOGNAME:-${USER:-$(id -un)}}"
    put login_home "$HOME"
    put session "${XDG_SESSION_ID:-none}"
}

# The first processor stands for all. A fork per CPU would cost more than everything else here.
cpu() {
    begun=
    while IFS= read -r line; do
        case $line in
        '') [ -z "$begun" ] || break ;;
        vendor_id* | 'cpu '* | model* | stepping* | flags* | Features* | 'CPU '* | siblings*) put cpuinfo "$line" ;;
        esac
        begun=1
    done </proc/cpuinfo
    cpus=/sys/devices/system/cpu
    get $cpus/online
    put cpu.online "$got"
    get $cpus/smt/active
    put cpu.smt "$got"
    get $cpus/cpu0/cpufreq/scaling_governor
    put cpu.governor "$got"
    if [ -r $cpus/cpu0/topology/thread_siblings_list ]; then
        echo '== cpu.core'
        sort -u $cpus/cpu[0-9]*/topology/thread_siblings_list
        echo '== cpu.socket'
        sort -u $cpus/cpu[0-9]*/topology/core_siblings_list
        echo ==
    else
        # Some containers hide the topology: processor, socket and core are in cpuinfo as well.
        echo '== cpu.place'
        awk -F: '/^(processor|physical id|core id)/ { row = row $2 } /^$/ { print row; row = "" }
            END { print row }' /proc/cpuinfo
        echo ==
    fi
    # Some kernels give nothing to a shell that reads cpulist byte by byte.
    echo '== numa'
    grep -HE '^[0-9]|MemTotal' /sys/devices/system/node/node[0-9]*/cpulist /sys/devices/system/node/node[0-9]*/meminfo
    echo ==
}

status() {
    while read -r key value; do
        case $key in
        Cpus_allowed: | Cpus_allowed_list: | Uid:) put "status.${key%:}" "$value" ;;
        esac
    done </proc/self/status
    while read -r key value; do
        case $key in
        Cpus_allowed_list:) put init.Cpus_allowed_list "$value" ;;
        esac
    done </proc/1/status
    while read -r line; do
        case $line in
        'Max locked memory'* | 'Max open files'* | 'Max processes'*) put limit "$line" ;;
        esac
    done </proc/self/limits
    get /proc/loadavg
    put load "$got"
}

# A limit may stand at any level from our own group up to the root; in a container our path is often
# not to be seen, and the mount point is our group.
up_the_tree() { # mount path file...
    mount=$1 at=$1$2 period=
    shift 2
    case $at in */..*) at=$mount ;; esac
    while :; do
        for file; do
            get "$at/$file"
            case $file in *_period_us) period=$got && continue ;; esac
            put "cgroup.$file" "$got${got:+ $period}"
        done
        [ "$at" != "$mount" ] || break
        at=${at%/*}
    done
}

cgroup() {
    while IFS=: read -r number controllers path; do
        [ "$path" != / ] || path=
        groups=/sys/fs/cgroup
        case $number:,$controllers, in
        0:*)
            [ -r $groups/cgroup.controllers ] || groups=$groups/unified
            up_the_tree $groups "$path" cpu.max memory.max cpuset.cpus.effective
            ;;
        *,cpu,*)
            [ -d "$groups/$controllers" ] || controllers=cpu
            # The period first: it is said behind the quota.
            up_the_tree "$groups/$controllers" "$path" cpu.cfs_period_us cpu.cfs_quota_us
            ;;
        *,memory,*) up_the_tree $groups/memory "$path" memory.limit_in_bytes ;;
        *,cpuset,*) up_the_tree $groups/cpuset "$path" cpuset.effective_cpus ;;
        esac
    done </proc/self/cgroup
}

memory() {
    while read -r key value; do
        case $key in
        MemTotal: | MemAvailable: | SwapTotal: | HugePages_Total: | HugePages_Free: | Hugepagesize:)
            put "meminfo.${key%:}" "$value"
            ;;
        esac
    done </proc/meminfo
    get /sys/kernel/mm/transparent_hugepage/enabled
    put thp "$got"
}

rules() {
    get /sys/fs/selinux/enforce
    put selinux "$got"
    get /proc/sys/kernel/yama/ptrace_scope
    put ptrace_scope "$got"
    put port_range "$(cat /proc/sys/net/ipv4/ip_local_port_range)"
    while read -r line; do
        case $line in ENABLED=yes*) put firewall ufw ;; esac
    done </etc/ufw/ufw.conf
    [ ! -e /run/firewalld ] && [ ! -e /var/run/firewalld.pid ] || put firewall firewalld
    [ ! -d /sys/module/nf_tables ] || put firewall nftables
    [ ! -d /sys/module/iptable_filter ] || put firewall iptables
    if [ -d /run/systemd/system ]; then
        put logind present
        # Later files win; what is commented out tells the default this logind was built with.
        echo '== logind.conf'
        grep -hE '^ *#? *(KillUserProcesses|RemoveIPC) *=' /usr/lib/systemd/logind.conf /etc/systemd/logind.conf \
            /usr/lib/systemd/logind.conf.d/*.conf /run/systemd/logind.conf.d/*.conf /etc/systemd/logind.conf.d/*.conf
        echo ==
        [ ! -e "/var/lib/systemd/linger/${LOGNAME:-$USER}" ] || put logind linger
    fi
    echo '== variable'
    env | grep -E "^(OMP|KMP|GOMP|MKL|CCL|I_MPI|OMPI|FI|PMI|PMIX|GLOO|TP|ONEDNN|DNNL|ATEN|LD|PYTHON)_?[A-Z0-9_]*=|\
^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|MALLOC_CONF|CONDA_PREFIX|VIRTUAL_ENV|TMPDIR|SLURM_JOB_ID|PBS_JOBID)="
    echo ==
}

network() {
    for at in /sys/class/net/*; do
        [ -d "$at" ] || continue
        row=
        for file in type mtu operstate speed; do
            get "$at/$file"
            [ -z "$got" ] || row="$row $file=$got"
        done
        for mark in device bridge bonding wireless tun_flags; do
            [ ! -e "$at/$mark" ] || row="$row $mark=1"
        done
        while read -r line; do
            case $line in DEVTYPE=*) row="$row devtype=${line#*=}" ;; esac
        done <"$at/uevent"
        put nic "${at##*/}$row"
    done
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
        put rdma "${at##*/}$row"
    done
    if have ip; then
        echo '== ip.addr'
        ip -o addr
        echo ==
    else
        echo '== ifconfig'
        ifconfig -a
        echo ==
    fi
    while read -r iface to gateway flags count use metric mask rest; do
        [ "$to$mask" != 0000000000000000 ] || put route "$iface $gateway"
    done </proc/net/route
    while read -r to length from fromlength gateway rest; do
        # The kernel keeps an unreachable default on lo; the last word is the interface.
        case $to$length in *[!0]*) continue ;; esac
        [ "${rest##* }" = lo ] || put route "${rest##* } $gateway"
    done </proc/net/ipv6_route
}

# A kernel that is not Linux: what it is, and little more.
other_kernel() {
    put uname "$(uname -s -n -r -m)"
    put product "$(sw_vers -productVersion)"
    put shell "$SHELL"
    put user "${LOGNAME:-$USER}"
    put login_home "$HOME"
    put uid "$(id -u)"
    echo '== sysctl'
    for name in hw.model hw.ncpu hw.physmem hw.memsize hw.packages hw.physicalcpu hw.logicalcpu \
        machdep.cpu.brand_string machdep.cpu.vendor kern.boottime kern.bootsessionuuid; do
        put "$name:" "$(sysctl -n $name)"
    done
    echo '== ifconfig'
    ifconfig -a
    echo '== load'
    sysctl -n vm.loadavg
    echo ==
}
