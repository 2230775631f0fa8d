//! Strategies of logical CPUs for this crate's unit tests. The strategies that programs use are in crates
//! that depend on this one.

use crate::strategy::{Strategy, StrategyExtended, VariablePlacement};
use distribute_base::{DeviceName, Error, Result};
use distribute_collective::group::{Group, Links, local};

#[derive(Debug)]
struct Cpus {
    devices: Vec<DeviceName>,
    group: Option<Group>,
}

impl StrategyExtended for Cpus {
    fn kind(&self) -> &'static str {
        "Cpus"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
    }
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Mirrored
    }
    fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }
}

fn cpus(replicas: usize, group: Option<Group>) -> Strategy {
    let devices = (0..replicas).map(DeviceName::cpu).collect();
    Strategy::new(Cpus { devices, group }).unwrap()
}

/// Creates a strategy with one worker.
pub(crate) fn mirrored(replicas: usize) -> Strategy {
    cpus(replicas, None)
}

/// Runs `body` on one thread per worker, connected in memory. Returns the results in the order of the
/// workers.
pub(crate) fn on_threads<R: Send>(
    workers: usize,
    replicas: usize,
    body: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let body = &body;
    let groups = local::groups(Links::Memory, workers, replicas)?;
    std::thread::scope(|scope| {
        let start = |group| {
            let strategy = cpus(replicas, Some(group));
            scope.spawn(move || {
                let result = body(&strategy);
                strategy.extended().group().into_iter().for_each(Group::end);
                result
            })
        };
        let threads: Vec<_> = groups.into_iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| Error::other("a worker panicked"))?)
            .collect()
    })
}
