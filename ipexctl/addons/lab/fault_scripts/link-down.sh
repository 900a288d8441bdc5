# $1 break|mend, $3 the switch's end of the link
case $1 in
break) ip link set "$3" down ;;
mend) ip link set "$3" up ;;
esac
