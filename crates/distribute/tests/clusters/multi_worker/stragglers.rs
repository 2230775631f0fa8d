//! The step times of all workers, from which a slow worker is found.

use crate::multi_worker::on_workers;
use distribute::cluster::Stopwatch;
use distribute::{Dataset, prelude::*};

/// Keeps a core busy for the given time.
fn compute(seconds: f64) {
    let time = Stopwatch::start();
    while time.seconds() < seconds {
        std::hint::spin_loop();
    }
}

// INV-26
#[test]
fn all_workers_know_on_what_each_spends_its_time_and_no_result_depends_on_it() {
    const SLOW: f64 = 0.05;
    let all = on_workers(3, 1, |strategy| {
        let worker = strategy.world().worker();
        let read = move |element: i64| {
            compute(if worker == 1 { SLOW } else { 0. });
            element
        };
        let dataset = strategy.distribute_dataset(Dataset::range(36).map(read).batch(3))?;
        let mut sums = Vec::new();
        for batch in dataset.iter() {
            let sum = strategy.run(batch?, |ctx, batch| {
                compute(if worker == 2 { SLOW } else { 0. });
                ctx.all_reduce(ReduceOp::Sum, batch.into_vec::<i64>()?.iter().sum::<i64>())
            })?;
            sums.push(sum.values()[0]);
            compute(if worker == 0 { SLOW } else { 0. });
        }
        Ok((sums, strategy.worker_times()))
    });
    let (sums, times) = &all[0];
    assert!(sums.iter().copied().eq((0..12).map(|step| 9 * step + 3)), "{sums:?}");
    assert!(all.iter().all(|it| it == &all[0]), "{all:?}");
    // The first step has no times, so the means are of eleven of twelve.
    let least = SLOW * 0.9;
    assert!(times[1].input >= least && times[1].input > times[0].input, "{times:?}");
    assert!(times[2].computing >= least && times[2].computing > times[1].computing, "{times:?}");
    assert!(times[0].outside >= least && times[0].outside > times[1].outside, "{times:?}");
    assert!(times.iter().all(|it| it.waiting > 0.), "{times:?}");
}
