//! Stackful coroutines that run straight-line transaction code and are resumed by their worker.
//!
//! ```text
//! stack, lazily mapped:  | guard page | ............... user code | pad 0-60 lines | link |
//! ```
//! Stacks are page-aligned, so the hot ends of all coroutines would fall into the same cache sets;
//! the pad, a frame of another size for each colour, spreads them. A worker allocates its stacks
//! once and runs every later transaction on them. The functions between a suspension and the transaction's
//! code are inlined, because after a switch the processor mispredicts every return. The lines around the place of a suspension,
//! which others have mostly pushed out of the cache, can be prefetched before the coroutine is resumed.
//!
//! *Source*: FaSST section 4.1; the context switch is that of the crate `corosensei`.
//!
//! *Not here*: any scheduler. A body that overflows its stack hits the guard page, and the operating
//! system ends the process, as for an overflow of a thread's stack.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{CoroutineResult, Yielder};

/// Address space of one coroutine's stack, in bytes; pages are backed when first touched.
const STACK_BYTES: usize = 256 << 10;

/// Cache lines around an address in a suspended frame that are worth a prefetch; more push out what the running coroutine needs.
const FRAME_LINES: usize = 4;
const LINE_BYTES: usize = 64;

/// How a worker resumes a coroutine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resume {
    GoOn,
    /// Unwind: the coroutine is being dropped.
    Cancel,
}

/// Where a frame lies: the address of one of its variables.
type FrameAddress = usize;

/// Hands control from a coroutine back to its worker.
#[derive(Clone, Copy)]
pub struct Suspend<'c>(&'c Yielder<Resume, FrameAddress>);

impl Suspend<'_> {
    /// Returns when the worker resumes the coroutine.
    ///
    /// # Panics
    /// With what [`is_cancel`] knows, if the coroutine is dropped instead.
    #[inline(always)]
    pub fn suspend(self) {
        let in_frame = 0_u8;
        if self.0.suspend((&raw const in_frame).addr()) == Resume::Cancel {
            cancel();
        }
    }
}

/// The panic of a coroutine that was dropped while suspended.
struct Cancelled;

#[cold]
fn cancel() -> ! {
    // Not a fault: no panic hook runs.
    resume_unwind(Box::new(Cancelled))
}

/// Whether a caught panic is the unwinding of a coroutine that was dropped while suspended.
#[must_use]
pub fn is_cancel(panic: &(dyn std::any::Any + Send)) -> bool {
    panic.is::<Cancelled>()
}

/// A suspended or finished coroutine, driven from outside by [`Coroutine::resume`].
pub struct Coroutine {
    /// Always there, but after the coroutine was cancelled.
    inner: Option<corosensei::Coroutine<Resume, FrameAddress, (), DefaultStack>>,
    /// The frame that it was suspended in last.
    frame: FrameAddress,
}

impl Coroutine {
    /// Creates a coroutine; `body` starts at the first resume. `colour` spreads stacks over the cache.
    ///
    /// # Panics
    /// If the operating system refuses the memory for its stack.
    #[must_use]
    pub fn new(colour: usize, body: impl FnOnce(Suspend<'_>) + 'static) -> Self {
        let stack = DefaultStack::new(STACK_BYTES).expect("address space for a coroutine's stack");
        let inner = corosensei::Coroutine::with_stack(stack, move |yielder, resume| {
            if resume == Resume::GoOn {
                on_colour(colour, || body(Suspend(yielder)));
            }
        });
        Self { inner: Some(inner), frame: 0 }
    }

    /// Runs the coroutine until it suspends or ends; `false` once it has ended.
    ///
    /// # Panics
    /// If the body panicked: the panic goes on in the caller. If it has ended.
    #[inline(always)]
    pub fn resume(&mut self) -> bool {
        let inner = self.inner.as_mut().expect("a coroutine that was cancelled is not resumed");
        match inner.resume(Resume::GoOn) {
            CoroutineResult::Yield(frame) => {
                self.frame = frame;
                true
            }
            CoroutineResult::Return(()) => false,
        }
    }

    /// Addresses in the cache lines around the place of its last suspension: it touches most of them when it is resumed.
    #[inline(always)]
    pub fn frame_lines(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.frame.wrapping_sub(LINE_BYTES);
        (0..FRAME_LINES).map(move |line| first.wrapping_add(line * LINE_BYTES))
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Coroutine {
    /// Whether it has begun and not ended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.started() && !inner.done())
    }

    /// Unwinds it, if it is suspended: from now on it cannot be resumed. A coroutine that is dropped is cancelled.
    pub fn cancel(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        let is_suspended =
            |inner: &corosensei::Coroutine<_, _, _, _>| inner.started() && !inner.done();
        if is_suspended(&inner) && !std::thread::panicking() {
            // What ends here is the cancelling, or a panic of a destructor, which was printed.
            let _ = catch_unwind(AssertUnwindSafe(|| inner.resume(Resume::Cancel)));
        }
        if is_suspended(&inner) {
            // A thread that unwinds itself cannot unwind the coroutine, too, and a body may ignore its
            // cancellation. Then the stack and the values on it are leaked.
            std::mem::forget(inner);
        }
    }
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
                Coroutine::new(id, move |suspend| {
                    for step in 0..2 {
                        steps.borrow_mut().push((id, step));
                        suspend.suspend();
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
    fn the_lines_of_a_suspended_frame_hold_its_variables() {
        #[inline(never)]
        fn suspend_here(suspend: Suspend<'_>, at: &std::cell::Cell<usize>) {
            let local = std::hint::black_box([7_u8; 16]);
            at.set(local.as_ptr().addr());
            suspend.suspend();
            std::hint::black_box(local);
        }
        /// Far below its caller.
        #[inline(never)]
        fn suspend_below(suspend: Suspend<'_>, at: &std::cell::Cell<usize>) {
            let room = std::hint::black_box([0_u8; 16 << 10]);
            suspend_here(suspend, at);
            std::hint::black_box(room);
        }
        let at = Rc::new(std::cell::Cell::new(0));
        let inside = Rc::clone(&at);
        let mut coroutine = Coroutine::new(0, move |suspend| {
            suspend_here(suspend, &inside);
            suspend_below(suspend, &inside);
        });
        // Unoptimized, frames are larger.
        let near = if cfg!(debug_assertions) { 1024 } else { 0 };
        for _ in 0..2 {
            assert!(coroutine.resume());
            let lines: Vec<_> = coroutine.frame_lines().collect();
            let (first, last) = (lines[0], lines[FRAME_LINES - 1] + LINE_BYTES);
            assert!((first - near..last + near).contains(&at.get()), "{lines:x?}, {:x}", at.get());
        }
        assert!(!coroutine.resume());
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
        let mut coroutine = Coroutine::new(0, move |suspend| {
            let _flag = flag;
            let result = catch_unwind(AssertUnwindSafe(|| suspend.suspend()));
            let panic = result.expect_err("the coroutine is cancelled");
            assert!(is_cancel(&*panic));
            resume_unwind(panic);
        });
        assert!(coroutine.resume());
        drop(coroutine);
        assert!(*dropped.borrow());
    }
}
