# The rule `own_path` of node/common/walk.py for sh: whether only this account can change what a path leads to, now or
# later, so that its name may be used afterwards. One `ls` lists the directories from `/` on, in this order, which is enough:
# an entry of a directory that others can't change can't be replaced once it was checked.

walk_newline='
' walk_me=

walk() { # path, `end` to judge its end like the directories above it: 1 with the reason in $walk_detail
    walk_end=$2 walk_at= walk_rest=$1/ walk_links=0
    case $1 in /*) ;; *) walk_rest=$PWD/$1/ ;; esac
    while [ -n "$walk_rest" ]; do
        walk_to=$walk_at
        set -- "${walk_at:-/}"
        while [ -n "$walk_rest" ]; do
            walk_part=${walk_rest%%/*}
            [ "$walk_part" != .. ] || break
            walk_rest=${walk_rest#*/}
            case $walk_part in
            '' | .) continue ;;
            *"$walk_newline"*) walk_detail="$walk_to/$walk_part has a newline in its name" && return 1 ;;
            esac
            walk_to=$walk_to/$walk_part
            set -- "$@" "$walk_to"
        done
        walk_down "$@" || return 1
        case $walk_found in
        nothing) return 0 ;;
        directory) walk_at=$walk_to ;;
        esac
        case $walk_found$walk_rest in directory../*) walk_at=${walk_at%/*} walk_rest=${walk_rest#*/} ;; esac
    done
    [ -z "$walk_end" ] || walk_check end
}

walk_down() { # directories, each in the one before: 1, or $walk_found: directory, link to $walk_rest at $walk_at, nothing
    walk_lines=$(LC_ALL=C ls -ldn -- "$@" 2>/dev/null)$walk_newline walk_above= walk_found=directory
    for walk_each; do
        # shellcheck disable=SC2086 # its words
        walk_fields ${walk_lines%%"$walk_newline"*}
        walk_lines=${walk_lines#*"$walk_newline"}
        case $walk_mode in l*)
            if ! walk_is_own "$walk_owner"; then
                walk_detail="$walk_each is a link of another account (uid $walk_owner)" && return 1
            fi
            ;;
        esac
        [ -z "$walk_above" ] || walk_check "$walk_owner" || return 1
        case $walk_mode in
        d*) walk_above=$walk_each walk_above_mode=$walk_mode walk_uid=$walk_owner walk_gid=$walk_group ;;
        l*)
            walk_found=link walk_links=$((walk_links + 1))
            [ $walk_links -le 40 ] || walk_found=nothing
            walk_target=$(readlink "$walk_each" && echo x)
            walk_rest=${walk_target%?x}${walk_to#"$walk_each"}/$walk_rest walk_at=${walk_each%/*}
            case $walk_rest in /*) walk_at= ;; esac
            return 0
            ;;
        *)
            walk_found=nothing
            return 0
            ;;
        esac
    done
}

walk_fields() { # a line of ls
    walk_mode=$1 walk_owner=$3 walk_group=$4
}

walk_is_own() { # uid
    [ "$1" != 0 ] || return 0
    [ -n "$walk_me" ] || walk_me=$(id -u)
    [ "$1" = "$walk_me" ]
}

walk_check() { # uid of the next part, empty if there is none; or `end`
    if ! walk_is_own "$walk_uid"; then
        walk_detail="$walk_above belongs to another account (uid $walk_uid)" && return 1
    fi
    case $1$walk_above_mode in
    end*) ;;
    *[tT] | *[tT][+.@]) if walk_is_own "${1:-0}"; then return 0; fi ;;
    esac
    case $walk_above_mode in
    d???????w*) walk_detail=every\ account ;;
    d????w????*+) walk_check_list && return 0 ;;
    d????w*) # only GNU's ls shows with a + that there is an access control list
        walk_detail='others of its group'
        if walk_is_private "$walk_gid" && case $(ls --version 2>/dev/null) in *GNU*) ;; *) false ;; esac; then return 0; fi
        ;;
    *) return 0 ;;
    esac
    walk_detail="$walk_above can be changed by $walk_detail (uid $walk_uid, $walk_above_mode)"
    return 1
}

walk_check_list() { # whether an access control list lets nobody else write
    walk_detail='others, as its access control list says'
    walk_list=$(getfacl -cpn -- "$walk_above" 2>/dev/null) || return 1
    walk_list=$walk_list$walk_newline
    while [ -n "$walk_list" ]; do
        walk_entry=${walk_list%%"$walk_newline"*}
        walk_list=${walk_list#*"$walk_newline"}
        walk_part=${walk_entry#*:}
        walk_part=${walk_part%%:*}
        case $walk_entry in
        user::* | default:* | mask:* | other:* | '') ;;
        user:*:?w*) walk_is_own "$walk_part" || return 1 ;;
        group:*:?w*) walk_is_private "${walk_part:-$walk_gid}" || return 1 ;;
        esac
    done
}

walk_is_private() { # gid: whether it is the primary group of this account or root alone, and has no other member
    walk_account=root walk_primary=0 walk_is_of=0
    if [ "$1" != 0 ]; then walk_account=$(id -un) walk_primary=$(id -g) walk_is_of=$(id -u); fi
    [ "$1" = "$walk_primary" ] || return 1
    case $(getent group "$1" 2>/dev/null || grep "^[^:]*:[^:]*:$1:" /etc/group) in
    "$walk_account":*:"$1": | "$walk_account":*:"$1":"$walk_account") ;;
    *) return 1 ;;
    esac
    ! { getent passwd 2>/dev/null || cat /etc/passwd; } | grep "^[^:]*:[^:]*:[0-9]*:$1:" |
        grep -qv "^[^:]*:[^:]*:$walk_is_of:"
}
