//! Several workers, each with a strategy of its own, as authors of strategies may write them: here threads that vote
//! over channels.

use crate::watched::watched;
use distribute::data::{Dataset, Location, plan::ends::Ballot, text_lines};
use distribute::{DeviceName, Error, HostTensor, Result, Strategy, StrategyExtended};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

#[derive(Debug)]
struct Worker {
    index: usize,
    replicas: usize,
    devices: Vec<DeviceName>,
    /// To the other one and from it, where they vote.
    other: Option<(Sender<Ballot>, Mutex<Receiver<Ballot>>)>,
}

impl Worker {
    fn alone(index: usize, replicas: usize) -> Self {
        Worker { index, replicas, devices: vec![DeviceName::cpu(index)], other: None }
    }

    fn pair() -> [Strategy; 2] {
        let ((to_1, from_0), (to_0, from_1)) = (channel(), channel());
        let first = Worker { other: Some((to_1, Mutex::new(from_1))), ..Worker::alone(0, 2) };
        let second = Worker { other: Some((to_0, Mutex::new(from_0))), ..Worker::alone(1, 2) };
        [Strategy::new(first), Strategy::new(second)]
    }
}

impl StrategyExtended for Worker {
    fn kind(&self) -> &'static str {
        "Worker"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
    }
    fn num_replicas_in_sync(&self) -> usize {
        self.replicas
    }
    fn first_replica_id(&self) -> usize {
        self.index
    }
    fn input_workers(&self) -> usize {
        2
    }
    fn input_worker(&self) -> usize {
        self.index
    }
    fn vote(&self, mine: Ballot) -> Result<Ballot> {
        let Some((to, from)) = &self.other else {
            return Err(Error::other("nobody to ask"));
        };
        to.send(mine).map_err(Error::other)?;
        let theirs = from.lock().unwrap().recv_timeout(Duration::from_secs(10)).map_err(Error::other)?;
        Ok(mine + theirs)
    }
}

/// What each worker gets, step by step.
fn run(make: impl Fn(&Strategy) -> Vec<Vec<i64>> + Send + Sync + Copy + 'static) -> [Vec<Vec<i64>>; 2] {
    watched(move || {
        std::thread::scope(|scope| {
            Worker::pair()
                .map(|strategy| scope.spawn(move || make(&strategy)))
                .map(|thread| thread.join().unwrap())
        })
    })
}

fn mine(step: Result<distribute::PerReplica<HostTensor>>) -> Vec<i64> {
    step.unwrap().values()[0].to_vec().unwrap()
}

#[test]
fn iter_4_workers_take_the_same_number_of_steps() {
    let seen = run(|strategy| {
        let make = |context: distribute::data::InputContext| {
            let n = [3, 5][context.input_pipeline_id];
            assert_eq!((context.num_input_pipelines, context.num_replicas_in_sync), (2, 2));
            Ok(Dataset::range(n).batch(2))
        };
        strategy.distribute_datasets_from_function(make).unwrap().iter().map(mine).collect()
    });
    assert_eq!(seen, [[vec![0, 1], vec![2], vec![]], [vec![0, 1], vec![2, 3], vec![4]]]);
}

/// AS-6: what all workers read, they need not vote on.
#[test]
fn as_6_workers_take_their_own_pieces_of_each_batch() {
    for (index, expected) in [[vec![0, 1], vec![4]], [vec![2, 3], vec![]]].into_iter().enumerate() {
        let strategy = Strategy::new(Worker::alone(index, 2));
        let data = strategy.distribute_dataset(Dataset::range(5).batch(4)).unwrap();
        assert_eq!(data.iter().map(mine).collect::<Vec<_>>(), expected);
        assert_eq!(data.element_spec().unwrap().len(), 1);
    }
}

/// DIST-13: TensorFlow's random steps have a state of their own on each worker, so that rows come twice or not at all.
#[test]
fn dist_13_a_shuffle_has_the_same_order_on_every_worker_and_another_in_every_epoch() {
    let both = [0, 1].map(|index| {
        let strategy = Strategy::new(Worker::alone(index, 2));
        let data = strategy.distribute_dataset(Dataset::range(40).shuffle(16, 7).repeat(2).batch(8)).unwrap();
        // Whatever else draws numbers in the process of one of them.
        let other = Dataset::range(index as i64 * 5).shuffle(5, 7);
        assert_eq!(other.iter().count(), index * 5);
        [(); 2].map(|()| data.iter().map(mine).collect::<Vec<_>>())
    });
    let epoch = |number: usize| {
        let steps = both[0][number].iter().zip(&both[1][number]);
        steps.flat_map(|(first, second)| [first.as_slice(), second].concat()).collect::<Vec<_>>()
    };
    let alone = Strategy::new(Alone);
    let alone = alone.distribute_dataset(Dataset::range(40).shuffle(16, 7).repeat(2).batch(8)).unwrap();
    for number in [0, 1] {
        let mut rows = epoch(number);
        let expected: Vec<_> = alone.iter().flat_map(mine).collect();
        assert_eq!(rows, expected, "as one worker has them");
        rows.sort_unstable();
        assert_eq!(rows, (0..80).map(|i| i / 2).collect::<Vec<_>>());
    }
    assert_ne!(epoch(0), epoch(1));
}

/// One worker of one replica.
#[derive(Debug)]
struct Alone;

impl StrategyExtended for Alone {
    fn kind(&self) -> &'static str {
        "Alone"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        const DEVICES: [DeviceName; 1] = [DeviceName::cpu(0)];
        &DEVICES
    }
}

/// AS-5, AS-8
#[test]
fn as_8_auto_parts_by_files_where_there_are_enough() {
    let file = |name: &str| Location::bytes(name, "1\n2\n3\n");
    let explain = |files: Vec<Location>| {
        let strategy = Strategy::new(Worker::alone(1, 2));
        strategy.distribute_dataset(text_lines(files).batch(2)).unwrap().explain()
    };
    let enough = explain(vec![file("a"), file("b"), file("c")]);
    assert!(enough.contains("policy FILE (AUTO)"), "{enough}");
    assert!(enough.contains("worker 0 reads lines of text from 'a', 'c'"), "{enough}");
    assert!(enough.contains("worker 1 reads lines of text from 'b'"), "{enough}");
    let few = explain(vec![file("a")]);
    assert!(few.contains("policy DATA (AUTO): a source has 1 file(s), not enough for 2 workers"), "{few}");
    assert!(few.contains("worker 1 reads everything, of each batch its pieces"), "{few}");
}

#[derive(Debug)]
struct Silent(Worker);

impl StrategyExtended for Silent {
    fn kind(&self) -> &'static str {
        "Silent"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.0.devices
    }
    fn num_replicas_in_sync(&self) -> usize {
        2
    }
    fn input_workers(&self) -> usize {
        2
    }
}

#[test]
fn iter_4_a_strategy_that_cannot_ask_the_others_takes_no_step() {
    let strategy = Strategy::new(Silent(Worker::alone(0, 2)));
    let data = strategy.distribute_datasets_from_function(|_| Ok(Dataset::range(4).batch(2))).unwrap();
    let error = data.iter().get_next().unwrap_err();
    assert!(matches!(&error, Error::NotSupported { strategy: "Silent", .. }), "{error}");
    assert!(error.to_string().contains("implement StrategyExtended::vote"), "{error}");
}

#[test]
fn dist_2_every_worker_has_as_many_replicas() {
    let strategy = Strategy::new(Worker::alone(0, 3));
    let error = strategy.distribute_dataset(Dataset::range(4).batch(2)).unwrap_err();
    let expected = "2 workers of 1 replica are not the 3 replicas in sync";
    assert!(matches!(&error, Error::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}
