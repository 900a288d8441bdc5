# Runs a Python script with the best Python of this host: with torch, else with numpy, else any.
# $1 the script   $2 number of Pythons, then their paths, then arguments of the script
text=$1 count=$2
shift 2
best= rank=0
tried=0
try() {
    command -v "$1" >/dev/null 2>&1 || return
    has=$("$1" -c 'if 1:
        import sys
        from importlib.util import find_spec
        has = 1 + (find_spec("numpy") is not None) + 2 * (find_spec("torch") is not None)
        print(has if sys.version_info >= (3, 8) else 0)' </dev/null 2>/dev/null)
    [ "${has:-0}" -gt $rank ] && best=$1 rank=$has
}
while [ $tried -lt "$count" ]; do
    try "$1"
    shift
    tried=$((tried + 1))
done
[ $rank -ge 3 ] || try python3
[ -n "$best" ] || { echo "none no Python 3.8 or newer" && exit 0; }
exec "$best" -c "$text" "$@"
