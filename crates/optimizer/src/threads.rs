//! The threads that share a step's work.

/// What is run on several threads at once, with the number of each.
pub(super) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads that share the work.
pub(super) struct Threads<'a> {
    pub(super) count: usize,
    /// Runs a closure once on each.
    pub(super) broadcast: &'a dyn Fn(&Work<'_>),
}

impl Threads<'_> {
    /// The calling thread only.
    pub(super) fn alone() -> Threads<'static> {
        Threads { count: 1, broadcast: &|work| work(0) }
    }
}
