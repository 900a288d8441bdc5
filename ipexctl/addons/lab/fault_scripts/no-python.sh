# $1 break|mend
case $1 in
break)
    number=0
    for directory in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin /usr/games /usr/local/games; do
        for path in "$directory"/python "$directory"/python[0-9]* "$directory"/pypy*; do
            [ -e "$path" ] || [ -L "$path" ] || continue
            number=$((number + 1))
            echo "$number $path" >>"$SAVE/moved"
            mv "$path" "$SAVE/$number"
        done
    done
    ;;
mend)
    [ -e "$SAVE/moved" ] || exit 0
    while read -r number path; do
        [ ! -e "$SAVE/$number" ] && [ ! -L "$SAVE/$number" ] || mv "$SAVE/$number" "$path"
    done <"$SAVE/moved"
    ;;
esac
