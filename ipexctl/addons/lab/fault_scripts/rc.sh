# $1 break|mend, $2 noisy-rc|slow-rc, $3 seconds
# Lines are inserted at the top, because Debian's .bashrc returns early in non-interactive shells. Each has a
# tag with the host's name: on a shared home, `mend` must keep the lines of other hosts.
tag="# lab fault $2 of $(hostname)"
made=.made-by-lab-fault

line() { # file, fault, seconds
    case $2:$1 in
    slow-rc:*) echo "sleep $3 $tag" ;;
    noisy-rc:*/.cshrc) echo "echo 'Welcome to $(hostname)!'; sh -c 'echo quota: 91% used >&2' $tag" ;;
    noisy-rc:*) echo "echo 'Welcome to $(hostname)!'; echo 'quota: 91% used' >&2 $tag" ;;
    esac
}

make_directory() { # directory, home: leaves a marker file, so that the last `mend` removes the directory
    [ -d "$1" ] && return
    mkdir "$1"
    : >"$1/$made"
    chown -R "$(stat -c %u:%g "$2")" "$1"
}

remove_directory() {
    [ ! -e "$1/$made" ] || [ "$(ls -A "$1")" != $made ] || rm -r "$1"
}

homes | while read -r home; do
    for name in .bashrc .profile .zshenv .cshrc .config/fish/config.fish; do
        file=$home/$name
        case $1 in
        break)
            case $name in .config/*)
                make_directory "$home/.config" "$home"
                make_directory "$home/.config/fish" "$home"
                ;;
            esac
            if [ ! -e "$file" ]; then
                : >"$file"
                chown "$(stat -c %u:%g "$home")" "$file"
            fi
            { line "$file" "$2" "${3-}"; cat "$file"; } >"$SAVE/text"
            cat "$SAVE/text" >"$file"
            ;;
        mend)
            [ -e "$file" ] || continue
            sed "\\|$tag\$|d" "$file" >"$SAVE/text"
            cat "$SAVE/text" >"$file"
            [ -s "$file" ] || rm "$file"
            ;;
        esac
    done
    [ "$1" = break ] || { remove_directory "$home/.config/fish" && remove_directory "$home/.config"; }
done
