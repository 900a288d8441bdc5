# Instead of the whole probe: the identity of the machine and one environment, which its own Python checks. No other
# program is started, and none from a home of another account.
#
# $3  the name of the environment
# $4  the source of node/env/check.py
get /proc/sys/kernel/random/boot_id
buffer boot_id "$got"
buffer user "${LOGNAME:-${USER:-$(id -un)}}"
interfaces
buffer home.path "$home"
flush
environment=$home/envs/$3
[ ! -O "$home" ] || [ ! -x "$environment/bin/python" ] || exec "$environment/bin/python" -I -c "$4" "$environment"
