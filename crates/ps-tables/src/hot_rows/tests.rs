use super::*;
use distribute_testing::SplitMix;
use std::collections::BTreeMap;

/// The layout of a row: its id in one byte, and the number of its changes in another.
const LAYOUT: RowLayout = RowLayout { bytes: 2, is_f32: false };

/// A table that workers change in lock step. Worker `id` modulo the number of workers sends the changes of row `id`.
struct Cluster {
    workers: Vec<HotCopies>,
    rows: BTreeMap<i64, u8>,
}

/// The fate of a change.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Made,
    /// The worker could not read its rows, after it had made its part of the change.
    Unread(usize),
    /// The report of the worker was not readable.
    Garbled(usize),
    /// The worker did not receive the results of the others.
    Failed(usize),
}

impl Cluster {
    fn row(&self, id: i64) -> [u8; 2] {
        [id as u8, self.rows.get(&id).copied().unwrap_or(0)]
    }

    /// Makes a change. `gradients` contains the rows of each worker's gradient. Other rows may change as well.
    fn change(&mut self, gradients: &[Vec<i64>], others: &[i64], fate: Fate) {
        let count = self.workers.len();
        let owner = move |id: i64| id as usize % count;
        for (number, worker) in self.workers.iter_mut().enumerate() {
            for gradient in gradients {
                worker.count([gradient.iter().copied().filter(|id| owner(*id) == number)]);
            }
            worker.begin_change();
        }
        let mut changed: Vec<i64> = gradients.iter().flatten().chain(others).copied().collect();
        changed.sort_unstable();
        changed.dedup();
        changed.iter().for_each(|id| *self.rows.entry(*id).or_default() += 1);
        let mut reports = Vec::new();
        for number in 0..count {
            let own: Vec<i64> =
                self.workers[number].ids().iter().copied().filter(|id| owner(*id) == number).collect();
            // A shard without changes is not read.
            let is_changed = changed.iter().any(|id| owner(*id) == number);
            let read = if is_changed { own.clone() } else { Vec::new() };
            let rows: Vec<u8> = read.iter().flat_map(|id| self.row(*id)).collect();
            let rows = (fate != Fate::Unread(number)).then_some(&rows[..]);
            let report = self.workers[number].report(&own, &read, rows);
            let mut encoded = Vec::new();
            report.encode(LAYOUT, &mut encoded);
            let decoded = HotReport::decode(LAYOUT, &mut &encoded[..]).unwrap();
            assert_eq!(decoded, report);
            reports.push(if fate == Fate::Garbled(number) { HotReport::default() } else { decoded });
        }
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if fate != Fate::Failed(number) {
                worker.end_change(owner, &reports);
            }
        }
    }

    /// Looks up ids on each worker. Returns the number of rows that were found.
    fn look_up(&mut self, ids: &[i64]) -> usize {
        let rows: Vec<_> = ids.iter().map(|id| self.row(*id)).collect();
        let mut all = 0;
        for worker in &mut self.workers {
            let has: Vec<bool> = ids.iter().map(|id| worker.has(*id)).collect();
            let HotLookup { places, missing, found } = worker.look_up(ids);
            let mut missing = missing.iter();
            for (((id, row), place), has) in ids.iter().zip(&rows).zip(places).zip(has) {
                assert_eq!(place.is_some(), has);
                match place {
                    Some(at) => assert_eq!(found[2 * at..2 * at + 2], *row, "row {id}"),
                    None => assert_eq!(missing.next(), Some(id)),
                }
            }
            assert_eq!((missing.next(), worker.has_any()), (None, worker.copies() > 0));
            all += found.len() / 2;
        }
        all
    }
}

/// Runs random histories. A row that is found must have all changes, whatever is lost.
// INV-110
#[test]
fn a_copy_has_all_changes_or_is_not_used() {
    let (mut found, mut disturbed) = (0, 0);
    for seed in 0..300 {
        let mut random = SplitMix(seed);
        let (count, rows) = (1 + random.below(4), 2 + random.below(12));
        let create = |_| match seed % 3 {
            0 => HotCopies::named("t", &[0, 3, 1, 3], LAYOUT),
            _ => HotCopies::measured("t", 1 + seed as usize % 7, LAYOUT).with_window(1 + seed % 16),
        };
        let workers = (0..count).map(create).collect();
        let mut cluster = Cluster { workers, rows: BTreeMap::new() };
        let ids = |random: &mut SplitMix| {
            let mut ids: Vec<i64> = (0..random.below(8))
                .map(|_| {
                    let below = 1 + random.below(rows);
                    random.below(below) as i64
                })
                .collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        for _ in 0..100 {
            let gradients: Vec<_> = (0..count).map(|_| ids(&mut random)).collect();
            let worker = random.below(count);
            let fate = match random.below(30) {
                0 => Fate::Unread(worker),
                1 => Fate::Garbled(worker),
                2 => Fate::Failed(worker),
                _ => Fate::Made,
            };
            let others = if random.below(5) == 0 { ids(&mut random) } else { Vec::new() };
            cluster.change(&gradients, &others, fate);
            disturbed += usize::from(fate != Fate::Made);
            if random.below(25) == 0 {
                cluster.workers.iter_mut().for_each(HotCopies::invalidate);
                cluster.rows.values_mut().for_each(|changes| *changes += 1);
            }
            let looked_up = ids(&mut random);
            found += cluster.look_up(&looked_up);
        }
    }
    assert!(found > 10_000 && disturbed > 1_000, "{found}, {disturbed}");
}

/// All workers have the same hot rows: those of the table with the greatest counts.
#[test]
fn the_rows_with_the_greatest_counts_are_hot_on_all_workers() {
    let new = || HotCopies::measured("t", 3, LAYOUT);
    let mut cluster = Cluster { workers: vec![new(), new(), new()], rows: BTreeMap::new() };
    let gradients = |hot: [i64; 4], step: i64| -> Vec<Vec<i64>> {
        let cold = 100 + step % 7;
        // The last of the four is in fewer gradients.
        (0..3)
            .map(
                |worker| {
                    if worker == 0 { vec![hot[0], hot[1], hot[2]] } else { [&hot[..], &[cold]].concat() }
                },
            )
            .collect()
    };
    for step in 0..WINDOW as i64 {
        assert!(cluster.workers.iter().all(|worker| worker.ids().is_empty()));
        cluster.change(&gradients([9, 4, 7, 2], step), &[], Fate::Made);
    }
    for worker in &cluster.workers {
        assert_eq!((worker.ids(), worker.copies()), (&[4, 7, 9][..], 0));
    }
    // Copies arrive with the next change. Rows that do not change are not sent again.
    cluster.change(&[vec![9], vec![4], vec![]], &[], Fate::Made);
    assert_eq!(cluster.look_up(&[2, 4, 7, 9]), 9);
    let sent = |cluster: &mut Cluster| {
        let mut worker = cluster.workers[1].clone();
        worker.begin_change();
        let rows: Vec<u8> = [4, 7].into_iter().flat_map(|id| cluster.row(id)).collect();
        worker.report(&[4, 7], &[4, 7], Some(&rows)).changed()
    };
    assert_eq!(sent(&mut cluster), 0);
    cluster.rows.insert(7, 77);
    assert_eq!(sent(&mut cluster), 1);
    cluster.workers.iter_mut().for_each(HotCopies::invalidate);
    assert_eq!((sent(&mut cluster), cluster.look_up(&[4, 7, 9])), (2, 0));
    // Other rows become hot, and old counts fade.
    for step in 0..3 * WINDOW as i64 {
        cluster.change(&gradients([1, 4, 8, 2], step), &[], Fate::Made);
        cluster.look_up(&[1, 2, 4, 7, 8, 9]);
    }
    assert!(cluster.workers.iter().all(|worker| *worker.ids() == [1, 4, 8]));
}

/// A worker that has missed a choice has other hot rows than the sender, so their positions in the report differ.
/// Workers of a program whose options differ may send reports about other tables.
// INV-110
#[test]
fn a_report_of_other_hot_rows_or_of_another_table_is_not_used() {
    let mut workers = [
        HotCopies::named("a", &[1, 2], LAYOUT),
        HotCopies::named("a", &[1, 3], LAYOUT),
        HotCopies::named("b", &[1, 2], LAYOUT),
    ];
    workers.iter_mut().for_each(HotCopies::begin_change);
    let reports = [workers[0].report(&[1, 2], &[1, 2], Some(&[1, 5, 2, 6])), HotReport::default()];
    workers.iter_mut().for_each(|worker| worker.end_change(|_| 0, &reports));
    assert_eq!(workers.each_ref().map(HotCopies::copies), [2, 0, 0]);
}

/// Rows that were read and are not among the own ones are a mistake of the caller: the report is about no rows.
#[test]
fn rows_that_do_not_match_are_not_reported() {
    let mut worker = HotCopies::named("t", &[1, 2], LAYOUT);
    worker.begin_change();
    assert!(worker.report(&[1, 2], &[2, 1], Some(&[2, 6, 1, 5])).is_empty());
    assert!(worker.report(&[1, 2], &[1, 2], Some(&[1, 5, 2])).is_empty());
    assert_eq!(worker.report(&[1, 2], &[2], Some(&[2, 6])).changed(), 1);
    assert_eq!(worker.report(&[1, 2], &[], Some(&[])).changed(), 0);
}

/// After a resume, or if a worker lacks counts, all workers wait until each has counted enough changes.
#[test]
fn rows_are_chosen_when_all_workers_have_counted_enough_changes() {
    let new = || HotCopies::measured("t", 2, LAYOUT).with_window(3);
    let mut cluster = Cluster { workers: vec![new(), new()], rows: BTreeMap::new() };
    // A change that has failed before worker 1 began it.
    cluster.workers[0].begin_change();
    for fate in [Fate::Made, Fate::Made, Fate::Garbled(1)] {
        cluster.change(&[vec![4, 5], vec![5]], &[], fate);
        assert!(cluster.workers.iter().all(|worker| worker.ids().is_empty()));
    }
    cluster.change(&[vec![4, 5], vec![5]], &[], Fate::Made);
    assert!(cluster.workers.iter().all(|worker| worker.ids() == [4, 5]));
    cluster.change(&[vec![4, 5], vec![5]], &[], Fate::Made);
    assert_eq!(cluster.look_up(&[4, 5]), 4);
}
