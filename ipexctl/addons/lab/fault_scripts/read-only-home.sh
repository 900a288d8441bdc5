# $1 break|mend
homes | while read -r home; do
    case $1 in
    break)
        mount --bind "$home" "$home"
        mount -o remount,bind,ro "$home"
        ;;
    mend)
        # Only undo the read-only mount that break made: a shared home is also a mount, but writable.
        case $(awk -v at="$home" '$5 == at { options = $6 } END { print options }' /proc/self/mountinfo) in
        ro,* | ro) umount -l "$home" ;;
        esac
        ;;
    esac
done
