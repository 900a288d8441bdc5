# Facts from the kernel and a few files in /etc, as `key value` lines. One awk, because a shell reads files byte by
# byte, which is slow, and some kernel files return nothing to reads of one byte.
#
# node, peers  the host's own name and the others'
# getent       set if getent is available for names that are not in /etc/hosts
BEGIN {
    processors()
    numa()
    account_limits()
    memory()
    distribution()
    mounts()
    routes()
    rules()
    variables()
    print "done kernel"
    names()
    exit
}

function put(key, value) {
    if (value != "") print key " " value
}

function first(file, line) {
    line = ""
    getline line < file
    close(file)
    return line
}

# Prints the matching lines of a file, each with a key.
function matching(key, file, pattern, line) {
    while ((getline line < file) > 0) if (line ~ pattern) print key " " line
    close(file)
}

# Expands 0-3,8 into list[1] to list[5]; returns the count.
function expand(text, list, parts, range, count, total, number, i) {
    total = split(text, parts, ",")
    count = 0
    for (i = 1; i <= total; i++) {
        if (split(parts[i], range, "-") < 2) range[2] = range[1]
        for (number = range[1] + 0; number <= range[2] + 0; number++) list[++count] = number
    }
    return count
}

# Only the first processor is read in full; a core is read from one of its threads, a socket from one of its cores.
function processors(cpus, file, line, begun, online, count, i, at, group) {
    file = "/proc/cpuinfo"
    while ((getline line < file) > 0) {
        if (line == "" && begun) break
        begun = 1
        if (line ~ /^(vendor_id|cpu family|model|stepping|flags|Features|CPU )/) print "cpuinfo " line
    }
    close(file)
    cpus = "/sys/devices/system/cpu"
    online = first(cpus "/online")
    put("cpu.online", online)
    put("cpu.present", first(cpus "/present"))
    put("cpu.offline", first(cpus "/offline"))
    put("cpu.smt", first(cpus "/smt/control"))
    put("cpu.isolated", first(cpus "/isolated"))
    put("cpu.performance", first("/sys/devices/cpu_core/cpus"))
    put("cpu.governor", first(cpus "/cpu0/cpufreq/scaling_governor"))
    count = expand(online, at)
    if (!count || first(cpus "/cpu" at[1] "/topology/thread_siblings_list") == "") {
        places()
        return
    }
    for (i = 1; i <= count; i++) {
        if (!(at[i] in cores)) {
            group = first(cpus "/cpu" at[i] "/topology/thread_siblings_list")
            put("cpu.core", group)
            mark(group, cores)
        }
        if (!(at[i] in sockets)) {
            group = first(cpus "/cpu" at[i] "/topology/core_siblings_list")
            put("cpu.socket", group)
            mark(group, sockets)
        }
    }
}

function mark(group, seen, members, count, i) {
    count = expand(group, members)
    for (i = 1; i <= count; i++) seen[members[i]] = 1
}

# Some containers hide the topology; cpuinfo also has processor, socket and core.
function places(file, line, row, part) {
    file = "/proc/cpuinfo"
    while ((getline line < file) > 0) {
        split(line, part, ":")
        if (line ~ /^processor/) row = part[2]
        if (line ~ /^(physical|core) id/) row = row part[2]
        if (line ~ /^core id/) print "cpu.place" row
    }
    close(file)
}

# Kernels before 2.6.35 begin a node's meminfo with an empty line.
function numa(nodes, count, list, i, at) {
    nodes = "/sys/devices/system/node"
    count = expand(first(nodes "/online"), list)
    for (i = 1; i <= count; i++) {
        at = nodes "/node" list[i]
        print "numa " list[i] " " first(at "/cpulist")
        matching("numa.memory", at "/meminfo", " MemTotal:")
        put("numa.distance " list[i], first(at "/distance"))
    }
}

# The limits of the account; awk inherits those of the shell.
function account_limits() {
    matching("status", "/proc/self/status", "^(Cpus_allowed|Cpus_allowed_list|Mems_allowed_list|Uid):")
    matching("init", "/proc/1/status", "^Cpus_allowed_list:")
    matching("limit", "/proc/self/limits", "^Max (locked memory|open files|processes) ")
    put("load", first("/proc/loadavg"))
}

function memory() {
    matching("meminfo", "/proc/meminfo", "^(MemTotal|MemAvailable|SwapTotal|HugePages_Total|HugePages_Free|Hugepagesize):")
    put("thp", first("/sys/kernel/mm/transparent_hugepage/enabled"))
}

# glibc's ldd is a script that prints the version: reading it is cheaper than starting getconf.
function distribution() {
    matching("os_release", "/etc/os-release", "^(ID|VERSION_ID|PRETTY_NAME)=")
    matching("libc", "/usr/bin/ldd", "^ *echo .ldd \\((.*GLIBC|GNU libc).*\\) [0-9]")
    put("boot_id", first("/proc/sys/kernel/random/boot_id"))
}

# The filesystems that the paths of interest may be on.
function mounts(file, line, field) {
    file = "/proc/self/mountinfo"
    while ((getline line < file) > 0) {
        split(line, field, " ")
        if (field[5] !~ /^\/(proc|sys|run|boot|snap|dev\/(pts|mqueue|hugepages)|var\/(lib\/(docker|containers|kubelet)|snap))(\/|$)/)
            print "mount " line
    }
    close(file)
}

# The kernel keeps an unreachable v6 default on lo.
function routes(file, line, field, count) {
    file = "/proc/net/route"
    while ((getline line < file) > 0) {
        split(line, field, "[ \t]+")
        if (field[2] == "00000000" && field[8] == "00000000") {
            print "route " field[1] " " field[3]
            break
        }
    }
    close(file)
    file = "/proc/net/ipv6_route"
    while ((getline line < file) > 0) {
        count = split(line, field, "[ \t]+")
        if (field[1] ~ /^0+$/ && field[2] == "00" && field[count] != "lo") {
            print "route " field[count] " " field[5]
            break
        }
    }
    close(file)
    put("port_range", first("/proc/sys/net/ipv4/ip_local_port_range"))
}

# The later file of logind's settings wins; commented lines show the built-in defaults.
function rules(i) {
    for (i = 1; i < ARGC; i++) matching("logind.conf", ARGV[i], "^ *#? *(KillUserProcesses|RemoveIPC) *=")
    if (first("/sys/fs/selinux/enforce") != "") print "selinux " first("/sys/fs/selinux/enforce")
    put("ptrace_scope", first("/proc/sys/kernel/yama/ptrace_scope"))
    matching("firewall.ufw", "/etc/ufw/ufw.conf", "^ENABLED=yes")
}

function variables(name, value) {
    for (name in ENVIRON)
        if (name ~ /^(OMP|KMP|GOMP|MKL|CCL|I_MPI|OMPI|FI|PMI|PMIX|GLOO|TP|ONEDNN|DNNL|ATEN|LD|PYTHON)_?[A-Z0-9_]*$/ ||
            name ~ /^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|MALLOC_[A-Z_]+|GLIBC_TUNABLES|CONDA_PREFIX|VIRTUAL_ENV)$/ ||
            name ~ /^(TMPDIR|SLURM_JOB_ID|PBS_JOBID|XDG_CACHE_HOME)$/ ||
            name ~ /^(HF_HOME|HF_TOKEN_PATH|(HF|HUGGINGFACE)_HUB_CACHE|TRANSFORMERS_CACHE|(HF_HUB|HF_DATASETS|TRANSFORMERS)_OFFLINE)$/) {
            value = ENVIRON[name]
            gsub(/[\n\r]/, " ", value)
            print "variable " name "=" value
        } else if (name ~ /^(http|https|all|HTTP|HTTPS|ALL)_(proxy|PROXY)$/ && ENVIRON[name] != "")
            print "variable " name "=set" # the value may have a password
}

# A name with one address in /etc/hosts needs no lookup if the system reads that file first. The other names are
# passed to the shell as NUMBER:NAME in the last line.
function names(file, line, field, count, i, asked, total, order, left) {
    order = "files"
    file = "/etc/nsswitch.conf"
    while ((getline line < file) > 0) {
        split(line, field, "[ \t]+")
        if (field[1] == "hosts:") order = field[2]
    }
    close(file)
    file = "/etc/hosts"
    while ((getline line < file) > 0) {
        sub(/#.*/, "", line)
        count = split(tolower(line), field, "[ \t]+")
        for (i = 2; i <= count; i++) {
            if (field[i] == "" || (field[i], field[1]) in known) continue
            known[field[i], field[1]] = 1
            many[field[i]]++
            where[field[i]] = where[field[i]] " " field[1]
            if (!(field[i] in full)) full[field[i]] = field[2]
        }
    }
    close(file)
    total = split(node " " peers, asked, " ")
    for (i = 1; i <= total; i++) {
        line = tolower(asked[i])
        if (many[line] && (!getent || (order == "files" && many[line] == 1)))
            print "resolved " (i - 1) " " full[line] where[line]
        else
            left = left " " (i - 1) ":" asked[i]
    }
    print "names" left
}
