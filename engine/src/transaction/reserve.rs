//! Reserve: ask the primaries of rows for reservations, and release them; and whom a transaction of another node waits for.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Invariant*: a row that cannot be reserved, as its partition has another primary by now or its table is gone, counts as reserved: the
//! transaction goes on, and its commit tells.

use crate::answer::{PLACE_BYTES, decode_place};
use crate::configuration::NOBODY;
use crate::control::WaitReason;
use crate::outcome::Abort;
use crate::request::{self, OfHolder, Reserve, Status, TableRequest};
use crate::row_reservations::{Holder, Reserved, RowName};
use crate::transaction::Transaction;
use crate::transaction::round::Interrupted;

/// What a holder asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) holder: Holder,
    /// How long it holds a row at most, in milliseconds.
    pub(crate) hold_ms: u32,
    /// Whether it waits for a row that another holds.
    pub(crate) waits: bool,
}

impl Transaction<'_> {
    /// A holder that was none before.
    pub(crate) fn new_holder(&self) -> Holder {
        self.view.reservations().new_holder(self.view.id())
    }

    /// The answers of the primaries to a wish for each of some rows, in one round trip.
    ///
    /// # Errors
    /// That of an interruption; [`crate::Misuse::TooLarge`] for more rows than fit a message.
    pub(crate) fn reserve(&mut self, rows: &[RowName], wish: Wish) -> Result<Vec<Reserved>, Abort> {
        let Wish { holder, hold_ms, waits } = wish;
        let Self { view, round, .. } = self;
        let configuration = view.configuration();
        let primary_of = |&(table, hash): &RowName| {
            let primary = configuration.primary(configuration.partitioning.partition(hash));
            (primary != NOBODY && view.kept_table(table).is_some()).then_some(primary)
        };
        round.begin()?;
        for row in rows {
            if let Some(primary) = primary_of(row) {
                let &(table, hash) = row;
                let owner = holder.into();
                let request = Reserve { table, hold_ms, waits: waits.into(), hash, owner }.encode();
                round.batch().push(primary, request::RESERVE, &request, PLACE_BYTES)?;
            }
        }
        if !round.batch().is_empty() {
            round.wait_for(WaitReason::Responses)?;
        }
        let mut batch = round.batch();
        let answer = |row| {
            let Some(primary) = primary_of(row) else { return Reserved::Granted };
            let answer = batch.next_response(primary);
            match (Status::from_wire(answer.kind), decode_place(answer.payload)) {
                (Status::Locked, Some((other, place))) => Reserved::Behind(other, place),
                _ => Reserved::Granted,
            }
        };
        Ok(rows.iter().map(answer).collect())
    }

    /// Gives reservations, and places in queues, back.
    ///
    /// # Errors
    /// That of an interruption: the reservations have ended with the epoch.
    pub(crate) fn release_rows(
        &mut self,
        rows: &[RowName],
        holder: Holder,
    ) -> Result<(), Interrupted> {
        let Self { view, round, .. } = self;
        let configuration = view.configuration();
        round.begin()?;
        for &(table, hash) in rows {
            let primary = configuration.primary(configuration.partitioning.partition(hash));
            if primary != NOBODY {
                let request = OfHolder { table, hash, owner: holder.into() };
                round.request_that_fits(primary, request::RELEASE_ROW, &request.encode())?;
            }
        }
        // A row that its primary does not know is released.
        round.end().map(drop)
    }

    /// The holder of the row that another holder waits for, as the members know.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn waits_for(&mut self, holder: Holder) -> Result<Option<Holder>, Abort> {
        let Self { view, round, .. } = self;
        let members = || {
            (0..)
                .take(view.configuration().nodes())
                .filter(|it| view.configuration().is_member(*it))
        };
        round.begin()?;
        let request = OfHolder { table: 0, hash: 0, owner: holder.into() }.encode();
        for member in members() {
            round.batch().push(member, request::WAITS_FOR, &request, PLACE_BYTES)?;
        }
        round.wait_for(WaitReason::Responses)?;
        let mut batch = round.batch();
        let answers = members().map(|member| decode_place(batch.next_response(member).payload));
        // Each answer is taken, though one is enough.
        Ok(answers.fold(None, |found, place| found.or(place)).map(|(other, _)| other))
    }
}
