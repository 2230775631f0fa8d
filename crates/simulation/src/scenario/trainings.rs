//! Plans with training runs.

use super::{Scenario, cut, ms, of};
use crate::checks::Certain;
use crate::course::Course;
use crate::plan::{Fault, Plan, When};
use distribute_testing::SplitMix;
use std::time::Duration;

/// Adds a training run and faults to a plan.
pub(super) fn disturb(scenario: Scenario, plan: &mut Plan, draw: &mut SplitMix) {
    let workers = plan.workers;
    match scenario {
        Scenario::TrainKilled => {
            train(plan, draw, &[&[true], &[false, true], &[true, false]]);
            for _ in 0..1 + draw.below(4) {
                let when = sometime(draw, plan);
                plan.faults.push((when, Fault::Kill(draw.below(workers))));
            }
        }
        Scenario::TrainHandover => {
            train(plan, draw, &[&[true]]);
            plan.faults.push((in_training(draw, plan, 1), Fault::Kill(draw.below(workers))));
            for generation in 2..3 + draw.below(3) as u64 {
                let (rank, call) = (draw.below(workers), 1 + draw.below(6) as u64);
                let after = Duration::from_micros(draw.below(5_000) as u64);
                let when = When::InCall { generation, rank, step: 0, call, after };
                plan.faults.push((when, Fault::Kill(draw.below(workers))));
            }
        }
        Scenario::TrainHalves => {
            train(plan, draw, &[&[true, true], &[true, true, false], &[true, false, true]]);
            for generation in 1..2 + draw.below(3) as u64 {
                let when = in_training(draw, plan, generation);
                plan.faults.push((when, Fault::Kill(draw.below(workers))));
            }
        }
        Scenario::TrainParted => {
            train(plan, draw, &[&[true], &[false, true]]);
            for _ in 0..1 + draw.below(3) {
                let (when, rank) = (sometime(draw, plan), draw.below(workers));
                let fault = match draw.below(5) {
                    0 => Fault::Vanish(rank),
                    1 => Fault::Pause(rank, ms(draw.below(8_000) as u64)),
                    2 => Fault::Break(rank, draw.below(workers)),
                    3 => Fault::Kill(rank),
                    _ => cut(draw, workers, 8_000),
                };
                plan.faults.push((when, fault));
            }
        }
        Scenario::TrainSupplanted => {
            train(plan, draw, &[&[true]]);
            // If messages take long, joining does as well, and more can happen at the same time.
            plan.delay[1] = ms(of(draw, &[5, 100, 1_000]));

            for _ in 0..1 + draw.below(3) {
                let (when, rank) = (sometime(draw, plan), 1 + draw.below(workers - 1));
                let when = if draw.below(2) == 0 { When::At(ms(draw.below(500) as u64)) } else { when };
                let lasts = ms(3_000 + draw.below(7_000) as u64);
                let fault = match draw.below(3) {
                    0 => Fault::Vanish(rank),
                    1 => Fault::Pause(rank, lasts),
                    _ => {
                        let sides = (0..workers).map(|host| host == rank).collect();
                        Fault::Cut { sides, one_way: false, lasts }
                    }
                };
                if !matches!(fault, Fault::Vanish(_)) {
                    // Soon after the loss is noticed, or before.
                    let soon = ms(500 + draw.below(6_000) as u64);
                    plan.faults.push((when.later(soon), Fault::Twin(rank)));
                }
                plan.faults.push((when, fault));
            }
        }
        Scenario::TrainStorm => {
            train(plan, draw, &[&[true], &[true, false], &[true, true]]);
            plan.certain = Certain::Nothing;
            plan.script.timeout = ms(of(draw, &[1_000, 5_000, 60_000]));
            if let Some(course) = &mut plan.course {
                // A worker whose breaks exceed the timeout of the others would time out repeatedly.
                course.longest_break = course.longest_break.min(plan.script.timeout / 2);
            }
            for _ in 0..2 + draw.below(6) {
                let (when, rank) = (sometime(draw, plan), draw.below(workers));
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
        Scenario::TrainCrowd => {
            train(plan, draw, &[&[true]]);
            for _ in 0..3 {
                let when = sometime(draw, plan);
                plan.faults.push((when, Fault::Kill(draw.below(workers))));
            }
        }
        _ => {}
    }
}

/// Adds a training run to the plan. The calls of its steps are chosen from `kinds`.
pub(super) fn train(plan: &mut Plan, draw: &mut SplitMix, kinds: &[&[bool]]) {
    (plan.certain, plan.one_blame) = (Certain::NobodyLate, false);
    plan.course = Some(Course {
        steps: 3 + draw.below(10) as u64,
        calls: kinds[draw.below(kinds.len())].to_vec(),
        patience: Duration::from_secs(300),
        breaks: of(draw, &[0, 5, 30]),
        longest_break: ms(of(draw, &[1_000, 20_000])),
        replacements: 0,
    });
}

/// Returns a time shortly after a random worker has begun a call of a step of a training run. The call with which all
/// workers begin the step is also possible.
fn in_training(draw: &mut SplitMix, plan: &Plan, generation: u64) -> When {
    let (steps, calls) =
        plan.course.as_ref().map_or((1, 1), |course| (course.steps, course.calls.len() as u64));
    let (rank, after) = (draw.below(plan.workers), Duration::from_micros(draw.below(40_000) as u64));
    let (step, call) = (1 + draw.bits() % (steps + 1), draw.bits() % (calls + 1));
    When::InCall { generation, rank, step, call, after }
}

/// Returns a random time in a training run: after a worker has begun a call of a step or of the agreement after a
/// rendezvous, or independent of calls.
pub(super) fn sometime(draw: &mut SplitMix, plan: &Plan) -> When {
    let generation = 1 + draw.below(3) as u64;
    match draw.below(4) {
        0 => When::At(ms(draw.below(8_000) as u64)),
        1 => {
            let (rank, call) = (draw.below(plan.workers), 1 + draw.below(5) as u64);
            let after = Duration::from_micros(draw.below(40_000) as u64);
            When::InCall { generation, rank, step: 0, call, after }
        }
        _ => in_training(draw, plan, generation),
    }
}
