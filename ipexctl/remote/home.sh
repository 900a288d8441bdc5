# The rules of node/common/home.py for steps that start no Python: whether a directory is a home of ipexctl, and its mark.
# `home_script.py` puts before it, from the tables there: $home_mark, $home_mark_text, $home_entries and $home_ignored.
# A function that fails has set $home_problem: a kind of refusal, with $home_detail, or a text.

has_mark() { # directory
    # shellcheck disable=SC3067 # every sh of a Linux host has -O
    [ -f "$1/$home_mark" ] && [ ! -h "$1/$home_mark" ] && [ -O "$1/$home_mark" ]
}

others_may_write() { # directory
    case $(ls -ldn "$1/.") in d????w* | d???????w*) return 0 ;; esac
    return 1
}

check_above() { # directory: whether other accounts could exchange it, or one above it
    home_pending=$1/ home_done=/ home_links=0
    case $1 in /*) ;; *) home_pending=$PWD/$1/ ;; esac
    while is_safe "$home_done" "$1"; do
        home_part=
        while [ -n "$home_pending" ]; do
            home_part=${home_pending%%/*} home_pending=${home_pending#*/}
            case $home_part in '' | .) home_part= ;; *) break ;; esac
        done
        [ -n "$home_part" ] || return 0
        home_path=${home_done%/}/$home_part
        if [ "$home_part" = .. ]; then
            home_path=${home_done%/*}
            home_done=${home_path:-/}
        elif [ -h "$home_path" ]; then
            home_links=$((home_links + 1))
            [ $home_links -le 40 ] || return 0
            is_of_others "$home_path" && home_detail="$home_path is a link of uid $home_uid" && return 1
            home_target=$(readlink "$home_path" && echo x)
            home_target=${home_target%?x}
            case $home_target in /*) home_done=/ ;; esac
            home_pending=$home_target/$home_pending
        elif [ -d "$home_path" ]; then
            home_done=$home_path
        else
            return 0 # it is made below a directory that was checked
        fi
    done
    return 1
}

is_of_others() { # path: $home_listed gets its mode, $home_uid and $home_gid its owners
    home_listed=$(ls -ldn "$1") home_uid=0 home_gid=0
    home_rest=${home_listed#* } && home_rest=${home_rest#"${home_rest%%[! ]*}"}
    home_rest=${home_rest#* } && home_rest=${home_rest#"${home_rest%%[! ]*}"}
    home_uid=${home_rest%% *}
    home_rest=${home_rest#* } && home_rest=${home_rest#"${home_rest%%[! ]*}"}
    home_gid=${home_rest%% *}
    [ "$home_uid" != 0 ] && [ "$home_uid" != "$(id -u)" ]
}

# shellcheck disable=SC3013 # every sh of a Linux host has -ef
is_safe() { # directory above, home
    if [ "$1" -ef "$2" ]; then return 0; fi # the home itself has rules of its own
    is_of_others "$1" && home_detail="$1 belongs to uid $home_uid" && return 1
    case $home_listed in
    d????????[tT]*) return 0 ;;
    d???????w*) ;;
    d????w*)
        if is_private_group; then return 0; fi
        ;;
    *) return 0 ;;
    esac
    home_detail="$1 can be changed by others: ${home_listed%% *}"
    return 1
}

is_private_group() { # of $home_uid: the umask 002 of some systems lets it write
    home_owner=root home_primary=0
    if [ "$home_uid" != 0 ]; then home_owner=$(id -un) home_primary=$(id -g); fi
    [ "$home_gid" = "$home_primary" ] || return 1
    case $(getent group "$home_gid" 2>/dev/null || grep "^[^:]*:[^:]*:$home_gid:" /etc/group) in
    "$home_owner":*:"$home_gid": | "$home_owner":*:"$home_gid":"$home_owner") return 0 ;;
    esac
    return 1
}

# It changes nothing. $home_state becomes none, empty or marked.
# shellcheck disable=SC3013,SC3067 # every sh of a Linux host has -ef and -O
check_home() { # directory
    home_state=none home_problem= home_detail=
    if ! check_above "$1"; then home_problem=above && return 1; fi
    [ -d "$1" ] || return 0
    if [ ! -O "$1" ]; then home_problem=other_account && return 1; fi
    if [ "$1" -ef "$HOME" ]; then home_problem=account_home && return 1; fi
    home_state=marked
    if has_mark "$1"; then return 0; fi
    if [ "$1" -ef / ]; then home_problem=root && return 1; fi
    home_account=$(id -un)
    case $home_account in
    '' | *[!A-Za-z0-9._-]* | -*) home_account=$HOME ;;
    *) eval "home_account=~$home_account" ;;
    esac
    if [ "$1" -ef "$home_account" ]; then home_problem=account_home && return 1; fi
    home_state=empty
    if is_empty "$1"; then return 0; fi
    # Another call may be making it.
    sleep 0.1 2>/dev/null || sleep 1
    if is_empty "$1"; then return 0; fi
    home_problem=other_files
    return 1
}

is_empty() { # directory: also if its mark was made since
    home_names=$(ls -A "$1")
    case "
$home_names
" in *"
$home_mark
"*) return 0 ;; esac
    ! printf '%s\n' "$home_names" | grep -vxE "$home_ignored" | grep -q .
}

# Makes a missing directory, closes it to others, and marks it before anything else is in it.
use_home() { # directory
    check_home "$1" || return 1
    if [ $home_state = none ]; then
        if ! home_problem=$( (umask 077 && mkdir -p "$1") 2>&1); then
            home_problem=${home_problem#mkdir: }
            return 1
        fi
        check_home "$1" || return 1
    fi
    close_home "$1" || return 1
    [ $home_state != marked ] || return 0
    (umask 077 && set -C && printf '%s' "$home_mark_text" >"$1/$home_mark") 2>/dev/null || :
    if has_mark "$1"; then return 0; fi
    if [ -e "$1/$home_mark" ] || [ -h "$1/$home_mark" ]; then home_problem=no_mark && return 1; fi
    home_problem="$1 can't be written to"
    return 1
}

close_home() { # directory
    case $(ls -ldn "$1/.") in
    d???------*) return 0 ;;
    d????w* | d???????w*) ;;
    # If others may only read, files of a user in it may be meant for them.
    *) if ls -A "$1" | grep -qvxE "$home_entries"; then return 0; fi ;;
    esac
    home_output=$(chmod 700 "$1" 2>&1)
    if others_may_write "$1"; then
        home_problem=open
        # `trust` knows a fix for it.
        case $home_output in *Read-only*) home_problem=${home_output#chmod: } ;; esac
        return 1
    fi
}

refuse_home() { # `home_script.py: home_refusal` reads this line
    case $home_problem in
    *' '*) printf '%s\n' "$home_problem" ;;
    *) printf 'ipexctl-home %s\n' "$home_problem${home_detail:+ $home_detail}" ;;
    esac >&2
    exit 1
}
