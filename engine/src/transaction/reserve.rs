//! Reserve: ask the primaries of rows and ranges for reservations, and release them; and whom a transaction of another node waits for.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Invariant*: a row or range that cannot be reserved, as its partition has another primary by now or its table is gone, counts as reserved:
//! the transaction goes on, and its commit tells.

use std::collections::BTreeSet;

use gannet_rpc::Message;
use gannet_storage::Direction;

use crate::answer::{AWAITED_BYTES, PLACE_BYTES, decode_awaited, decode_place};
use crate::configuration::NOBODY;
use crate::control::WaitReason;
use crate::holder::Holder;
use crate::key_range::KeyRange;
use crate::outcome::Abort;
use crate::request::{self, OfHolder, ReleaseRow, Reserve, Share, Status, TableRequest};
use crate::row_reservations::{Asks, RESERVED_KEY_BYTES, Reserved, RowName};
use crate::scan_page::encode_shape;
use crate::table_id::TableId;
use crate::transaction::Transaction;
use crate::transaction::round::Interrupted;
use crate::view::View;

/// What a holder asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) holder: Holder,
    /// How long it holds a row at most, in milliseconds.
    pub(crate) hold_ms: u32,
    pub(crate) asks: Asks,
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
    pub(crate) fn reserve(
        &mut self,
        rows: &[(RowName, &[u8])],
        wish: Wish,
    ) -> Result<Vec<Reserved>, Abort> {
        let Wish { holder, hold_ms, asks } = wish;
        let Self { view, round, .. } = self;
        let configuration = view.configuration();
        let primary_of = |&((table, hash), _): &(RowName, &[u8])| {
            let primary = configuration.primary(configuration.partitioning.partition(hash));
            (primary != NOBODY && view.kept_table(table).is_some()).then_some(primary)
        };
        round.begin()?;
        for row in rows {
            if let Some(primary) = primary_of(row) {
                let &((table, hash), key) = row;
                let owner = holder.into();
                let request = Reserve { table, hold_ms, waits: asks as u16, hash, owner }.encode();
                let key = &key[..key.len().min(RESERVED_KEY_BYTES)];
                let request = [&request[..], key].concat();
                round.batch().push(primary, request::RESERVE, &request, PLACE_BYTES)?;
            }
        }
        if !round.batch().is_empty() {
            round.wait_for(WaitReason::Responses)?;
        }
        let mut batch = round.batch();
        let answer = |row| {
            let primary = primary_of(row);
            primary.map_or(Reserved::Granted, |primary| answered(batch.next_response(primary)))
        };
        Ok(rows.iter().map(answer).collect())
    }

    /// The answer to a wish to share a range, in one round trip: granted if all members grant it, which may have rows of it. Else those that do
    /// keep it.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn share(
        &mut self,
        table: TableId,
        keys: &KeyRange,
        wish: Wish,
    ) -> Result<Reserved, Abort> {
        let Wish { holder, hold_ms, asks } = wish;
        let Self { view, round, .. } = self;
        let mut bounds = Vec::new();
        let shape = encode_shape(keys.bounds(), Direction::Ascending, &mut bounds);
        let (table, owner) = (table.number(), holder.into());
        let request = Share { table, hold_ms, waits: asks as u16, shape, owner }.encode();
        let request = [&request[..], &bounds].concat();
        round.begin()?;
        for member in members(view) {
            round.batch().push(member, request::SHARE, &request, PLACE_BYTES)?;
        }
        round.wait_for(WaitReason::Responses)?;
        let mut batch = round.batch();
        let answers = members(view).map(|member| answered(batch.next_response(member)));
        // Each answer is taken, though one that refuses is enough.
        let worse = |found, answer| match (found, answer) {
            (Reserved::Behind(..), _) | (Reserved::Full, Reserved::Granted) => found,
            (Reserved::Granted | Reserved::Full, _) => answer,
        };
        Ok(answers.fold(Reserved::Granted, worse))
    }

    /// Gives reservations of rows, and places in queues, back; and all that the holder shares, if that is `shared`.
    ///
    /// # Errors
    /// That of an interruption: the reservations have ended with the epoch.
    pub(crate) fn release(
        &mut self,
        rows: &[RowName],
        shared: bool,
        holder: Holder,
    ) -> Result<(), Interrupted> {
        let Self { view, round, .. } = self;
        let configuration = view.configuration();
        let owner = holder.into();
        round.begin()?;
        for &(table, hash) in rows {
            let primary = configuration.primary(configuration.partitioning.partition(hash));
            if primary != NOBODY {
                let request = ReleaseRow { table, hash, owner };
                round.request_that_fits(primary, request::RELEASE_ROW, &request.encode())?;
            }
        }
        for member in members(view).filter(|_| shared) {
            let request = OfHolder { owner };
            round.request_that_fits(member, request::RELEASE_SHARED, &request.encode())?;
        }
        // A row that its primary does not know is released.
        round.end().map(drop)
    }

    /// The transactions that some holders wait for, as the members know.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn waits_for(&mut self, holders: &[Holder]) -> Result<BTreeSet<Holder>, Abort> {
        let Self { view, round, .. } = self;
        let members =
            || holders.iter().flat_map(|holder| members(view).map(move |it| (*holder, it)));
        round.begin()?;
        for (holder, member) in members() {
            let request = OfHolder { owner: holder.into() }.encode();
            round.batch().push(member, request::WAITS_FOR, &request, AWAITED_BYTES)?;
        }
        round.wait_for(WaitReason::Responses)?;
        let mut batch = round.batch();
        let mut awaited = BTreeSet::new();
        for (_, member) in members() {
            awaited.extend(decode_awaited(batch.next_response(member).payload));
        }
        Ok(awaited)
    }
}

/// The members of the configuration.
fn members(view: &View) -> impl Iterator<Item = u16> {
    let configuration = view.configuration();
    (0..).take(configuration.nodes()).filter(|it| configuration.is_member(*it))
}

fn answered(answer: Message<'_>) -> Reserved {
    match (Status::from_wire(answer.kind), decode_place(answer.payload)) {
        (Status::Locked, Some((other, place))) => Reserved::Behind(other, place),
        (Status::Full, _) => Reserved::Full,
        _ => Reserved::Granted,
    }
}
