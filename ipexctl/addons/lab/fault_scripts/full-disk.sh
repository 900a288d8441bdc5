# $1 break|mend: fills the disk with files that are allocated but never written, so they use no real disk.
fill() { # directory
    file=$1/.lab-filler-$(hostname)
    : >>"$file"
    # Large pieces need few extents; small ones fill the fragments that remain.
    for piece in 1073741824 16777216 262144 4096; do
        while
            size=$(stat -c %s "$file")
            fallocate -o "$size" -l $piece "$file" 2>/dev/null
        do :; done
    done
}
case $1 in
break)
    if [ "$(stat -f -c %T /var/tmp)" = tmpfs ]; then
        # Without a mounted image the disk is a tmpfs, which is shrunk instead of filled.
        stat -f -c '%b %S' /var/tmp >"$SAVE/size"
        used=$(df -k --output=used /var/tmp | tail -n 1)
        mount -o "remount,size=$((used))k" /var/tmp
    else
        fill /var/tmp
        [ "$(df -k --output=avail "$HOME_DIR" | tail -n 1)" -eq 0 ] || fill "$HOME_DIR"
    fi
    ;;
mend)
    if [ -s "$SAVE/size" ]; then
        read -r blocks size <"$SAVE/size"
        mount -o "remount,size=$((blocks * size))" /var/tmp
    fi
    rm -f "/var/tmp/.lab-filler-$(hostname)" "$HOME_DIR/.lab-filler-$(hostname)"
    ;;
esac
