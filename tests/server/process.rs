//! A `gannet serve` process, and the clients of tests.
//!
//! A server listens on a free port, and is killed when its `Server` is dropped. `query` fails the test if psql fails, and
//! `failure` if psql succeeds. Programs of PostgreSQL are installed where they are missing.
//!
//! *Not here*: clusters of processes (`nodes.rs`, `failures/cluster.rs`).

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use tokio_postgres::{Client, Config, NoTls};

/// A server on a free port; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts the server with further arguments, and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_without(None, arguments)
    }

    /// Starts the server with a readable log.
    pub(crate) fn start_logging(arguments: &[&str]) -> Self {
        Self::listening(Self::command(arguments).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Starts the server with a rule removed.
    pub(crate) fn start_without(rule: Option<&str>, arguments: &[&str]) -> Self {
        let mut command = Self::command(arguments);
        Self::listening(command.envs(rule.map(|rule| ("GANNET_MUTANT", rule))).spawn().unwrap())
    }

    fn command(arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        // The same defaults on every machine, however many cores it has.
        for default in [["--memory", "128MiB"], ["--threads", "2"]] {
            command.args(default.iter().filter(|_| !arguments.contains(&default[0])));
        }
        command.args(arguments);
        command.stdout(Stdio::piped());
        command
    }

    /// The server of a process, as soon as the process listens.
    pub(crate) fn listening(mut child: Child) -> Self {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let port =
            line.trim().strip_prefix("listening on ").and_then(|line| line.rsplit(':').next());
        let port = port.unwrap_or_else(|| {
            let mut errors = String::new();
            // Some are not caught, but shown with those of the test.
            if let Some(mut caught) = child.stderr.take() {
                caught.read_to_string(&mut errors).unwrap();
            }
            panic!("the server said {line:?} and {errors:?}")
        });
        let port = port.parse().unwrap();
        Self::at(child, port)
    }

    /// A process that listens at this port.
    pub(crate) fn at(child: Child, port: u16) -> Self {
        Self { child, port }
    }

    /// `psql` with this server's address.
    pub(crate) fn psql(&self) -> Command {
        let mut psql = Command::new(installed("psql"));
        psql.args(["--no-psqlrc", "--host=127.0.0.1", "--username=tester", "--dbname=test"])
            .arg(format!("--port={}", self.port))
            .env_remove("PGPASSWORD")
            .env("PGSSLMODE", "disable");
        psql
    }

    /// The output of psql for a script, unaligned and without headers.
    pub(crate) fn query(&self, script: &str) -> String {
        let output =
            self.psql().args(["-v", "ON_ERROR_STOP=1", "-AtqX", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", errors(&output));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// The standard error of psql for a script that fails.
    pub(crate) fn failure(&self, script: &str) -> String {
        let output = self.psql().args(["-v", "VERBOSITY=verbose", "-c", script]).output().unwrap();
        assert!(!output.status.success(), "{script} succeeded");
        errors(&output)
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user("tester").dbname("test");
        config
    }

    pub(crate) async fn client(&self) -> Client {
        let (client, connection) = self.config().connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// The process id of the server.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the server's process. After STOP none of its threads runs.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([format!("-{name}"), id]).status().unwrap().success());
        let runs = |task: std::fs::DirEntry| {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            !(status.is_empty() || status.contains("State:\tT"))
        };
        let has_running =
            || std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap().flatten().any(runs);
        while name == "STOP" && has_running() {
            std::thread::yield_now();
        }
    }

    /// The server's standard error up to its end, if that is a pipe.
    pub(crate) fn log(&mut self) -> String {
        read_all(self.child.stderr.take().unwrap())
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The path of a PostgreSQL program, which is installed if it is missing.
pub(crate) fn installed(program: &'static str) -> &'static str {
    let works = || Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !works() {
        install(&["postgresql-client", "postgresql-contrib"]);
        assert!(works(), "{program} is missing after its installation");
    }
    program
}

/// Installs packages of Debian.
pub(crate) fn install(packages: &[&str]) {
    // One installation at a time: the package manager refuses a second one.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _guard = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    // A fresh machine has no list of packages yet.
    let _ = Command::new("apt-get").arg("update").output();
    let install = Command::new("apt-get").args(["install", "--yes"]).args(packages).output();
    assert!(
        install.as_ref().is_ok_and(|output| output.status.success()),
        "install the packages {packages:?}: {install:?}"
    );
}

/// An empty folder for a test's files.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// All output of a process to a pipe, until the process closes it.
pub(crate) fn read_all(mut pipe: impl Read) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).unwrap();
    text
}
