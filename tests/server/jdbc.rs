//! PostgreSQL's JDBC driver: `JdbcClient.java` runs at a real server, and the test fails if the program does. A JDK and the
//! driver are installed where they are missing. *Not here*: other drivers (`tools.rs`, `extended.rs`).

use std::path::Path;
use std::process::Command;

use crate::process::{Server, errors, install};

/// The driver, as Debian packs it.
const DRIVER: &str = "/usr/share/java/postgresql.jar";

#[test]
fn jdbc_works() {
    let has_compiler = || Command::new("javac").arg("-version").output().is_ok();
    if !has_compiler() || !Path::new(DRIVER).exists() {
        install(&["default-jdk-headless", "libpostgresql-jdbc-java"]);
        assert!(has_compiler(), "javac is missing after its installation");
    }
    let server = Server::start(&[]);
    let url = format!("jdbc:postgresql://127.0.0.1:{}/test", server.port);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/JdbcClient.java");
    let output = Command::new("java").args(["-cp", DRIVER, program, &url]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}
