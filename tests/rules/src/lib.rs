//! Rules that a test can remove, and faults that a test can inject, to see that a check notices.
//!
//! ```text
//! rules! {                                 in a crate's `rules.rs`
//!     /// All locks are granted before the first VALIDATE is sent.
//!     C1,
//! }
//! if rule!(C1) { .. }                      in its code: true, unless a test has removed the rule
//! let mutant = rules::C1.remove();         in a test: the rule holds again when the guard is dropped
//! ```
//!
//! A crate lists its faults in the same way, by [`faults!`] in its `faults.rs`; its code tests `fault!(LOSE_LOCK)`.
//!
//! *Invariants*: without the feature `mutants` every rule holds and no fault strikes. Both are constants then, and the compiler
//! removes the code of the other case. A switch belongs to the whole process, so a test that uses one has a process of its own.
//! No two rules or faults have the same name, even in different crates.
//!
//! *Not here*: the rules, which each crate lists itself; the tests that notice a missing rule (`tests/mutants.rs`).
#![forbid(unsafe_code)]

#[cfg(any(feature = "mutants", loom))]
mod switch;

#[cfg(any(feature = "mutants", loom))]
pub use switch::Mutant;
#[cfg(any(feature = "mutants", loom))]
use switch::Switch;

/// A rule of the code.
#[derive(Debug)]
pub struct Rule {
    name: &'static str,
    #[cfg(any(feature = "mutants", loom))]
    removed: Switch,
}

/// A fault that a test can inject into the code.
#[derive(Debug)]
pub struct Fault {
    name: &'static str,
    #[cfg(any(feature = "mutants", loom))]
    injected: Switch,
}

impl Rule {
    /// A rule that holds.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            #[cfg(any(feature = "mutants", loom))]
            removed: Switch::new(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it holds: always, in this build.
    #[cfg(not(any(feature = "mutants", loom)))]
    #[inline(always)]
    #[must_use]
    pub const fn holds(&self) -> bool {
        true
    }

    /// Whether it holds: no test has removed it.
    #[cfg(any(feature = "mutants", loom))]
    #[inline(always)]
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.removed.is_on()
    }

    /// Removes the rule in the whole process until the guard is dropped.
    #[cfg(any(feature = "mutants", loom))]
    pub fn remove(&'static self) -> Mutant {
        self.removed.turn_on(self.name)
    }
}

impl Fault {
    /// A fault that does not strike.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            #[cfg(any(feature = "mutants", loom))]
            injected: Switch::new(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it strikes: never, in this build.
    #[cfg(not(any(feature = "mutants", loom)))]
    #[inline(always)]
    #[must_use]
    pub const fn strikes(&self) -> bool {
        false
    }

    /// Whether it strikes: a test has injected it.
    #[cfg(any(feature = "mutants", loom))]
    #[inline(always)]
    #[must_use]
    pub fn strikes(&self) -> bool {
        self.injected.is_on()
    }

    /// Injects the fault in the whole process until the guard is dropped.
    #[cfg(any(feature = "mutants", loom))]
    pub fn inject(&'static self) -> Mutant {
        self.injected.turn_on(self.name)
    }
}

/// Lists the rules of a crate, in its module `rules`: documented names.
#[macro_export]
macro_rules! rules {
    ($($(#[$documentation:meta])* $name:ident,)+) => {
        $($(#[$documentation])* pub static $name: $crate::Rule = $crate::Rule::new(stringify!($name));)+

        /// All rules of this crate.
        pub static ALL: &[&$crate::Rule] = &[$(&$name),+];
    };
}

/// Lists the faults of a crate, in its module `faults`: documented names.
#[macro_export]
macro_rules! faults {
    ($($(#[$documentation:meta])* $name:ident,)+) => {
        $($(#[$documentation])* pub static $name: $crate::Fault = $crate::Fault::new(stringify!($name));)+

        /// All faults of this crate.
        pub static ALL: &[&$crate::Fault] = &[$(&$name),+];
    };
}

/// Whether a rule of the calling crate holds.
#[allow(clippy::crate_in_macro_def, reason = "the list of rules is the caller's")]
#[macro_export]
macro_rules! rule {
    ($name:ident) => {
        crate::rules::$name.holds()
    };
}

/// Whether a fault of the calling crate strikes.
#[allow(clippy::crate_in_macro_def, reason = "the list of faults is the caller's")]
#[macro_export]
macro_rules! fault {
    ($name:ident) => {
        crate::faults::$name.strikes()
    };
}
