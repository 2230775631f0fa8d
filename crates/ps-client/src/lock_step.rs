//! The division of changes among workers that use the same servers in lock step. Every worker makes every call, and one
//! of them sends each change.

// - INV-86: enforced here and in `Session::push_in_lock_step`, `Variable::agree`. Tests: `ps-client/src/lock_step.rs`,
//   `clusters/multi_worker/tables.rs`.

use distribute_cluster::World;
use distribute_ps_tables::Request;

/// The division of changes among workers, from the point of view of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockStep {
    worker: usize,
    workers: usize,
}

impl LockStep {
    /// Creates the division for this process, which is a worker of `world`.
    pub(crate) fn new(world: World) -> Self {
        Self { worker: world.worker(), workers: world.workers() }
    }

    /// Returns the number of workers.
    pub(crate) fn workers(self) -> usize {
        self.workers
    }

    /// Returns the worker that sends the changes of the tables on a server.
    pub fn sender(self, server: usize) -> usize {
        server % self.workers
    }

    /// Returns `true` if this worker sends the changes of the tables on a server.
    pub(crate) fn is_sender(self, server: usize) -> bool {
        self.sender(server) == self.worker
    }

    /// Returns `true` if this worker sends a request to a server. Every worker sends its own reads. Every worker also
    /// creates tables and sets their rules, which can be repeated, so that it uses a table only after its own request
    /// was answered.
    pub(crate) fn sends(self, server: usize, request: &Request) -> bool {
        let repeatable = matches!(request, Request::Create(_) | Request::SetRule { .. });
        repeatable || !request.is_change() || self.is_sender(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_tensor::{HostTensor, Write};

    // INV-86
    #[test]
    fn each_change_is_sent_by_one_worker_and_all_others_by_each() {
        let change =
            || Request::Write { table: "t".into(), how: Write::Add, value: HostTensor::scalar(1f32) };
        for workers in 1..5 {
            let all: Vec<_> =
                (0..workers).map(|worker| LockStep::new(World::new(workers, worker, 2).unwrap())).collect();
            for server in 0..7 {
                let count = |request: Request| all.iter().filter(|of| of.sends(server, &request)).count();
                assert_eq!(count(change()), 1);
                assert_eq!(count(Request::ReadRows { table: "t".into(), rows: vec![0] }), workers);
                assert_eq!(count(Request::SetRule { table: "t".into(), rule: rule() }), workers);
                assert!(all[all[0].sender(server)].sends(server, &change()));
            }
        }
    }

    fn rule() -> distribute_optim::RuleSpec {
        distribute_optim::RuleSpec::Sgd(distribute_optim::Sgd)
    }
}
