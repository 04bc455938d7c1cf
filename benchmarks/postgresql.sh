# A PostgreSQL 15 of a script's own, for comparisons. Sourced, with `gannet` set to a program or empty:
#
#   start_postgresql ARGUMENTS   starts the server with these arguments of postgres
#   stop_postgresql              stops the server and removes its data in $data
#
# PostgreSQL refuses to run as root, so root starts it as the user postgres. apt-get installs PostgreSQL if it is missing. Gannet is
# built if no program was given.
programs=/usr/lib/postgresql/15/bin

if ! [ -x "$programs/postgres" ] || ! command -v pgbench >/dev/null || ! command -v psql >/dev/null; then
  apt-get update >&2
  apt-get install --yes postgresql-15 postgresql-contrib postgresql-client >&2
fi
if [ -z "$gannet" ]; then
  cargo build --release --bin gannet
  gannet=${CARGO_TARGET_DIR:-target}/release/gannet
fi

as_owner=()
if [ "$(id -u)" = 0 ]; then as_owner=(runuser -u postgres --); fi
data=$(mktemp -d)
if [ "$(id -u)" = 0 ]; then chown postgres "$data"; fi

start_postgresql() {
  echo "starting PostgreSQL: $("$programs/postgres" --version)" >&2
  "${as_owner[@]}" "$programs/initdb" -D "$data/cluster" -A trust -U postgres >/dev/null
  "${as_owner[@]}" "$programs/pg_ctl" -D "$data/cluster" -w -l "$data/log" start >/dev/null -o "$*"
}

stop_postgresql() {
  if [ -f "$data/cluster/postmaster.pid" ]; then
    "${as_owner[@]}" "$programs/pg_ctl" -D "$data/cluster" -m fast -w stop >/dev/null || true
  fi
  rm -rf "$data"
}

median() { sort -n | awk '{ values[NR] = $1 } END { print values[int((NR + 1) / 2)] }'; }
