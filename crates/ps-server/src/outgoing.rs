//! A limit on the bytes of responses that each client has not received yet.

use bytes::Bytes;
use distribute_cluster::{Deadline, Task, deadline};
use distribute_ps_tables::{Refusal, RefusalKind};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The number of bytes of unreceived responses above which a client's next request waits.
const MAX: u64 = 64 << 20;

/// The interval at which a waiting request checks whether the client has read responses, because no event signals this.
const AGAIN: Duration = Duration::from_millis(1);

/// The number of bytes of responses that each client has not received yet.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    callers: Mutex<BTreeMap<Task, u64>>,
    changed: Condvar,
}

/// The body of a response, which counts as unreceived until it is dropped.
struct Counted {
    body: Bytes,
    caller: Task,
    outgoing: Arc<Outgoing>,
}

impl Outgoing {
    /// Waits until a client has received enough of its responses. `reclaim` must release responses in shared memory
    /// that the client has already read.
    ///
    /// # Errors
    /// - [`RefusalKind::Busy`]: the client has not received them within the default timeout.
    pub fn wait_for_room(&self, caller: &Task, reclaim: impl Fn()) -> Result<(), Refusal> {
        self.room_within(caller, deadline::DEFAULT_TIMEOUT, reclaim)
    }

    fn room_within(&self, caller: &Task, patience: Duration, reclaim: impl Fn()) -> Result<(), Refusal> {
        let mut deadline = Deadline::after(patience);
        let too_many = |callers: &BTreeMap<Task, u64>| callers.get(caller).copied().filter(|n| *n >= MAX);
        while too_many(&self.callers.lock()).is_some() {
            // This drops bodies, which takes the lock.
            reclaim();
            let mut callers = self.callers.lock();
            let Some(bytes) = too_many(&callers) else { break };
            let slice = deadline.look();
            if slice.is_zero() {
                let text = format!(
                    "{bytes} bytes that {caller} requested before were not received within {patience:?}; \
                     request less at once, and check what that task is doing"
                );
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            let slice = slice.min(AGAIN);
            self.changed.wait_for(&mut callers, slice);
            deadline.look();
        }
        Ok(())
    }

    /// Counts a body as unreceived by the client until the returned body is dropped.
    pub fn count(self: &Arc<Self>, caller: Task, body: Bytes) -> Bytes {
        if body.is_empty() {
            return body;
        }
        *self.callers.lock().entry(caller.clone()).or_default() += body.len() as u64;
        Bytes::from_owner(Counted { body, caller, outgoing: self.clone() })
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut callers = self.outgoing.callers.lock();
        if let Some(bytes) = callers.get_mut(&self.caller) {
            *bytes -= self.body.len() as u64;
            if *bytes == 0 {
                callers.remove(&self.caller);
            }
        }
        drop(callers);
        self.outgoing.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::Job;
    use distribute_testing::watched;

    #[test]
    fn a_caller_that_takes_nothing_waits_and_others_do_not() {
        watched(|| {
            let outgoing = Arc::<Outgoing>::default();
            let (slow, other) = (Job::Worker.task(0), Job::Worker.task(1));
            let half = Bytes::from(vec![0; MAX as usize / 2]);
            let first = outgoing.count(slow.clone(), half.clone());
            outgoing.wait_for_room(&slow, || ()).unwrap();
            let second = outgoing.count(slow.clone(), half.clone());
            let refusal = outgoing.room_within(&slow, Duration::from_millis(5), || ()).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Busy);
            assert!(refusal.text.starts_with("67108864 bytes that worker 0 requested before"), "{refusal}");
            outgoing.wait_for_room(&other, || ()).unwrap();
            // A slice keeps the whole body counted.
            let piece = second.slice(7..9);
            drop(second);
            assert!(outgoing.room_within(&slow, Duration::from_millis(5), || ()).is_err());
            let waits = std::thread::spawn({
                let (outgoing, slow) = (outgoing.clone(), slow.clone());
                move || outgoing.wait_for_room(&slow, || ()).unwrap()
            });
            drop(piece);
            waits.join().unwrap();
            // A body in shared memory counts as received after the check.
            let third = std::cell::RefCell::new(Some(outgoing.count(slow.clone(), half.clone())));
            outgoing.room_within(&slow, Duration::ZERO, || drop(third.take())).unwrap();
            drop(first);
            assert!(outgoing.callers.lock().is_empty());
        });
    }
}
