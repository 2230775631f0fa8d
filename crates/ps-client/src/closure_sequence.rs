//! The numbers of the changes that a running closure makes on parameter servers.

use distribute_ps_tables::{Origin, Request};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A running closure, with the number of its next change.
#[derive(Debug)]
pub(super) struct ClosureSequence {
    origin: Origin,
    next: u64,
    /// The step counters that have counted steps of the closure, and the number of these steps.
    steps: Vec<(Arc<AtomicU64>, u64)>,
}

impl ClosureSequence {
    pub fn new(origin: Origin) -> Self {
        Self { origin, next: 0, steps: Vec::new() }
    }

    /// Records that the step counter `finished` has counted a step of the closure.
    pub fn record_step(&mut self, finished: &Arc<AtomicU64>) {
        match self.steps.iter_mut().find(|(counted, _)| Arc::ptr_eq(counted, finished)) {
            Some((_, steps)) => *steps += 1,
            None => self.steps.push((finished.clone(), 1)),
        }
    }

    /// Keeps the counted steps, because the closure has succeeded.
    pub fn commit_steps(&mut self) {
        self.steps.clear();
    }

    /// Numbers the changes among `requests`, each of which is given with the index of its server, so that servers apply
    /// each change only once.
    ///
    /// The numbers count operations, and not the changes of each table. Another execution of the closure performs the
    /// same operations, but it may use different rows, and skip a table that this execution has changed.
    pub fn number_changes<'a>(&mut self, requests: impl Iterator<Item = (usize, &'a mut Request)>) {
        // Usually an operation changes each table once.
        let mut before: HashMap<(usize, String), u64> = HashMap::new();
        let mut numbers = 0;
        for (server, request) in requests.filter(|(_, request)| request.can_be_exactly_once()) {
            let table = request.table().unwrap_or_default().to_owned();
            let of_table = before.entry((server, table)).or_default();
            let number = self.next + *of_table;
            *of_table += 1;
            numbers = numbers.max(*of_table);
            let change = Box::new(std::mem::replace(request, Request::List));
            *request = Request::Once { origin: self.origin, number, change };
        }
        self.next += numbers;
    }
}

impl Drop for ClosureSequence {
    /// Subtracts the steps of a closure that has not succeeded, because the closure counts them again when it runs
    /// again. If they counted twice, the step number would exceed the number of updates on the servers, on which rules
    /// such as Adam depend.
    fn drop(&mut self) {
        for (finished, steps) in self.steps.drain(..) {
            // A checkpoint with fewer steps may have been restored in between.
            let _ = finished.fetch_update(Relaxed, Relaxed, |finished| Some(finished.saturating_sub(steps)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_tables::TableSpec;
    use distribute_tensor::{HostTensor, Write};

    fn write(server: usize, table: &str) -> (usize, Request) {
        let value = HostTensor::scalar(1f32);
        (server, Request::Write { table: table.into(), how: Write::Add, value })
    }

    // INV-59
    #[test]
    fn changes_are_numbered_by_operations_and_others_are_left_as_they_are() {
        let origin = Origin { job: 7, closure: 5, floor: 3 };
        let mut running = ClosureSequence::new(origin);
        let mut numbers = |mut requests: Vec<(usize, Request)>| {
            running.number_changes(requests.iter_mut().map(|(server, request)| (*server, request)));
            let number = |(_, request): (usize, Request)| match request {
                Request::Once { origin: found, number, change } => {
                    assert_eq!(found, origin);
                    assert!(matches!(*change, Request::Write { .. }));
                    Some(number)
                }
                _ => None,
            };
            requests.into_iter().map(number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(vec![write(0, "a"), write(1, "a"), write(0, "b")]), [Some(0); 3]);
        assert_eq!(numbers(vec![write(1, "b")]), [Some(1)]);
        // Reads, and requests that may be repeated, get no number: another execution may skip them.
        let create = Request::Create(TableSpec::values("a", HostTensor::scalar(0f32)));
        let others = [Request::List, create, Request::Remove { table: "a".into() }];
        let others: Vec<(usize, Request)> = others.map(|request| (0, request)).into();
        assert_eq!(numbers(others), [None; 3]);
        assert_eq!(numbers(vec![write(0, "a"), write(0, "b"), write(0, "a")]), [Some(2), Some(2), Some(3)]);
        assert_eq!(numbers(vec![write(0, "b")]), [Some(4)]);
    }
}
