# $1 break|mend
homes | while read -r home; do
    case $1 in
    break)
        mount --bind "$home" "$home"
        mount -o remount,bind,ro "$home"
        ;;
    mend)
        # Only the mount that break put on top: a shared home is a mount too, and a writable one.
        case $(awk -v at="$home" '$5 == at { options = $6 } END { print options }' /proc/self/mountinfo) in
        ro,* | ro) umount -l "$home" ;;
        esac
        ;;
    esac
done
