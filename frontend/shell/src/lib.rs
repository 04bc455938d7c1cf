//! The interactive shell: typed statements or scripts, results in one of several formats.
//!
//! ```text
//! editor | script ─ scanner (statements) ┬ target: a session in this process, or a server ─ render
//!                └─ command (.tables)  ──┘
//! ```
//!
//! *Invariants*: Ctrl-C cancels the running statement, and never ends the interactive shell. Errors go to standard error.
//! Standard output gets results alone, unless it is a terminal.
//!
//! *Not here*: SQL (`gannet_frontend`), and what the commands of a program around the shell do.
#![forbid(unsafe_code)]

mod added;
mod command;
mod connect;
mod describe;
mod editor;
mod input;
mod outcome;
mod remembered;
mod remote;
mod render;
mod scanner;
mod server_address;
mod stopwatch;
mod target;
mod transfer;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Runtime;

pub use added::{RunCommand, ShellCommand};
use command::Command;
pub use connect::{ConnectError, Connected, ServerConnection, connect_to_first, server_error_text};
use gannet_frontend::Database;
use input::{DATA_END, Input, Line};
use outcome::{Failure, Outcome, Rows};
pub use render::Mode;
use render::write_rows;
use scanner::Scanner;
pub use server_address::{AddressError, ServerAddress, SslMode};
use stopwatch::Stopwatch;
use target::Target;

/// Maximum depth of scripts that read scripts.
const SCRIPT_DEPTH_MAX: usize = 16;
/// OS threads beside the main thread, which waits for input.
const THREADS: usize = 1;
/// A shell's exit code for a program that Ctrl-C has ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Where statements run.
pub enum ShellTarget {
    /// A database in this process.
    Embedded(Arc<Database>),
    /// The first of some servers that answers, and another one when its connection ends: all serve the same tables.
    Servers(Vec<ServerAddress>),
}

/// Statements of the command line.
#[derive(Clone, Debug)]
pub enum Script {
    /// A text.
    Text(String),
    /// A file.
    File(PathBuf),
}

/// Options of the shell.
pub struct ShellOptions {
    /// Where statements run.
    pub target: ShellTarget,
    /// Scripts to run instead of an interactive session.
    pub scripts: Vec<Script>,
    /// The format of results; by default a table on a terminal, raw elsewhere.
    pub mode: Option<Mode>,
    /// Whether to stop at the first failure; by default in scripts alone.
    pub bail: Option<bool>,
    /// Commands of the program around the shell, beside the shell's own.
    pub commands: Vec<ShellCommand>,
}

/// Why the shell cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The runtime cannot start.
    #[error("the operating system refused a thread: {0}")]
    Runtime(io::Error),
    /// The connection to the server has failed.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// A script cannot be read.
    #[error("cannot read {path}: {source}")]
    Script {
        /// The file's path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The terminal is unusable.
    #[error("cannot use the terminal: {0}")]
    Terminal(String),
}

/// Runs the shell. Returns whether every statement of scripts has succeeded.
///
/// # Errors
/// [`ShellError`] if the shell cannot start.
pub fn run_shell(options: ShellOptions) -> Result<bool, ShellError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .map_err(ShellError::Runtime)?;
    let target = match options.target {
        ShellTarget::Embedded(database) => Target::embedded(&database),
        ShellTarget::Servers(addresses) => {
            let remote = runtime.block_on(remote::Remote::connect(addresses));
            let remote = remote.map_err(|error| ShellError::Connect(error.to_string()))?;
            Target::Remote(Box::new(remote))
        }
    };
    let interactive = options.scripts.is_empty() && io::stdin().is_terminal();
    let decorated = io::stdout().is_terminal();
    let mode = options.mode.unwrap_or(if decorated { Mode::Table } else { Mode::Raw });
    let mut shell = Shell {
        running: Arc::default(),
        runtime,
        target,
        mode,
        mode_before_lines: mode,
        decorated,
        timing: false,
        bail: options.bail.unwrap_or(!interactive),
        failed: false,
        names_changed: true,
        reader_left: false,
        script_depth: 0,
        added: options.commands,
    };
    if !interactive {
        shell.exit_on_interrupt();
    }
    shell.run_scripts(&options.scripts, interactive)?;
    Ok(!shell.failed)
}

/// Whether the shell continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Go,
    Stop,
}

/// The shell.
struct Shell {
    runtime: Runtime,
    target: Target,
    mode: Mode,
    /// The mode that `\x` restores.
    mode_before_lines: Mode,
    /// Whether standard output is a terminal, which gets tags and times as well.
    decorated: bool,
    timing: bool,
    bail: bool,
    /// Whether a failure determines the exit code.
    failed: bool,
    /// Whether tables and columns may have changed since the last completion.
    names_changed: bool,
    /// Whether the reader of standard output has gone, which is no error.
    reader_left: bool,
    script_depth: usize,
    added: Vec<ShellCommand>,
    /// Whether a statement runs, which Ctrl-C cancels.
    running: Arc<AtomicBool>,
}

/// Writes to standard error. If that is closed, there is nobody to tell.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

impl Shell {
    fn run_scripts(&mut self, scripts: &[Script], interactive: bool) -> Result<(), ShellError> {
        if interactive {
            let editor = editor::LineEditor::open()
                .map_err(|error| ShellError::Terminal(error.to_string()))?;
            let version = env!("CARGO_PKG_VERSION");
            let greeting = format!(
                "Gannet {version}. Statements end with a semicolon; .help shows the commands."
            );
            if let Err(failure) = self.say(&greeting) {
                self.fail(&failure, "");
            }
            self.process(&mut Input::Terminal(Box::new(editor)));
            // The user has seen the failures.
            self.failed = self.failed && self.bail;
        } else if scripts.is_empty() {
            self.process(&mut Input::stream(io::stdin()));
        }
        for script in scripts {
            let mut input = match script {
                Script::Text(text) => Input::text(text.clone()),
                Script::File(path) => {
                    let file = File::open(path).map_err(|source| ShellError::Script {
                        path: path.display().to_string(),
                        source,
                    })?;
                    Input::stream(file)
                }
            };
            if self.process(&mut input) == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Lets Ctrl-C end a script that waits for input.
    fn exit_on_interrupt(&self) {
        let running = Arc::clone(&self.running);
        self.runtime.spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if !running.load(Ordering::Relaxed) {
                    std::process::exit(EXIT_INTERRUPTED);
                }
            }
        });
    }

    /// Runs all of an input.
    fn process(&mut self, input: &mut Input) -> Flow {
        let mut scanner = Scanner::default();
        loop {
            if std::mem::take(&mut self.names_changed) && matches!(input, Input::Terminal(_)) {
                let names = self.wait(async |target| target.names().await);
                input.set_names(names);
            }
            let prompt = match scanner.is_blank() {
                true => "gannet> ".to_owned(),
                false => format!("     {}> ", scanner.awaited()),
            };
            let line = match input.line(&prompt) {
                Ok(Line::Text(line)) => line,
                Ok(Line::Interrupted) => {
                    scanner = Scanner::default();
                    continue;
                }
                Ok(Line::End) => break,
                Err(error) => {
                    self.fail(&Failure::new(format!("cannot read the statements: {error}")), "");
                    return Flow::Stop;
                }
            };
            let is_command = match input.is_terminal() {
                true => scanner.is_command(&line),
                false => scanner.is_blank() && command::is_command(line.trim_start()),
            };
            if is_command {
                if self.run_command(&line) == Flow::Stop {
                    return Flow::Stop;
                }
                continue;
            }
            scanner.push_line(&line);
            while let Some(statement) = scanner.take_statement() {
                if self.run_statement(&statement, input) == Flow::Stop {
                    return Flow::Stop;
                }
            }
        }
        // An unfinished statement at a terminal is dropped.
        match scanner.take_rest().filter(|_| !input.is_terminal()) {
            Some(statement) => self.run_statement(&statement, input),
            None => Flow::Go,
        }
    }

    /// Runs a statement, and shows the result.
    fn run_statement(&mut self, statement: &str, input: &mut Input) -> Flow {
        let first = statement.split_whitespace().next().unwrap_or_default();
        let changes = ["CREATE", "DROP", "ALTER"];
        self.names_changed |= changes.iter().any(|word| first.eq_ignore_ascii_case(word));
        let stopwatch = Stopwatch::start();
        let shown = self.run(statement).and_then(|outcome| self.show(outcome, input));
        let elapsed = stopwatch.elapsed();
        let flow = match shown {
            Ok(()) => Flow::Go,
            Err(failure) => self.fail(&failure, statement),
        };
        if self.timing {
            warn(&format!("Time: {:.3} ms", elapsed.as_secs_f64() * 1e3));
        }
        flow
    }

    fn show(&mut self, outcome: Outcome, input: &mut Input) -> Result<(), Failure> {
        match outcome {
            Outcome::Rows(rows) => self.print_rows(&rows),
            Outcome::Done { tag, notices } => {
                for notice in notices {
                    warn(&notice);
                }
                self.say(&tag)
            }
            Outcome::Empty => Ok(()),
            Outcome::CopyIn => {
                let interactive = input.is_terminal();
                if interactive {
                    warn(&format!(
                        "Type the data, a row in each line; end with {DATA_END} alone in a line."
                    ));
                }
                let mut failure = None;
                for chunk in input.copy_data() {
                    match (chunk, &failure) {
                        // The rest of a script's data is no statement, so it is read and dropped.
                        (Ok(_), Some(_)) if !interactive => {}
                        (_, Some(_)) => break,
                        (Ok(chunk), None) => {
                            let sent = self.wait(async |target| target.copy_data(chunk).await);
                            failure = sent.err();
                        }
                        (Err(error), None) => {
                            failure = Some(Failure::new(format!("cannot read the data: {error}")));
                        }
                    }
                }
                let abandon = failure.as_ref().map(|failure| failure.message.clone());
                let ended = self.wait(async |target| target.copy_end(abandon).await);
                let tag = match failure {
                    Some(failure) => return Err(failure),
                    None => ended?,
                };
                self.say(&tag)
            }
            Outcome::CopyOut { lines, tag } => {
                self.print(|out| lines.iter().try_for_each(|line| out.write_all(line)))?;
                self.say(&tag)
            }
        }
    }

    fn run(&mut self, statement: &str) -> Result<Outcome, Failure> {
        self.wait(async |target| target.run(statement).await)
    }

    fn rows(&mut self, statement: &str) -> Result<Rows, Failure> {
        self.wait(async |target| target.rows(statement).await)
    }

    /// Waits for work of the target; Ctrl-C cancels it.
    fn wait<T>(&mut self, work: impl AsyncFnOnce(&mut Target) -> T) -> T {
        let cancel = self.target.cancel();
        let target = &mut self.target;
        self.running.store(true, Ordering::Relaxed);
        let result = self.runtime.block_on(async {
            let work = work(target);
            tokio::pin!(work);
            loop {
                tokio::select! {
                    result = &mut work => break result,
                    Ok(()) = tokio::signal::ctrl_c() => cancel.cancel().await,
                }
            }
        });
        self.running.store(false, Ordering::Relaxed);
        result
    }

    /// Reports a failure. Returns whether the shell continues.
    fn fail(&mut self, failure: &Failure, statement: &str) -> Flow {
        self.failed = true;
        if self.reader_left {
            return Flow::Stop;
        }
        warn(&failure.report(statement));
        if self.bail { Flow::Stop } else { Flow::Go }
    }

    /// Tells the user something other than a result.
    fn say(&mut self, text: &str) -> Result<(), Failure> {
        if self.decorated { self.print(|out| writeln!(out, "{text}")) } else { Ok(()) }
    }

    fn print_rows(&mut self, rows: &Rows) -> Result<(), Failure> {
        let mode = self.mode;
        self.print(|out| write_rows(out, mode, rows))
    }

    fn print(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        write(&mut out).and_then(|()| out.flush()).map_err(|error| {
            // Results have no reader any more, so nothing else is run.
            self.bail = true;
            self.reader_left |= error.kind() == io::ErrorKind::BrokenPipe;
            Failure::new(format!("cannot write the result: {error}"))
        })
    }

    fn run_command(&mut self, line: &str) -> Flow {
        if let Some(done) = self.run_added(line) {
            return self.flow(done);
        }
        let done = match command::parse(line) {
            Ok(Command::Quit) => return Flow::Stop,
            Ok(Command::Read(file)) => return self.read_script(&file),
            Ok(command) => self.obey(command),
            Err(message) => Err(Failure::new(message)),
        };
        self.flow(done)
    }

    /// Reports a command's failure. Returns whether the shell continues.
    fn flow(&mut self, done: Result<(), Failure>) -> Flow {
        match done {
            Ok(()) => Flow::Go,
            Err(failure) => self.fail(&failure, ""),
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Help => {
                let text = self.help();
                self.print(|out| writeln!(out, "{text}"))?;
            }
            Command::Tables => {
                let tables = self.tables()?;
                self.print_rows(&tables)?;
            }
            Command::Indexes => {
                let indexes = self.indexes()?;
                self.print_rows(&indexes)?;
            }
            Command::Databases => {
                let databases = self.databases()?;
                self.print_rows(&databases)?;
            }
            Command::Describe(table) => self.describe(&table)?,
            Command::Schema(table) => self.schema(table.as_deref())?,
            Command::Dump => self.dump()?,
            Command::Mode(Some(mode)) => self.mode = mode,
            Command::Mode(None) => {
                let name = self.mode.name();
                self.print(|out| writeln!(out, "{name}"))?;
            }
            Command::ToggleLines => {
                if self.mode == Mode::Line {
                    self.mode = self.mode_before_lines;
                } else {
                    self.mode_before_lines = std::mem::replace(&mut self.mode, Mode::Line);
                }
            }
            Command::Timing(on) => {
                self.timing = on.unwrap_or(!self.timing);
                self.say(if self.timing { "Timing is on." } else { "Timing is off." })?;
            }
            Command::Bail(on) => self.bail = on.unwrap_or(!self.bail),
            Command::Import { file, table } => self.import(&file, &table)?,
            Command::Export { file, query } => self.export(&file, &query)?,
            Command::Read(_) | Command::Quit => {}
        }
        Ok(())
    }

    fn read_script(&mut self, file: &str) -> Flow {
        if self.script_depth >= SCRIPT_DEPTH_MAX {
            let message = format!("scripts read each other more than {SCRIPT_DEPTH_MAX} deep");
            return self.fail(&Failure::new(message), "");
        }
        let opened = match File::open(file) {
            Ok(opened) => opened,
            Err(error) => {
                return self.fail(&Failure::new(format!("cannot read {file}: {error}")), "");
            }
        };
        self.script_depth += 1;
        let flow = self.process(&mut Input::stream(BufReader::new(opened)));
        self.script_depth -= 1;
        flow
    }
}

/// A name as SQL.
fn quote_name(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A text as SQL.
fn quote_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
