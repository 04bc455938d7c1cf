//! The coroutines of a worker that have no job.
//!
//! *Invariant*: the last coroutine has jobs of one kind alone, so that tables grow whatever the others do.
//!
//! *Not here*: which job a coroutine gets, in `worker`.

/// See the module's text.
pub(crate) struct Idle {
    /// Those that take any job, the next one last.
    any: Vec<u16>,
    grower: u16,
    /// Whether the grower is one of them.
    has_grower: bool,
}

impl Idle {
    /// All coroutines of a worker that has so many.
    pub(crate) fn all(coroutines: u16) -> Self {
        let grower = coroutines.checked_sub(1).expect("a worker has coroutines");
        Self { any: (0..grower).rev().collect(), grower, has_grower: true }
    }

    /// Whether there is none that takes any job.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.any.is_empty()
    }

    /// How many there are, the grower included.
    pub(crate) fn count(&self) -> usize {
        self.any.len() + usize::from(self.has_grower)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        let grower = self.has_grower.then_some(self.grower);
        self.any.iter().copied().chain(grower)
    }

    /// One has no job any more.
    #[inline(always)]
    pub(crate) fn push(&mut self, coroutine: u16) {
        if coroutine == self.grower {
            self.has_grower = true;
        } else {
            self.any.push(coroutine);
        }
    }

    /// Takes one that takes any job.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<u16> {
        self.any.pop()
    }

    /// Whether the grower is idle.
    pub(crate) fn has_grower(&self) -> bool {
        self.has_grower
    }

    /// Takes the grower.
    pub(crate) fn pop_grower(&mut self) -> Option<u16> {
        std::mem::take(&mut self.has_grower).then_some(self.grower)
    }

    /// Takes all of them.
    pub(crate) fn take(&mut self) -> Self {
        let any = std::mem::take(&mut self.any);
        let has_grower = std::mem::take(&mut self.has_grower);
        Self { any, grower: self.grower, has_grower }
    }
}
