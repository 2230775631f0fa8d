//! Coordinators, their workers, and the servers that store the workers' changes.
//!
//! The decisions are made by the code of real processes: [`Dispatch`](distribute_coordinator::dispatch::Dispatch) in
//! the coordinator, and a [`Queue`](distribute_coordinator::queue::Queue) in each worker. The threads that use them
//! (`follow`, `Session`), the closures and the servers are simulated.

mod calls;
mod checks;
mod chief;
mod plan;
mod program;
mod server;
mod worker;
mod world;

use crate::planted::Planted;
use crate::world::Report;
use distribute_testing::SplitMix;
pub use plan::Weather;

/// Simulates the plan that is derived from `draw`. The history is only recorded if `kept` is `true`.
pub fn run(weather: Weather, mut draw: SplitMix, planted: Option<Planted>, kept: bool) -> Report {
    let plan = plan::Plan::new(weather, &mut draw);
    world::World::new(draw.bits(), plan, planted, kept).run()
}
