//! A coordinator, its workers and the servers that they change.
//!
//! What decides is that which processes run: [`Dispatch`](distribute_coordinator::dispatch::Dispatch) in the coordinator, and a
//! [`Queue`](distribute_coordinator::queue::Queue) in each worker. Played are the threads around them (`follow`, `Session`), what closures
//! do, and the servers.

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

/// Simulates the plan that a seed makes.
pub fn run(weather: Weather, mut draw: SplitMix, planted: Option<Planted>, kept: bool) -> Report {
    let plan = plan::Plan::new(weather, &mut draw);
    world::World::new(draw.bits(), plan, planted, kept).run()
}
