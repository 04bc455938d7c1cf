//! Access: users with passwords, TLS, and addresses.
//!
//! psql, the shell and a benchmark log in at real servers, with certificates that the tests make. A test fails if a wrong
//! password or certificate is accepted, if passwords can be tried fast, if data passes in clear where TLS is required, or if a
//! server starts with files that others can read, or without users for other machines.
//!
//! *Not here*: the keys of members (`unsuitable.rs`) and of programs (`clients.rs`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::process::{Server, errors, folder};

/// A users file with `tester`, whose password is `sesame`.
pub(crate) fn users(name: &str) -> PathBuf {
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

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A certificate of `localhost`, and its key.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    set_mode(&key, 0o600);
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
    // With a verified certificate, to which the password's exchange is bound.
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
    // Connections without TLS remain possible, because TLS is only offered.
    let output = server
        .psql()
        .args(["-AtqX", "-c", "SELECT 7"])
        .env("PGPASSWORD", "sesame")
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"7\n", "{}", errors(&output));
}

/// Runs a statement through the shell, in an environment without PostgreSQL's variables.
fn shell(arguments: &[&str]) -> Output {
    let mut shell = Command::new(env!("CARGO_BIN_EXE_gannet"));
    for variable in ["PGUSER", "PGSSLMODE", "PGSSLROOTCERT"] {
        shell.env_remove(variable);
    }
    shell.args(["sql", "--user", "tester", "-c", "SELECT 7"]).args(arguments);
    shell.env("PGPASSWORD", "sesame").output().unwrap()
}

#[test]
fn the_shell_and_benchmarks_verify_the_server_as_requested() {
    let users = users("tls-clients");
    let (certificate, key) = certificate(users.parent().unwrap());
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    // Another certificate with the same name.
    let (other, _) = self::certificate(&folder("tls-other"));
    let other = other.to_str().unwrap();
    let users = users.to_str().unwrap();
    let server = Server::start(&["--users", users, "--tls-cert", certificate, "--tls-key", key]);
    let (named, numbered) =
        (format!("localhost:{}", server.port), format!("127.0.0.1:{}", server.port));
    for (address, mode, root, refusal) in [
        (&named, "disable", None, None),
        (&named, "prefer", None, None),
        (&named, "require", None, None),
        (&named, "require", Some(certificate), None),
        (&named, "require", Some(other), Some("certificate")),
        (&named, "verify-full", Some(certificate), None),
        (&named, "verify-full", Some(other), Some("certificate")),
        (&named, "verify-full", None, Some("give --ssl-root-cert")),
        (&named, "verify-full", Some(key), Some("certificate")),
        // The certificate has another name.
        (&numbered, "verify-full", Some(certificate), Some("certificate not valid for name")),
        (&numbered, "verify-ca", Some(certificate), None),
        (&numbered, "verify-ca", Some(other), Some("certificate")),
    ] {
        let mut arguments = vec!["--connect", address, "--sslmode", mode];
        arguments.extend(root.iter().flat_map(|root| ["--ssl-root-cert", root]));
        let output = shell(&arguments);
        match refusal {
            None => assert_eq!(output.stdout, b"7\n", "{arguments:?}: {}", errors(&output)),
            Some(refusal) => {
                assert_eq!(output.status.code(), Some(2), "{arguments:?}");
                assert!(errors(&output).contains(refusal), "{arguments:?}: {}", errors(&output));
            }
        }
    }
    let url = |root: &str| {
        format!("postgres://tester:sesame@{named}/test?sslmode=verify-full&sslrootcert={root}")
    };
    assert_eq!(shell(&["--connect", &url(certificate)]).stdout, b"7\n");
    let bench = |url: &str| {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_gannet"));
        bench.args(["bench", "sql", "select", "--rows", "50", "--transactions", "50"]);
        bench.args(["--connect", url]).output().unwrap()
    };
    let verified = bench(&url(certificate));
    assert_eq!(verified.status.code(), Some(0), "{}", errors(&verified));
    let refused = bench(&url(other));
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
    // A server without TLS is refused if TLS is required.
    let plain = Server::start(&[]);
    let plain = format!("127.0.0.1:{}", plain.port);
    assert!(errors(&shell(&["--connect", &plain, "--sslmode", "require"])).contains("TLS"));
    assert_eq!(shell(&["--connect", &plain]).stdout, b"7\n");
}

#[test]
fn the_shell_asks_for_encryption_unless_told_otherwise() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (arguments, first_bytes) in [
        (&[][..], &80_877_103_u32.to_be_bytes()),
        (&["--sslmode", "disable"], &(3_u32 << 16).to_be_bytes()),
    ] {
        let client = std::thread::scope(|scope| {
            let client = scope.spawn(|| shell(&[&["--connect", &address][..], arguments].concat()));
            let (mut socket, _) = listener.accept().unwrap();
            let mut first = [0; 8];
            std::io::Read::read_exact(&mut socket, &mut first).unwrap();
            assert_eq!(first[4..], first_bytes[..], "{arguments:?}");
            drop(socket);
            client.join().unwrap()
        });
        assert_eq!(client.status.code(), Some(2));
    }
}

/// The error of a server that cannot start.
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
fn files_that_others_can_read_are_refused() {
    let users = users("exposed");
    let (certificate, key) = certificate(users.parent().unwrap());
    let (users, key) = (users.to_str().unwrap(), key.to_str().unwrap());
    let options = ["--users", users, "--tls-cert", certificate.to_str().unwrap(), "--tls-key", key];
    for file in [users, key] {
        for mode in [0o640, 0o604] {
            set_mode(Path::new(file), mode);
            let refused = refusal(&options);
            let advice = format!("has mode {mode:o}, so others may use it; chmod 600 {file}");
            assert!(refused.contains(&advice), "{refused}");
        }
        set_mode(Path::new(file), 0o600);
    }
    Server::start(&options);
}

#[test]
fn tls_can_be_required() {
    let users = users("tls-required");
    let (certificate, key) = certificate(users.parent().unwrap());
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let users = users.to_str().unwrap();
    let tls = ["--users", users, "--tls-cert", certificate, "--tls-key", key];
    let select = |server: &Server, mode: &str| {
        let mut psql = server.psql();
        psql.args(["-AtqX", "-v", "VERBOSITY=verbose", "-c", "SELECT 7"]);
        psql.env("PGPASSWORD", "sesame").env("PGSSLMODE", mode).output().unwrap()
    };
    // If other machines can connect, TLS is required by default.
    for options in [["--tls", "required"], ["--listen", "0.0.0.0:0"]] {
        let server = Server::start(&[&tls[..], &options].concat());
        assert_eq!(select(&server, "require").stdout, b"7\n", "{options:?}");
        let refused = errors(&select(&server, "disable"));
        assert!(refused.contains("encrypted connections alone"), "{options:?}: {refused}");
    }
    let offered = ["--listen", "0.0.0.0:0", "--tls", "offered"];
    let mut server = Server::start_logging(&[&tls[..], &offered].concat());
    assert_eq!(select(&server, "disable").stdout, b"7\n");
    server.signal("TERM");
    server.wait();
    let log = server.log();
    assert!(log.contains("may send data in clear"), "{log}");
    let refused = refusal(&["--tls", "required"]);
    assert!(refused.contains("give --tls-cert"), "{refused}");
}

#[test]
fn passwords_cannot_be_guessed_fast() {
    let users = users("guessed");
    let metrics = crate::nodes::free_address();
    let mut server =
        Server::start_logging(&["--users", users.to_str().unwrap(), "--metrics", &metrics]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let codes: Vec<String> = runtime.block_on(async {
        let mut codes = Vec::new();
        for number in 0..40 {
            let mut config = server.config();
            config.password(format!("guess {number}"));
            let error = config.connect(tokio_postgres::NoTls).await.err().unwrap();
            codes.push(error.code().unwrap().code().to_owned());
        }
        codes
    });
    // The first passwords were wrong; then the address has to wait, even with the right one.
    assert_eq!(codes[..10], ["28P01"; 10]);
    assert!(codes.iter().any(|code| code == "28000"), "{codes:?}");
    let text = crate::nodes::get(&metrics, "/metrics");
    assert!(text.contains("\ngannet_login_failures_total 40\n"), "{text}");
    server.signal("TERM");
    server.wait();
    let log = server.log();
    let lines =
        log.lines().filter(|line| line.contains("a login of \"tester\" from 127.0.0.1 failed"));
    assert!((1..40).contains(&lines.count()), "{log}");
}

#[test]
fn metrics_for_other_machines_need_an_option() {
    let refused = refusal(&["--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"]);
    assert!(refused.contains("--metrics-public"), "{refused}");
    Server::start(&["--metrics", "0.0.0.0:0", "--metrics-public"]);
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
        set_mode(&path, 0o600);
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
