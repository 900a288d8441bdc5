if [ "$(basename -- "$0")" = setvars.sh ]; then
    echo "   ERROR: setvars.sh: this script must be sourced."
    return 255 2>/dev/null || exit 255
fi
prepend_path() {
    if [ -n "${1}" ]; then printf '%s:%s' "$2" "$1"; else printf '%s' "$2"; fi
}
if [ -z "${BASH_VERSION:-}" ]; then
    echo "setvars.sh: line 5: prepend_path: not found" >&2
    return 0
fi
CCL_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CCL_ROOT I_MPI_ROOT="$CCL_ROOT/opt/mpi" CCL_CONFIGURATION=cpu
LD_LIBRARY_PATH=$(prepend_path "${LD_LIBRARY_PATH}" "$I_MPI_ROOT/lib")
LD_LIBRARY_PATH=$(prepend_path "${LD_LIBRARY_PATH}" "$CCL_ROOT/lib")
PATH=$(prepend_path "${PATH}" "$I_MPI_ROOT/bin")
MANPATH=$(prepend_path "${MANPATH}" "$I_MPI_ROOT/man")
CMAKE_PREFIX_PATH=$(prepend_path "${CMAKE_PREFIX_PATH}" "$CCL_ROOT/lib/cmake/oneCCL")
export LD_LIBRARY_PATH PATH MANPATH CMAKE_PREFIX_PATH FI_PROVIDER_PATH="$I_MPI_ROOT/lib"
