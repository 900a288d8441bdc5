# Facts about disks, names and programs that must be started.

# Disk space at the paths, in one call. `stat -f` reads only the mounts of the paths; df may read all mounts.
room() { # paths
    for path; do
        [ ! -w "$path" ] || buffer writable "$path"
    done
    flush
    held="$(stat -f -c 'room %S %b %a %c %d %n' "$@")
"
}

# The --home directory; its parent exists before the first install and after it.
our_home() {
    base=$home
    until [ -d "$base" ]; do
        case $base in
        /*/*) base=${base%/*} ;;
        *) base=/ && break ;;
        esac
    done
    cd -P / && cd -P "$base" && real=${PWD%/}${home#"$base"}
    buffer home.base "$PWD"
    buffer home.real "$real"
    if [ "$base" = "$home" ]; then
        buffer home.exists yes
        [ ! -L "$home" ] || buffer home.link yes
        [ -z "$home_is_own" ] || for at in "$home"/hub/hub/*s--*/snapshots; do
            [ ! -d "$at" ] || buffer home.hub yes
            break
        done
    fi
    base=$PWD tmp=/tmp
    [ ! -L /tmp ] || { cd -P /tmp && tmp=$PWD; }
    buffer tmp "$tmp"
    room "$base" "$tmp" /dev/shm
    # If the guest chooses the name of a filesystem, only the inode identifies it.
    case $kernel_output in
    *' - 9p '* | *' - virtiofs '* | *' - vboxsf '*)
        above=${real%/*}
        [ -d "$above/" ] && buffer home.inode "$(ls -di "$above/")"
        ;;
    esac
    buffer 'done' home
    flush
}

our_envs() {
    for at in "$home"/envs/*; do
        [ -d "$at" ] || continue
        name=${at##*/}
        if [ -h "$at" ]; then
            target=$(cd -P "$at" && pwd) && put env.link "${target##*/} $name"
            continue
        fi
        put env "$name"
        [ ! -x "$at/bin/python" ] || put env.runs "$name"
        [ ! -r "$at/env.json" ] || while IFS= read -r line || [ -n "$line" ]; do
            put env.record "$name $line"
        done <"$at/env.json"
        for lib in "$at"/lib/python3*; do
            [ ! -d "$lib" ] || put env.python "$name ${lib##*/python}"
            for wanted in torch intel_extension_for_pytorch oneccl oneccl_bind_pt impi_rt intel_openmp ziglang numpy \
                accelerate transformers; do
                for info in "$lib/site-packages/$wanted"-*.dist-info; do
                    [ -d "$info" ] || continue
                    put env.package "$name ${info##*/}"
                    case $wanted in # those whose module has the name of the package
                    torch | intel_extension_for_pytorch | numpy | accelerate | transformers)
                        [ -e "$lib/site-packages/$wanted" ] || [ -e "$lib/site-packages/$wanted.py" ] ||
                            put env.lost "$name $wanted"
                        ;;
                    esac
                done
            done
        done
    done
}

# The start time of a process in kernel ticks, into $began; - if there is none, ? if it can't be read.
start_of() { # pid
    began=-
    [ -d /proc/self ] || began=?
    if [ -d "/proc/$1" ]; then
        get "/proc/$1/stat"
        set -- ${got##*) }
        case $1 in
        Z | X) ;;
        *) began=${20:-?} ;;
        esac
    fi
}

# Records of running runs, with the supervisor's process on this host; then the newest records of ended runs.
our_runs() {
    set -- "$home"/runs/*/status.json
    [ -r "$1" ] || return
    grep -lE '"state": *"(starting|running)"' "$@" | while read -r file; do
        run=${file%/status.json}
        run=${run##*/}
        put run "$run"
        supervisor=$(grep -oE '"supervisor": *\{[^{}]*\}' "$file")
        pid=${supervisor#*'"pid": '}
        pid=${pid%%[!0-9]*}
        start_of "${pid:-0}"
        put run.supervisor "$run $began ${supervisor#*: }"
    done
    ls -t "$home/runs" | {
        set --
        while [ $# -lt 100 ] && read -r run; do
            [ ! -r "$home/runs/$run/status.json" ] || set -- "$@" "$home/runs/$run/status.json"
        done
        grep -lE '"state": *"(ok|failed|stopped|lost)"' "$@"
    } | while read -r file; do
        run=${file%/status.json}
        put run.ended "${run##*/}"
    done
}

# A pattern for "$home/" that does not match itself in the arguments of grep. Each special character of the path is a
# dot.
IFS='.[\()*+?{|^$'
set -- $home/
IFS=.
in_home="$*"
in_home=${in_home%/}[/]
IFS=$usual_ifs

# Processes of this account with a path in --home in their arguments, and those of a run. Supervisors and rank wrappers
# have the path of their run in argv; processes started by a rank have the run in their environment.
our_processes() {
    files=
    for at in $alike; do # of live_runs
        [ ! -O "${at%/cmdline}" ] || files="$files $at"
    done
    [ -z "$files" ] || grep -lasF "$home/" $files | while read -r file; do
        file=${file%/cmdline}
        put pid "${file#/proc/}"
    done
    for at in /proc/[0-9]*; do
        [ ! -O "$at" ] || files="$files $at/environ"
    done
    [ -n "$files" ] || return
    grep -asoHE -e '-I.[^ ]*/runs/[A-Za-z0-9_-]+/agent\.zip.run\.(rank|supervisor)' \
        -e 'IPEXCTL_RUN=[A-Za-z0-9_-]+' \
        $files | tr '\0' ' ' | while read -r line; do
        case $line in
        */cmdline:-I*) run=${line##*/runs/} && run=${run%%/*} ;;
        */environ:IPEXCTL_RUN=*) run=${line##*=} ;;
        *) continue ;;
        esac
        pid=${line#/proc/}
        pid=${pid%%/*}
        start_of "$pid"
        put process "$pid $began $run"
    done
}

# One getent for many names. An address needs no lookup, so the address 127.127.A.B between the names marks that the
# lines before it belong to the name number A * 250 + B - 1.
resolve() { # NUMBER:NAME...
    asked=
    for name; do
        number=${name%%:*}
        asked="$asked ${name#*:} 127.127.$((number / 250)).$((number % 250 + 1))"
    done
    limit getent ahosts $asked | {
        found= full=
        while read -r address kind name; do
            case $kind/$address in
            STREAM/*127.127.*)
                address=${address##*127.127.}
                put resolved "$((${address%.*} * 250 + ${address#*.} - 1)) ${full:--} $found"
                found= full=
                ;;
            STREAM/*)
                found="$found $address"
                [ -n "$full" ] || full=$name
                ;;
            esac
        done
    }
}

# The host's own name, number 0, and those of the peers, in small groups at the same time: a name server that doesn't
# answer for one name delays only its group.
names() { # NUMBER:NAME...
    while [ $# -gt 0 ]; do
        handful= count=0
        while [ $# -gt 0 ] && [ $count -lt 16 ]; do
            handful="$handful $1"
            count=$((count + 1))
            shift
        done
        resolve $handful &
    done
    wait
    put 'done' names
}

# Calls a function with each program of these names in these directories, a program by two paths once.
each_program() { # function at-most names directory...
    act=$1 most=$2 wanted=$3 seen=
    shift 3
    for directory; do
        # pyenv's shims are scripts that start slower than the interpreters.
        case $directory in */shims | '' | [!/]*) continue ;; esac
        [ -d "$directory" ] || continue
        for name in $wanted; do
            for path in "$directory"/$name; do
                [ -x "$path" ] && [ -f "$path" ] || continue
                for other in $seen; do
                    [ ! "$path" -ef "$other" ] || continue 2
                done
                seen="$seen $path"
                most=$((most - 1))
                [ $most -ge 0 ] || return
                "$act" "$path"
            done
        done
    done
}

# --version starts no interpreter, and proves that the program and its libraries load. -m venv needs ensurepip, which
# is a separate package on Debian. The names of extension modules have the architecture it was built for.
one_python() { # path
    version=$("$1" --version 2>&1)
    case $version in
    Python\ 3.*) ;;
    *) put python "$1" && return ;;
    esac
    version=${version#Python }
    version=${version%%[!0-9.]*}
    minor=${version#3.}
    minor=3.${minor%%.*}
    prefix=${1%/bin/*}
    if [ -r "$prefix/pyvenv.cfg" ]; then
        while read -r key equals value; do
            [ "$key" != home ] || prefix=${value%/bin}
        done <"$prefix/pyvenv.cfg"
    fi
    library_of "$prefix" "$minor" || { [ -L "$1" ] && real=$(readlink -f "$1") && library_of "${real%/bin/*}" "$minor"; } ||
        library_of /usr "$minor"
    can=-
    [ ! -r "$library/venv/__init__.py" ] || [ ! -r "$library/ensurepip/__init__.py" ] || can=venv
    built=-
    for module in "$library"/lib-dynload/_*.cpython-*.so; do
        [ ! -e "$module" ] || built=${module##*.cpython-}
        break
    done
    headers=-
    [ ! -r "${library%/*/*}/include/python$minor/Python.h" ] || headers=headers
    put python "$1 $version $can ${built%.so} $headers"
}

library_of() { # prefix minor
    for library in "$1/lib/python$2" "$1/lib64/python$2"; do
        [ ! -r "$library/os.py" ] || return 0
    done
    library=
    return 1
}

one_mpirun() { # path
    put mpi "$1 $(limit "$1" --version 2>&1 | {
        for line in 1 2 3; do read -r line && printf '%s | ' "$line"; done
    })"
}

programs() {
    PATH=$login_path:$PATH
    IFS=:
    set -- $login_path
    IFS=$usual_ifs
    # Names, not a pattern: /usr/bin is large, and a pattern would read all of it.
    each_program one_python 12 "python3 python3.6 python3.7 python3.8 python3.9 python3.10 python3.11 python3.12 \
python3.13 python3.14 python3.15 python3.16" "$@" \
        /usr/local/bin /usr/bin /opt/python*/bin /opt/conda/bin "$HOME"/.local/bin "$HOME"/miniconda3/bin \
        "$HOME"/anaconda3/bin "$HOME"/miniforge3/bin "$HOME"/mambaforge/bin "$HOME"/.pyenv/versions/*/bin \
        "$HOME"/.local/share/uv/python/*/bin "$home"/python*/bin /opt/rh/rh-python3*/root/usr/bin \
        /opt/intel/oneapi/intelpython/latest/bin /opt/homebrew/bin
    each_mpirun "$@" /usr/local/bin /usr/bin
    slurm=
    for name in bash ssh awk tar sha256sum timeout rsync curl numactl taskset gcc g++ uv nc ncat socat perl python3 getent \
        ip srun qsub bsub; do
        for directory; do
            [ -x "$directory/$name" ] || continue
            buffer tool "$name $directory/$name"
            [ "$name" != srun ] || slurm=${directory%/bin}
            break
        done
    done
    # Slurm's programs may be installed for another cluster: Slurm manages a host with slurmd, or with nodes in its
    # file.
    [ ! -e /run/slurmd.pid ] && [ ! -e /sys/fs/cgroup/system.slice/slurmd.service ] || buffer scheduler slurm
    for at in "$SLURM_CONF" /etc/slurm/slurm.conf /etc/slurm-llnl/slurm.conf /run/slurm/conf/slurm.conf \
        /var/spool/slurmd/conf-cache/slurm.conf "$slurm/etc/slurm.conf"; do
        [ -r "$at" ] && grep -iqE '^[[:space:]]*(NodeName|Include|MaxNodeCount)' "$at" && buffer scheduler slurm
    done
    [ ! -e /etc/pbs.conf ] || buffer scheduler pbs
    for at in "${CONDA_EXE%/bin/conda}" "$HOME"/miniconda3 "$HOME"/anaconda3 "$HOME"/miniforge3 "$HOME"/mambaforge \
        /opt/conda /opt/miniconda3 /opt/anaconda3; do
        [ ! -x "$at/bin/conda" ] || buffer conda "$at"
    done
    [ -z "$LMOD_CMD" ] && [ ! -d /usr/share/lmod ] && [ ! -e /etc/profile.d/lmod.sh ] || buffer modules lmod
    [ -z "$MODULESHOME" ] && [ ! -e /etc/profile.d/modules.sh ] || buffer modules modules
    for at in /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib /usr/local/lib /usr/local/lib64 "$HOME"/.local/lib \
        "$CONDA_PREFIX"/lib "$VIRTUAL_ENV"/lib /opt/intel/oneapi/compiler/latest/lib; do
        [ -d "$at" ] || continue
        for library in libgomp.so libgomp.so.1 libiomp5.so libtcmalloc.so libtcmalloc.so.4 libtcmalloc_minimal.so \
            libtcmalloc_minimal.so.4 libjemalloc.so libjemalloc.so.1 libjemalloc.so.2; do
            [ ! -e "$at/$library" ] || buffer library "$at/$library"
        done
    done
    buffer 'done' programs
}
