#!/bin/sh
# Starts Redis with an ACL user each for engines, workers, operators and the exporter of its metrics. At the first start it creates their
# passwords, and the key with which engines sign requests. Each service reads its own volume; Redis keeps hashes of the passwords.
# The rights are those of docs/runbook.md; REDIS_KEY_PREFIX is put in front of each name.
set -eu
umask 077
cd /credentials

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

create() { # file, text
    [ -s "$1" ] || { printf '%s\n' "$2" > "$1.new"; mv "$1.new" "$1"; }
}

user() { # name, rights; the password is in the URL that its service reads
    password=$(sed 's/.*:\([0-9a-f]*\)@.*/\1/' "$1/redis_url")
    rights=$(printf '%s' "$2" | sed "s/\([~&]\)/\1${REDIS_KEY_PREFIX:-}/g")
    echo "user callstream-$1 on #$(printf '%s' "$password" | sha256sum | cut -d ' ' -f 1) $rights"
}

create redis/request_keys "$(random)"
for service in engine worker operator; do
    create "$service/redis_url" "redis://callstream-$service:$(random)@redis:6379/0"
    cp redis/request_keys "$service/request_keys"
    chown -R 10001:10001 "$service"
done
create exporter/redis_url "redis://callstream-exporter:$(random)@redis:6379/0"
# As redis_exporter reads it: the address, and the password. Earlier versions of it look for the address without the user.
sed 's|^redis://\([^:]*\):\([0-9a-f]*\)@\([^/]*\)/0$|{"redis://\1@\3": "\2", "redis://\3": "\2"}|' exporter/redis_url > exporter/passwords.json
chown -R 10001:10001 exporter

# `default` may do everything, with a password that nobody knows: Redis replays the transactions of its append-only file, and so the
# effects of scripts, with the rights of this user, and drops what it may not do. `health` is for the health check.
{
    echo "user default on #$(random) allkeys allchannels +@all"
    echo "user health on nopass resetkeys resetchannels -@all +ping"
    user engine "resetkeys resetchannels -@all +@stream +@hash +@set +@sortedset +evalsha +script|load +exists +expire +pexpireat +del +time +info +ping +multi +exec +discard +publish +subscribe +unsubscribe ~events.* ~plugins.calls:* %R~plugins.catalog* ~rpc.plugins.* ~dialog.* &plugins.control &dialog.control"
    user exporter "resetkeys resetchannels -@all +info +ping"
    user worker "resetkeys resetchannels -@all +@stream +@hash +@set +evalsha +script|load +script|exists +exists +expire +pexpireat +time +info +ping +multi +exec +discard +publish +subscribe +unsubscribe ~events.plugins ~events.plugins.dead ~plugins.calls:* ~plugins.catalog* ~rpc.plugins.* &plugins.control"
    user operator "resetkeys resetchannels -@all +xrange +xrevrange +xlen +xpending +xinfo +xadd +xdel +xgroup|create +hget +hmget +hgetall +hlen +hset +hdel +smembers +scard +zrange +zscore +zcard +type +ttl +exists +pexpireat +evalsha +script|load +multi +exec +time +info +ping ~events.plugins ~events.plugins.dead ~plugins.calls:* %R~events.* %R~plugins.catalog* %R~rpc.plugins.* %R~dialog.*"
} > redis/users.acl
chown -R redis:redis redis

exec docker-entrypoint.sh "$@"
