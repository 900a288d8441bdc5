# $1 break|mend
chain=LAB-FIREWALL
for tables in iptables ip6tables; do
    command -v $tables >/dev/null || continue
    case $1 in
    break)
        $tables -w 5 -N $chain
        $tables -w 5 -A $chain -i lo -j ACCEPT
        $tables -w 5 -A $chain -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        $tables -w 5 -A $chain -p tcp --dport 22 -j ACCEPT
        # Without neighbour discovery there is no IPv6 at all, port 22 included.
        [ $tables = iptables ] || $tables -w 5 -A $chain -p icmpv6 -j ACCEPT
        $tables -w 5 -A $chain -j DROP
        $tables -w 5 -A INPUT -j $chain
        ;;
    mend)
        $tables -w 5 -D INPUT -j $chain 2>/dev/null || :
        $tables -w 5 -F $chain 2>/dev/null || :
        $tables -w 5 -X $chain 2>/dev/null || :
        ;;
    esac
done
