# Runs the probe on a host: $home, $peers and the script $probe are set above.
# A file server that is down or a program that hangs must not block it: after five seconds everything is ended, and
# the output so far is used. If timeout(1) is missing or too old for these options, only the time limit of the
# control machine applies.
if timeout -k 1 5 /bin/sh -c "$probe" probe "$home" "$peers" 2>/dev/null; then
    :
else
    case $? in
    124 | 137 | 143) ;;
    *) /bin/sh -c "$probe" probe "$home" "$peers" ;;
    esac
fi
