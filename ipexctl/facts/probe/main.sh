# The order of the probe. The clock comes first, because the arrival of its first byte is compared with the control
# machine's clock and starts the time limit for the rest. Then come parts that can't hang on a healthy machine, then
# names and disks at the same time, because either may wait for a server.
put clock "$(date +%s.%N)"
uname=
for file in ostype hostname osrelease arch; do
    get /proc/sys/kernel/$file
    uname=$uname${uname:+ }$got
done
# Kernels before 6.1 have no arch there.
[ -n "$got" ] || uname=$(uname -s -n -r -m)
buffer uname "$uname"
buffer peers "$peers"
buffer path "$login_path"
kernel=${uname%% *}
node=${uname#* }
node=${node%% *}
names_left=
if [ "$kernel" = Linux ]; then
    kernel_says
    account
    cgroup
    network
    libc
else # no rank can run there: doctor needs its name only
    account
    buffer 'done' kernel
    buffer 'done' network
fi
[ -n "$names_left" ] || buffer 'done' names
buffer home.path "$home"
flush
if [ -n "$names_left" ]; then names $names_left & fi
home_is_own=
if walk "$home/envs" end; then
    home_is_own=yes
elif ! walk "$home"; then # of the home itself, the commands that write say more
    buffer home.exposed "$walk_detail"
fi
our_home
live_runs
if [ -d "$home" ]; then
    if [ -n "$home_is_own" ]; then our_envs; fi
    if [ -n "$home_is_own" ] && walk "$home/runs" end; then our_runs; fi
    our_processes
fi
programs
wait
buffer end yes
flush
