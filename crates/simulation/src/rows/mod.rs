//! Workers that train tables in lock step, and the servers that store the rows. Every row that a worker reads is
//! compared with the history of its changes.
//!
//! The decisions are made by the code of real processes: [`CachedRows`](distribute_ps_tables::CachedRows) with its
//! [`StepClock`](distribute_ps_tables::StepClock), [`Prefetch`](distribute_ps_tables::Prefetch), and
//! [`HotCopies`](distribute_ps_tables::HotCopies). The connections, the servers, and the rounds in which workers wait
//! for each other are simulated: a connection keeps the order of its messages, sends requests without a response again
//! after it was lost, and a server applies a change once.

mod hot;
mod oracle;
mod plan;
mod worker;
mod world;

use crate::planted::Planted;
use crate::world::Report;
use distribute_testing::SplitMix;

/// Simulates the plan that is derived from `draw`. Workers are killed and connections break only if `is_disturbed` is
/// `true`. The history is only recorded if `kept` is `true`.
pub fn run(is_disturbed: bool, mut draw: SplitMix, planted: Option<Planted>, kept: bool) -> Report {
    let plan = plan::Plan::new(is_disturbed, &mut draw);
    world::World::new(draw.bits(), plan, planted, kept).run()
}
