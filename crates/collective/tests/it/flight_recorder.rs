//! Checks that the last calls of a worker are recorded for each group and reported with every blame.

use bytes::Bytes;
use distribute_cluster::{Deadline, Fault, Fingerprint, Operation, Progress, ReplicaStatus};
use distribute_collective::group::{Group, GroupCall, Links, Session, local};
use distribute_tensor::fold::Alone;
use distribute_tensor::{HostTensor, Leaf, Packing, ReduceOp};
use distribute_testing::watched;
use std::fmt::{Debug, Write as _};
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const LONG: Duration = Duration::from_secs(20);

/// A subscriber that stores the level and the text of each event.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<(tracing::Level, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            _ => Ok(()),
        };
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::INFO
    }
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push((*event.metadata().level(), text.0));
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Runs `body` for both workers of a world, and returns the result of worker 0 and the events that it emitted.
fn both<T: Send + 'static>(
    body: impl Fn(Group) -> T + Send + Sync + 'static,
) -> (T, Vec<(tracing::Level, String)>) {
    watched(move || {
        let mut groups = local::groups(Links::Memory, 2, 1).unwrap();
        let (other, me) = (groups.pop().unwrap(), groups.pop().unwrap());
        let kept = Kept::default();
        // Two subscribers, created before the other worker begins: tracing caches for all threads whether an event has
        // a listener. With a single subscriber in the program, the thread that first reaches an event decides this by
        // its own subscriber, and the thread of the other worker has none.
        let [subscriber, _second] = [0; 2].map(|_| tracing::Dispatch::new(kept.clone()));
        std::thread::scope(|scope| {
            scope.spawn(|| body(other));
            let returned = tracing::dispatcher::with_default(&subscriber, || body(me));
            let events = std::mem::take(&mut *kept.0.lock().unwrap());
            (returned, events)
        })
    })
}

fn status_of(session: &Session, detail: &str) -> Vec<ReplicaStatus> {
    let call = Fingerprint::new(Operation::AllReduce, detail, Location::caller());
    session.world().local_replicas().map(|replica| ReplicaStatus::waiting(replica, call.clone())).collect()
}

#[test]
fn a_blame_has_the_last_calls() {
    let (calls, events) = both(|group| {
        let session = group.open("strategy", 7);
        session.all_to_all(status_of(&session, "a"), |_| Bytes::new(), LONG).unwrap();
        if group.world().worker() == 1 {
            group.end();
            return Vec::new();
        }
        let blame = session.all_to_all(status_of(&session, "b"), |_| Bytes::new(), LONG).unwrap_err();
        assert_eq!(blame.fault, Fault::Lost);
        // This is the same error, and is not reported again.
        assert!(session.all_to_all(status_of(&session, "c"), |_| Bytes::new(), LONG).is_err());
        group.last_calls()
    });
    let details: Vec<_> = calls.iter().map(|call| (&*call.call.detail, call.step)).collect();
    assert_eq!(details, [("b", 7), ("a", 7)]);
    assert!(matches!(calls[0].progress, Progress::Failed(_)), "{}", calls[0]);
    assert!(matches!(calls[1].progress, Progress::Completed(_)), "{}", calls[1]);
    let [(level, text)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*level, tracing::Level::WARN);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[1].contains("step 7, call 1: all_reduce (b)") && lines[1].contains("failed after"),
        "{text}"
    );
    assert!(lines[2].contains("all_reduce (a)") && lines[2].contains("completed in"), "{text}");
}

#[test]
fn a_self_explanatory_fault_is_only_logged_to_subscribers() {
    let (_, events) = both(|group| {
        let session = group.open("strategy", 1);
        let detail = if group.world().worker() == 0 { "this" } else { "that" };
        session.all_to_all(status_of(&session, detail), |_| Bytes::new(), LONG).unwrap_err();
    });
    let [(level, text)] = &events[..] else { panic!("{events:?}") };
    assert!(*level == tracing::Level::INFO && text.contains("all_reduce (this)"), "{level}: {text}");
}

#[test]
fn a_call_of_several_rounds_is_one() {
    let (calls, events) = both(|group| {
        let session = group.open("strategy", 1);
        for detail in ["large", "small"] {
            let len = if detail == "large" { 100_000 } else { 10 };
            let leaves = [Leaf::Host(HostTensor::vector(vec![1f32; len]))];
            let calling = GroupCall::new(&session, status_of(&session, detail), LONG);
            calling.all_reduce(ReduceOp::Sum, Packing::APART, &[&leaves], &Alone).unwrap();
        }
        group.last_calls()
    });
    let details: Vec<_> = calls.iter().map(|call| &*call.call.detail).collect();
    assert_eq!(details, ["small", "large: its sums"]);
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn awaited_replicas_are_reported_during_the_call() {
    let (resume, held) = std::sync::mpsc::channel();
    let (resume, held) = (Mutex::new(resume), Mutex::new(held));
    let (awaited, _) = both(move |group| {
        let session = group.open("strategy", 7);
        if group.world().worker() == 1 {
            held.lock().unwrap().recv_timeout(LONG).unwrap();
            session.all_to_all(status_of(&session, "a"), |_| Bytes::new(), LONG).unwrap();
            return Vec::new();
        }
        assert!(group.awaited().is_none());
        let watching = group.clone();
        let awaited = std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let deadline = Deadline::after(LONG);
                loop {
                    if let Some((call, workers)) =
                        watching.awaited().filter(|(_, workers)| !workers.is_empty())
                    {
                        resume.lock().unwrap().send(()).unwrap();
                        return vec![(call.call.detail.to_string(), call.step, workers)];
                    }
                    assert!(!deadline.has_passed());
                    std::thread::yield_now();
                }
            });
            session.all_to_all(status_of(&session, "a"), |_| Bytes::new(), LONG).unwrap();
            seen.join().unwrap()
        });
        assert!(group.awaited().is_none());
        awaited
    });
    assert_eq!(awaited, [("a".to_string(), 7, vec![1])]);
}
