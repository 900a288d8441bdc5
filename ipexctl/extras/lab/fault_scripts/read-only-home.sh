# $1 break|mend
homes | while read -r home; do
    case $1 in
    break)
        mount --bind "$home" "$home"
        mount -o remount,bind,ro "$home"
        ;;
    mend)
        # Only the read-only mount made by break: a shared home is a (writable) mount, too.
        case $(awk -v at="$home" '$5 == at { options = $6 } END { print options }' /proc/self/mountinfo) in
        ro,* | ro) umount -l "$home" ;;
        esac
        ;;
    esac
done
