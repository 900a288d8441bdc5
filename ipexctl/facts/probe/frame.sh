# What frames the probe: words to say things with, time limits, and jobs that cannot hold us up.
#
# It prints `key value` lines. A line `== key` begins a block: every line up to the next `==` is a value
# of that key. Nothing is written anywhere: no file, no here-document (some shells keep those in /tmp).
#
# home    our directory on this host, or empty for the usual one
# peers   the names of the other hosts
exec 2>/dev/null
LC_ALL=C
export LC_ALL
unset CDPATH GREP_OPTIONS ENV BASH_ENV
login_path=$PATH
# The system's own directories first: one of the login's may be on a server that is gone.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH
case $home in
'') home=$HOME/.ipexctl ;;
/*) ;;
*) home=$HOME/$home ;;
esac

have() { command -v "$1" >/dev/null; }

put() { # key value: a line, if there is a value
    [ -z "$2" ] || printf '%s %s\n' "$1" "$2"
}

get() { # file: its first line into $got
    got=
    [ -r "$1" ] && read -r got <"$1"
}

# One command that may hang (a file server is gone, a name server silent) has two seconds.
find_limit() {
    if timeout -k 1 2 true; then
        limit() { timeout -k 1 2 "$@"; }
    elif timeout 2 true; then
        limit() { timeout 2 "$@"; }
    elif timeout -t 2 true; then
        limit() { timeout -t 2 "$@"; }
    else
        limit() {
            "$@" &
            limited=$!
            (sleep 2 && kill -9 $limited) >/dev/null &
            watch=$!
            wait $limited
            kill $watch
        }
    fi
}

# Jobs run side by side, each printing whole lines into one pipe that `collect` reads. What hangs in the
# kernel where no signal reaches it is left behind holding that pipe, not the connection.
job() { # name
    (
        "$1"
        printf '%s\n' "=end $1"
    ) &
}

start_jobs() { # names
    find_limit
    (
        sleep 4 &
        printf '%s\n' "=timer $!"
        wait
        printf '%s\n' =late
    ) &
    for name; do job "$name"; done
}

collect() { # names
    waiting=" $* "
    timer=
    while [ "$waiting" != ' ' ] && IFS= read -r line; do
        case $line in
        '=end '*)
            line=${line#=end }
            waiting="${waiting%% $line *} ${waiting#* $line }"
            ;;
        '=timer '*) timer=${line#=timer } ;;
        =late)
            for name in $waiting; do put cut "$name"; done
            timer=
            break
            ;;
        *) printf '%s\n' "$line" ;;
        esac
    done
    [ -z "$timer" ] || kill "$timer"
}
