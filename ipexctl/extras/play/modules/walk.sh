# Enters the directory of a path that a task writes or removes, for all modules; for dash, bash and busybox sh. Another
# account may own a directory of that path, such as /tmp/work, and place a link in it, or replace a directory by one at
# any moment. So the path is entered one component at a time, links are resolved here and not by the kernel, each new
# current directory is compared with the expected one, and tasks only use names in the current directory (`./NAME`).
# Links of root or of this account are followed, others only if $follow is yes.

LC_ALL=C
export LC_ALL
newline='
'
follow= hops=0

# `remote/command.py: script_error` reads these lines.
fail() { printf '\036%s\036%s\n' "${2-}" "$1" >&2; exit 1; } # text, and the code of its fix
changed_meanwhile() { fail "$1 changed while it was checked: another process is changing it"; }

expand_home() { # path: sets $path
    case $1 in '~') path=$HOME ;; '~/'*) path=$HOME/${1#??} ;; *) path=$1 ;; esac
}

# Sets $at to the physical path of the current directory, empty for the root. bash's built-in pwd resolves names a
# second time, with perhaps another result; the program asks the kernel. The dot keeps a newline at the end of a name.
find_directory() {
    at=$(env pwd -P 2>/dev/null && echo .) || fail "the current directory is gone"
    at=${at%"$newline."}
    [ "$at" != / ] || at=
}

read_link() { # name of a link in the current directory: sets $target, or ends the script if it is not to be followed
    hops=$((hops + 1))
    [ $hops -le 40 ] || fail "$here/$1: too many links"
    # Another link may be placed between two commands, so both must see the same one.
    link=$(stat -c '%u %d %i %z' -- "./$1" 2>/dev/null) && target=$(readlink -- "./$1" && echo .) &&
        [ "$(stat -c '%u %d %i %z' -- "./$1" 2>/dev/null)" = "$link" ] || changed_meanwhile "$here/$1"
    target=${target%"$newline."}
    [ "$follow" != yes ] || return 0
    case ${link%% *} in 0 | "$(id -u)") return 0 ;; esac
    printf '\036link\036%s\036%s\036%s' "$(stat -c %U -- "./$1")" "$here/$1" "$target" >&2
    exit 95
}

enter() { # path, "make" for missing directories: sets $here; else returns 1, with the missing components in $missing
    case $1 in
    /*)
        cd -P / || exit 1
        here=
        ;;
    *) [ -n "${here+set}" ] || { find_directory && here=$at; } ;;
    esac
    missing=$1/
    while [ -n "$missing" ]; do
        part=${missing%%/*} rest=${missing#*/}
        case $part in
        '' | .)
            missing=$rest
            continue
            ;;
        ..) expected=${here%/*} ;;
        *)
            if [ -L "./$part" ]; then
                read_link "$part"
                missing=$target/$rest
                case $target in /*) cd -P / && here= || exit 1 ;; esac
                continue
            fi
            if [ ! -d "./$part" ]; then
                [ ! -e "./$part" ] || fail "$here/$part is not a directory"
                [ "$2" = make ] || return 1
                output=$(mkdir -- "./$part" 2>&1) || [ -d "./$part" ] || { printf '%s\n' "$here/$part: ${output##*: }" >&2; exit 1; }
            fi
            expected=$here/$part
            ;;
        esac
        cd -P -- "./$part" 2>/dev/null || fail "this account may not enter ${expected:-/}: permission denied" denied
        find_directory
        [ "$at" = "$expected" ] || changed_meanwhile "${expected:-/}"
        here=$at missing=$rest
    done
}

# As enter, for the directory that contains the path; sets $name to the last component, empty if that is `..` or the root.
enter_parent() { # path, "make" or empty
    whole=$1
    while :; do
        case $whole in *[!/]*/) whole=${whole%/} ;; *) break ;; esac
    done
    name=${whole##*/} parent=
    case $whole in */*) parent=${whole%/*}/ ;; esac
    case $name in '' | . | ..) parent=$whole name= ;; esac
    enter "$parent" "$2"
}

open_file() { # name of a regular file in the current directory: descriptor 3, never another file through a link
    tries=0
    [ -r "./$1" ] || fail "this account may not read $here/$1: permission denied" denied
    # Another host that shares the directory may replace the file at the same time.
    until exec 3<"./$1" && [ "$(stat -L -c '%d %i' /proc/self/fd/3)" = "$(stat -c '%d %i' -- "./$1")" ]; do
        tries=$((tries + 1))
        [ $tries -lt 10 ] || changed_meanwhile "$here/$1"
    done
}

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
