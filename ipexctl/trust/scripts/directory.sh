has_line() { # pattern, file: whether it is regular and has such a line in its beginning
    [ -f "$2" ] && [ ! -h "$2" ] && dd if="$2" bs=65536 count=1 2>/dev/null | grep -qE "$1"
}

# HOME/ssh may have files that trust did not write: a user's key or config is neither used nor changed.
check_ssh() { # the directory ssh of a home
    if ! walk "$1" end; then home_problem=above home_detail=$walk_detail && return 1; fi
    [ -d "$1" ] || return 0
    if [ -e "$1/config" ] || [ -h "$1/config" ]; then
        # shellcheck disable=SC2016 # it is the text of a comment
        if has_line '^# Made by `ipexctl trust`' "$1/config"; then return 0; fi
    elif [ -e "$1/id_ed25519" ] || [ -h "$1/id_ed25519" ]; then
        if [ -e "$1/made" ] || has_line ' ipexctl ' "$1/id_ed25519.pub"; then return 0; fi
    else
        return 0
    fi
    home_problem=foreign_ssh
    return 1
}
