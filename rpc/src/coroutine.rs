//! Stackful coroutines that run straight-line transaction code and are resumed by their worker.
//!
//! ```text
//! stack, lazily mapped:  | guard page | ............... user code | pad 0-60 lines | context |
//! ```
//! Stacks are page-aligned, so the hot ends of all coroutines would fall into the same cache sets;
//! the pad, a frame of another size for each colour, spreads them. A worker allocates its stacks
//! once and runs every later transaction on them.
//!
//! *Source*: FaSST section 4.1; the context switch is the `generator` crate's, the core of `may`.
//!
//! *Not here*: any scheduler. `generator` installs process-wide SIGSEGV and SIGBUS handlers to turn
//! a stack overflow into a panic, and cancels a suspended coroutine by unwinding it.

use generator::{Gn, LocalGenerator, Scope};

/// Address space of one coroutine's stack, in bytes; pages are backed when first touched.
const STACK_BYTES: usize = 256 << 10;

/// What code inside a coroutine uses to hand control back to its worker.
pub trait Suspend {
    /// Returns when the worker resumes the coroutine.
    fn suspend(&mut self);
}

impl Suspend for Scope<'_, '_, (), ()> {
    #[inline]
    fn suspend(&mut self) {
        self.yield_with(());
    }
}

/// A suspended or finished coroutine, driven from outside by [`Coroutine::resume`].
pub struct Coroutine {
    /// Always there, but while a panicking thread drops the coroutine.
    generator: Option<LocalGenerator<'static, (), ()>>,
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        // Dropping a suspended generator unwinds it, which a thread that is unwinding itself cannot
        // do: its stack and what lies on it are left behind then.
        if std::thread::panicking() {
            std::mem::forget(self.generator.take());
        }
    }
}

impl Coroutine {
    /// Creates a coroutine; `body` starts at the first resume. `colour` spreads stacks over the cache.
    #[must_use]
    pub fn new(colour: usize, body: impl FnOnce(&mut dyn Suspend) + 'static) -> Self {
        let words = STACK_BYTES / size_of::<usize>();
        let generator = Gn::new_scoped_opt_local(words, move |mut scope: Scope<'_, '_, (), ()>| {
            on_colour(colour, || body(&mut scope));
        });
        Self { generator: Some(generator) }
    }

    /// Runs the coroutine until it suspends or ends; `false` once it has ended.
    ///
    /// # Panics
    /// If the body panicked: the panic goes on in the caller.
    #[inline]
    pub fn resume(&mut self) -> bool {
        let generator = self.generator.as_mut().expect("only drop takes the generator");
        generator.resume();
        !generator.is_done()
    }
}

/// Whether a caught panic is the unwinding of a coroutine that was dropped while suspended.
#[must_use]
pub fn is_cancel(panic: &(dyn std::any::Any + Send)) -> bool {
    panic.downcast_ref::<generator::Error>().is_some_and(|error| *error == generator::Error::Cancel)
}

/// Runs `body` below a frame of `LINES` cache lines.
#[inline(never)]
fn below_pad<const LINES: usize>(body: impl FnOnce()) {
    let pad = [[0_u8; 64]; LINES];
    std::hint::black_box(&pad);
    body();
    std::hint::black_box(&pad);
}

fn on_colour(colour: usize, body: impl FnOnce()) {
    match colour % 16 {
        0 => below_pad::<0>(body),
        1 => below_pad::<4>(body),
        2 => below_pad::<8>(body),
        3 => below_pad::<12>(body),
        4 => below_pad::<16>(body),
        5 => below_pad::<20>(body),
        6 => below_pad::<24>(body),
        7 => below_pad::<28>(body),
        8 => below_pad::<32>(body),
        9 => below_pad::<36>(body),
        10 => below_pad::<40>(body),
        11 => below_pad::<44>(body),
        12 => below_pad::<48>(body),
        13 => below_pad::<52>(body),
        14 => below_pad::<56>(body),
        _ => below_pad::<60>(body),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn bodies_interleave_at_their_suspensions() {
        let steps = Rc::new(RefCell::new(Vec::new()));
        let mut coroutines: Vec<_> = (0..3)
            .map(|id| {
                let steps = Rc::clone(&steps);
                Coroutine::new(id, move |scope| {
                    for step in 0..2 {
                        steps.borrow_mut().push((id, step));
                        scope.suspend();
                    }
                })
            })
            .collect();
        for expected in [true, true, false] {
            for coroutine in &mut coroutines {
                assert_eq!(coroutine.resume(), expected);
            }
        }
        assert_eq!(*steps.borrow(), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn stacks_of_different_colour_start_in_different_cache_sets() {
        let sets = Rc::new(RefCell::new(std::collections::BTreeSet::new()));
        for colour in 0..16 {
            let sets = Rc::clone(&sets);
            Coroutine::new(colour, move |_| {
                let local = 0_u8;
                let address = std::hint::black_box(&raw const local).addr();
                sets.borrow_mut().insert(address / 256 % 16);
            })
            .resume();
        }
        assert_eq!(sets.borrow().len(), 16);
    }

    #[test]
    fn dropping_a_suspended_coroutine_unwinds_it() {
        struct Flag(Rc<RefCell<bool>>);
        impl Drop for Flag {
            fn drop(&mut self) {
                *self.0.borrow_mut() = true;
            }
        }
        let dropped = Rc::new(RefCell::new(false));
        let flag = Flag(Rc::clone(&dropped));
        let mut coroutine = Coroutine::new(0, move |scope| {
            let _flag = flag;
            scope.suspend();
        });
        assert!(coroutine.resume());
        drop(coroutine);
        assert!(*dropped.borrow());
    }
}
