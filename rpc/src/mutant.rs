//! Switches that remove one rule of this crate each, so that a test can show that an oracle notices.
//!
//! Without the feature `mutants` every switch is the constant `false`, and the compiler removes it.
//!
//! *Not here*: the rules of tables and transactions, in `mutant.rs` of the crate `storage`.

/// One rule that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mutant {
    /// No rule is removed.
    None = 0,
    /// A request that comes again is run again.
    RunDuplicates = 1,
    /// A packet's checksum is not looked at.
    SkipChecksum = 2,
}

impl Mutant {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::None, Self::RunDuplicates, Self::SkipChecksum];
}

#[cfg(feature = "mutants")]
mod switch {
    use std::sync::atomic::{AtomicU32, Ordering};

    static ACTIVE: AtomicU32 = AtomicU32::new(0);

    /// Removes the rule `mutant` in the whole process until the next call.
    pub fn activate(mutant: super::Mutant) {
        // Release: pairs with the Acquire in active(); it is switched while nothing runs.
        ACTIVE.store(mutant as u32, Ordering::Release);
    }

    /// Whether `mutant` is switched on.
    #[inline(always)]
    pub fn active(mutant: super::Mutant) -> bool {
        // Acquire: pairs with the Release in activate().
        ACTIVE.load(Ordering::Acquire) == mutant as u32
    }
}

#[cfg(feature = "mutants")]
pub use switch::{activate, active};

/// Whether `mutant` is switched on: never, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
#[must_use]
pub const fn active(_mutant: Mutant) -> bool {
    false
}
