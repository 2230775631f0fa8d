//! The threads that share a step's work.

/// What is run on several threads at once, with the number of each.
pub(super) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads that share the work.
pub(super) struct Workers<'a> {
    pub(super) count: usize,
    /// Runs a closure once on each.
    pub(super) broadcast: &'a dyn Fn(&Work<'_>),
}

impl Workers<'_> {
    /// The calling thread only.
    pub(super) fn alone() -> Workers<'static> {
        Workers { count: 1, broadcast: &|work| work(0) }
    }
}
