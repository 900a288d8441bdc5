#!/bin/sh
# Installs a release in five ways on a bare Debian 13, as an account of its own each time, and types README's commands
# there, with small stand-ins for PyTorch's wheels. Needs root, debootstrap, git and a package index; removes all it made.
#   sh .github/try_release.sh dist [WAY]
set -eu
dist=$(realpath "${1:-dist}")
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
debian=$(mktemp -d /var/tmp/try-release.XXXXXX)
chmod 755 "$debian"
trap 'rm -rf "$debian"' EXIT
trap 'exit 130' INT TERM

debootstrap --variant=minbase --include=ca-certificates,pipx,procps,python3,python3-venv trixie "$debian" \
  ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$debian.log" || { tail "$debian.log"; exit 1; }
rm "$debian.log"
# What this machine trusts and resolves.
cp /etc/resolv.conf "$debian/etc/"
cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$debian/etc/ssl/certs/ca-certificates.crt"
mkdir "$debian/try" "$debian/try/clone"
cp "$dist"/ipexctl-*.whl "$dist"/ipexctl-*.tar.gz "$root/tests/stand_ins/pages/train.py" "$debian/try"
git -C "$root" archive HEAD | tar -x -C "$debian/try/clone"
(cd "$root/tests" && python3 - "$debian/try/wheels") <<'PYTHON'
import sys
from pathlib import Path

from tiny_wheels import write_stack

write_stack(Path(sys.argv[1]), torch="2.13.0", ipex=None, python="cp313")
PYTHON
sed -nE '/^ipexctl (run [a-z]+\.py|why|doctor|report) /p' "$root/README.md" >"$debian/try/commands.sh"

for way in ${2:-wheel sdist pipx uv clone}; do
  case $way in
    wheel) install='python3 -m venv venv && venv/bin/pip install -q /try/*.whl' ;;
    sdist) install='python3 -m venv venv && venv/bin/pip install -q /try/*.tar.gz' ;;
    pipx) install='pipx install /try/*.whl' ;;
    uv) install='python3 -m venv tools && tools/bin/pip install -q uv && tools/bin/uv tool install -q /try/*.whl' ;;
    clone) install='cp -r /try/clone . && cd clone && pipx install . && cd ..' ;;
  esac
  cat >"$debian/try/$way.sh" <<SHELL
set -eu
export PATH=\$HOME/venv/bin:\$HOME/.local/bin:\$PATH
$install
mkdir job && cd job && cp /try/train.py .
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/try/wheels
mkdir -p ~/.config/ipexctl && printf '[run]\ninstall = true\n' >~/.config/ipexctl/config.toml # nobody is there to say yes
sh -eux /try/commands.sh
ipexctl why last --json | grep -q '"state": "ok"'
ipexctl uninstall --with-results --yes
SHELL
  chroot "$debian" useradd -m "$way"
  # The mounts end with the namespace.
  unshare --mount --pid --fork --kill-child sh -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --rbind /sys "$1/sys" || exit
    cd / && exec chroot --userspec="$2:$2" "$1" env -i HOME="/home/$2" USER="$2" LANG=C.UTF-8 \
      PATH=/usr/local/bin:/usr/bin:/bin SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 ${PIP_INDEX_URL:+"PIP_INDEX_URL=$PIP_INDEX_URL"} \
      sh -c "cd && exec sh /try/$2.sh"' sh "$debian" "$way" >"$debian/try/$way.log" 2>&1 ||
    { cat "$debian/try/$way.log"; echo "failed: $way"; exit 1; }
  echo "ok: $way"
done
