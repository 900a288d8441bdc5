# $1 break|mend, $3 seconds. Only `date` is wrong: all hosts share the kernel's clock.
date=$(command -v date)
case $1 in
break)
    cp -p "$date" "$SAVE/date"
    cat >"$SAVE/wrapper" <<WRAPPER
#!/bin/sh
for word; do
    case \$word in
    -d* | --date* | -f* | --file* | -r* | --reference* | -s* | --set*) exec $SAVE/date "\$@" ;;
    esac
done
now=\$($SAVE/date +%s.%N)
exec $SAVE/date -d "@\$((\${now%.*} + ($3))).\${now#*.}" "\$@"
WRAPPER
    chmod 755 "$SAVE/wrapper"
    mv "$SAVE/wrapper" "$date"
    ;;
mend) [ ! -e "$SAVE/date" ] || mv "$SAVE/date" "$date" ;;
esac
