# $1 break|mend
case $1 in
break)
    cat /etc/hosts >"$SAVE/hosts"
    grep -w -e localhost -e "$(hostname)" "$SAVE/hosts" >/etc/hosts
    ;;
mend) [ ! -s "$SAVE/hosts" ] || cat "$SAVE/hosts" >/etc/hosts ;;
esac
