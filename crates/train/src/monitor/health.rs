//! Reports of a worker that has no page, for probes.

use super::job::world;
use distribute_core::Strategy;
use distribute_core::internal::WeakStrategy;
use distribute_monitor::{Report, Source};

/// The source of reports on a worker that has no page. It does not keep the strategy alive. Unlike
/// [`Job`](super::job::Job), it does not make the strategy record its steps.
pub(super) struct Health {
    strategy: WeakStrategy,
    /// The last report. It is repeated after the strategy has been dropped.
    last: Report,
}

impl Health {
    pub(super) fn new(strategy: &Strategy) -> Self {
        Self { strategy: strategy.downgrade(), last: Report::default() }
    }
}

impl Source for Health {
    fn report(&mut self) -> Report {
        if let Some(strategy) = self.strategy.upgrade() {
            let group = strategy.extended().group();
            self.last = Report {
                strategy: strategy.extended().kind().into(),
                world: world(&strategy, group, None),
                ..Report::default()
            };
        }
        self.last.clone()
    }
}
