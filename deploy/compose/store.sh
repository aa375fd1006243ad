# What backup.sh and restore.sh share: one-off containers beside those of the project.

engine() { # command; the engines' settings and volume
    docker compose run --rm --no-deps --no-TTY engine "$@"
}

postgres() { # a script that uses DATABASE_URL
    docker compose run --rm --no-TTY postgres-tools "
        DATABASE_URL=\${DATABASE_URL:-\$(cat /run/secrets/database_url)}
        $1"
}

store_is_postgres() {
    [ -n "${kind:-}" ] || kind=$(engine sh -c '[ -z "${DATABASE_URL:-}" ] && [ ! -s /run/secrets/database_url ] && echo sqlite || echo postgres' < /dev/null)
    [ "$kind" = postgres ]
}
