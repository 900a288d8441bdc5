# $1 break|mend, $3 interface, $4 probability
# In the raw table, before any firewall rule, because no rule may see a lost packet.
for tables in iptables ip6tables; do
    command -v $tables >/dev/null || continue
    for side in "PREROUTING -i" "OUTPUT -o"; do
        # shellcheck disable=SC2086 # chain and flag are two words
        case $1 in
        break)
            $tables -w 5 -t raw -A $side "$3" -m statistic --mode random --probability "$4" -j DROP
            ;;
        mend)
            $tables -w 5 -t raw -D $side "$3" -m statistic --mode random --probability "$4" -j DROP 2>/dev/null || :
            ;;
        esac
    done
done
