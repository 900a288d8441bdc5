# How the probe talks: `key value` lines. A line `== key` begins a block, in which every line up to the next
# `==` is a value of that key. Every line is printed at once and whole, so jobs may speak side by side.
#
# Nothing is written anywhere: no file, no here-document (some shells keep those in /tmp). Programs are
# started as rarely as can be: on a small machine each costs as much as all the files read here together.
#
# $1  our directory on this host, or empty for the usual one
# $2  the names of the other hosts
exec 2>/dev/null </dev/null
LC_ALL=C
export LC_ALL
unset CDPATH GREP_OPTIONS ENV BASH_ENV
login_path=$PATH
# The system's own directories first: one of the login's may be on a server that is gone.
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

get() { # file: its first line into $got
    got=
    [ -r "$1" ] && read -r got <"$1"
}

# A name server that is silent, an mpirun that waits for one: two seconds. Without timeout(1), no limit.
if have timeout; then
    limit() { timeout 2 "$@"; }
else
    limit() { "$@"; }
fi
