#!/bin/sh
# `make backup [FILE=…]`: a copy of the store of the Compose project, while its engines run. docs/operations.md says what
# else belongs to a backup. The file that is written is complete, or it is not there.
set -eu
cd "$(dirname "$0")/../.."
. deploy/compose/store.sh

if store_is_postgres; then
    file=${1:-backups/callstream-$(date -u +%Y%m%dT%H%M%SZ).dump}
else
    file=${1:-backups/callstream-$(date -u +%Y%m%dT%H%M%SZ).sqlite3}
fi
umask 077
mkdir -p "$(dirname "$file")"
[ ! -e "$file" ] || { echo "make backup: $file is there already: name another FILE" >&2; exit 2; }
trap 'rm -f "$file.part"' EXIT
if store_is_postgres; then
    postgres 'pg_dump --format=custom --dbname="$DATABASE_URL"' > "$file.part" < /dev/null
else
    engine dialog-engine backup > "$file.part" < /dev/null
fi
mv "$file.part" "$file"
echo "The store is in $file. Keep the keys of .env and of your key files elsewhere: without them it may be unreadable."
