# A lock that is safe on NFS: a directory, because mkdir is atomic there. Files being written are inside it, so an
# interrupted call leaves only this one name, and the next call removes a stale lock. The holder works in it as the
# current directory: if another process removed the lock as stale, the holder's files are gone and it fails.

# `remote/command.py: script_error` reads these lines.
fail() { printf '\036%s\036%s\n' "${2-}" "$1" >&2; exit 1; } # text, and the code of its fix
fail_by_output() { printf '%s\n' "$1" >&2; exit 1; }          # what another program said

# A holder on the same machine is checked by its pid; any other counts as dead after $patience seconds without a change.
patience=20
name= boot=
{ read -r name </proc/sys/kernel/hostname; } 2>/dev/null || name=$(uname -n)
{ read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
self="$name $boot $(readlink /proc/self/ns/pid 2>/dev/null)"

lock() { # directory to be made
    waited=0 seen=
    until output=$(mkdir "$1" 2>&1); do
        if [ ! -d "$1" ]; then
            # Released between mkdir and this check.
            case $output in *"File exists"*) [ -e "$1" ] || continue ;; esac
            fail_by_output "${output#mkdir: }"
        fi
        holder=$(cat "$1/holder" 2>/dev/null)
        state="$(ls -di "$1" 2>/dev/null) $holder"
        dead=
        case $holder in
        "$self "*) kill -0 "${holder##* }" 2>/dev/null || [ -d "/proc/${holder##* }" ] || dead=yes ;;
        esac
        if [ "$state" != "$seen" ]; then
            seen=$state waited=0
        elif [ $waited -ge $((patience * 5)) ]; then
            dead=yes
        fi
        # One process clears at a time and checks again: another process may have taken the lock meanwhile.
        if [ -n "$dead" ] && mkdir "$1.clear" 2>/dev/null; then
            if [ "$state" = "$(ls -di "$1" 2>/dev/null) $(cat "$1/holder" 2>/dev/null)" ]; then
                mv "$1" "$1.$$" 2>/dev/null && rm -rf "$1.$$"
            fi
            rmdir "$1.clear"
            seen=
            continue
        fi
        [ $waited -lt $((patience * 5)) ] || rmdir "$1.clear" 2>/dev/null
        sleep 0.2 2>/dev/null || { sleep 1; waited=$((waited + 4)); }
        waited=$((waited + 1))
    done
    locked=$1
    cd "$locked" || fail "$locked can't be opened"
    trap unlock EXIT
    trap 'exit 1' HUP INT TERM
    # On a full disk the lock contains no holder, and is still valid.
    printf '%s %s\n' "$self" $$ 2>/dev/null >holder || :
}

unlock() {
    # shellcheck disable=SC3013 # every sh of a Linux host has -ef
    if [ . -ef "$locked" ]; then cd / && rm -rf "$locked"; fi
}
