# Prints the program of a process, and an interpreter's script, but no other argument, because some are secrets. Any
# account can choose these words, so control characters are removed.
program_of() { # pid name: `name` if it has no arguments
    tr '\012\000' '?\012' <"/proc/$1/cmdline" | tr -d '\001-\011\013-\037\177' | {
        read -r word
        word=${word##*/}
        word=${word%%[: ]*}
        word=${word#-}
        printf %s "${word:-$2}"
        case $word in
        python* | pypy* | sh | bash | dash | ash | zsh | ksh) code=c ;;
        perl) code=[eE] ;;
        *) return ;;
        esac
        while read -r word; do
            case $word in
            -[WX]) read -r word ;;
            -m | -[A-Za-z]m) read -r word && printf ' %s' "${word##*/}" && return ;;
            -m*) printf ' %s' "${word#-m}" && return ;;
            -*$code | '') return ;;
            -*) ;;
            *) printf ' %s' "${word##*/}" && return ;;
            esac
        done
    }
}

# Programs that use cores and belong to no run. Called after `live_runs`. Fails if it can't look.
busy_programs() {
    count=0 named=' '
    put run.boot "$(awk '/^btime / { print $2 }' /proc/stat)"
    read_processes "$busy_awk" $programs /proc/[0-9]*/stat | { while read -r pid uid start percent name; do
        [ "$pid" != seen ] || return 0
        count=$((count + 1))
        [ $count -gt 64 ] || name=$(program_of "$pid" "$name")
        put run.busy "$pid $uid $start $percent $name"
        case $named in *" $uid "*) continue ;; esac
        named="$named$uid "
        put_account "$uid" "$pid"
    done && false; }
}
