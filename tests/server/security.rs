//! Who may connect: users with passwords, TLS, and addresses.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Server, errors, folder};

/// A users file with `tester`, whose password is `sesame`.
fn users(name: &str) -> PathBuf {
    let path = folder(name).join("users");
    for (user, password) in [("tester", "old"), ("ada", "lovelace"), ("tester", "sesame")] {
        let mut add = Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(["user", user, "--users"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(add.stdin.take().unwrap(), "{password}").unwrap();
        assert!(add.wait().unwrap().success());
    }
    path
}

/// A certificate of `localhost`, and its key.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

#[test]
fn users_prove_their_passwords() {
    let users = users("scram");
    let server = Server::start(&["--users", users.to_str().unwrap()]);
    let login = |user: &str, password: &str| {
        let mut psql = server.psql();
        psql.args(["-AtqX", "--username", user, "-c", "SELECT 7"]).env("PGPASSWORD", password);
        psql.output().unwrap()
    };
    assert_eq!(login("tester", "sesame").stdout, b"7\n");
    assert_eq!(login("ada", "lovelace").stdout, b"7\n");
    for (user, password) in [("tester", "old"), ("tester", "x"), ("nobody", "sesame")] {
        let refused = errors(&login(user, password));
        assert!(refused.contains("password authentication failed for user"), "{refused}");
    }
}

#[test]
fn tls_protects_the_connection() {
    let users = users("tls");
    let (certificate, key) = certificate(users.parent().unwrap());
    let server = Server::start(&[
        "--users",
        users.to_str().unwrap(),
        "--tls-cert",
        certificate.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ]);
    // With the certificate checked, and the password bound to it.
    let connection = format!(
        "host=localhost hostaddr=127.0.0.1 port={} user=tester sslmode=verify-full \
         channel_binding=require sslrootcert={}",
        server.port,
        certificate.display()
    );
    let output = server
        .psql()
        .args(["-AtqX", "-c", "SELECT 7", &format!("--dbname={connection}")])
        .env("PGPASSWORD", "sesame")
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"7\n", "{}", errors(&output));
    // Without TLS still possible: it is offered, not demanded.
    let output = server
        .psql()
        .args(["-AtqX", "-c", "SELECT 7"])
        .env("PGPASSWORD", "sesame")
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"7\n", "{}", errors(&output));
}

/// What a server that cannot start says.
fn refusal(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["serve", "--memory", "64MiB"])
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    errors(&output)
}

#[test]
fn other_machines_need_users() {
    let refused = refusal(&["--listen", "0.0.0.0:0"]);
    assert!(refused.contains("give --users"), "{refused}");
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let folder = folder("refused");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = refusal(&["--users", folder.join("missing").to_str().unwrap()]);
    assert!(missing.contains("cannot use the users file"), "{missing}");
    let empty = refusal(&["--users", &file("empty", "# nobody\n")]);
    assert!(empty.contains("names no user"), "{empty}");
    let plain = refusal(&["--users", &file("plain", "ada lovelace\n")]);
    assert!(plain.contains("line 1"), "{plain}");
    let text = file("text", "no certificate");
    let tls = refusal(&["--listen", "127.0.0.1:0", "--tls-cert", &text, "--tls-key", &text]);
    assert!(tls.contains("PEM") || tls.contains("certificate"), "{tls}");
}
