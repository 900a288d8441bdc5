# Replaces the whole probe: the identity of the machine and one environment, which its own Python checks. No other
# program is started, and nothing in the home is used before `walk` has found that only this account can change it.
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
if walk "$environment/bin" end && [ -x "$environment/bin/python" ]; then
    exec "$environment/bin/python" -I -c "$4" "$environment"
fi
