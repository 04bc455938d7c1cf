//! The holders of reservations, and what their locks pass.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Not here*: what they hold, in `row_reservations` and `shared_ranges`.

use gannet_storage::Owner;

/// A holder of reservations: a transaction of a session, as long as its node is a member. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder(pub(crate) u64);

impl From<Holder> for Owner {
    /// The holder, in the place of an owner in a request.
    fn from(holder: Holder) -> Self {
        Self(holder.0)
    }
}

/// Reservations of other transactions that do not keep a LOCK out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub(crate) enum Passes {
    /// None: a transaction that can still reserve its rows.
    #[default]
    Nothing = 0,
    /// Shared ranges.
    Readers = 1 << 8,
    /// All: a transaction that has reservations itself.
    All = 3 << 8,
}

impl Passes {
    /// The field of a LOCK.
    #[inline(always)]
    pub(crate) fn from_wire(passes: u16) -> Option<Self> {
        match passes {
            0 => Some(Self::Nothing),
            0x100 => Some(Self::Readers),
            0x300 => Some(Self::All),
            _ => None,
        }
    }
}
