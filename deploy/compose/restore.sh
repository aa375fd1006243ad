#!/bin/sh
# `make restore FILE=…`: stops engines and workers, replaces the store by a backup, empties Redis, and starts them again.
# A backup that is none changes nothing. Where a step fails, engines and workers stay stopped, and it may be run again.
set -eu
cd "$(dirname "$0")/../.."
. deploy/compose/store.sh

fail() { echo "make restore: $*" >&2; exit 2; }

[ -n "${1:-}" ] || fail "name the backup: make restore FILE=backups/…"
[ -r "$1" ] || fail "FILE: $1 cannot be read"
case $(head -c 15 "$1" | tr -d '\0') in
    PGDMP*) store_is_postgres || fail "FILE: $1 is of a PostgreSQL, and the engines use a SQLite file: set POSTGRES_PASSWORD or DATABASE_URL" ;;
    "SQLite format 3") ! store_is_postgres || fail "FILE: $1 is of a SQLite file, and the engines use a PostgreSQL" ;;
    *) fail "FILE: $1 is no backup of a store" ;;
esac

docker compose stop engine worker
echo "Engines and workers are stopped."
if store_is_postgres; then
    # One transaction, which what follows a broken dump makes fail, also within a table: the database is then as it was.
    # What a later release has added goes too.
    postgres '{
            echo "DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
            pg_restore --no-owner --no-privileges --file=- || printf "%s\n" "\\." "the dump is broken;"
        } | psql --quiet --no-psqlrc --single-transaction --set=ON_ERROR_STOP=1 --dbname="$DATABASE_URL" > /dev/null' < "$1"
    # The calls of the backup may have gone on after it. Without this step, those that may run only once could run twice.
    engine dialog-engine restored < /dev/null
else
    engine dialog-engine restore < "$1"
fi
if [ -n "${REDIS_URL:-}" ] || grep -qs '^REDIS_URL=.' .env; then
    echo "REDIS_URL is set: empty that Redis with a login that may (FLUSHDB), then: docker compose start worker engine"
    exit 0
fi
docker compose stop redis
docker compose run --rm --no-deps --entrypoint sh redis -c 'rm -rf /data/*' < /dev/null
docker compose start redis
docker compose start worker engine
for _ in $(seq 60); do
    case $(docker compose ps engine worker --format '{{.Health}}' | sort -u) in
        healthy) echo "The store of $1 is restored, and engines and workers run."; exit 0 ;;
    esac
    sleep 2
done
fail "the store is restored, and after two minutes an engine or a worker is not healthy: see docker compose logs engine worker"
