# by_hand.sh JOBS RSYNC SSH SSH_CONFIG PROJECT WHEELHOUSE PLACE ADDRESS SCRIPT TORCH HOST…: what a person types for hosts
# that have nothing: the project, the wheels and pip, on JOBS hosts at once, then torchrun on each.
set -eu
jobs=$1 rsync=$2 ssh=$3 config=$4 project=$5 wheelhouse=$6 place=$7 address=$8 script=$9
shift 9
torch=$1
shift
here=$(dirname "$0")
printf '%s\n' "$@" | xargs -P"$jobs" -I{} "$rsync" -a --mkpath -e "$ssh -F $config" "$project/" "{}:$place/project/"
printf '%s\n' "$@" | xargs -P"$jobs" -I{} sh "$here/install.sh" "$rsync" "$ssh" "$config" "$wheelhouse" "$place" {} "$torch"
rank=0
for host; do
  "$ssh" -F "$config" "$host" "cd $place/project && OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 $place/venv/bin/torchrun \
    --nnodes $# --nproc-per-node 1 --node-rank $rank --master-addr $address --master-port 29512 $script" &
  rank=$((rank + 1))
done
wait
