# Temporary names: `.NAME.ipexctl-SCOPE.PID.RANDOM.part` beside the file NAME, `.ipexctl-….part` for a tree, which is a
# directory with the file `.ipexctl-tree`. SCOPE is where the PID is valid: this boot of the machine and its pid
# namespace. A killed task leaves one; the next task with the same file or tree removes those of its own account whose
# process has ended, and in another scope those that did not change for a day. (node/common/processes.py has the same rule.)
boot= space=
{ read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
space=$(readlink /proc/self/ns/pid 2>/dev/null)
space=${space#"pid:["} space=${space%"]"}
scope=${boot%%-*}-$space

temporary_name() { # name of the file, or empty for a tree: sets $temporary
    temporary=./${1:+.$1}.ipexctl-$scope.$$.$(od -An -N4 -tx1 /dev/urandom | tr -d ' \n').part
}

is_abandoned() { # path, its tag SCOPE.PID.RANDOM
    random=${2##*.} pid=${2%.*}
    from=${pid%.*} pid=${pid##*.}
    case $random$pid in *[!0-9a-f]*) return 1 ;; esac
    case $pid in '' | *[!0-9]*) return 1 ;; esac
    [ ${#random} -eq 8 ] && [ "$from.$pid.$random" = "$2" ] || return 1
    case $from in *[!0-9a-f-]* | *-*-* | [!0-9a-f]*) return 1 ;; *-*) ;; *) return 1 ;; esac
    if [ "$from" = "$scope" ] && [ -n "$boot" ] && [ -n "$space" ]; then
        [ ! -d "/proc/$pid" ]
    else
        output=$(find "$1" -mtime -1 2>/dev/null) && [ -z "$output" ]
    fi
}

remove_tree() { # path of a tree's temporary directory
    (
        cd -P -- "$1" && find_directory && [ "$at" = "$here/${1#./}" ] && [ -O . ] && [ -f ./.ipexctl-tree ] || exit 1
        rm -rf -- ./[0-9]*
        rm -f ./.ipexctl-tree
    ) 2>/dev/null
    rmdir -- "$1" 2>/dev/null
}

remove_abandoned() { # name of the file, or empty for a tree: in the current directory
    prefix=./${1:+.$1}.ipexctl-
    for old in "$prefix"*.part "$prefix"*.part.bak; do
        [ -O "$old" ] && [ ! -L "$old" ] || continue
        tag=${old#"$prefix"}
        tag=${tag%.bak}
        is_abandoned "$old" "${tag%.part}" || continue
        if [ -n "$1" ]; then
            [ ! -f "$old" ] || rm -f -- "$old"
        elif [ -d "$old" ]; then
            remove_tree "$old"
        fi
    done
}
