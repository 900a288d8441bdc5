# The network interfaces. Their hardware addresses, with the boot id, identify the machine.
interfaces() {
    for at in /sys/class/net/*; do
        [ -d "$at" ] || continue
        row=
        for file in type mtu operstate speed address; do
            get "$at/$file"
            [ -z "$got" ] || row="$row $file=$got"
        done
        for mark in device bridge bonding wireless tun_flags; do
            [ ! -e "$at/$mark" ] || row="$row $mark=1"
        done
        while read -r line; do
            case $line in DEVTYPE=*) row="$row devtype=${line#*=}" ;; esac
        done <"$at/uevent"
        buffer nic "${at##*/}$row"
    done
}
