//! The switch behind a rule or a fault, and the guard that turns it off again.

use std::sync::atomic::{AtomicBool, Ordering};

/// A switch that is off until a test turns it on.
#[derive(Debug)]
pub(crate) struct Switch(AtomicBool);

impl Switch {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        // Acquire: pairs with the Releases of turn_on() and of the guard; tests switch while nothing runs.
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn turn_on(&'static self, name: &'static str) -> Mutant {
        self.0.store(true, Ordering::Release);
        Mutant { name, switch: self }
    }
}

/// A process that lacks a rule or has a fault, until this guard is dropped.
#[must_use = "the process is as before when the guard is dropped"]
#[derive(Debug)]
pub struct Mutant {
    name: &'static str,
    switch: &'static Switch,
}

impl Mutant {
    /// The name of the rule or the fault.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Drop for Mutant {
    fn drop(&mut self) {
        self.switch.0.store(false, Ordering::Release);
    }
}
