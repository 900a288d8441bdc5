# install.sh RSYNC SSH SSH_CONFIG WHEELHOUSE PLACE HOST REQUIREMENT…: the wheels to one host, and pip there.
set -eu
rsync=$1 ssh=$2 config=$3 wheelhouse=$4 place=$5 host=$6
shift 6
"$rsync" -a -e "$ssh -F $config" "$wheelhouse/" "$host:$place/wheelhouse/"
exec "$ssh" -F "$config" "$host" "/usr/bin/python3 -m venv $place/venv &&
  $place/venv/bin/pip install -q --no-index --find-links $place/wheelhouse $*"
