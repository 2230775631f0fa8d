//! A worker that is lost during a save: the chief completes the save, but does not wait for an earlier one.

use super::{model, value};
use crate::support::gate::Gate;
use distribute::checkpoint::{CheckpointManager, Checkpointed, Reader, Restore, Writer};
use distribute::{
    Checkpoint, Error, ErrorKind, HostTensor, MultiWorkerMirroredStrategy, Result, Strategy, cluster::World,
};
use distribute_collective::group::{Content, Frame, Group, Inbox};
use distribute_net::{Message, PollOutcome, Receiver, Transport, memory};
use distribute_testing::watched;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The links of worker 1, which break instead of sending a call. `left` is the number of calls before that.
#[derive(Debug)]
struct Breaking {
    inner: memory::Memory,
    inboxes: Vec<Inbox>,
    left: Arc<AtomicU64>,
}

impl Transport for Breaking {
    fn send(&self, to: usize, message: Message) {
        let frame = Frame::decode(&message.head, message.body.clone());
        let is_call = frame.is_ok_and(|frame| matches!(frame.content, Content::Call { .. }));
        if is_call && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.inboxes[0].mark_lost(1, "it closed its connection");
            self.inboxes[1].mark_lost(0, "it closed its connection");
            return;
        }
        self.inner.send(to, message);
    }

    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.inner.poll(patience, is_there)
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// Calls `chief` and `other` on one thread each, and returns the result of `chief`. `other` gets the counter of calls
/// until the links break.
fn on_breaking_links<R: Send>(
    chief: impl FnOnce(&Strategy) -> Result<R> + Send,
    other: impl FnOnce(&Strategy, &AtomicU64) -> Result<()> + Send,
) -> R {
    let (inboxes, left) = ([(); 2].map(|()| Inbox::new(2)), Arc::new(AtomicU64::new(u64::MAX)));
    let receivers = inboxes.iter().map(|inbox| Arc::new(inbox.clone()) as Arc<dyn Receiver>).collect();
    let mut links = memory::transports(receivers).into_iter();
    let [first, second] = [(); 2].map(|()| links.next().unwrap());
    let breaking = Breaking { inner: second, inboxes: inboxes.to_vec(), left: left.clone() };
    let transports: [Arc<dyn Transport>; 2] = [Arc::new(first), Arc::new(breaking)];
    let mut number = 0..2;
    let [one, two] = transports.map(|transport| {
        let worker = number.next().unwrap();
        Group::new(World::new(2, worker, 1).unwrap(), transport, inboxes[worker].clone())
    });
    let strategy = |group| MultiWorkerMirroredStrategy::builder().group(group).build().unwrap();
    thread::scope(|scope| {
        let chief = scope.spawn(move || chief(&strategy(one)).unwrap());
        scope.spawn(move || other(&strategy(two), &left).unwrap());
        chief.join().unwrap()
    })
}

/// A component of 20 MiB. While it is written, the chief reports its progress several times.
struct Large;

impl Checkpointed for Large {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        Ok(writer.insert(prefix, HostTensor::vector(vec![1u8; 20 << 20]))?)
    }

    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

fn assert_lost(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
    assert!(error.to_string().contains("worker 1"), "{error}");
}

// INV-107
#[test]
fn a_lost_worker_does_not_end_the_save_of_the_chief() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let (gate, permit) = Gate::new();
        let path = folder.path();
        let save = |strategy: &Strategy, gate: &Gate, begin: &dyn Fn()| -> Result<Error> {
            let model = model(strategy, 7.)?;
            let parts = Checkpoint::new().part("model", &model.variables).part("y", gate).part("z", &Large);
            begin();
            Ok(parts.save_to(&CheckpointManager::new(path)?).unwrap_err())
        };
        let error = on_breaking_links(
            |strategy| save(strategy, &gate, &|| ()),
            |strategy, left| {
                // The first call compares whether all workers can save; the second one waits for the chief.
                drop(save(strategy, &Gate::new().0, &|| left.store(2, Ordering::Relaxed))?);
                permit.send(Ok(())).unwrap();
                Ok(())
            },
        );
        assert_lost(&error);
        let saved = CheckpointManager::new(path).unwrap().latest().unwrap().unwrap();
        assert_eq!(saved.tensor("model/w").unwrap().to_vec::<f32>().unwrap(), [7.; 3]);
        saved.verify().unwrap();
    });
}

// INV-107
#[test]
fn a_lost_worker_ends_the_wait_for_an_earlier_save() {
    const NUMBERS: usize = 5_000;
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let begin = |strategy: &Strategy, gate: &Gate| {
            let model = model(strategy, 7.)?;
            let manager = CheckpointManager::new(path)?;
            let parts = Checkpoint::new().part("model", &model.variables);
            let saving = parts.clone().part("z", gate).save_async(&manager)?;
            strategy.run((), |_, ()| Ok(()))?;
            Ok::<_, Error>((model, manager, saving))
        };
        let error = on_breaking_links(
            |strategy| {
                let (gate, permit) = Gate::of(NUMBERS);
                let (model, manager, saving) = begin(strategy, &gate)?;
                let (ends, ended) = channel::<()>();
                let error = thread::scope(|scope| {
                    // The earlier save makes progress slowly, for seconds.
                    let permit = permit.clone();
                    scope.spawn(move || {
                        let is_waiting = || ended.recv_timeout(Duration::from_millis(1));
                        while is_waiting() == Err(RecvTimeoutError::Timeout) && permit.send(Ok(())).is_ok() {}
                    });
                    let parts = Checkpoint::new().part("model", &model.variables);
                    let error = parts.save_to(&manager).unwrap_err();
                    assert!(!saving.is_finished(), "the chief has waited for the earlier save: {error}");
                    drop(ends);
                    error
                });
                (0..NUMBERS).for_each(|_| drop(permit.send(Ok(()))));
                assert_eq!(value(&model)?, 7.);
                // The earlier save is made nevertheless, and the other one is not.
                drop((manager, saving));
                Ok(error)
            },
            |strategy, left| {
                let (model, manager, _saving) = begin(strategy, &Gate::of(NUMBERS).0)?;
                left.store(2, Ordering::Relaxed);
                drop(Checkpoint::new().part("model", &model.variables).save_to(&manager).unwrap_err());
                Ok(())
            },
        );
        assert_lost(&error);
        let names = CheckpointManager::new(path).unwrap().paths().unwrap();
        assert_eq!(names, [path.join("ckpt-000001")]);
    });
}
