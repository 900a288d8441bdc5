# $1 break|mend: the listener and every session stand still; the kernel goes on accepting for them.
case $1 in
break) signal_sshd STOP ;;
mend) signal_sshd CONT ;;
esac
