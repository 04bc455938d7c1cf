//! Switches that remove one rule of the protocol each, so that a test can show that an oracle notices.
//!
//! Without the feature `mutants` every switch is the constant `false` and the compiler removes it.
//! Which test catches which mutant is listed in `tests/mutants.rs` of the root package.

/// One rule that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mutant {
    /// No rule is removed.
    None = 0,
    /// Validation always succeeds (FaSST section 5, step 2).
    SkipValidation = 1,
    /// An abort sends no UNLOCK.
    SkipUnlock = 2,
    /// VALIDATE is sent before the locks are granted (rule C1).
    ValidateBeforeLock = 3,
    /// Primaries are updated before the backups have acknowledged (rule C5).
    PrimaryBeforeBackup = 4,
    /// A READ of a bucket locked by another transaction answers the old version.
    ReadLocked = 5,
    /// A reader does not check the physical sequence.
    SkipSequenceCheck = 6,
    /// The first backup acknowledges an update without applying it.
    DropBackupUpdate = 7,
    /// The reader's acquire fence is missing (loom only).
    NoReadFence = 8,
    /// The writer's release fence is missing (loom only).
    NoWriteFence = 9,
    /// An abort raises the version of the buckets that it unlocks.
    AbortBumpsVersion = 10,
    /// `INSERT_CALL_FORWARDING` skips its read of the special facility.
    TatpSkipsFacility = 11,
    /// Two observations of a bucket by one transaction may differ (rule C2).
    SkipAgreement = 12,
    /// Backups are updated before the record is logged (rule C4).
    UpdateBeforeLog = 13,
    /// One transaction in four gives up after it has logged (rule C3).
    AbortAfterLog = 14,
    /// A bucket of which a transaction has two keys gets two units.
    SplitUnits = 15,
    /// A backup applies a unit whatever its base version.
    IgnoreBaseVersion = 16,
    /// The outcome is told before the record is logged (rule C6).
    TellBeforeLog = 17,
    /// A log slot is overwritten before the primaries have acknowledged (rules C6 and C8).
    ReuseSlotEarly = 18,
    /// A lock for insert reserves no space (rule C9).
    SkipReservation = 19,
    /// The leaves that a scan has touched are not validated.
    SkipLeafValidation = 20,
    /// The fence before a freed cell is written again is missing (loom only).
    NoReuseFence = 21,
    /// A change of SQL's catalog writes one copy of its version instead of all.
    OneCatalogVersion = 22,
    /// A backup refuses the update that gives a bucket its 65th version, though it is decided (rule C9).
    RefuseBackup = 23,
    /// A reader follows a cell number that it has read torn, even if there is no such cell (loom only).
    TrustTornNumbers = 24,
    /// A reader follows a chain of overflow buckets on and on, though its bucket was changed (loom only).
    FollowFreedCells = 25,
    /// A primary refuses to validate a bucket at its 65th version, though it knows it.
    RefuseValidation = 26,
    /// A backup acknowledges the update that gives a bucket its 65th version, and loses it.
    LoseBackupUpdate = 27,
    /// A primary loses the lock under which a bucket gets its 65th version.
    LoseLock = 28,
    /// A change of SQL's rows removes the entries that its row would have, also in an index that is not ready, where they may be
    /// those of other rows.
    RemoveOthersEntries = 29,
    /// An open commit is settled by the record that lies in its coroutine's log slot, rather than by its own id.
    SettleBySlot = 30,
}

impl Mutant {
    /// All rules.
    pub const ALL: [Self; 31] = [
        Self::None,
        Self::SkipValidation,
        Self::SkipUnlock,
        Self::ValidateBeforeLock,
        Self::PrimaryBeforeBackup,
        Self::ReadLocked,
        Self::SkipSequenceCheck,
        Self::DropBackupUpdate,
        Self::NoReadFence,
        Self::NoWriteFence,
        Self::AbortBumpsVersion,
        Self::TatpSkipsFacility,
        Self::SkipAgreement,
        Self::UpdateBeforeLog,
        Self::AbortAfterLog,
        Self::SplitUnits,
        Self::IgnoreBaseVersion,
        Self::TellBeforeLog,
        Self::ReuseSlotEarly,
        Self::SkipReservation,
        Self::SkipLeafValidation,
        Self::NoReuseFence,
        Self::OneCatalogVersion,
        Self::RefuseBackup,
        Self::TrustTornNumbers,
        Self::FollowFreedCells,
        Self::RefuseValidation,
        Self::LoseBackupUpdate,
        Self::LoseLock,
        Self::RemoveOthersEntries,
        Self::SettleBySlot,
    ];
}

#[cfg(any(feature = "mutants", loom, test))]
mod switch {
    use std::sync::atomic::{AtomicU32, Ordering};

    static ACTIVE: AtomicU32 = AtomicU32::new(0);

    /// Removes the rule `mutant` in the whole process until the next call.
    pub fn activate(mutant: super::Mutant) {
        // Release: pairs with the Acquire in active(); tests switch while no transaction runs.
        ACTIVE.store(mutant as u32, Ordering::Release);
    }

    /// Whether `mutant` is switched on.
    #[inline(always)]
    pub fn active(mutant: super::Mutant) -> bool {
        // Acquire: pairs with the Release in activate().
        ACTIVE.load(Ordering::Acquire) == mutant as u32
    }
}

#[cfg(any(feature = "mutants", loom, test))]
pub use switch::{activate, active};

/// Whether `mutant` is switched on: never, in this build.
#[cfg(not(any(feature = "mutants", loom, test)))]
#[inline(always)]
#[must_use]
pub const fn active(_mutant: Mutant) -> bool {
    false
}
