# Enters the directory of a path that a task writes or removes, for all modules; for dash, bash and busybox sh. Another
# account may own a directory of that path, such as /tmp/work, and place a link in it, or replace a directory by one at
# any moment. So the path is entered one component at a time, links are resolved here and not by the kernel, each new
# current directory is compared with the expected one, and tasks only use names in the current directory (`./NAME`).
# Links of root or of this account are followed, others only if $follow is yes. `remote/walk.sh`, which comes before it,
# says whose they are.

LC_ALL=C
export LC_ALL
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
    at=${at%"$walk_newline."}
    [ "$at" != / ] || at=
}

read_link() { # name of a link in the current directory: sets $target, or ends the script if it is not to be followed
    hops=$((hops + 1))
    [ $hops -le 40 ] || fail "$here/$1: too many links"
    # Another link may be placed between two commands, so both must see the same one.
    link=$(stat -c '%u %d %i %z' -- "./$1" 2>/dev/null) && target=$(readlink -- "./$1" && echo .) &&
        [ "$(stat -c '%u %d %i %z' -- "./$1" 2>/dev/null)" = "$link" ] || changed_meanwhile "$here/$1"
    target=${target%"$walk_newline."}
    if [ "$follow" = yes ] || walk_is_own "${link%% *}"; then return 0; fi
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
