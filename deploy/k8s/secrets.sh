#!/bin/sh
# Prints the Secrets of deploy/k8s with new random passwords and keys, for an empty namespace:
#
#   sh deploy/k8s/secrets.sh | kubectl -n callstream create -f -
#
# API_KEYS (name:key), OPENAI_API_KEY and DATABASE_URL are taken from the environment; without API_KEYS a key is created
# for the subject `me`. Every key of a Secret is a file in /run/secrets. The Redis of the overlay `small` reads the Secret
# callstream-redis; another Redis needs the users that are in it. Their rights are those of docs/runbook.md.
set -eu
runbook=$(dirname "$0")/../../docs/runbook.md

random() { openssl rand -hex 32; }

secret() { # name
    printf -- '---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: Opaque\nstringData:\n' "$1"
}

value() { # key, text; a text in quotes of YAML
    printf "  %s: '%s'\n" "$1" "$(printf %s "$2" | sed "s/'/''/g")"
}

user() { # service, password
    rights=$(sed -n "s/^ACL SETUSER callstream-$1 on >change-me //p" "$runbook")
    echo "    user callstream-$1 on #$(printf %s "$2" | openssl dgst -sha256 -r | cut -d ' ' -f 1) $rights"
}

engine=$(random)
worker=$(random)
operator=$(random)

secret callstream-engine
value api_keys "${API_KEYS:-me:$(random)}"
value redis_username callstream-engine
value redis_password "$engine"
[ -z "${OPENAI_API_KEY:-}" ] || value openai_api_key "$OPENAI_API_KEY"
[ -z "${DATABASE_URL:-}" ] || value database_url "$DATABASE_URL"

secret callstream-worker
value redis_username callstream-worker
value redis_password "$worker"

# For people: it reads everything of Callstream, and changes dead letters only.
secret callstream-operator
value redis_username callstream-operator
value redis_password "$operator"

# The key with which engines sign requests; workers run no others.
secret callstream-request-keys
value request_keys "$(random)"

# `default` may do everything, with a password that nobody knows: Redis replays the transactions of its append-only file, and so the
# effects of scripts, with the rights of this user, and drops what it may not do. `health` is for the probes.
secret callstream-redis
echo "  users.acl: |"
echo "    user default on #$(random) allkeys allchannels +@all"
echo "    user health on nopass resetkeys resetchannels -@all +ping"
user engine "$engine"
user worker "$worker"
user operator "$operator"
