//! Plans with a fixed number of workers and spares, which elect their leaders.

use super::trainings::{sometime, train};
use super::{Scenario, cut, ms, of};
use crate::checks::Certain;
use crate::plan::{Elastic, Fault, Plan, When};
use distribute_testing::SplitMix;
use std::time::Duration;

/// Adds a training run with spares, start times and faults to a plan. At least two of its processes are workers, the
/// others are spares.
pub(super) fn disturb(scenario: Scenario, plan: &mut Plan, draw: &mut SplitMix) {
    let (workers, is_storm) = (plan.workers, scenario == Scenario::ElectedStorm);
    train(plan, draw, &[&[true], &[false, true]]);
    plan.join = Duration::from_secs(300);
    // With at least as many spares as workers, the missing tasks may be enough for another world.
    let most_spares = if is_storm { workers - 2 } else { (workers - 1) / 2 };
    let is_bridged = is_storm && workers % 2 == 1 && workers > 3 && draw.below(2) == 0;
    let spares = if is_bridged { (workers - 1) / 2 } else { 1 + draw.below(most_spares) };
    let most = workers - spares;
    let away = ms(of(draw, &[1_000, 20_000, 60_000]));
    plan.elastic = Some(Elastic { least: most, grace: Duration::from_secs(30), away, spares });
    if let Some(course) = &mut plan.course {
        course.steps += 10;
    }
    let latest = of(draw, &[300, 10_000]) as usize;
    plan.starts = (0..workers).map(|_| ms(draw.below(latest) as u64)).collect();
    if is_storm {
        plan.certain = Certain::Nothing;
    }
    // The others can do without these.
    let mut removable = plan.electorate().map_or(0, |electorate| workers - electorate.needed());
    for _ in 0..1 + draw.below(6) {
        let when = sometime(draw, plan);
        let formed = |draw: &mut SplitMix| {
            let (generation, after) = (1 + draw.below(4) as u64, draw.below(3_000) as u64);
            When::Formed { generation, after: Duration::from_micros(after) }
        };
        let rank = if draw.below(2) == 0 { 0 } else { draw.below(workers) };
        let is_removed = removable > 0 && draw.below(3) == 0;
        removable -= usize::from(is_removed);
        let fault = match draw.below(3) {
            0 => (formed(draw), Fault::Leader(is_removed)),
            _ if is_removed => (when, Fault::Remove(rank)),
            _ => (when, Fault::Kill(rank)),
        };
        plan.faults.push(fault);
        if is_storm {
            let when = if draw.below(2) == 0 { formed(draw) } else { sometime(draw, plan) };
            let longest = of(draw, &[1_000, 8_000, 60_000]) as usize;
            let fault = match draw.below(5) {
                0 => Fault::Vanish(rank),
                1 => Fault::Pause(rank, ms(draw.below(8_000) as u64)),
                2 => Fault::Break(rank, draw.below(workers)),
                _ => cut(draw, workers, longest),
            };
            plan.faults.push((when, fault));
        }
    }
    if !is_storm && draw.below(4) == 0 {
        // A worker that is busy may be the only one that has the state.
        if let Some(course) = &mut plan.course {
            (course.breaks, course.longest_break) = (30, ms(20_000));
        }
        let (rank, step) = (draw.below(workers), 3 + draw.below(6) as u64);
        let after = ms(10 + draw.below(50) as u64);
        plan.faults.push((When::InCall { generation: 1, rank, step, call: 0, after }, Fault::Callers));
    }
    if is_bridged {
        // The leader is lost, and a spare reaches two groups that do not reach each other. Together with it, each of
        // them may be enough for a world.
        let bridge = most + draw.below(spares);
        let groups = (0..workers).map(|host| if host == bridge { 0 } else { 1 + draw.below(2) }).collect();
        let when = When::Formed { generation: 1, after: ms(500 + draw.below(3_000) as u64) };
        plan.faults.push((when, Fault::Leader(false)));
        plan.faults.push((when, Fault::Bridge { groups, lasts: ms(20_000 + draw.below(40_000) as u64) }));
    }
}

/// Adds a training run with a spare to a plan, in which two tasks cannot reach each other for longer than any process
/// waits, or one task reaches only one other.
pub(super) fn part(plan: &mut Plan, draw: &mut SplitMix) {
    train(plan, draw, &[&[true], &[false, true]]);
    plan.join = Duration::from_secs(300);
    let (grace, away) = (Duration::from_secs(30), ms(1_000));
    plan.elastic = Some(Elastic { least: plan.workers - 1, grace, away, spares: 1 });
    if let Some(course) = &mut plan.course {
        course.steps += 10;
    }
    let when = When::Formed { generation: 1, after: ms(draw.below(500) as u64) };
    let all: Vec<_> = (0..plan.workers).collect();
    let one = if draw.below(2) == 0 { 0 } else { draw.below(plan.workers) };
    let mut others: Vec<_> = all.iter().copied().filter(|host| *host != one).collect();
    let other = others.remove(draw.below(others.len()));
    // With a spare, the others and the one that reaches both are enough.
    let is_captured = draw.below(3) == 0;
    let group = |host: usize| match host {
        _ if host == one => 1,
        _ if (host == other) != is_captured => 2,
        _ => 0,
    };
    let groups = all.into_iter().map(group).collect();
    plan.faults.push((when, Fault::Bridge { groups, lasts: ms(400_000 + draw.below(400_000) as u64) }));
}

/// Adds a training run with spares and checkpoints to a plan. A task is cut off. The others continue without it, and
/// are killed at about the same time, some of them while they form the next world.
pub(super) fn restore(plan: &mut Plan, draw: &mut SplitMix) {
    let workers = plan.workers;
    train(plan, draw, &[&[true], &[false, true]]);
    (plan.join, plan.certain) = (Duration::from_secs(300), Certain::Nothing);
    let spares = 1 + draw.below((workers - 1) / 2);
    let (grace, away) = (Duration::from_secs(30), ms(of(draw, &[100, 3_000])));
    plan.elastic = Some(Elastic { least: workers - spares, grace, away, spares });
    if let Some(course) = &mut plan.course {
        course.steps += 30;
        course.saves = Some(1 + draw.below(4) as u64);
    }
    let absent = draw.below(workers);
    let sides = (0..workers).map(|host| host == absent).collect();
    let lasts = ms(of(draw, &[6_000, 15_000, 60_000]) + draw.below(10_000) as u64);
    let when = When::Formed { generation: 1, after: ms(draw.below(1_000) as u64) };
    plan.faults.push((when, Fault::Cut { sides, one_way: false, lasts }));
    let (generation, after) = (1 + draw.below(2) as u64, draw.below(5_000));
    for rank in (0..workers).filter(|rank| *rank != absent) {
        let after = ms((after + draw.below(20)) as u64);
        plan.faults.push((When::Formed { generation, after }, Fault::Kill(rank)));
    }
}
