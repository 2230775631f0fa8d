//! The copies of state that is sharded over the workers. Each worker also has a copy of the shard of the worker before
//! it, so the loss of one worker loses no shard.

// - INV-109: `plan` refuses inventories of another version than the source's, whose weights all workers have. Tests:
//   `collective/src/recovery/shards.rs`, `shard_transfer.rs`,
//   `optimizer/src/update/sharded/replicated/tests.rs`, `clusters/recovery/sharded.rs`.

use serde::{Deserialize, Serialize};

/// A version of the state. Two workers have the same state if their versions are equal: in one generation all workers
/// make each step together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The number of steps that are in the state.
    pub step: u64,
    /// The generation of the group in which the last of these steps was made; 0 if the state is an initial or restored
    /// one.
    pub generation: u64,
}

/// The shards of a component that a worker has, in the version of its weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The version of the weights.
    pub version: Version,
    /// The shards, by the worker to which they are assigned, and their sizes in bytes.
    pub shards: Vec<(usize, u64)>,
}

/// A transfer of one shard between two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The worker to which the shard is assigned.
    pub shard: usize,
    /// The worker that sends it.
    pub from: usize,
    /// The worker that receives it.
    pub to: usize,
    /// The size of the shard in bytes.
    pub bytes: u64,
}

/// Returns the worker of whose shard a worker has a copy: the one before it. A single worker has no copy.
pub fn copied_shard(worker: usize, workers: usize) -> Option<usize> {
    (workers > 1).then(|| (worker + workers - 1) % workers)
}

/// Returns the worker that has the copy of a worker's shard: the one after it. The shard of a single worker has none.
pub fn copying_worker(worker: usize, workers: usize) -> Option<usize> {
    (workers > 1).then(|| (worker + 1) % workers)
}

/// The reason why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPlan {
    /// These workers do not have the weights of the source: the versions of their inventories differ from its version.
    Versions(Vec<usize>),
    /// No worker has the shards of these workers.
    LostShards(Vec<usize>),
}

/// Returns the transfers after which each worker has its own shard and a copy of the shard of the worker before it.
/// `inventories` are those of all workers, by rank. Each sender makes its transfers in the order of the plan.
///
/// # Errors
/// - [`NoPlan::Versions`]: workers have weights of another version than the worker `source`. The shards that they would
///   receive do not match their weights.
/// - [`NoPlan::LostShards`]: no worker has these shards.
pub fn plan(inventories: &[Inventory], source: usize) -> Result<Vec<Move>, NoPlan> {
    let workers = inventories.len();
    let version = inventories.get(source).map(|inventory| inventory.version).unwrap_or_default();
    let others: Vec<_> = (0..workers).filter(|worker| inventories[*worker].version != version).collect();
    if !others.is_empty() {
        return Err(NoPlan::Versions(others));
    }
    let size = |worker: usize, shard: usize| {
        let inventory = inventories.get(worker)?;
        inventory.shards.iter().find(|(of, _)| *of == shard).map(|(_, bytes)| *bytes)
    };
    let (mut moves, mut lost) = (Vec::new(), Vec::new());
    for shard in 0..workers {
        // Its assignee first, then the worker with the copy.
        let mut holders = (0..workers).map(|after| (shard + after) % workers);
        let Some((from, bytes)) = holders.find_map(|worker| Some((worker, size(worker, shard)?))) else {
            lost.push(shard);
            continue;
        };
        let mut needing = vec![shard, (shard + 1) % workers];
        needing.dedup();
        let lacking = needing.into_iter().filter(|worker| size(*worker, shard).is_none());
        moves.extend(lacking.map(|to| Move { shard, from, to, bytes }));
    }
    if lost.is_empty() { Ok(moves) } else { Err(NoPlan::LostShards(lost)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The shards of a worker in a model of a job: its own, and the copy of that of the worker before it.
    #[derive(Clone, Debug, Default)]
    struct Model {
        version: Version,
        has: BTreeSet<usize>,
        /// The version for which it is prepared, because it lacks only the last message of a step.
        next: Option<Version>,
    }

    impl Model {
        fn complete(worker: usize, workers: usize, version: Version) -> Self {
            let has = [worker].into_iter().chain(copied_shard(worker, workers)).collect();
            Self { version, has, next: None }
        }

        fn inventory(&self) -> Inventory {
            let shards = self.has.iter().map(|shard| (*shard, 10 + *shard as u64)).collect();
            Inventory { version: self.version, shards }
        }
    }

    #[test]
    fn the_copy_of_each_shard_is_at_the_next_worker() {
        for workers in 2..6 {
            for worker in 0..workers {
                let copying = copying_worker(worker, workers).unwrap();
                assert_eq!(copied_shard(copying, workers), Some(worker));
            }
        }
        assert_eq!((copied_shard(0, 1), copying_worker(0, 1)), (None, None));
    }

    proptest! {
        // INV-109
        /// A step is interrupted when some workers have committed it, some are prepared for it, and some are not. No
        /// worker commits before all are prepared, so the first and the last do not occur together. Some workers are
        /// lost.
        #[test]
        fn a_shard_is_lost_only_with_two_neighbours(
            workers in 2usize..7, step in 0u64..9, generation in 1u64..4,
            phases in proptest::collection::vec(0usize..3, 7), lost in proptest::collection::vec(any::<bool>(), 7),
        ) {
            let before = Version { step, generation: if step == 0 { 0 } else { generation } };
            let after = Version { step: step + 1, generation };
            // No worker has committed before all were prepared.
            let any_unprepared = phases[..workers].contains(&0);
            let mut all: Vec<Model> = (0..workers).map(|worker| Model::complete(worker, workers, before)).collect();
            for (model, phase) in all.iter_mut().zip(&phases) {
                match phase {
                    0 => {}
                    2 if !any_unprepared => model.version = after,
                    _ => model.next = Some(after),
                }
            }
            let gone = |worker: usize| lost[worker % workers];
            prop_assume!((0..workers).any(|worker| !gone(worker)));
            // A replacement has nothing, and the weights of all are those of the furthest.
            let version = (0..workers).filter(|worker| !gone(*worker)).map(|worker| all[worker].version)
                .max_by_key(|version| version.step).unwrap();
            let source = (0..workers).find(|worker| !gone(*worker) && all[*worker].version == version).unwrap();
            for (worker, model) in all.iter_mut().enumerate() {
                if gone(worker) {
                    *model = Model { version, ..Model::default() };
                } else if model.version != version {
                    prop_assert_eq!(model.next, Some(version), "a survivor is prepared for what another has committed");
                    model.version = version;
                }
            }
            let inventories: Vec<_> = all.iter().map(Model::inventory).collect();
            let missing: Vec<_> = (0..workers).filter(|shard| gone(*shard) && gone(shard + 1)).collect();
            match plan(&inventories, source) {
                Err(lost) => prop_assert_eq!(lost, NoPlan::LostShards(missing)),
                Ok(moves) => {
                    prop_assert!(missing.is_empty());
                    for Move { shard, from, to, bytes } in moves {
                        prop_assert!(!gone(from) && gone(to) && all[from].has.contains(&shard));
                        prop_assert_eq!(bytes, 10 + shard as u64);
                        prop_assert!(all[to].has.insert(shard), "it is sent once");
                    }
                    for (worker, model) in all.iter().enumerate() {
                        prop_assert_eq!(&model.has, &Model::complete(worker, workers, version).has);
                    }
                }
            }
        }
    }

    // INV-109
    #[test]
    fn workers_with_other_ranks_than_before_receive_what_they_lack() {
        let version = Version { step: 7, generation: 2 };
        // A spare has replaced worker 1, and is the last.
        let of = |worker| Model::complete(worker, 3, version).inventory();
        let spare = Inventory { version, shards: Vec::new() };
        assert_eq!(
            plan(&[of(0), of(2), spare], 0),
            Ok(vec![
                Move { shard: 0, from: 0, to: 1, bytes: 10 },
                Move { shard: 1, from: 1, to: 2, bytes: 11 },
                Move { shard: 2, from: 0, to: 2, bytes: 12 },
            ])
        );
    }

    // INV-109
    #[test]
    fn a_worker_with_other_weights_receives_no_shards() {
        let version = Version { step: 7, generation: 2 };
        let of = |worker, version| Model::complete(worker, 3, version).inventory();
        let empty = Inventory { version, shards: Vec::new() };
        // The same step of an earlier generation is another state.
        let stale = |worker| of(worker, Version { step: 7, generation: 1 });
        let refused = |workers: &[usize]| Err(NoPlan::Versions(workers.to_vec()));
        assert_eq!(plan(&[of(0, version), of(1, version), stale(2)], 0), refused(&[2]));
        assert_eq!(plan(&[stale(0), of(1, version), stale(2)], 1), refused(&[0, 2]));
        // Without any shards it has other weights as well.
        let bare = Inventory { version: Version { step: 8, generation: 2 }, shards: Vec::new() };
        assert_eq!(plan(&[of(0, version), bare, of(2, version)], 0), refused(&[1]));
        assert_eq!(plan(&[empty.clone(), of(1, version), empty], 1), Err(NoPlan::LostShards(vec![2])));
    }
}
