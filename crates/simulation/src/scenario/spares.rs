//! Plans with spares, which wait until a worker is lost.

use super::trainings::{sometime, train};
use super::{Scenario, cut, ms, of};
use crate::checks::Certain;
use crate::plan::{Elastic, Fault, Plan, When};
use distribute_testing::SplitMix;
use std::time::Duration;

/// Adds a training run with spares, start times and faults to a plan. At least two of its processes are workers, the
/// others are spares.
pub(super) fn disturb(scenario: Scenario, plan: &mut Plan, draw: &mut SplitMix) {
    let workers = plan.workers;
    train(plan, draw, &[&[true], &[false, true]]);
    plan.join = Duration::from_secs(300);
    let spares = 1 + draw.below((workers - 2).min(2));
    let most = workers - spares;
    // Usually the number of workers is fixed.
    let least = if draw.below(3) == 0 { 1 + draw.below(most) } else { most };
    plan.elastic = Some(Elastic {
        least,
        grace: ms(of(draw, &[1_000, 3_000, 10_000])),
        away: ms(of(draw, &[1_000, 20_000, 60_000])),
        spares,
    });
    if let Some(course) = &mut plan.course {
        course.steps += 10;
    }
    let latest = of(draw, &[300, 5_000]) as usize;
    plan.starts = (0..workers).map(|_| ms(draw.below(latest) as u64)).collect();
    if scenario == Scenario::SparesSlow {
        if let Some(course) = &mut plan.course {
            course.replacements = 10;
        }
        if draw.below(2) == 0 {
            return;
        }
    }
    if scenario != Scenario::SparesStorm {
        for _ in 0..1 + draw.below(5) {
            let when = sometime(draw, plan);
            plan.faults.push((when, Fault::Kill(draw.below(workers))));
        }
        return;
    }
    plan.certain = Certain::Nothing;
    for _ in 0..2 + draw.below(6) {
        let when =
            if draw.below(3) == 0 { When::At(ms(draw.below(60_000) as u64)) } else { sometime(draw, plan) };
        let rank = draw.below(workers);
        let fault = match draw.below(8) {
            0..3 => Fault::Kill(rank),
            3..5 => Fault::Vanish(rank),
            5 => Fault::Pause(rank, ms(draw.below(8_000) as u64)),
            6 => Fault::Break(rank, draw.below(workers)),
            _ => cut(draw, workers, 8_000),
        };
        plan.faults.push((when, fault));
    }
}
