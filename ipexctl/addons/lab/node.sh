# Turns a new set of namespaces into a host. Run by /bin/sh as the first process of a new pid namespace;
# prints "ready" on stdout once sshd listens, then remains as the host's init.
#
# STATE   the host's directory on this machine: disk.img, net, etc/
# NAME    its host name            LOGIN  its user account   HOME_DIR  that account's home
# SHARED  the mount point of the shared home on this machine, or empty
# COSTUME the directory of its CPU profile, or empty
# SHELF   the directory of all labs, hidden from the host
# INIT    init.sh, which this script executes at its end
# A host of a Slurm lab also gets:
# PACKAGES       a directory with Debian packages that this machine lacks, or empty
# PYTHON         the interpreter of ipexctl, or empty; SITE its packages; PACKAGE ipexctl, where it is not among these;
#                UV the uv beside it, or empty
set -eu
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
hostname "$NAME"
ip -batch "$STATE/net" </dev/null

# The disk: an image mounted only in this namespace, so the mount ends with the host.
disk=$STATE/disk root=$STATE/root
# In a container loop devices may exist and still not work; then the disk is a tmpfs.
[ -e "$STATE/disk.img" ] && mount -o loop,noatime "$STATE/disk.img" "$disk" ||
    mount -t tmpfs -o mode=755 ipexctl-lab "$disk"
mkdir -p "$disk/upper" "$disk/work"
mount -t overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work" overlay "$root"
for package in ${PACKAGES:+"$PACKAGES"/*.deb}; do
    dpkg-deb --fsys-tarfile "$package" | tar -xf - --keep-directory-symlink -C "$root"
done

# The host has this machine's system files, but not its users' files: homes, projects, host keys and other labs
# are hidden, and every top-level directory outside the system starts empty.
own() { # directory
    mkdir -p "$disk/own$1" "$root$1"
    mount --bind "$disk/own$1" "$root$1"
}
mkdir -p "$root/home" "$root/root"
for path in "$root"/*/; do
    path=${path%/} name=${path##*/}
    [ ! -L "$path" ] || continue
    case $name in
    bin | boot | dev | etc | lib | lib32 | lib64 | libx32 | opt | proc | run | sbin | sys | tmp | usr | var) ;;
    *) own "/$name" ;;
    esac
done
own /etc/ssh
own /var/tmp
chmod 1777 "$root/var/tmp"
mkdir -p "$root$SHELF"
mount -t tmpfs -o ro,size=4k,mode=755 ipexctl-lab "$root$SHELF"
chmod 700 "$root/root"
rm -f "$root/etc/resolv.conf" "$root/etc/nologin"
cp -RP "$STATE/etc/." "$root/etc/"
chmod 640 "$root/etc/shadow"
rm -rf "$root/var/mail" "$root/var/spool/cron"

home() { # account, directory
    mkdir -p "$root$2"
    if [ ! -e "$root$2/.ssh/authorized_keys" ]; then
        [ ! -d /etc/skel ] || cp -RP /etc/skel/. "$root$2/"
        mkdir -p "$root$2/.ssh"
        cp "$STATE/../key.pub" "$root$2/.ssh/authorized_keys"
        chmod 700 "$root$2/.ssh"
        chmod 600 "$root$2/.ssh/authorized_keys"
        chroot "$root" chown -R "$1:" "$2"
    fi
    chmod 700 "$root$2"
}
mkdir -p "$root$HOME_DIR"
[ -z "$SHARED" ] || mount --bind "$SHARED" "$root$HOME_DIR"
home root /root
[ "$LOGIN" = root ] || home "$LOGIN" "$HOME_DIR"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t tmpfs -o nosuid,size=4m,mode=755 dev "$root/dev"
for node in null:3 zero:5 full:7 random:8 urandom:9; do
    path=$root/dev/${node%:*}
    # In a container that can't make devices, this machine's devices are mounted.
    mknod -m 666 "$path" c 1 "${node#*:}" 2>/dev/null || { : >"$path"; mount --bind "/dev/${node%:*}" "$path"; }
done
mknod -m 666 "$root/dev/tty" c 5 0 2>/dev/null || :
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
mount -t tmpfs -o nosuid,nodev,mode=1777 shm "$root/dev/shm"
mount -t tmpfs -o nosuid,nodev,size=4g,mode=1777 tmp "$root/tmp"
mount -t tmpfs -o nosuid,nodev,size=64m,mode=755 run "$root/run"
mkdir -p "$root/run/sshd" "$root/run/lock"

# The CPU profile, mounted over the kernel's files now: its directory is not visible after pivot_root.
if [ -n "$COSTUME" ]; then
    mount -o bind,ro "$COSTUME/cpuinfo" "$root/proc/cpuinfo"
    arch=$root/proc/sys/kernel/arch
    [ ! -e "$arch" ] || mount -o bind,ro "$COSTUME/arch" "$arch"
    for subject in cpu node; do
        [ ! -d "$root/sys/devices/system/$subject" ] ||
            mount -o bind,ro "$COSTUME/system/$subject" "$root/sys/devices/system/$subject"
    done
    [ ! -d "$COSTUME/bin" ] || cp "$COSTUME/bin/"* "$root/usr/local/bin/"
fi

# ipexctl itself, as an environment of its own beside the machine's Python.
if [ -n "${PYTHON:-}" ]; then
    env=$root/opt/ipexctl
    mkdir -p "$env/bin" "$env/lib/${SITE_PARENT:?}/site-packages"
    printf 'home = %s\n' "${PYTHON%/*}" >"$env/pyvenv.cfg"
    ln -s "$PYTHON" "$env/bin/python"
    mount -o bind,ro "$SITE" "$env/lib/$SITE_PARENT/site-packages"
    if [ -n "$UV" ]; then
        : >"$env/bin/uv"
        mount -o bind,ro "$UV" "$env/bin/uv"
    fi
    if [ -n "$PACKAGE" ]; then
        mkdir -p "$root$PACKAGE"
        mount -o bind,ro "$PACKAGE" "$root$PACKAGE"
    fi
    printf '#!/bin/sh\nexec /opt/ipexctl/bin/python -m ipexctl "$@"\n' >"$root/usr/local/bin/ipexctl"
    chmod 755 "$root/usr/local/bin/ipexctl"
fi

cp "$INIT" "$root/sbin/lab-init"
cd "$root"
mkdir -p .old
pivot_root . .old
exec env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 /bin/sh /sbin/lab-init
