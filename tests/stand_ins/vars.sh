if [ "$(basename -- "$0")" = vars.sh ]; then
    echo "   ERROR: vars.sh: this script must be sourced."
    return 255 2>/dev/null || exit 255
fi
prepend_path() {
    if [ -n "${1}" ]; then printf '%s:%s' "$2" "$1"; else printf '%s' "$2"; fi
}
if [ -z "${BASH_VERSION:-}" ]; then
    echo "vars.sh: line 5: prepend_path: not found" >&2
    return 0
fi
CCL_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CCL_ROOT
LD_LIBRARY_PATH=$(prepend_path "${LD_LIBRARY_PATH}" "$CCL_ROOT/lib")
export LD_LIBRARY_PATH
