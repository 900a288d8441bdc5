# The output format: `key value` lines. A line `== key` begins a block, in which every line up to the next `==` is a
# value of that key. While a background job runs, every line is printed with one write.
#
# The probe writes nothing: no file, no here-document (some shells keep those in /tmp). It starts few programs: on a
# small machine each costs as much as all the files read here together.
#
# $1  the --home directory on this host, or empty for the default one
# $2  the names of the other hosts
exec 2>/dev/null </dev/null
LC_ALL=C
export LC_ALL
unset CDPATH GREP_OPTIONS ENV BASH_ENV
login_path=$PATH
# System directories first: a directory of the login's PATH may be on a file server that is down.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH
peers=$2
usual_ifs=$IFS
case $1 in
'') home=$HOME/.ipexctl ;;
/*) home=$1 ;;
'~/'*) home=$HOME/${1#??} ;;
*) home=$HOME/$1 ;;
esac

have() { command -v "$1" >/dev/null; }

put() { # key value: a line, if there is a value
    [ -z "$2" ] || printf '%s %s\n' "$1" "$2"
}

# Each write costs sshd and the control machine a packet, so lines are collected where nothing can hang between them.
held=
buffer() { # key value: a line for the next flush
    [ -z "$2" ] || held="$held$1 $2
"
}

flush() {
    printf '%s' "$held"
    held=
}

get() { # file: its first line into $got
    got=
    [ -r "$1" ] && read -r got <"$1"
}

# Two seconds for a name server that doesn't answer, or an mpirun that waits for it; as many times longer as the load is
# per core. Without timeout(1), no limit of their own.
if have timeout; then
    seconds() {
        get /proc/loadavg
        set -- /sys/devices/system/cpu/cpu[0-9]*
        load=${got%%.*}
        load=$((${load:-0} / $#))
        seconds=$((2 * (load < 1 ? 1 : load > 15 ? 15 : load)))
    }
    seconds
    limit() { timeout "$seconds" "$@"; }
else
    limit() { "$@"; }
fi
