//! A program beside the cluster: it counts the words of its input in tables on the nodes.
//!
//! ```text
//! cargo run --release -- serve --clients 127.0.0.1:7433 --tables words,totals:8
//! cargo run --release --example client -- 127.0.0.1:7433 <README.md
//! ```
//!
//! Several such programs may run at once, at different nodes. If the nodes have a key for clients, give `--key clients.key`
//! before the addresses. Every line is a transaction: all of its words are counted, or none. At the end the program prints
//! the most frequent words of all programs, and exits with 1 if the counts do not add up.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::Bound;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gannet::{
    Abort, Client, ClientOptions, ClusterKey, Direction, KeyRange, Outcome, RemoteTransaction,
    TableId,
};

const THREADS: usize = 4;
/// Lines that wait for a thread.
const LINES_MAX: usize = 64;
/// The key of the only row of `totals`.
const ALL_WORDS: u64 = 0;
/// Rows of each part of the report's scan.
const ROWS: usize = 1_000;
/// Words to print.
const PRINTED: usize = 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Both tables: `words` has ordered byte strings as keys and values; `totals` has numbers as keys and values of 8 bytes.
#[derive(Clone, Copy)]
struct Tables {
    words: TableId,
    totals: TableId,
}

/// Adds a line's words as one transaction, with one round trip of reads for each table.
fn count(tx: &mut RemoteTransaction<'_>, tables: Tables, line: &str) -> Result<(), Abort> {
    let mut words: BTreeMap<&str, u64> = BTreeMap::new();
    for word in line.split_whitespace() {
        *words.entry(word).or_default() += 1;
    }
    let before = tx.get_many(tables.words, words.keys().copied())?;
    for ((word, times), before) in words.iter().zip(&before) {
        let after = number(before.as_deref()) + times;
        tx.put(tables.words, *word, &after.to_le_bytes())?;
    }
    let all = number(tx.get(tables.totals, ALL_WORDS)?.as_deref()) + words.values().sum::<u64>();
    tx.put(tables.totals, ALL_WORDS, &all.to_le_bytes())
}

/// All words and their total, at one moment.
fn report(
    tx: &mut RemoteTransaction<'_>,
    tables: Tables,
) -> Result<(Vec<(u64, String)>, u64), Abort> {
    let mut words = Vec::new();
    let mut rest = Some(KeyRange { from: Bound::Unbounded, to: Bound::Unbounded });
    while let Some(range) = rest {
        let page = tx.scan(tables.words, &range, Direction::Ascending, ROWS)?;
        let word = |(key, value): (&[u8], &[u8])| {
            (number(Some(value)), String::from_utf8_lossy(key).into_owned())
        };
        words.extend(page.rows.iter().map(word));
        rest = page.rest;
    }
    Ok((words, number(tx.get(tables.totals, ALL_WORDS)?.as_deref())))
}

fn number(value: Option<&[u8]>) -> u64 {
    value.and_then(|value| value.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The result of a transaction that has to commit.
fn committed<T>(outcome: Outcome<T, Abort>) -> Result<T, Failure> {
    match outcome {
        Outcome::Committed(value) => Ok(value),
        // Another run would not help, or a hundred attempts have met conflicts.
        Outcome::Aborted(abort) | Outcome::Failed(abort) => Err(abort.into()),
        Outcome::Panicked(message) => Err(message.into()),
        // `Client::run` reports this as `ClientError::Unknown`.
        Outcome::Unknown => Err(gannet::Failure::Unknown.into()),
    }
}

fn run() -> Result<bool, Failure> {
    let mut arguments = std::env::args().skip(1).peekable();
    let key = match arguments.next_if_eq("--key") {
        Some(_) => Some(ClusterKey::read(arguments.next().ok_or("--key needs a file")?.as_ref())?),
        None => None,
    };
    let addresses = arguments.map(|address| address.parse()).collect::<Result<_, _>>()?;
    let client =
        Client::connect(ClientOptions { addresses, key, timeout: Duration::from_secs(10) })?;
    let tables = Tables { words: client.table("words")?, totals: client.table("totals")? };

    let (lines, waiting) = sync_channel::<String>(LINES_MAX);
    let waiting = Mutex::new(waiting);
    std::thread::scope(|scope| {
        let work = || -> Result<(), Failure> {
            loop {
                let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(line) = next else { return Ok(()) };
                committed(client.run(|tx| count(tx, tables, &line))?)?;
            }
        };
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        for line in std::io::stdin().lock().lines() {
            // If all threads have failed, no thread takes lines.
            if workers.iter().all(std::thread::ScopedJoinHandle::is_finished)
                || lines.send(line?).is_err()
            {
                break;
            }
        }
        drop(lines);
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
    })?;

    let (mut words, all) = committed(client.run(|tx| report(tx, tables))?)?;
    let sum: u64 = words.iter().map(|(times, _)| times).sum();
    words.sort_by(|a, b| b.cmp(a));
    for (times, word) in words.iter().take(PRINTED) {
        println!("{times:8} {word}");
    }
    println!("{all:8} words, {} different", words.len());
    Ok(sum == all)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the words do not add up to their total");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
