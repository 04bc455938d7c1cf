//! Large stacks, on which any thread can run code that recurses over a text.
//!
//! A stack is address space: pages are backed when they are first touched. At most as many stacks are kept as there are cores.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use crossbeam::queue::ArrayQueue;

use crate::parser::STACK_BYTES;

/// The stacks that nobody uses now.
pub(super) struct Stacks(ArrayQueue<DefaultStack>);

impl Stacks {
    pub(super) fn new() -> Self {
        Self(ArrayQueue::new(std::thread::available_parallelism().map_or(1, usize::from)))
    }

    /// A stack; None if the system has no address space for another one.
    pub(super) fn take(&self) -> Option<DefaultStack> {
        self.0.pop().or_else(|| DefaultStack::new(STACK_BYTES).ok())
    }

    /// Runs a job on a stack, and keeps the stack. None if the job panicked.
    pub(super) fn run<T: 'static>(
        &self,
        stack: DefaultStack,
        job: impl FnOnce() -> T + 'static,
    ) -> Option<T> {
        let body = move |_: &_, ()| catch_unwind(AssertUnwindSafe(job)).ok();
        let mut coroutine = Coroutine::<(), (), Option<T>, _>::with_stack(stack, body);
        let CoroutineResult::Return(output) = coroutine.resume(()) else {
            unreachable!("the job does not suspend the coroutine");
        };
        // More stacks than cores are not kept.
        let _ = self.0.push(coroutine.into_stack());
        output
    }
}
