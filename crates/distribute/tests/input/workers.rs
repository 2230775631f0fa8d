//! Several workers, each with a strategy of its own, as authors of strategies may write them: here threads that vote
//! over channels.

use distribute::data::{AutoShardPolicy, Dataset, Location, plan::ends::Ballot, text_lines};
use distribute::{DeviceName, Error, HostTensor, InputOptions, Result, Strategy, StrategyExtended};
use distribute_testing::watched;
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
        [Strategy::new(first).unwrap(), Strategy::new(second).unwrap()]
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
        let strategy = Strategy::new(Worker::alone(index, 2)).unwrap();
        let data = strategy.distribute_dataset(Dataset::range(5).batch(4)).unwrap();
        assert_eq!(data.iter().map(mine).collect::<Vec<_>>(), expected);
        assert_eq!(data.element_spec().unwrap().len(), 1);
    }
}

#[test]
fn as_1_the_policy_says_how_workers_part_the_data() {
    let parted = |auto_shard_policy| {
        run(move |strategy| {
            let lines = [("a", "0\n1\n2\n3\n"), ("b", "4\n5\n6\n7\n")]
                .map(|(name, text)| Location::bytes(name, text));
            let ids: Dataset<i64> = text_lines(lines).try_map(|line: String| line.parse::<i64>());
            let options = InputOptions { auto_shard_policy, ..Default::default() };
            strategy.distribute_dataset_with(ids.batch(4), options).unwrap().iter().map(mine).collect()
        })
    };
    // Each worker reads its own files, or all of them and takes its own pieces, or simply all of them.
    let by_file = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]];
    assert_eq!(parted(AutoShardPolicy::File), by_file);
    assert_eq!(parted(AutoShardPolicy::Auto), by_file);
    assert_eq!(parted(AutoShardPolicy::Data), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]);
    assert_eq!(parted(AutoShardPolicy::Off), [[[0, 1], [2, 3], [4, 5], [6, 7]]; 2]);
}

/// DIST-13: TensorFlow's random steps have a state of their own on each worker, so that rows come twice or not at all.
#[test]
fn dist_13_a_shuffle_has_the_same_order_on_every_worker_and_another_in_every_epoch() {
    let both = [0, 1].map(|index| {
        let strategy = Strategy::new(Worker::alone(index, 2)).unwrap();
        let data = strategy.distribute_dataset(Dataset::range(40).shuffle(16, 7).repeat(2).batch(8)).unwrap();
        // Whatever else draws numbers in the process of one of them.
        let other = Dataset::range(index as i64 * 5).shuffle(5, 7);
        other.iter().for_each(|element| assert!(element.is_ok()));
        [(); 2].map(|()| data.iter().map(mine).collect::<Vec<_>>())
    });
    let epoch = |number: usize| {
        let steps = both[0][number].iter().zip(&both[1][number]);
        steps.flat_map(|(first, second)| [first.as_slice(), second].concat()).collect::<Vec<_>>()
    };
    for number in [0, 1] {
        let mut rows = epoch(number);
        let alone = Strategy::new(Alone)
            .unwrap()
            .distribute_dataset(Dataset::range(40).shuffle(16, 7).repeat(2).batch(8));
        let alone = alone.unwrap();
        let expected = (0..=number).fold(Vec::new(), |_, _| alone.iter().flat_map(mine).collect());
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
        let strategy = Strategy::new(Worker::alone(1, 2)).unwrap();
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
    let strategy = Strategy::new(Silent(Worker::alone(0, 2))).unwrap();
    let data = strategy.distribute_datasets_from_function(|_| Ok(Dataset::range(4).batch(2))).unwrap();
    let error = data.iter().get_next().unwrap_err();
    assert!(matches!(&error, Error::NotSupported { strategy: "Silent", .. }), "{error}");
    assert!(error.to_string().contains("implement StrategyExtended::vote"), "{error}");
}

#[test]
fn dist_2_every_worker_has_as_many_replicas() {
    let error = Strategy::new(Worker::alone(0, 3)).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument { .. }), "{error}");
    for text in ["3 num_replicas_in_sync", "2 workers of 1 replica", "the same number of replicas"] {
        assert!(error.to_string().contains(text), "{error}");
    }
}
