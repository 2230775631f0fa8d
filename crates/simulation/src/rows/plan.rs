//! The program of the workers, and the faults, as functions of a seed.

use distribute_ps_tables::{HotRows, RowCacheOptions};
use distribute_testing::SplitMix;
use std::time::Duration;

/// The size of a row in bytes. A row contains its id and the number of its changes.
pub const ROW: usize = 16;

/// The name of the table.
pub const TABLE: &str = "table";

/// An act of the workers' program. `Want` and `LookUp` contain one list of ids for each worker. `Update` and `Write`
/// contain the rows that change.
#[derive(Clone, Debug)]
pub enum Act {
    /// Each worker announces ids of its next run.
    Want(Vec<Vec<i64>>),
    /// A run begins after all workers have called it.
    Begin,
    /// Each worker looks up distinct rows. It does not wait for them before the next act that changes rows.
    LookUp(Vec<Vec<i64>>),
    /// Gradients of all workers change rows.
    Update(Vec<i64>),
    /// A write outside of runs changes rows.
    Write(Vec<i64>),
    End,
}

impl Act {
    /// Returns the rows that the act changes.
    pub fn changes(&self) -> Option<&[i64]> {
        match self {
            Act::Update(ids) | Act::Write(ids) => Some(ids),
            _ => None,
        }
    }
}

/// A fault in the cluster.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The connection of a worker to a server breaks.
    Break { worker: usize, server: usize },
    /// A worker is lost. All workers are started again, with the rows of a checkpoint from `runs` runs before.
    Kill { runs: usize },
}

/// A cluster, its program and its faults.
#[derive(Debug)]
pub struct Plan {
    pub workers: usize,
    pub servers: usize,
    /// The maximum age of cached rows, in ticks; 0 if rows are not cached.
    pub staleness: u64,
    /// The options of the caches; `None` if rows are not cached.
    pub cache: Option<RowCacheOptions>,
    /// The rows of which each worker has a copy; `None` if there are none.
    pub hot: Option<HotRows>,
    /// The number of updates between two choices of hot rows.
    pub window: u64,
    pub acts: Vec<Act>,
    pub faults: Vec<(Duration, Fault)>,
    /// The maximum delay of a message.
    pub delay: Duration,
}

impl Plan {
    pub fn new(is_disturbed: bool, draw: &mut SplitMix) -> Self {
        let (workers, servers, rows) = (1 + draw.below(4), 1 + draw.below(4), 2 + draw.below(24));
        let staleness = draw.of(&[0, 0, 1, 2, 4]);
        let cache = (draw.below(4) > 0)
            .then(|| RowCacheOptions { bytes: (1 + draw.below(rows + 2)) * ROW, staleness });
        let hot = match draw.below(3) {
            0 => None,
            1 => Some(HotRows::measured(1 + draw.below(rows))),
            _ => Some(HotRows::named([(TABLE, ids(draw, rows, 6))])),
        };
        let window = draw.of(&[1, 3, 9]);
        let delay = Duration::from_micros(draw.of(&[100, 1_000, 20_000]));
        let runs = 3 + draw.below(12);
        let lookups: Vec<Vec<Vec<Vec<i64>>>> = (0..=runs)
            .map(|_| {
                let lookup = |draw: &mut SplitMix| (0..workers).map(|_| ids(draw, rows, 6)).collect();
                (0..1 + draw.below(3)).map(|_| lookup(draw)).collect()
            })
            .collect();
        let mut acts = Vec::new();
        for run in 0..runs {
            if draw.below(6) == 0 {
                acts.push(Act::Write(ids(draw, rows, 4)));
            }
            // The rows of the next run, perhaps not all of them, and perhaps others.
            let next = |draw: &mut SplitMix, worker: usize| -> Vec<i64> {
                let all = lookups[run + 1].iter().flat_map(|lookup| lookup[worker].iter().copied());
                let mut all: Vec<i64> = all.filter(|_| draw.below(8) > 0).collect();
                if draw.below(4) == 0 {
                    all.extend(ids(draw, rows, 3));
                }
                all
            };
            let want = (draw.below(5) > 0).then(|| (0..workers).map(|worker| next(draw, worker)).collect());
            let is_early = draw.below(2) == 0;
            let (before, within) = if is_early { (want, None) } else { (None, want) };
            acts.extend(before.map(Act::Want));
            acts.push(Act::Begin);
            let updates = draw.of(&[0, 1, 1, 1, 2]);
            let mut all = lookups[run].iter().cloned().map(Act::LookUp);
            acts.extend(all.next());
            acts.extend(within.map(Act::Want));
            (0..updates).for_each(|_| {
                acts.push(Act::Update(ids(draw, rows, 8)));
                acts.extend(all.next());
            });
            acts.extend(all);
            acts.push(Act::End);
        }
        let faults = if is_disturbed { 1 + draw.below(6) } else { 0 };
        let length = delay * acts.len() as u32;
        let fault = |draw: &mut SplitMix| match draw.below(4) {
            0 => Fault::Kill { runs: draw.below(4) },
            _ => Fault::Break { worker: draw.below(workers), server: draw.below(servers) },
        };
        let at = |draw: &mut SplitMix| length.mul_f64(draw.below(1000) as f64 / 600.);
        let faults = (0..faults).map(|_| (at(draw), fault(draw))).collect();
        let staleness = if cache.is_some() { staleness } else { 0 };
        Self { workers, servers, staleness, cache, hot, window, acts, faults, delay }
    }

    /// Returns the server that stores a row.
    pub fn server_of(&self, id: i64) -> usize {
        id.cast_unsigned() as usize % self.servers
    }

    /// Returns the worker that sends the changes of a row.
    pub fn sender(&self, id: i64) -> usize {
        self.server_of(id) % self.workers
    }
}

/// Returns up to `most` distinct ids. Small ones are more frequent.
fn ids(draw: &mut SplitMix, rows: usize, most: usize) -> Vec<i64> {
    let mut ids: Vec<i64> = (0..draw.below(most + 1))
        .map(|_| {
            let below = 1 + draw.below(rows);
            draw.below(below) as i64
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
