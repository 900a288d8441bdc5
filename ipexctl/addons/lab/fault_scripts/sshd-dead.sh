# $1 break|mend
case $1 in
break)
    signal_sshd KILL
    rm -f /run/sshd.pid
    ;;
mend) start_sshd ;;
esac
