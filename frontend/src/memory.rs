//! Memory of statements: a budget for each session's, and one for all of them.
//!
//! ```text
//! Charge ── bytes that an operator, a read set or a result keeps, until it is dropped
//!   └─ Budget ── of a session, whose statements run one at a time: --statement-memory
//!        └─ Pool ── of all sessions of a database: --query-memory
//! ```
//!
//! *Invariants*: memory is charged before it is used, and released when it is freed. Rows that only pass through an operator
//! are not charged. A charge that does not fit is refused with SQLSTATE 53200, and leaves the budget unchanged. The pool does
//! not count the first [`FREE_BYTES`] of a session, so short statements share no counter.
//!
//! *Not here*: memory of tables, which is the engine's; buffers of connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::aside::Aside;
use crate::error::SqlError;

/// Bytes of a session that the pool does not count.
const FREE_BYTES: usize = 64 << 10;
/// Bytes that a budget takes from the pool at a time.
const GRANULE_BYTES: usize = 256 << 10;
/// Bytes that a worker's thread frees by itself: more may take about a millisecond.
const DISPOSED_BYTES_MIN: usize = 256 << 10;
/// Divides [`MemoryLimits::all_bytes`]: the bytes that may wait at a time to be freed by other threads.
const DISPOSED_SHARE: usize = 4;

/// How much memory the statements of a database may keep, and where rows beyond that go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes that a statement may keep, with the rows that its transaction has read and written.
    pub statement_bytes: usize,
    /// Bytes that all statements together may keep.
    pub all_bytes: usize,
    /// A directory for temporary files, if there is one: of sorts, groups, sets, joins and cursors, and of results whose rows
    /// are taken one by one ([`crate::Session::query`]).
    pub spill: Option<PathBuf>,
    /// How long a query that sends rows while it runs waits for a client that takes none.
    pub unread_timeout: Duration,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            statement_bytes: 256 << 20,
            all_bytes: 1 << 30,
            spill: None,
            unread_timeout: Duration::from_secs(60),
        }
    }
}

/// The memory of all statements.
#[derive(Debug)]
pub(crate) struct Pool {
    limits: MemoryLimits,
    /// Bytes that budgets have taken from the pool.
    taken: AtomicUsize,
    /// The threads that free large values; none in tests.
    aside: Option<Arc<Aside>>,
    /// Bytes that wait to be freed by those threads. No statement is charged for them any more.
    disposed: AtomicUsize,
    /// How often content was handed to those threads.
    #[cfg(test)]
    disposals: AtomicUsize,
}

impl Pool {
    pub(crate) fn new(limits: MemoryLimits, aside: Option<Arc<Aside>>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            taken: AtomicUsize::new(0),
            aside,
            disposed: AtomicUsize::new(0),
            #[cfg(test)]
            disposals: AtomicUsize::new(0),
        })
    }

    #[cfg(test)]
    pub(crate) fn disposals(&self) -> usize {
        self.disposals.load(Ordering::Relaxed)
    }

    /// Drops content of so many bytes: on another thread if that would hold this one for long.
    fn dispose(self: &Arc<Self>, bytes: usize, content: impl Send + 'static) {
        let Some(aside) = self.aside.as_ref().filter(|_| bytes > DISPOSED_BYTES_MIN) else {
            return;
        };
        let most = self.limits.all_bytes / DISPOSED_SHARE;
        let add = |disposed: usize| disposed.checked_add(bytes).filter(|sum| *sum <= most);
        if self.disposed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok() {
            #[cfg(test)]
            self.disposals.fetch_add(1, Ordering::Relaxed);
            // Fields are dropped in their order.
            aside.dispose((content, Disposed(Arc::clone(self), bytes)));
        }
    }

    /// The budget of a session.
    pub(crate) fn budget(self: &Arc<Self>) -> Arc<Budget> {
        Arc::new(Budget {
            pool: Arc::clone(self),
            used: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        })
    }

    fn take(&self, bytes: usize) -> Result<(), SqlError> {
        let max = self.limits.all_bytes;
        let take = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
        // Relaxed, here and below: the numbers guard no other memory.
        match self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => {
                let message = format!(
                    "the statements that run now need more memory than the {} of --query-memory",
                    shown(max)
                );
                let hint = "run fewer large statements at a time, or raise --query-memory";
                Err(SqlError::new("53200", message).with_hint(hint))
            }
        }
    }
}

/// Counts content as freed when it is dropped.
struct Disposed(Arc<Pool>, usize);

impl Drop for Disposed {
    fn drop(&mut self) {
        self.0.disposed.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The memory of a session's statements.
#[derive(Debug)]
pub(crate) struct Budget {
    pool: Arc<Pool>,
    used: AtomicUsize,
    /// Bytes taken from the pool, beyond [`FREE_BYTES`].
    taken: AtomicUsize,
}

impl Budget {
    /// Checks that a value of so many bytes would fit, before it is built.
    ///
    /// # Errors
    /// SQLSTATE 53200 if it could not.
    pub(crate) fn check(&self, bytes: usize) -> Result<(), SqlError> {
        let used = self.used.load(Ordering::Relaxed);
        if used.saturating_add(bytes) <= self.pool.limits.statement_bytes {
            return Ok(());
        }
        Err(self.exceeded())
    }

    /// Bytes that an operator may keep before its rows go to files, of which it keeps `own` already. This is half of what
    /// others leave, so the operators that read its rows have room, too.
    pub(crate) fn share(&self, own: usize) -> usize {
        let others = self.used.load(Ordering::Relaxed).saturating_sub(own);
        self.pool.limits.statement_bytes.saturating_sub(others) / 2
    }

    /// Bytes of a result that is gathered in memory: its reader may need as much again.
    pub(crate) fn result_bytes(&self) -> usize {
        self.pool.limits.statement_bytes / 2
    }

    /// The error of a statement that needs more than its budget.
    pub(crate) fn exceeded(&self) -> SqlError {
        let max = shown(self.pool.limits.statement_bytes);
        let message =
            format!("the statement needs more memory than the {max} of --statement-memory");
        let hint = "add a condition or a LIMIT, make values shorter, or raise --statement-memory";
        SqlError::new("53200", message).with_hint(hint)
    }

    fn charge(&self, bytes: usize) -> Result<(), SqlError> {
        self.check(bytes)?;
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let taken = self.taken.load(Ordering::Relaxed);
        let missing = used.saturating_sub(taken + FREE_BYTES);
        if missing > 0 {
            let granules = missing.next_multiple_of(GRANULE_BYTES);
            if let Err(error) = self.pool.take(granules) {
                self.used.fetch_sub(bytes, Ordering::Relaxed);
                return Err(error);
            }
            self.taken.fetch_add(granules, Ordering::Relaxed);
        }
        Ok(())
    }

    fn release(&self, bytes: usize) {
        let used = self.used.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let spare = |taken: usize| {
            let needed = used.saturating_sub(FREE_BYTES).next_multiple_of(GRANULE_BYTES);
            taken.checked_sub(needed).filter(|spare| *spare > GRANULE_BYTES || needed == 0)
        };
        let keep = |taken: usize| spare(taken).filter(|s| *s > 0).map(|spare| taken - spare);
        // Two threads may drop charges of one session: each gives back what it has subtracted.
        if let Ok(before) = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep) {
            let given = spare(before).unwrap_or(0);
            self.pool.taken.fetch_sub(given, Ordering::Relaxed);
        }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        debug_assert_eq!(*self.used.get_mut(), 0, "charges hold their budget");
        self.pool.taken.fetch_sub(*self.taken.get_mut(), Ordering::Relaxed);
    }
}

/// A charge to a budget. Dropping it releases the bytes.
#[derive(Debug, Default)]
pub struct Charge {
    /// None before the first charge.
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Charge {
    /// Charges so many bytes more.
    ///
    /// # Errors
    /// SQLSTATE 53200 if they do not fit; nothing is charged then.
    pub(crate) fn add(&mut self, budget: &Arc<Budget>, bytes: usize) -> Result<(), SqlError> {
        let own = self.budget.get_or_insert_with(|| Arc::clone(budget));
        own.charge(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Sets the charge to so many bytes.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(crate) fn set(&mut self, budget: &Arc<Budget>, bytes: usize) -> Result<(), SqlError> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.add(budget, more),
            None => {
                self.release(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// Releases so many bytes.
    pub(crate) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(budget) = self.budget.as_ref().filter(|_| bytes > 0) {
            budget.release(bytes);
        }
    }

    /// Releases all bytes.
    pub(crate) fn clear(&mut self) {
        self.release(self.bytes);
    }

    /// Releases all bytes, and drops the charged content: on another thread if that would hold this one for long.
    pub(crate) fn dispose(&mut self, content: impl Send + 'static) {
        if let Some(budget) = &self.budget {
            budget.pool.dispose(self.bytes, content);
        }
        self.clear();
    }

    /// The bytes charged.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Bytes in the largest unit that divides them.
fn shown(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |(shift, _): &&(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.iter().find(fits) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn limits(statement_bytes: usize, all_bytes: usize) -> MemoryLimits {
        MemoryLimits { statement_bytes, all_bytes, ..MemoryLimits::default() }
    }

    fn taken(pool: &Pool) -> usize {
        pool.taken.load(Ordering::Relaxed)
    }

    proptest! {
        #[test]
        fn charges_are_released_in_full(steps in proptest::collection::vec((0_usize..4, 0_usize..3 << 20), 1..60)) {
            let pool = Pool::new(limits(4 << 20, 6 << 20), None);
            let budgets = [pool.budget(), pool.budget()];
            let mut charges: [Charge; 4] = Default::default();
            for (number, bytes) in steps {
                let charged = charges[number].set(&budgets[number % 2], bytes);
                let own = |which: usize| charges[which].bytes() + charges[which + 2].bytes();
                for (which, budget) in budgets.iter().enumerate() {
                    let used = budget.used.load(Ordering::Relaxed);
                    prop_assert_eq!(used, own(which));
                    prop_assert!(used <= 4 << 20);
                    prop_assert!(used <= budget.taken.load(Ordering::Relaxed) + FREE_BYTES);
                }
                prop_assert!(taken(&pool) <= 6 << 20);
                // The refused charge would not have fitted.
                let other = own(1 - number % 2);
                let before = charges[number].bytes();
                let wanted = own(number % 2) - before + bytes;
                let granules = 4 * GRANULE_BYTES;
                prop_assert!(charged.is_ok() || wanted > 4 << 20 || wanted + other + granules > 6 << 20);
            }
            drop(charges);
            prop_assert_eq!(taken(&pool), 0);
        }
    }

    /// Reports the thread that drops it.
    struct Told(std::sync::mpsc::Sender<std::thread::ThreadId>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    #[test]
    fn much_memory_is_freed_on_another_thread() {
        let pool = Pool::new(limits(64 << 20, 100 << 20), Some(Arc::new(Aside::start().unwrap())));
        let (budget, here) = (pool.budget(), std::thread::current().id());
        let (sender, told) = std::sync::mpsc::channel();
        for (bytes, is_here) in [(1_000, true), (20 << 20, false), (60 << 20, true)] {
            let mut charge = Charge::default();
            charge.add(&budget, bytes).unwrap();
            charge.dispose(Told(sender.clone()));
            assert_eq!(charge.bytes(), 0);
            assert_eq!(told.recv().unwrap() == here, is_here, "{bytes}");
        }
        Charge::default().dispose(Told(sender));
        assert_eq!(told.recv().unwrap(), here);
        while pool.disposed.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_refusal_names_the_setting_and_the_number() {
        let pool = Pool::new(limits(64 << 20, 100 << 20), None);
        let (one, two) = (pool.budget(), pool.budget());
        let mut charge = Charge::default();
        let error = charge.add(&one, (64 << 20) + 1).unwrap_err();
        assert_eq!(error.code, "53200");
        assert!(error.message.contains("64 MiB of --statement-memory"), "{error}");
        charge.add(&one, 60 << 20).unwrap();
        let error = Charge::default().add(&two, 50 << 20).unwrap_err();
        assert!(error.message.contains("100 MiB of --query-memory"), "{error}");
        drop(charge);
        Charge::default().add(&two, 50 << 20).unwrap();
        assert_eq!((shown(3 << 30), shown(1000)), ("3 GiB".to_owned(), "1000 bytes".to_owned()));
    }
}
