# $1 break|mend, $3 interface, $4 rate, $5 burst
case $1 in
break) tc qdisc replace dev "$3" root tbf rate "$4" burst "$5" latency 100ms ;;
mend) tc qdisc delete dev "$3" root 2>/dev/null || : ;;
esac
