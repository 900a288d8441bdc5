# $1 break|mend, $2 noisy-rc|slow-rc, $3 seconds
# Lines go to the top, as Debian's .bashrc leaves early when nobody is at the terminal. Each carries a
# tag with this host's name: on a shared home the others' lines are not ours to take away.
tag="# lab fault $2 of $(hostname)"
owner() { stat -c %u:%g "$1"; }

line() { # file
    case $2:$1 in
    slow-rc:*) echo "sleep $3 $tag" ;;
    noisy-rc:*/.cshrc) echo "echo 'Welcome to $(hostname)!'; sh -c 'echo quota: 91% used >&2' $tag" ;;
    noisy-rc:*) echo "echo 'Welcome to $(hostname)!'; echo 'quota: 91% used' >&2 $tag" ;;
    esac
}

homes | while read -r home; do
    for name in .bashrc .profile .zshenv .cshrc .config/fish/config.fish; do
        file=$home/$name
        case $1 in
        break)
            if [ ! -e "$file" ]; then
                for parent in "$home/.config" "$home/.config/fish"; do
                    case $file in "$parent"/*) ;; *) continue ;; esac
                    [ -d "$parent" ] || { mkdir "$parent" && chown "$(owner "$home")" "$parent" && echo "$parent" >>"$SAVE/made"; }
                done
                : >"$file"
                chown "$(owner "$home")" "$file"
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
done
if [ "$1" = mend ] && [ -e "$SAVE/made" ]; then
    sort -r "$SAVE/made" | while read -r parent; do rmdir "$parent" 2>/dev/null || :; done
fi
