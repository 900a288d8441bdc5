# Chooses what this host can listen and connect with: Python, Perl, or whatever there is of nc and bash.
# $1 ports.py   $2 ports.pl   $3 its internal address   $4 its token   $5 seconds to live   $6… where a Python may be
LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
export LC_ALL PATH
in_python=$1 in_perl=$2 address=$3 token=$4 life=$5
shift 5

has() { command -v "$1" >/dev/null 2>&1; }

for python in "$@" python3 /usr/libexec/platform-python; do
    has "$python" || continue
    "$python" -I -S -c 'import select, socket, sys; sys.exit(sys.version_info < (3, 7))' </dev/null >/dev/null 2>&1 &&
        exec "$python" -I -S -c "$in_python" "$address" "$token" "$life"
done
perl -MSocket=getaddrinfo -e 1 </dev/null >/dev/null 2>&1 &&
    exec perl -e "$in_perl" "$address" "$token" "$life"

# What stays is programs that serve one caller at a time, so callers are told to try again when refused.
netcat=
for name in ncat socat nc busybox; do
    has $name || continue
    case $name in
    nc)
        case $(nc -h 2>&1 </dev/null) in
        *Ncat*) netcat=ncat-as-nc ;;
        *BusyBox*) netcat=busybox-as-nc ;;
        *OpenBSD* | *'[-46'*) netcat=openbsd ;;
        *) netcat=traditional ;;
        esac
        ;;
    busybox) busybox nc -h 2>&1 </dev/null | grep -q -e '-l' && netcat=busybox ;;
    *) netcat=$name ;;
    esac
    [ -z "$netcat" ] || break
done

one_caller() { # port: serve whoever comes first
    case $netcat in
    ncat) set -- ncat -l "$address" "$1" ;;
    ncat-as-nc | openbsd) set -- nc -l "$address" "$1" ;;
    # Most builds can't be told on which address.
    busybox) set -- busybox nc -l -p "$1" ;;
    busybox-as-nc) set -- nc -l -p "$1" ;;
    traditional) set -- nc -l -s "$address" -p "$1" ;;
    socat)
        case $address in
        *:*) set -- socat - "TCP6-LISTEN:$1,bind=[$address],reuseaddr" ;;
        *) set -- socat - "TCP4-LISTEN:$1,bind=$address,reuseaddr" ;;
        esac
        ;;
    esac
    printf 'ipexctl %s\n' "$token" | "$@"
}

serve() { # port
    misses=0
    while [ $misses -lt 40 ]; do
        if one_caller "$1"; then misses=0; else misses=$((misses + 1)) && sleep 0.1; fi
    done
}

listens() { # port: by the kernel's own table; where there is none we have to believe it
    cat /proc/net/tcp /proc/net/tcp6 >/dev/null 2>&1 || return 0
    cat /proc/net/tcp /proc/net/tcp6 | grep -q ":$(printf %04X "$1") 0*:0000 0A "
}

connect() { # address port: print what the first to answer there says
    if has bash; then
        $limit bash -c 'exec 3<>"/dev/tcp/$1/$2" && IFS= read -r line <&3 && echo "$line"' bash "$1" "$2"
        return
    fi
    case $netcat in
    ncat) $limit ncat --recv-only "$1" "$2" ;;
    busybox) $limit busybox nc "$1" "$2" ;;
    socat)
        case $1 in
        *:*) $limit socat -u "TCP6:[$1]:$2" - ;;
        *) $limit socat -u "TCP4:$1:$2" - ;;
        esac
        ;;
    *) $limit nc "$1" "$2" ;;
    esac
}

attempt() { # number address port token again; one that hangs is never told of, and is counted as a timeout
    tries=0
    # A caller in the queue of a netcat that has just ended is answered by nobody.
    [ "$5" = 0 ] || [ -z "$limit" ] || limit="timeout 1"
    while :; do
        said=$(connect "$2" "$3" 2>&1 </dev/null)
        code=$?
        case $code$said in
        *"$4"*) kind=ok ;;
        *[Rr]efused* | *reset*) kind=refused ;;
        *'o route'* | *nreachable*) kind='noroute No route to host' ;;
        124 | 143 | *'timed out'*) kind=timeout ;;
        0 | 1) kind=refused ;;
        0* | 124*) kind="wrong $(printf '%s' "$said" | tr -dc ' -~' | cut -c 1-40)" ;;
        *) kind="error $(printf '%s' "$said" | tr -dc ' -~' | cut -c 1-80)" ;;
        esac
        [ "$5" = 1 ] && [ $tries -lt 25 ] || break
        case $kind in
        refused) tries=$((tries + 1)) && sleep 0.1 ;;
        timeout) tries=$((tries + 10)) ;;
        *) break ;;
        esac
    done
    echo "result $1 $kind"
}

port=-
if [ -n "$netcat" ]; then
    first=$(awk -v seed=$$ 'BEGIN { print 20000 + (seed * 7919) % 12000 }' 2>/dev/null) || first=23571
    for port in $first $((first + 97)) $((first + 194)) -; do
        [ "$port" != - ] || break
        serve "$port" </dev/null >/dev/null 2>&1 &
        server=$!
        for tenth in 1 2 3 4 5 6 7 8; do
            sleep 0.1
            listens "$port" && break 2
        done
        kill $server
    done
fi
if has bash || [ -n "$netcat" ]; then connects=1; else connects=0; fi
# Should nobody be left to tell us to end. All that we start is in our process group.
(sleep "$life" && kill 0) </dev/null >/dev/null 2>&1 &
if [ "$port" != - ]; then
    echo "ready $port 1 $connects $netcat"
elif [ -n "$netcat" ]; then
    echo "ready - 1 $connects $netcat its netcat ($netcat) can't listen on $address"
else
    echo "ready - 1 $connects sh it has none of python3, perl, nc, ncat, socat and busybox"
fi

limit=
orders=
while read -r word rest; do
    case $word in
    to) orders="$orders$rest
" ;;
    go)
        has timeout && limit="timeout $rest"
        while read -r number rest; do
            # shellcheck disable=SC2086
            [ -z "$number" ] || attempt "$number" $rest &
        done <<EOT
$orders
EOT
        ;;
    esac
done
trap '' TERM
kill 0
exit 0
