# The jobs: what is on disks, behind names, and in programs that have to be started to be known.

# Room at a path, and which filesystem it is on. `stat -f` and mountinfo speak of that one mount alone,
# where df may ask every mount there is.
room() { # key path
    [ ! -w "$2" ] || put "$1.writable" yes
    if [ -r /proc/self/mountinfo ]; then
        put "$1.room" "$(limit stat -f -c '%S %b %a %c %d' "$2")"
        put "$1.mount" "$(awk -v path="$2" '
            { at = $5 }
            (at == "/" || at == path || index(path, at "/") == 1) && length(at) >= length(best) { best = at; row = $0 }
            END { print row }' /proc/self/mountinfo)"
    else
        put "$1.df" "$(limit df -Pk "$2" | while read -r line; do last=$line; printf '%s|' "$line"; done)"
    fi
}

identity() { # key path: device and inode
    if [ "$kernel" = Linux ]; then
        put "$1" "$(limit stat -c '%d %i %n' "$2")"
    else
        put "$1" "$(limit stat -f '%d %i %N' "$2")"
    fi
}

disks() {
    room shm /dev/shm
    tmp=$(cd /tmp && pwd -P)
    room tmp "$tmp"
}

our_home() {
    put home.path "$home"
    base=$home
    until [ -d "$base" ]; do
        case $base in
        /*/*) base=${base%/*} ;;
        *) base=/ && break ;;
        esac
    done
    real=$(cd "$base" && pwd -P)
    if [ "$base" = "$home" ]; then
        put home.exists yes
        put home.real "$real"
        [ ! -L "$home" ] || put home.link yes
        parent=$(cd "${home%/*}/" && pwd -P)
        identity home.parent "$parent"
    else
        put home.real "${real%/}${home#"$base"}"
    fi
    identity home.base "$real"
    room home "$real"
}

our_envs() {
    for at in "$home"/envs/*; do
        [ -d "$at" ] || continue
        name=${at##*/}
        put env "$name"
        [ ! -x "$at/bin/python" ] || put env.runs "$name"
        [ ! -r "$at/env.json" ] || while IFS= read -r line || [ -n "$line" ]; do
            put env.record "$name $line"
        done <"$at/env.json"
        for lib in "$at"/lib/python3*; do
            put env.python "$name ${lib##*/python}"
            for wanted in torch intel_extension_for_pytorch oneccl oneccl_bind_pt impi_rt intel_openmp numpy accelerate \
                transformers; do
                for info in "$lib/site-packages/$wanted"-*.dist-info; do
                    [ ! -d "$info" ] || put env.package "$name ${info##*/}"
                done
            done
        done
    done
}

# Records of runs that say they go on, and our own processes that were started out of our home.
our_jobs() {
    set -- "$home"/runs/*/status.json
    [ ! -r "$1" ] || limit grep -lE '"state": *"(starting|running)"' "$@" | while read -r file; do
        file=${file%/status.json}
        put run "${file##*/}"
    done
    mine=
    for at in /proc/[0-9]*; do
        [ ! -O "$at" ] || mine="$mine $at/cmdline"
    done
    [ -z "$mine" ] || limit grep -lasF "$home/" $mine | while read -r file; do
        file=${file%/cmdline}
        [ "${file#/proc/}" = $$ ] || put pid "${file#/proc/}"
    done
}

# One getent for many names. An address needs no asking, so 127.127.A.B between the names says which of
# them the lines before it belong to: the name with the number A * 250 + B - 1.
resolve() { # number of the first, names
    number=$1 asked=
    shift
    for name; do
        asked="$asked $name 127.127.$((number / 250)).$((number % 250 + 1))"
        number=$((number + 1))
    done
    limit getent ahosts $asked | {
        found= full=
        while read -r address kind name; do
            case $kind/$address in
            STREAM/127.127.*)
                printf 'resolved %s %s %s\n' "$address" "${full:--}" "$found"
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

# Our own name, which has the number 0, and the peers', in handfuls side by side: a name server that is
# silent about one costs the others of its handful only.
names() {
    have getent || return
    set -f
    number=0
    set -- "$(uname -n)" $peers
    while [ $# -gt 0 ]; do
        handful= first=$number
        while [ $# -gt 0 ] && [ $((number - first)) -lt 16 ]; do
            handful="$handful $1"
            number=$((number + 1))
            shift
        done
        resolve $first $handful &
    done
    wait
}

# Calls a function with each program of these names in these directories, a program by two paths once.
each_program() { # function at-most names directory...
    act=$1 most=$2 wanted=$3 seen=
    shift 3
    for directory; do
        # pyenv's shims are scripts that cost more than the interpreters behind them.
        case $directory in */shims) continue ;; esac
        for path in $(cd "$directory" && for name in $wanted; do [ ! -x "$name" ] || printf '%s\n' "$directory/$name"; done); do
            for other in $seen; do
                [ ! "$path" -ef "$other" ] || continue 2
            done
            seen="$seen $path"
            most=$((most - 1))
            [ $most -ge 0 ] || return
            "$act" "$path"
        done
    done
}

login_directories() { # PATH as words; its oddities (empty parts, blanks) are nothing to us
    printf '%s' "$login_path" | tr : ' '
}

# What -m venv needs beside itself is ensurepip, which Debian packs apart. No line may need its indent.
ask_python='import os, sys
has = lambda name: any(os.path.isfile(os.path.join(p, name, "__init__.py")) for p in sys.path)
i = sys.implementation
print("%d.%d.%d" % sys.version_info[:3], os.uname()[4] if sys.maxsize > 2**32 else "32bit", i.name,
    getattr(i, "_multiarch", "") or "-", "venv" if has("venv") and has("ensurepip") else "-",
    os.path.realpath(sys.executable))'

one_python() { # path
    put python "$1 $(limit "$1" -I -S -B -c "$ask_python")"
}

pythons() {
    each_program one_python 12 'python3 python3.[0-9] python3.[0-9][0-9]' $(login_directories) \
        /usr/local/bin /usr/bin /opt/python*/bin /opt/conda/bin "$HOME"/.local/bin "$HOME"/miniconda3/bin \
        "$HOME"/anaconda3/bin "$HOME"/miniforge3/bin "$HOME"/mambaforge/bin "$HOME"/.pyenv/versions/*/bin \
        "$HOME"/.local/share/uv/python/*/bin "$home"/python*/bin /opt/rh/rh-python3*/root/usr/bin \
        /opt/intel/oneapi/intelpython/latest/bin /opt/homebrew/bin
}

one_mpirun() { # path
    put mpi "$1 $(limit "$1" --version 2>&1 | {
        for line in 1 2 3; do read -r line && printf '%s | ' "$line"; done
    })"
}

mpis() {
    each_program one_mpirun 6 'mpirun mpiexec.hydra' $(login_directories) \
        /usr/local/bin /usr/bin $I_MPI_ROOT/bin /opt/intel/oneapi/mpi/*/bin "$HOME"/intel/oneapi/mpi/*/bin \
        /opt/intel/compilers_and_libraries*/linux/mpi/intel64/bin /usr/lib64/openmpi/bin /usr/lib64/mpich/bin \
        /usr/lib64/mvapich2*/bin /opt/openmpi*/bin /opt/ompi*/bin /opt/mpich*/bin /usr/local/openmpi*/bin
}

software() {
    PATH=$login_path:$PATH
    for name in bash ssh tar sha256sum timeout rsync curl numactl taskset gcc uv nc ncat socat perl python3 getent ip; do
        put tool "$name $(command -v $name)"
    done
    for pair in slurm:srun pbs:qsub lsf:bsub; do
        ! have "${pair#*:}" || put scheduler "${pair%:*}"
    done
    [ ! -e /etc/slurm/slurm.conf ] && [ ! -d /var/spool/slurmd ] || put scheduler slurm
    [ ! -e /etc/pbs.conf ] || put scheduler pbs
    for at in "${CONDA_EXE%/bin/conda}" "$HOME"/miniconda3 "$HOME"/anaconda3 "$HOME"/miniforge3 "$HOME"/mambaforge \
        /opt/conda /opt/miniconda3 /opt/anaconda3; do
        [ ! -x "$at/bin/conda" ] || put conda "$at"
    done
    [ -z "$LMOD_CMD" ] && [ ! -d /usr/share/lmod ] && [ ! -e /etc/profile.d/lmod.sh ] || put modules lmod
    [ -z "$MODULESHOME" ] && [ ! -e /etc/profile.d/modules.sh ] || put modules modules
    for at in /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib /usr/local/lib /usr/local/lib64 "$HOME"/.local/lib \
        "$CONDA_PREFIX"/lib "$VIRTUAL_ENV"/lib /opt/intel/oneapi/compiler/latest/lib; do
        for library in libgomp libiomp5 libtcmalloc libtcmalloc_minimal libjemalloc; do
            for library in "$at/$library.so" "$at/$library".so.[0-9]; do
                [ ! -e "$library" ] || put library "$library"
            done
        done
    done
}
