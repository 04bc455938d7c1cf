//! Counts and latencies of transactions: one set per OS thread, merged at the end.
//!
//! *Invariants*: the coroutines of a thread share its set. So the counters and the used part of the histograms stay in the
//! thread's cache, and recording takes no lock and shares no cache line.
//!
//! *Not here*: the text of reports (`report`).

use std::cell::RefCell;
use std::rc::Rc;

use gannet_engine::{Abort, Conflict, Failure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::workload::{Ran, Result};

/// Longest latency that is measured exactly: 100 seconds.
const LATENCY_NS_MAX: u64 = 100_000_000_000;
/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 2;

/// Why transactions did not commit, as named in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The transaction met a locked bucket.
    Locked,
    /// Validation failed.
    Changed,
    /// A table is full.
    TableFull,
    /// The workload aborted the transaction.
    Application,
    /// Anything else: an error in the workload.
    Error,
}

impl Reason {
    /// All reasons, in the order of [`Totals::aborts`].
    pub const ALL: [Self; 5] =
        [Self::Locked, Self::Changed, Self::TableFull, Self::Application, Self::Error];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Changed => "validation",
            Self::TableFull => "table_full",
            Self::Application => "application",
            Self::Error => "error",
        }
    }
}

impl From<Abort> for Reason {
    fn from(abort: Abort) -> Self {
        match abort {
            Abort::Conflict(Conflict::Locked | Conflict::Barrier | Conflict::Reserved) => {
                Self::Locked
            }
            Abort::Conflict(Conflict::Changed | Conflict::Reconfigured) => Self::Changed,
            Abort::Failure(Failure::TableFull { .. }) => Self::TableFull,
            Abort::Requested => Self::Application,
            Abort::Misuse(_)
            | Abort::Failure(
                Failure::Refused
                | Failure::Disconnected
                | Failure::Lost { .. }
                | Failure::Halted
                | Failure::Revoked
                | Failure::Unknown,
            )
            | Abort::Cancelled => Self::Error,
        }
    }
}

/// Counts of one transaction type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeTotals {
    /// Transactions begun.
    pub attempted: u64,
    /// Committed and found their rows.
    pub qualified: u64,
    /// Committed without finding their rows.
    pub rows_missing: u64,
}

/// Counts over an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// By transaction type.
    pub types: Vec<TypeTotals>,
    /// By [`Reason::ALL`].
    pub aborts: [u64; Reason::ALL.len()],
    /// By the workload's tallies.
    pub tallies: Vec<u64>,
    /// The first abort that was an error of the workload.
    pub first_error: Option<String>,
}

impl Totals {
    pub(crate) fn new(types: usize, tallies: usize) -> Self {
        Self {
            types: vec![TypeTotals::default(); types],
            aborts: [0; Reason::ALL.len()],
            tallies: vec![0; tallies],
            first_error: None,
        }
    }

    /// Transactions begun.
    #[must_use]
    pub fn attempted(&self) -> u64 {
        self.types.iter().map(|totals| totals.attempted).sum()
    }

    /// Transactions that committed and found their rows.
    #[must_use]
    pub fn qualified(&self) -> u64 {
        self.types.iter().map(|totals| totals.qualified).sum()
    }

    #[inline]
    fn count(&mut self, ran: &Ran) {
        let totals = &mut self.types[ran.transaction];
        totals.attempted += 1;
        match ran.result {
            Result::Qualified => totals.qualified += 1,
            Result::RowsMissing => totals.rows_missing += 1,
            Result::Aborted(abort) => self.count_abort(abort),
        }
        if let Some(tally) = ran.tally {
            self.tallies[tally] += 1;
        }
    }

    #[cold]
    fn count_abort(&mut self, abort: Abort) {
        let reason = Reason::from(abort);
        self.aborts[reason as usize] += 1;
        if reason == Reason::Error {
            self.first_error.get_or_insert_with(|| abort.to_string());
        }
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.types.iter_mut().zip(&other.types) {
            mine.attempted += theirs.attempted;
            mine.qualified += theirs.qualified;
            mine.rows_missing += theirs.rows_missing;
        }
        for (mine, theirs) in self.aborts.iter_mut().zip(other.aborts) {
            *mine += theirs;
        }
        for (mine, theirs) in self.tallies.iter_mut().zip(&other.tallies) {
            *mine += theirs;
        }
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
    }
}

/// The statistics of one thread, or of the whole run.
pub(crate) struct Statistics {
    /// Outside of the measured interval.
    pub(crate) unmeasured: Totals,
    /// In the measured interval.
    pub(crate) measured: Totals,
    /// In the measured interval: latencies of committed transactions by type, in nanoseconds.
    pub(crate) latencies: Vec<Histogram<u64>>,
}

/// A histogram of times, in nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS)
        .expect("the bounds are constants that the library takes")
}

impl Statistics {
    pub(crate) fn new(types: usize, tallies: usize) -> Self {
        Self {
            unmeasured: Totals::new(types, tallies),
            measured: Totals::new(types, tallies),
            latencies: (0..types).map(|_| histogram()).collect(),
        }
    }

    /// What was counted so far; counts anew.
    fn take(&mut self) -> Self {
        let new = Self::new(self.measured.types.len(), self.measured.tallies.len());
        std::mem::replace(self, new)
    }

    /// From the first transaction to the last.
    pub(crate) fn whole(&self) -> Totals {
        let mut whole = self.unmeasured.clone();
        whole.add(&self.measured);
        whole
    }

    #[inline]
    pub(crate) fn record(&mut self, ran: &Ran, latency_ns: u64, measuring: bool) {
        if !measuring {
            self.unmeasured.count(ran);
        } else {
            self.measured.count(ran);
            if !matches!(ran.result, Result::Aborted(_)) {
                self.latencies[ran.transaction].saturating_record(latency_ns);
            }
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.unmeasured.add(&other.unmeasured);
        self.measured.add(&other.measured);
        for (mine, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.add(theirs).expect("all histograms have the same bounds");
        }
    }
}

/// A thread's set, which its clients share.
pub(crate) type ThreadStatistics = Rc<RefCell<Statistics>>;

thread_local! {
    static OF_THREAD: RefCell<Option<ThreadStatistics>> = const { RefCell::new(None) };
}

/// The calling thread's set.
pub(crate) fn of_thread((types, tallies): (usize, usize)) -> ThreadStatistics {
    OF_THREAD.with_borrow_mut(|shared| {
        let new = || Rc::new(RefCell::new(Statistics::new(types, tallies)));
        Rc::clone(shared.get_or_insert_with(new))
    })
}

/// Takes what the calling thread's set has counted. The first client of a thread to end gets it, and the others what is counted after
/// that.
pub(crate) fn take() -> Option<Statistics> {
    OF_THREAD.with_borrow_mut(|of_thread| match Rc::try_unwrap(of_thread.take()?) {
        Ok(statistics) => Some(statistics.into_inner()),
        Err(shared) => {
            let taken = shared.borrow_mut().take();
            *of_thread = Some(shared);
            Some(taken)
        }
    })
}

/// Forgets the calling thread's set.
#[cfg(feature = "simulation")]
pub(crate) fn forget() {
    OF_THREAD.set(None);
}
