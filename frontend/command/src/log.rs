//! The log of a server process, and its standard output. A thread of its own writes each of them, so a slow, stuck or missing
//! reader delays nothing and ends nothing.
//!
//! ```text
//! tracing ─► Lines: a bounded queue ─► thread ─► standard error
//!              └─ full: the line is dropped and counted
//! ```
//!
//! *Invariants*: logging never blocks and never fails. Dropped lines are counted, and the log reports the count when it is
//! read again.
//!
//! *Not here*: crate `tracing-appender`, whose guard writes to standard error when the thread is stuck there.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines in the queue.
const LINES_MAX: usize = 1_024;
/// Longest wait for the last lines when the process ends.
const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(500);

/// Dropped lines.
static LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

/// The format of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// A message to the writing thread.
enum Message {
    Line(Vec<u8>),
    /// A request to report that all lines before this message have been written.
    Flush(std::sync::mpsc::Sender<()>),
}

/// The log. Dropping this waits briefly for the last lines.
pub(crate) struct Log(Lines);

/// The queue of lines.
#[derive(Clone)]
struct Lines(SyncSender<Message>);

impl Log {
    /// Starts logging to standard error, messages of panics included.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn start(level: LevelFilter, format: LogFormat) -> io::Result<Self> {
        let (sender, lines) = sync_channel(LINES_MAX);
        let write = move || write_all(&lines, io::stderr());
        std::thread::Builder::new().name("gannet-log".to_owned()).spawn(write)?;
        let own = Lines(sender);
        let (lines, ansi) = (own.clone(), io::stderr().is_terminal());
        let log = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(ansi)
            .with_writer(move || lines.clone());
        // Raft warns of each message that is not answered; what follows from that, the manager says itself.
        let targets = Targets::new().with_default(level).with_target("openraft", LevelFilter::OFF);
        match format {
            LogFormat::Text => log.with_target(false).finish().with(targets).init(),
            LogFormat::Json => log.json().finish().with(targets).init(),
        }
        // The default hook would block on standard error.
        std::panic::set_hook(Box::new(|panic| {
            let trace = Backtrace::capture();
            match trace.status() {
                BacktraceStatus::Captured => tracing::error!("{panic}\n{trace}"),
                _ => tracing::error!("{panic}"),
            }
        }));
        Ok(Self(own))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let (written, is_written) = channel();
        if self.0.0.try_send(Message::Flush(written)).is_ok() {
            // A missing reader must not delay the end.
            let _ = is_written.recv_timeout(LAST_LINES_TIMEOUT);
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send(Message::Line(line.to_vec())).is_err() {
            // Relaxed: a statistic.
            LINES_DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(messages: &Receiver<Message>, mut output: impl Write) {
    let mut told = 0;
    while let Ok(message) = messages.recv() {
        match message {
            Message::Line(line) => {
                // A full disk or a closed pipe may recover.
                if output.write_all(&line).is_err() {
                    LINES_DROPPED.fetch_add(1, Ordering::Relaxed);
                }
            }
            // The waiting thread may have given up.
            Message::Flush(written) => drop(written.send(())),
        }
        let dropped = lines_dropped();
        if dropped > told
            && writeln!(output, "{} lines of the log were lost", dropped - told).is_ok()
        {
            told = dropped;
        }
    }
}

/// The number of lines dropped so far.
pub(crate) fn lines_dropped() -> u64 {
    LINES_DROPPED.load(Ordering::Relaxed)
}

/// Prints to standard output, which may have no reader.
pub(crate) fn announce(text: String) {
    let say = move || {
        let mut output = io::stdout().lock();
        // A server goes on without the announcement.
        let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    };
    if let Err(error) = std::thread::Builder::new().name("gannet-announce".to_owned()).spawn(say) {
        tracing::warn!("standard output was not written: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that blocks until the test ends.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error means that the test has ended.
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unread_lines_are_counted_and_do_not_block() {
        let (sender, messages) = sync_channel(LINES_MAX);
        let (read, reading) = channel();
        let writing = std::thread::spawn(move || write_all(&messages, Stuck(reading)));
        let mut lines = Lines(sender);
        let before = lines_dropped();
        for _ in 0..LINES_MAX * 2 {
            lines.write_all(b"a line\n").unwrap();
        }
        // The thread may hold one more line.
        let dropped = lines_dropped() - before;
        assert!(dropped >= LINES_MAX as u64 - 1, "{dropped}");
        drop(Log(lines.clone()));
        drop((read, lines));
        writing.join().unwrap();
    }
}
