//! [`Dealer`]: the decision which worker reads which file, as a state machine.

// - **INV-99** With dealt files, each file of a pass is read by one worker. Which one is decided by a function of what
//   all workers report when they agree on a step, and is part of the position after that step. A pass that resumes
//   there, on any number of workers, therefore uses each remaining element once. Tests: `distribution/deals.rs`,
//   `distribution/tests/dealt.rs`, `clusters/recovery/dealt.rs`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The files that workers have been dealt in a pass. Part of a [`Position`](super::Position).
///
/// Files are dealt in order, so this is a list with the worker of each dealt file. Copies share most of their memory,
/// because there is a position after each step.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct Deals {
    /// The worker of each of the first files, in blocks of [`BLOCK`] that copies share.
    blocks: Arc<Vec<Arc<[u32]>>>,
    /// The worker of each of the other files, which are fewer than [`BLOCK`].
    rest: Vec<u32>,
    /// A checksum of the list of workers, one for each dealt file.
    checksum: u32,
}

/// The number of files in a block of [`Deals`].
const BLOCK: usize = 256;

impl From<Vec<u32>> for Deals {
    fn from(workers: Vec<u32>) -> Self {
        let mut deals = Self::default();
        workers.into_iter().for_each(|worker| deals.push(worker));
        deals
    }
}

impl From<Deals> for Vec<u32> {
    fn from(deals: Deals) -> Self {
        deals.workers().collect()
    }
}

impl fmt::Debug for Deals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deals of {} files", self.count())
    }
}

impl Deals {
    /// Returns the number of files that have been dealt.
    pub fn count(&self) -> usize {
        self.blocks.len() * BLOCK + self.rest.len()
    }

    /// Returns the indices of the files of a worker, in the order in which the worker reads them.
    pub fn of(&self, worker: usize) -> Vec<usize> {
        let dealt = self.workers().enumerate();
        dealt.filter(|(_, to)| *to as usize == worker).map(|(file, _)| file).collect()
    }

    /// Returns a checksum of these deals, with which workers check that they have dealt alike; 0 if no file has been
    /// dealt.
    pub(super) fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Returns the worker of each file that has been dealt.
    pub(super) fn workers(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().flat_map(|block| block.iter()).chain(&self.rest).copied()
    }

    /// Adds the worker of the next file.
    fn push(&mut self, worker: u32) {
        self.checksum = crc32c::crc32c_append(self.checksum, &worker.to_le_bytes());
        self.rest.push(worker);
        if self.rest.len() == BLOCK {
            Arc::make_mut(&mut self.blocks).push(std::mem::take(&mut self.rest).into());
        }
    }
}

/// A state machine that decides which worker reads which file in a pass. All workers run it with the same requests,
/// so all decide alike.
///
/// Between two steps, there are one or more rounds. In a round, each worker reports whether it needs a file. A worker
/// that needs files in several rounds before the same step has small files, so each round deals it double the number
/// of the last one. A round deals it at most half of its share of the remaining files, but at least one, so that files
/// are left for the other workers at the end.
#[derive(Clone, Debug)]
pub(super) struct Dealer {
    workers: Vec<WorkerState>,
    /// The number of files of the pass.
    files: usize,
    deals: Deals,
}

#[derive(Clone, Debug)]
struct WorkerState {
    /// The maximum number of files that the worker gets the next time it needs one.
    next: usize,
    /// Whether the worker has been notified that there are no more files.
    ended: bool,
}

/// An error in the requests of workers. It cannot occur if all workers run the same program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadRequests {
    /// The number of requests differs from the number of workers.
    #[error("{found} workers take the step, but the pass has {workers}")]
    Workers { found: usize, workers: usize },
    /// A worker needs a file after it has been notified that there are no more.
    #[error(
        "worker {worker} needs a file, but was notified that there are no more; do all run the same program?"
    )]
    AfterEnd { worker: usize },
}

impl Dealer {
    /// Creates the dealer of a pass over `files` files, after the given deals.
    pub(super) fn new(workers: usize, files: usize, deals: Deals) -> Self {
        // A worker that resumes after the last deal is not notified again.
        let ended = deals.count() >= files;
        Self { workers: vec![WorkerState { next: 1, ended }; workers], files, deals }
    }

    pub(super) fn deals(&self) -> &Deals {
        &self.deals
    }

    /// Returns whether more files may be dealt.
    pub(super) fn has_more(&self) -> bool {
        self.deals.count() < self.files
    }

    /// Deals files to the workers that need one, in turn. `needs` is ordered by worker. Returns the files that each
    /// worker gets in this round. If a worker needs a file and gets none, there are no more.
    ///
    /// # Errors
    /// Returns [`BadRequests`], and deals nothing.
    pub(super) fn round(&mut self, needs: &[bool]) -> Result<Vec<Vec<usize>>, BadRequests> {
        let (found, workers) = (needs.len(), self.workers.len());
        if found != workers {
            return Err(BadRequests::Workers { found, workers });
        }
        let needs = |worker: usize| needs.get(worker).copied().unwrap_or(false);
        let ended = |(worker, state): (usize, &WorkerState)| needs(worker) && state.ended;
        if let Some(worker) = self.workers.iter().enumerate().position(ended) {
            return Err(BadRequests::AfterEnd { worker });
        }
        let rest = self.files.saturating_sub(self.deals.count());
        let most = (rest / (2 * self.workers.len().max(1))).max(1);
        let wanted =
            |(worker, state): (usize, &WorkerState)| if needs(worker) { state.next.min(most) } else { 0 };
        let mut wanted: Vec<usize> = self.workers.iter().enumerate().map(wanted).collect();
        let mut dealt = vec![Vec::new(); self.workers.len()];
        let mut next = self.deals.count();
        while needs_any(&wanted) && next < self.files {
            for (worker, wanted) in wanted.iter_mut().enumerate().filter(|(_, wanted)| **wanted > 0) {
                if next < self.files {
                    self.deals.push(worker as u32);
                    dealt[worker].push(next);
                    next += 1;
                }
                *wanted -= 1;
            }
        }
        let has_more = self.has_more();
        for (_, state) in self.workers.iter_mut().enumerate().filter(|(worker, _)| needs(*worker)) {
            state.next = state.next.saturating_mul(2);
            state.ended = !has_more;
        }
        Ok(dealt)
    }

    pub(super) fn step_taken(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.next = 1);
    }
}

fn needs_any(wanted: &[usize]) -> bool {
    wanted.iter().any(|wanted| *wanted > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::SplitMix;
    use proptest::prelude::*;

    /// A worker of the model: the files in its hand, and the file that it reads with the index of the next element.
    #[derive(Clone, Default)]
    struct Reader {
        hand: Vec<usize>,
        file: Option<(usize, usize)>,
        more: bool,
    }

    /// A pass of the model. Files have these numbers of elements; a step takes `batch` elements of each worker.
    #[derive(Clone)]
    struct Model {
        sizes: Vec<usize>,
        batch: usize,
        readers: Vec<Reader>,
        /// The dealers of all workers, which get the same requests.
        dealers: Vec<Dealer>,
        /// The elements of each step.
        steps: Vec<Vec<(usize, usize)>>,
    }

    impl Model {
        /// Begins or resumes a pass of `workers` workers after `steps` steps, as its deals say.
        fn new(sizes: &[usize], batch: usize, workers: usize, deals: &Deals, steps: usize) -> Self {
            let more = deals.count() < sizes.len();
            let reader = |worker| Reader { hand: deals.of(worker), file: None, more };
            let mut model = Self {
                sizes: sizes.to_vec(),
                batch,
                readers: (0..workers).map(reader).collect(),
                dealers: vec![Dealer::new(workers, sizes.len(), deals.clone()); workers],
                steps: Vec::new(),
            };
            for reader in &mut model.readers {
                for _ in 0..steps * batch {
                    // A worker only skips what it has been dealt before.
                    if take(reader, &model.sizes).is_none() {
                        assert!(!reader.more, "a file was dealt later than it was read");
                    }
                }
            }
            model
        }

        fn deals(&self) -> &Deals {
            self.dealers[0].deals()
        }

        /// Takes a step; returns `false` at the end.
        fn step(&mut self) -> bool {
            let mut taken: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.readers.len()];
            loop {
                for (reader, taken) in self.readers.iter_mut().zip(&mut taken) {
                    while taken.len() < self.batch
                        && let Some(element) = take(reader, &self.sizes)
                    {
                        taken.push(element);
                    }
                }
                let needs = |(reader, taken): (&Reader, &Vec<_>)| taken.len() < self.batch && reader.more;
                let needs: Vec<bool> = self.readers.iter().zip(&taken).map(needs).collect();
                let rounds: Vec<_> =
                    self.dealers.iter_mut().map(|dealer| dealer.round(&needs).unwrap()).collect();
                assert!(rounds.iter().all(|round| *round == rounds[0]));
                for (worker, reader) in
                    self.readers.iter_mut().enumerate().filter(|(worker, _)| needs[*worker])
                {
                    reader.hand.extend(&rounds[0][worker]);
                    reader.more = self.dealers[0].has_more();
                    assert!(!rounds[0][worker].is_empty() || !reader.more);
                }
                if !needs.contains(&true) {
                    break;
                }
            }
            self.dealers.iter_mut().for_each(Dealer::step_taken);
            let step = taken.concat();
            let taken = !step.is_empty();
            self.steps.extend(taken.then_some(step));
            taken
        }
    }

    /// Takes the next element of a worker; `None` if it has no file.
    fn take(reader: &mut Reader, sizes: &[usize]) -> Option<(usize, usize)> {
        loop {
            match &mut reader.file {
                Some((file, next)) if *next < sizes[*file] => {
                    *next += 1;
                    return Some((*file, *next - 1));
                }
                _ if reader.hand.is_empty() => return None,
                file => *file = Some((reader.hand.remove(0), 0)),
            }
        }
    }

    fn every(sizes: &[usize]) -> Vec<(usize, usize)> {
        sizes
            .iter()
            .enumerate()
            .flat_map(|(file, size)| (0..*size).map(move |element| (file, element)))
            .collect()
    }

    proptest! {
        // INV-36, INV-99: a random history of kills and checkpoints. The steps after the latest checkpoint are lost.
        // They are repeated without a difference.
        #[test]
        fn each_element_is_used_once_whenever_all_are_killed(
            sizes in proptest::collection::vec(0usize..9, 0..24), batch in 1usize..6, workers in 1usize..5, seed: u64,
        ) {
            let undisturbed = {
                let mut model = Model::new(&sizes, batch, workers, &Deals::default(), 0);
                while model.step() {}
                model
            };
            let mut random = SplitMix(seed);
            let mut model = Model::new(&sizes, batch, workers, &Deals::default(), 0);
            // The position of the latest checkpoint.
            let (mut saved, mut before) = (Deals::default(), Vec::new());
            let mut kills = 0;
            loop {
                match random.below(4) {
                    0 => {
                        before.append(&mut model.steps);
                        saved = model.deals().clone();
                    }
                    1 if kills < 20 => {
                        kills += 1;
                        model = Model::new(&sizes, batch, workers, &saved, before.len());
                    }
                    _ if !model.step() => break,
                    _ => {}
                }
            }
            prop_assert_eq!(model.deals(), undisturbed.deals());
            before.append(&mut model.steps);
            prop_assert_eq!(&before, &undisturbed.steps, "the same steps, whatever was killed");
            let mut all = before.concat();
            all.sort_unstable();
            prop_assert_eq!(all, every(&sizes));
        }

        // INV-99
        #[test]
        fn files_are_dealt_once_and_in_their_order(
            files in 0usize..200, workers in 1usize..6, rounds in proptest::collection::vec(proptest::bits::u8::ANY, 0..400),
        ) {
            let mut dealer = Dealer::new(workers, files, Deals::default());
            let (mut next, mut ended) = (0, vec![files == 0; workers]);
            for round in rounds {
                let needs: Vec<bool> = (0..workers).map(|worker| round >> worker & 1 == 1).collect();
                let late = (0..workers).find(|worker| needs[*worker] && ended[*worker]);
                let before = dealer.deals().clone();
                let dealt = match dealer.round(&needs) {
                    Ok(dealt) => dealt,
                    Err(error) => {
                        prop_assert_eq!(Some(error), late.map(|worker| BadRequests::AfterEnd { worker }));
                        prop_assert_eq!(&before, dealer.deals());
                        continue;
                    }
                };
                prop_assert_eq!(late, None);
                let mut all = dealt.concat();
                all.sort_unstable();
                prop_assert_eq!(&all, &(next..next + all.len()).collect::<Vec<_>>());
                next += all.len();
                for worker in 0..workers {
                    prop_assert!(needs[worker] || dealt[worker].is_empty());
                    prop_assert!(!needs[worker] || !dealt[worker].is_empty() || !dealer.has_more());
                    ended[worker] |= needs[worker] && !dealer.has_more();
                }
                if round >> 7 == 1 {
                    dealer.step_taken();
                }
            }
            let each: usize = (0..workers).map(|worker| dealer.deals().of(worker).len()).sum();
            prop_assert_eq!((each, dealer.deals().count()), (next, next));
            let list = Vec::from(dealer.deals().clone());
            prop_assert!(list.len() <= files && list.iter().all(|worker| (*worker as usize) < workers));
            prop_assert_eq!(&Deals::from(list), dealer.deals());
        }
    }

    #[test]
    fn a_worker_that_asks_again_gets_more_until_the_next_step() {
        let mut dealer = Dealer::new(2, 40, Deals::default());
        let mut ask =
            |needs: [bool; 2]| dealer.round(&needs).unwrap().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(ask([true, true]), [1, 1]);
        assert_eq!(ask([true, false]), [2, 0]);
        assert_eq!(ask([true, true]), [4, 2]);
        assert_eq!(ask([true, false]), [7, 0], "a quarter of the other 30");
        dealer.step_taken();
        assert_eq!(dealer.round(&[true, false]).unwrap()[0].len(), 1);
    }

    #[test]
    fn deals_are_a_list_of_workers() {
        let deals = Deals::from(vec![0, 2, 2]);
        assert_eq!(Vec::from(deals.clone()), [0, 2, 2]);
        let list: Vec<u32> = (0..3 * BLOCK as u32 + 7).map(|file| file % 3).collect();
        let (many, mut copied) = (Deals::from(list.clone()), Deals::default());
        for (file, worker) in list.iter().enumerate() {
            assert_eq!(copied.count(), file);
            let before = copied.clone();
            copied.push(*worker);
            assert_ne!(before, copied);
            assert_eq!(Vec::from(before), list[..file]);
        }
        assert_eq!((&copied, Vec::from(many.clone())), (&many, list));
        assert_eq!(many.of(2).len(), BLOCK + 2);
        let error = Dealer::new(2, 3, Deals::default()).round(&[true]).unwrap_err();
        assert_eq!(error, BadRequests::Workers { found: 1, workers: 2 });
        assert_eq!((deals.of(2), deals.of(1)), (vec![1, 2], vec![]));
        assert_eq!(Deals::default().checksum(), 0);
        let other = |list: [u32; 3]| Deals::from(list.to_vec()).checksum();
        assert_eq!(other([0, 2, 2]), deals.checksum());
        assert!(
            ![other([2, 0, 2]), other([0, 2, 1]), Deals::from(vec![0, 2]).checksum()]
                .contains(&deals.checksum())
        );
    }
}
