//! A transaction of the client library: what it reads now, and what it writes when it commits.
//!
//! *Invariants*: writes travel with the next request that needs an answer. After a request that failed there is no other one.
//!
//! *Not here*: where it runs, and whether it is run again, in `client.rs`; its session at the node, in `conversation.rs`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Bound;

use gannet_storage::{Direction, HEAP_VALUE_BYTES_MAX, KEY_BYTES_MAX, Key};

use crate::clients::client::{Client, ClientError, Halted};
use crate::clients::conversation::{CallError, Conversation};
use crate::clients::message::{Answer, Operation, Request, TableEntry, Write};
use crate::clients::{MESSAGE_BYTES, OVERHEAD_BYTES};
use crate::deferred::Page;
use crate::key_range::KeyRange;
use crate::link::LinkError;
use crate::outcome::{Abort, Failure, Misuse, RowProblem};
use crate::row_key::RowKey;
use crate::rows::Rows;
use crate::table_id::TableId;
use crate::token::Token;

/// Keys of one request.
const KEYS_MAX: usize = 4_096;

/// Why a transaction cannot go on.
pub(super) enum Interruption {
    Abort(Abort),
    /// It may be run again.
    Broken(String),
    /// It has written nothing, and may be run again at another node: the one at this address has halted, for this reason.
    Halted(SocketAddr, String),
    /// It must not be run again.
    Final(ClientError),
}

/// A transaction at a node of a cluster: it reads now, and locks and writes when it commits.
///
/// It reads its own writes. What it has read was committed, and all of it was true at one moment if it commits.
pub struct RemoteTransaction<'c> {
    client: &'c Client,
    /// None after it broke.
    conversation: Option<Conversation>,
    has_begun: bool,
    /// Whether the node was told of a write.
    has_written: bool,
    interruption: Option<Interruption>,
    /// Keys that were read or written: whether they are there is known.
    known: BTreeSet<(u32, Vec<u8>)>,
    /// What the node has not been told.
    writes: Vec<Write>,
    /// Bytes of that.
    unsent_bytes: usize,
    /// The token that the commit decides, and the result that is kept under it.
    once: Option<(Token, Vec<u8>)>,
}

impl<'c> RemoteTransaction<'c> {
    pub(super) fn begin(client: &'c Client, halted: &Halted) -> Result<Self, ClientError> {
        Ok(Self {
            conversation: Some(client.conversation(halted)?),
            client,
            has_begun: false,
            has_written: false,
            interruption: None,
            known: BTreeSet::new(),
            writes: Vec::new(),
            unsent_bytes: 0,
            once: None,
        })
    }

    /// The value of a key; `None` if it is not there. One round trip.
    ///
    /// # Errors
    /// [`Conflict::Locked`](crate::Conflict::Locked) if another transaction holds the row for long, [`Misuse::Row`] for a key
    /// that the table cannot have, [`Failure::Disconnected`] if the node does not answer.
    pub fn get<'k>(
        &mut self,
        table: TableId,
        key: impl Into<Key<'k>>,
    ) -> Result<Option<Vec<u8>>, Abort> {
        Ok(self.get_many(table, [key])?.pop().flatten())
    }

    /// The values of some keys, in their order: one round trip for about a mebibyte of them.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_many<'k>(
        &mut self,
        table: TableId,
        keys: impl IntoIterator<Item = impl Into<Key<'k>>>,
    ) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        let keys = keys.into_iter().map(|key| self.checked(table, key.into()));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let mut values = Vec::with_capacity(keys.len());
        while let Some(rest) = keys.get(values.len()..).filter(|rest| !rest.is_empty()) {
            let mut bytes = 0;
            let fit = rest.iter().take(KEYS_MAX).take_while(|key| {
                bytes += key.len() + OVERHEAD_BYTES;
                bytes <= MESSAGE_BYTES
            });
            let keys = rest[..fit.count()].to_vec();
            match self.request(Operation::Get { table: table.0, keys })? {
                Answer::Values(some) if (1..=rest.len()).contains(&some.len()) => {
                    values.extend(some);
                }
                _ => return Err(self.fail(Interruption::Final(unexpected()))),
            }
        }
        self.known.extend(keys.into_iter().map(|key| (table.0, key)));
        Ok(values)
    }

    /// The first `limit` rows of a range of an ordered table, or fewer if they are large: one round trip.
    ///
    /// # Errors
    /// As [`Self::get`]; [`Misuse::NoSuchTable`] for a table without order.
    ///
    /// With a limit of 0 it finds nothing, and all of the range is left.
    pub fn scan(
        &mut self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Page, Abort> {
        self.entry(table)?;
        for bound in [&range.from, &range.to] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound
                && key.len() > KEY_BYTES_MAX
            {
                let (key, problem) = (RowKey::from(&key[..]), RowProblem::KeyBytes);
                return Err(Misuse::Row { table: table.0, key, problem }.into());
            }
        }
        if limit == 0 {
            return Ok(Page { rows: Rows::default(), rest: Some(range.clone()) });
        }
        let operation = Operation::Scan {
            table: table.0,
            range: range.clone().into(),
            is_descending: direction == Direction::Descending,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        };
        match self.request(operation)? {
            Answer::Page(rows, rest) => {
                self.known.extend(rows.iter().map(|(key, _)| (table.0, key.clone())));
                Ok(Page { rows: rows.into_iter().collect(), rest: rest.map(Into::into) })
            }
            _ => Err(self.fail(Interruption::Final(unexpected()))),
        }
    }

    /// Sets a key at commit, whether it is there or not. No round trip of its own, but now and then for many.
    ///
    /// # Errors
    /// [`Misuse::ValueBytes`] for a value that the table cannot have, and those of [`Self::get`].
    pub fn put<'k>(
        &mut self,
        table: TableId,
        key: impl Into<Key<'k>>,
        value: &[u8],
    ) -> Result<(), Abort> {
        let (expected, found) = (self.entry(table)?.value_bytes, value.len());
        let expected = match expected.map(|bytes| bytes as usize) {
            Some(bytes) if bytes != found => Some(bytes),
            None if found > HEAP_VALUE_BYTES_MAX => Some(HEAP_VALUE_BYTES_MAX),
            Some(_) | None => None,
        };
        if let Some(expected) = expected {
            return Err(Misuse::ValueBytes { table: table.0, expected, found }.into());
        }
        self.write(table, key.into(), Some(value.to_vec()))
    }

    /// Removes a key at commit, if it is there.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn delete<'k>(&mut self, table: TableId, key: impl Into<Key<'k>>) -> Result<(), Abort> {
        self.write(table, key.into(), None)
    }

    fn write(&mut self, table: TableId, key: Key<'_>, value: Option<Vec<u8>>) -> Result<(), Abort> {
        let key = self.checked(table, key)?;
        self.unsent_bytes += key.len() + value.as_ref().map_or(0, Vec::len) + OVERHEAD_BYTES;
        let was_read = !self.known.insert((table.0, key.clone()));
        self.writes.push(Write { table: table.0, key, value, was_read });
        if self.unsent_bytes < MESSAGE_BYTES {
            return Ok(());
        }
        match self.request(Operation::Write)? {
            Answer::Done => Ok(()),
            _ => Err(self.fail(Interruption::Final(unexpected()))),
        }
    }

    fn entry(&self, table: TableId) -> Result<&'c TableEntry, Abort> {
        let entry = self.client.tables.iter().find(|entry| entry.number == table.0);
        entry.ok_or(Misuse::NoSuchTable { table: table.0 }.into())
    }

    /// A key as bytes, if the table can have it.
    fn checked(&self, table: TableId, key: Key<'_>) -> Result<Vec<u8>, Abort> {
        let is_numbered = self.entry(table)?.value_bytes.is_some();
        let usage = |problem| Err(Misuse::Row { table: table.0, key: key.into(), problem }.into());
        match key {
            Key::Number(number) if is_numbered => Ok(number.to_le_bytes().to_vec()),
            Key::Number(_) => usage(RowProblem::IsNumber),
            Key::Bytes(_) if is_numbered => usage(RowProblem::IsBytes),
            Key::Bytes(bytes) if !(1..=KEY_BYTES_MAX).contains(&bytes.len()) => {
                usage(RowProblem::KeyBytes)
            }
            Key::Bytes(bytes) => Ok(bytes.to_vec()),
        }
    }

    /// Sends a request, and with it what was written since the last one; the answer.
    pub(super) fn request(&mut self, operation: Operation) -> Result<Answer, Abort> {
        self.has_written |= !self.writes.is_empty();
        let is_commit = match operation {
            // Of a transaction that writes nothing, no outcome matters that nobody has heard.
            Operation::Commit => self.has_written,
            _ => operation.commits(),
        };
        let Some(conversation) = &mut self.conversation else {
            return Err(Failure::Disconnected.into());
        };
        let writes = std::mem::take(&mut self.writes);
        self.unsent_bytes = 0;
        let begins = !std::mem::replace(&mut self.has_begun, true);
        let options = &self.client.options;
        let address = conversation.address();
        let request = Request { begins, writes, operation };
        let answer = match conversation.request(&request, options) {
            Ok(answer) => answer,
            Err((error, true)) if is_commit => {
                let unknown = ClientError::Unknown(error.to_string());
                return Err(self.fail(Interruption::Final(unknown)));
            }
            Err((CallError::Link(LinkError::TimedOut), _)) => {
                let late = ClientError::TimedOut(options.timeout);
                return Err(self.fail(Interruption::Final(late)));
            }
            Err((error, _)) => return Err(self.fail(Interruption::Broken(error.to_string()))),
        };
        let interruption = match answer {
            Answer::Aborted(code) => {
                let abort = Abort::from(code);
                // An abort that another run would not cure is left to the closure.
                if abort.is_conflict() {
                    self.interruption = Some(Interruption::Abort(abort));
                }
                return Err(abort);
            }
            Answer::Busy => {
                self.interruption = Some(Interruption::Broken("the node is busy".to_owned()));
                // Another node may have room.
                if options.addresses.len() > 1
                    && let Some(conversation) = self.conversation.take()
                {
                    conversation.leave();
                }
                return Err(Failure::Disconnected.into());
            }
            Answer::Halted(reason) => Interruption::Halted(address, reason),
            Answer::Unknown(reason) if !is_commit => Interruption::Halted(address, reason),
            Answer::Unknown(reason) => Interruption::Final(ClientError::Unknown(reason)),
            Answer::Refused(reason) => Interruption::Final(ClientError::Refused(reason)),
            Answer::Values(_)
            | Answer::Page(..)
            | Answer::Token(_)
            | Answer::Outcome(_)
            | Answer::Done => return Ok(answer),
        };
        Err(self.fail(interruption))
    }

    /// Ends the use of the session.
    pub(super) fn fail(&mut self, interruption: Interruption) -> Abort {
        self.conversation = None;
        self.interruption = Some(interruption);
        Failure::Disconnected.into()
    }

    /// Its commit decides a token, and keeps a result under it.
    pub(super) fn keep_under(&mut self, token: Token, result: Vec<u8>) {
        self.once = Some((token, result));
    }

    /// Commits or gives up.
    pub(super) fn finish(mut self, last: Operation) -> Result<(), Interruption> {
        if last == Operation::GiveUp {
            self.writes.clear();
        }
        let last = match (last, self.once.take()) {
            (Operation::Commit, Some((token, result))) => Operation::CommitOnce { token, result },
            (last, _) => last,
        };
        if self.interruption.is_none() {
            match self.request(last) {
                Ok(Answer::Done) => {}
                Ok(_) => {
                    self.fail(Interruption::Final(unexpected()));
                }
                Err(abort) => {
                    self.interruption.get_or_insert(Interruption::Abort(abort));
                }
            }
        }
        let ended = self.interruption.take().map_or(Ok(()), Err);
        self.give_back();
        ended
    }

    /// Leaves the session to the next transaction, unless it broke.
    fn give_back(self) {
        if let Some(conversation) = self.conversation {
            self.client.keep(conversation);
        }
    }
}

pub(super) fn unexpected() -> ClientError {
    ClientError::Refused("its answer is of a kind that does not answer the request".to_owned())
}
