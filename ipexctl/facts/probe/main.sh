# The order of the probe. The clock comes first: the arrival of its first byte is compared with the control machine's
# clock. Then come parts that cannot hang; then names and disks at the same time, because either may wait for a server.
put clock "$(date +%s.%N)"
uname=$(uname -s -n -r -m)
put uname "$uname"
put peers "$peers"
put path "$login_path"
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
else
    other_kernel
fi
names $names_left &
our_home
if [ -d "$home" ]; then
    our_envs
    our_runs
    our_processes
fi
programs
wait
put end yes
