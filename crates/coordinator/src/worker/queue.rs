//! [`Queue`]: the work of a worker, and the results that it has not reported yet, as a pure state machine.

use crate::call::{Call, ClosureId, Origin, ResourceId};
use crate::failure::{Failure, FailureKind};
use crate::message::{Batch, Done, Work};
use crate::program::Cancellation;
use bytes::Bytes;
use std::collections::VecDeque;

/// The work of a worker in the order of execution, and the results that were not reported yet.
#[derive(Debug)]
pub struct Queue {
    job: u64,
    floor: ClosureId,
    creations: VecDeque<Task>,
    calls: VecDeque<(ClosureId, Call)>,
    running: Option<(ClosureId, Cancellation)>,
    done: VecDeque<Done>,
}

/// A task of a worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Task {
    /// Run a closure.
    Call {
        /// The origin of the closure's changes.
        origin: Origin,
        /// The call that the closure makes.
        call: Call,
    },
    /// Create a resource.
    Create {
        /// The sequence number of the resource.
        resource: ResourceId,
        /// The call that creates it.
        call: Call,
        /// Whether missing variables may be created.
        creates_variables: bool,
        /// The position at which the resource continues, if there is one.
        position: Option<Bytes>,
    },
    /// Drop a resource.
    Forget(ResourceId),
}

impl Queue {
    /// Creates an empty queue for the coordinator with job `job`.
    pub fn new(job: u64) -> Self {
        Self {
            job,
            floor: ClosureId(0),
            creations: VecDeque::new(),
            calls: VecDeque::new(),
            running: None,
            done: VecDeque::new(),
        }
    }

    /// Adds work. A closure that must be returned or cancelled before it begins is completed immediately.
    pub fn add(&mut self, batch: Batch) {
        self.floor = self.floor.max(batch.floor);
        for work in batch.work {
            match work {
                Work::Call { closure, call } => self.calls.push_back((closure, call)),
                Work::Create { resource, call, creates_variables, position } => {
                    self.creations.push_back(Task::Create { resource, call, creates_variables, position });
                }
                Work::Forget(resource) => self.creations.push_back(Task::Forget(resource)),
                Work::Return(closure) => {
                    if self.remove(closure) {
                        self.done.push_back(Done::Returned(closure));
                    }
                }
                Work::Cancel(closure) => self.cancel(closure),
            }
        }
    }

    fn remove(&mut self, closure: ClosureId) -> bool {
        let at = self.calls.iter().position(|(id, _)| *id == closure);
        at.and_then(|at| self.calls.remove(at)).is_some()
    }

    fn cancel(&mut self, closure: ClosureId) {
        if let Some((id, cancellation)) = &self.running
            && *id == closure
        {
            cancellation.cancel();
        } else if self.remove(closure) {
            let failure = Failure::new(FailureKind::Cancelled, "it was cancelled; schedule it again");
            let (result, micros, positions) = (Err(failure), 0, Vec::new());
            self.done.push_back(Done::Called { closure, result, micros, positions });
        }
    }

    /// Returns the next task, and the flag that cancels it; `None` if there is none. Closures come after all other
    /// tasks. Call [`finish`](Self::finish) before calling this again.
    #[expect(clippy::should_implement_trait, reason = "the next one depends on what was finished")]
    pub fn next(&mut self) -> Option<(Task, Cancellation)> {
        let cancellation = Cancellation::default();
        if let Some(make) = self.creations.pop_front() {
            return Some((make, cancellation));
        }
        let (closure, call) = self.calls.pop_front()?;
        self.running = Some((closure, cancellation.clone()));
        let origin = Origin { job: self.job, closure, floor: self.floor };
        Some((Task::Call { origin, call }, cancellation))
    }

    /// Records that the current task has ended, with the result to report, if there is one.
    pub fn finish(&mut self, done: Option<Done>) {
        self.running = None;
        self.done.extend(done);
    }

    /// Returns whether there are results to report.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Removes and returns results, up to approximately `bytes` bytes in total, but at least one if there are any.
    pub fn take_done(&mut self, bytes: usize) -> Vec<Done> {
        let (mut taken, mut sum) = (Vec::new(), 0);
        while let Some(done) = self.done.pop_front() {
            if let Done::Called { result: Ok(result), .. } = &done {
                sum += result.len();
            }
            taken.push(done);
            if sum >= bytes {
                break;
            }
        }
        taken
    }

    /// Drops all work and all results, and cancels the running closure.
    pub fn clear(&mut self) {
        self.creations.clear();
        self.calls.clear();
        self.done.clear();
        if let Some((_, cancellation)) = &self.running {
            cancellation.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::FunctionId;

    fn call() -> Call {
        Call { function: FunctionId { name: "f".to_owned(), source: 0 }, arguments: Vec::new() }
    }

    fn batch(floor: u64, work: Vec<Work>) -> Batch {
        Batch { session: 0, floor: ClosureId(floor), work }
    }

    fn a_call(closure: u64) -> Work {
        Work::Call { closure: ClosureId(closure), call: call() }
    }

    fn origin(task: Option<(Task, Cancellation)>) -> Option<(u64, u64)> {
        match task?.0 {
            Task::Call { origin, .. } => Some((origin.closure.0, origin.floor.0)),
            _ => None,
        }
    }

    #[test]
    fn cc_3_resources_come_before_closures_that_wait() {
        let mut queue = Queue::new(7);
        queue.add(batch(3, vec![a_call(3), a_call(4)]));
        let make =
            Work::Create { resource: ResourceId(0), call: call(), creates_variables: true, position: None };
        assert_eq!(origin(queue.next()), Some((3, 3)));
        queue.add(batch(3, vec![make, Work::Forget(ResourceId(9))]));
        queue.finish(None);
        assert!(matches!(queue.next(), Some((Task::Create { resource: ResourceId(0), .. }, _))));
        queue.finish(Some(Done::Created { resource: ResourceId(0), result: Ok(()) }));
        assert!(matches!(queue.next(), Some((Task::Forget(ResourceId(9)), _))));
        queue.finish(None);
        assert_eq!(origin(queue.next()), Some((4, 3)));
        assert_eq!(queue.next().map(|_| ()), None);
    }

    #[test]
    fn waiting_closures_are_returned_and_started_ones_are_not() {
        let mut queue = Queue::new(0);
        queue.add(batch(0, (0..4).map(a_call).collect()));
        let (_, cancellation) = queue.next().unwrap();
        let cancel = |closure| Work::Cancel(ClosureId(closure));
        queue.add(batch(0, [0, 2].map(|closure| Work::Return(ClosureId(closure))).to_vec()));
        queue.add(batch(0, vec![cancel(3), cancel(7)]));
        assert!(!cancellation.is_cancelled());
        queue.add(batch(0, vec![cancel(0)]));
        assert!(cancellation.is_cancelled());
        let done = queue.take_done(1 << 20);
        assert_eq!(done[0], Done::Returned(ClosureId(2)));
        assert!(matches!(&done[1], Done::Called { closure: ClosureId(3), result: Err(failure), .. }
            if failure.kind == FailureKind::Cancelled));
        assert_eq!(done.len(), 2);
        queue.finish(None);
        assert_eq!(origin(queue.next()), Some((1, 0)));
    }

    #[test]
    fn results_are_reported_in_parts() {
        let mut queue = Queue::new(0);
        let done = |closure| Done::Called {
            closure: ClosureId(closure),
            result: Ok(Bytes::from_static(b"12345")),
            micros: 1,
            positions: Vec::new(),
        };
        (0..5).for_each(|closure| queue.finish(Some(done(closure))));
        assert_eq!(
            [queue.take_done(10).len(), queue.take_done(10).len(), queue.take_done(10).len()],
            [2, 2, 1]
        );
        assert!(!queue.has_done());
    }
}
