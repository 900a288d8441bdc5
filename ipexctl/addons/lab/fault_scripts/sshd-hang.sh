# $1 break|mend: stops the listener and all sessions; the kernel still accepts connections.
case $1 in
break) signal_sshd STOP ;;
mend) signal_sshd CONT ;;
esac
