# $1 break|mend
key=/etc/ssh/ssh_host_ed25519_key
case $1 in
break)
    cp -p $key $key.pub "$SAVE/"
    ssh-keygen -q -t ed25519 -N '' -C reinstalled -f "$SAVE/new"
    mv "$SAVE/new" $key
    mv "$SAVE/new.pub" $key.pub
    ;;
mend)
    for file in ssh_host_ed25519_key ssh_host_ed25519_key.pub; do
        [ ! -e "$SAVE/$file" ] || mv "$SAVE/$file" /etc/ssh/
    done
    ;;
esac
restart_sshd
