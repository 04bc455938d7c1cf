//! The scripts of anomalies over the wire, each on a server of its own.
//!
//! *Not here*: what the scripts are about and which rules they name (`tests/anomalies.rs`).

#[path = "../anomalies/transcript.rs"]
mod transcript;

use tokio::runtime::Runtime;
use tokio_postgres::{Client as Connection, SimpleQueryMessage, SimpleQueryRow};
use transcript::{Client, Given, Script};

use crate::process::Server;

struct Remote<'r> {
    runtime: &'r Runtime,
    connection: Connection,
}

impl Client for Remote<'_> {
    fn run(&mut self, sql: &str) -> Given {
        let messages = match self.runtime.block_on(self.connection.simple_query(sql)) {
            Ok(messages) => messages,
            Err(error) => return Given::Error(error.code().unwrap().code().to_owned()),
        };
        let (mut is_query, mut rows, mut changed) = (false, Vec::new(), 0);
        for message in &messages {
            match message {
                SimpleQueryMessage::RowDescription(_) => is_query = true,
                SimpleQueryMessage::Row(row) => rows.push(shown(row)),
                SimpleQueryMessage::CommandComplete(count) => changed = *count,
                _ => {}
            }
        }
        if is_query { Given::Rows(rows) } else { Given::Count(changed) }
    }
}

fn shown(row: &SimpleQueryRow) -> String {
    let cells: Vec<&str> =
        (0..row.len()).map(|number| row.get(number).unwrap_or_default()).collect();
    cells.join("|")
}

#[test]
fn every_script_of_an_anomaly_gives_its_transcript() {
    let runtime = Runtime::new().unwrap();
    for script in Script::all() {
        let server = Server::start(&[]);
        let connect =
            || Remote { runtime: &runtime, connection: runtime.block_on(server.client()) };
        let transcript = script.transcript(connect);
        assert!(transcript == script.text, "{} gives\n{transcript}", script.name);
    }
}
