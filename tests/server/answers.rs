//! The same statements on Gannet and on a PostgreSQL 15 that the test starts. The test compares results, types, SQLSTATEs,
//! and the tables, columns and constraints in errors.
//!
//! A script of `answers/` has one statement a line; `--` begins a comment. A line `--$ int2[] {2}` before a statement gives
//! its parameters: the type and the text of each, with `|` between them. Rows are compared in order if the statement has an
//! ORDER BY, else as sets. Every script has tables of its own.
//!
//! *Not here*: statements that Gannet refuses on purpose (`docs/sql.md`).

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Column, Config, NoTls, SimpleQueryMessage};

use crate::process::{Server, install};

/// The folder of PostgreSQL's server programs on Debian.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

/// A PostgreSQL server with an empty cluster; stopped when dropped.
struct PostgreSql {
    data: PathBuf,
    port: u16,
}

impl PostgreSql {
    fn start() -> Self {
        if !Path::new(PROGRAMS).join("initdb").exists() {
            install(&["postgresql-15"]);
        }
        let data = std::env::temp_dir().join(format!("gannet-answers-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        if is_root() {
            let owned = Command::new("chown").arg("postgres").arg(&data).status().unwrap();
            assert!(owned.success());
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Self { data, port };
        let cluster = server.data.join("cluster");
        let cluster = cluster.to_str().unwrap();
        server.run(
            "initdb",
            &[
                "-D",
                cluster,
                "-A",
                "trust",
                "-U",
                "tester",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
        );
        let options = format!(
            "-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off -c timezone=UTC"
        );
        let log = server.data.join("log");
        server.run(
            "pg_ctl",
            &["-D", cluster, "-w", "-l", log.to_str().unwrap(), "-o", &options, "start"],
        );
        server
    }

    /// Runs one of PostgreSQL's programs as its user, because the programs refuse root.
    fn run(&self, program: &str, arguments: &[&str]) {
        let program = Path::new(PROGRAMS).join(program);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        // The server that pg_ctl starts keeps inherited files open, so reading from a pipe would never end.
        let output = self.data.join("output");
        let file = std::fs::File::create(&output).unwrap();
        let errors = file.try_clone().unwrap();
        let status =
            command.current_dir("/").args(arguments).stdout(file).stderr(errors).status().unwrap();
        let said = std::fs::read_to_string(&output).unwrap_or_default();
        assert!(status.success(), "{}: {said}", program.display());
    }

    async fn client(&self) -> Client {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user("tester").dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for PostgreSql {
    fn drop(&mut self) {
        let cluster = self.data.join("cluster");
        if cluster.join("postmaster.pid").exists() {
            self.run("pg_ctl", &["-D", cluster.to_str().unwrap(), "-m", "immediate", "-w", "stop"]);
        }
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// Whether the test runs as root.
fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout.starts_with(b"0\n")
}

/// A parameter as the text that its type parses.
#[derive(Debug)]
struct Written(String);

impl ToSql for Written {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }
    to_sql_checked!();
}

/// A statement with its parameters.
struct Statement {
    sql: String,
    parameters: Vec<(Type, String)>,
}

/// The statements of a script.
fn statements(script: &str) -> Vec<Statement> {
    let mut parameters = Vec::new();
    let mut statements = Vec::new();
    for line in script.lines() {
        if let Some(given) = line.strip_prefix("--$ ") {
            let one = |part: &str| {
                let (name, text) = part.trim().split_once(' ').unwrap();
                (type_named(name), text.to_owned())
            };
            parameters = given.split('|').map(one).collect();
        } else if !line.is_empty() && !line.starts_with("--") {
            // `\n` stands for a line break inside of a statement.
            let sql = line.replace("\\n", "\n");
            statements.push(Statement { sql, parameters: std::mem::take(&mut parameters) });
        }
    }
    statements
}

fn type_named(name: &str) -> Type {
    match name {
        "int2" => Type::INT2,
        "int4" => Type::INT4,
        "int8" => Type::INT8,
        "numeric" => Type::NUMERIC,
        "text" => Type::TEXT,
        "bpchar" => Type::BPCHAR,
        "varchar" => Type::VARCHAR,
        "float8" => Type::FLOAT8,
        "date" => Type::DATE,
        "timestamp" => Type::TIMESTAMP,
        "timestamptz" => Type::TIMESTAMPTZ,
        "timestamptz[]" => Type::TIMESTAMPTZ_ARRAY,
        "int2[]" => Type::INT2_ARRAY,
        "int4[]" => Type::INT4_ARRAY,
        "int8[]" => Type::INT8_ARRAY,
        "numeric[]" => Type::NUMERIC_ARRAY,
        "float8[]" => Type::FLOAT8_ARRAY,
        "text[]" => Type::TEXT_ARRAY,
        other => panic!("a script has a parameter of type {other}"),
    }
}

/// A server's answer: the types of the columns and the rows, or the SQLSTATE and the objects in the error.
async fn answer(client: &Client, statement: &Statement) -> String {
    let failed = |error: &tokio_postgres::Error| {
        let Some(error) = error.as_db_error() else { panic!("{}: {error}", statement.sql) };
        let fields = [error.table(), error.column(), error.constraint()];
        let named: Vec<&str> = fields.into_iter().flatten().collect();
        format!("error {} {}", error.code().code(), named.join(" ")).trim_end().to_owned()
    };
    let types: Vec<Type> = statement.parameters.iter().map(|(name, _)| name.clone()).collect();
    let prepared = match client.prepare_typed(&statement.sql, &types).await {
        Ok(prepared) => prepared,
        Err(error) => return failed(&error),
    };
    // The catalog's own types are text and BIGINT here.
    let name = |column: &Column| match column.type_().name() {
        "regtype" | "regclass" | "name" | "char" => "text".to_owned(),
        "oid" => "int8".to_owned(),
        name => name.to_owned(),
    };
    let types: Vec<String> = prepared.columns().iter().map(name).collect();
    let types = types.join(", ");
    let mut rows = Vec::new();
    if statement.parameters.is_empty() {
        let messages = match client.simple_query(&statement.sql).await {
            Ok(messages) => messages,
            Err(error) => return failed(&error),
        };
        for message in &messages {
            if let SimpleQueryMessage::Row(row) = message {
                let cells: Vec<&str> =
                    (0..row.len()).map(|n| row.get(n).unwrap_or("NULL")).collect();
                rows.push(cells.join(" | "));
            }
        }
    } else {
        // The extended protocol returns binary rows; such statements select texts.
        let given: Vec<Written> =
            statement.parameters.iter().map(|(_, text)| Written(text.clone())).collect();
        let given: Vec<&(dyn ToSql + Sync)> = given.iter().map(|one| one as _).collect();
        let found = match client.query(&prepared, &given).await {
            Ok(found) => found,
            Err(error) => return failed(&error),
        };
        for row in &found {
            let cells: Vec<String> = (0..row.len())
                .map(|n| row.get::<_, Option<String>>(n).unwrap_or_else(|| "NULL".to_owned()))
                .collect();
            rows.push(cells.join(" | "));
        }
    }
    if !statement.sql.to_lowercase().contains("order by") {
        rows.sort();
    }
    format!("{types}\n{}", rows.join("\n"))
}

async fn compare(
    ours: &Client,
    reference: &Client,
    statements: &[Statement],
    differences: &mut Vec<String>,
) {
    for statement in statements {
        let expected = answer(reference, statement).await;
        let found = answer(ours, statement).await;
        if found != expected {
            let Statement { sql, parameters } = statement;
            differences.push(format!(
                "{sql} {parameters:?}\n-- PostgreSQL: {expected}\n-- Gannet:     {found}"
            ));
        }
    }
}

#[tokio::test]
async fn answers_are_those_of_postgresql() {
    let postgresql = PostgreSql::start();
    let server = Server::start(&[]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/answers");
    let mut scripts: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    let mut differences = Vec::new();
    for script in &scripts {
        let (ours, reference) = (server.client().await, postgresql.client().await);
        let statements = statements(&std::fs::read_to_string(script).unwrap());
        assert!(!statements.is_empty(), "{} is empty", script.display());
        compare(&ours, &reference, &statements, &mut differences).await;
    }
    let count = differences.len();
    assert!(differences.is_empty(), "{count} differences:\n{}", differences.join("\n\n"));
}
