# The rules of node/common/home.py for steps that start no Python: whether a directory is a home of ipexctl, and its
# mark. `home_script.py` prepends `walk.sh` and sets $home_mark, $home_mark_text, $home_entries and $home_ignored. A
# function that fails sets $home_problem: a kind of refusal, with $home_detail, or a text.

has_mark() { # directory
    # shellcheck disable=SC3067 # every sh of a Linux host has -O
    [ -f "$1/$home_mark" ] && [ ! -h "$1/$home_mark" ] && [ -O "$1/$home_mark" ]
}

others_may_write() { # directory
    case $(ls -ldn "$1/.") in d????w* | d???????w*) return 0 ;; esac
    return 1
}

# Changes nothing. Sets $home_state to none, empty or marked.
# shellcheck disable=SC3013,SC3067 # every sh of a Linux host has -ef and -O
check_home() { # directory
    home_state=none home_problem= home_detail=
    if ! walk "$1"; then home_problem=above home_detail=$walk_detail && return 1; fi
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
use_home() { # directory, what will be used below it
    check_home "$1" || return 1
    if [ $home_state = none ]; then
        if ! home_problem=$(make_private "$1" 2>&1); then
            home_problem=${home_problem#mkdir: }
            return 1
        fi
        check_home "$1" || return 1
    fi
    close_home "$1" || return 1
    close_list "$1" "$2"
    if ! walk "$1/$2" end; then home_problem=above home_detail=$walk_detail && return 1; fi
    [ $home_state != marked ] || return 0
    (umask 077 && set -C && printf '%s' "$home_mark_text" >"$1/$home_mark") 2>/dev/null || :
    if has_mark "$1"; then return 0; fi
    if [ -e "$1/$home_mark" ] || [ -h "$1/$home_mark" ]; then home_problem=no_mark && return 1; fi
    home_problem="$1 can't be written to"
    return 1
}

make_private() { # directory, made with those above it. A default access control list replaces the umask, but not -m
    if [ -z "$1" ] || [ -d "$1" ]; then return 0; fi
    case $1 in */*) make_private "${1%/*}" || return 1 ;; esac
    mkdir -m 700 -- "$1" || [ -d "$1" ]
}

# What is made here inherits no access control list, and one that was set on a directory of ipexctl's counts no more: the
# mode of a directory is the mask of its list.
close_list() { # directory, a name in it
    if [ $home_state != marked ]; then setfacl -k -- "$1" 2>/dev/null || :; fi
    # shellcheck disable=SC3067 # every sh of a Linux host has -O
    if [ -O "$1/$2" ]; then case $(ls -ldn "$1/$2") in d????w????+*) chmod 700 "$1/$2" ;; esac fi
}

close_home() { # directory
    case $(ls -ldn "$1/.") in
    d???------*) return 0 ;;
    d????w* | d???????w*) ;;
    # If others may read but not write, a user's files in it may be meant for them.
    *) if ls -A "$1" | grep -qvxE "$home_entries"; then return 0; fi ;;
    esac
    home_output=$(chmod 700 "$1" 2>&1)
    if others_may_write "$1"; then
        home_problem=open
        # Another directory on the same disk would not help.
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
