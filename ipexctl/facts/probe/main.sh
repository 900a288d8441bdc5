# The order of things. The clock comes first: its first byte is what our own clock is held against. Then what
# cannot hang; then names beside disks, either of which may wait for a server that is gone.
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
