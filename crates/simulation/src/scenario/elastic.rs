//! Plans with worlds that grow and shrink.

use super::trainings::{sometime, train};
use super::{Scenario, cut, ms, of};
use crate::checks::Certain;
use crate::plan::{Elastic, Fault, Plan, When};
use distribute_testing::SplitMix;
use std::time::Duration;

/// Adds an elastic training run, start times and faults to a plan. The worlds of the run may consist of only some of
/// the plan's workers.
pub(super) fn disturb(scenario: Scenario, plan: &mut Plan, draw: &mut SplitMix) {
    let workers = plan.workers;
    train(plan, draw, &[&[true], &[false, true]]);
    // A worker that comes waits for the end of a step, however long that takes.
    plan.join = Duration::from_secs(300);
    let mut elastic = Elastic {
        least: 1 + draw.below(workers),
        grace: ms(of(draw, &[1_000, 3_000, 10_000])),
        away: ms(of(draw, &[2_000, 20_000, 60_000])),
        spares: 0,
    };
    if let Some(course) = &mut plan.course {
        course.steps += 10;
    }
    match scenario {
        Scenario::ElasticStarts => {
            plan.starts = (0..workers).map(|_| ms(draw.below(40_000) as u64)).collect();
        }
        Scenario::ElasticKilled => {
            plan.starts = (0..workers).map(|_| ms(draw.below(5_000) as u64)).collect();
            for _ in 0..1 + draw.below(5) {
                let when = sometime(draw, plan);
                plan.faults.push((when, Fault::Kill(draw.below(workers))));
            }
        }
        Scenario::ElasticLeader => {
            elastic.least = 1 + draw.below(workers - 1);
            elastic.grace = ms(of(draw, &[1_000, 2_000]));
            elastic.away = ms(of(draw, &[100, 5_000]));
            for _ in 0..1 + draw.below(3) {
                let when = sometime(draw, plan);
                let fault = if draw.below(2) == 0 { Fault::Vanish(0) } else { Fault::Kill(0) };
                plan.faults.push((when, fault));
            }
        }
        _ => {
            plan.certain = Certain::Nothing;
            plan.starts = (0..workers).map(|_| ms(draw.below(10_000) as u64)).collect();
            for _ in 0..2 + draw.below(6) {
                let when = if draw.below(3) == 0 {
                    When::At(ms(draw.below(60_000) as u64))
                } else {
                    sometime(draw, plan)
                };
                let rank = draw.below(workers);
                let fault = match draw.below(8) {
                    0..4 => Fault::Kill(rank),
                    4 => Fault::Vanish(rank),
                    5 => Fault::Pause(rank, ms(draw.below(8_000) as u64)),
                    6 => Fault::Break(rank, draw.below(workers)),
                    _ => cut(draw, workers, 8_000),
                };
                plan.faults.push((when, fault));
            }
        }
    }
    plan.elastic = Some(elastic);
}
