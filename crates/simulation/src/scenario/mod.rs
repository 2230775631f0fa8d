//! Scenarios: kinds of programs and faults, from which a seed creates a plan. `trainings` contains the scenarios with
//! training runs, `elastic` those whose worlds grow and shrink, and `spares` those with spares.

mod elastic;
mod spares;
mod trainings;

use crate::checks::Certain;
use crate::coordinator::{self, Weather};
use crate::plan::{Fault, Plan, When};
use crate::planted::Planted;
use crate::rows;
use crate::script::{Deed, Script};
use crate::world::{Report, Simulation};
use distribute_testing::SplitMix;
use std::time::Duration;

/// A kind of program and faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Workers start at any time, in any order.
    Starts,
    /// A worker is started twice, by mistake.
    Twins,
    /// Workers are killed, stopped or cut off, and links break, while the world is being formed.
    Joining,
    /// Workers make different calls.
    Calls,
    /// Workers make different calls, fail between calls, leave sessions, and end sessions.
    Declines,
    /// Workers compute for up to slightly longer than the timeout of a call, and messages may take up to 100 ms. Some
    /// workers make different calls, decline calls, or leave sessions.
    Delays,
    /// Workers are stopped for about as long as the timeout of a call, but not long enough to be considered lost.
    Pause,
    /// A worker is stopped, possibly for long enough to be considered lost.
    Stop,
    /// One or two workers are killed during a call, or their machines fail silently.
    CrashInCall,
    /// A worker is killed between two calls.
    CrashBetween,
    /// The network is partitioned for a time: some workers are cut off from the others, in one or both directions.
    Partition,
    /// The connections between up to two pairs of workers break.
    Break,
    /// Processes of an earlier generation return.
    Revenants,
    /// Workers make different calls, are killed, stopped or cut off, fail silently, or return from an earlier
    /// generation, and connections break, in any combination.
    Storm,
    /// 64 workers, of which one or two are killed.
    Crowd,
    /// Workers of a training run are killed.
    TrainKilled,
    /// A worker is killed in a step. Then a worker is killed in the state transfer after each of the next one to three
    /// rendezvous.
    TrainHandover,
    /// Workers are killed in steps that make several updates.
    TrainHalves,
    /// Workers of a training run are killed, stopped or cut off, or fail silently, and connections break.
    TrainParted,
    /// Workers of a training run fail silently, or are replaced while they are stopped or cut off, and then return.
    TrainSupplanted,
    /// A training run in which workers are killed, stopped or cut off, or fail silently, and connections break, in any
    /// combination.
    TrainStorm,
    /// A training run with 64 workers, of which up to three are killed.
    TrainCrowd,
    /// Some workers of a training run start late: the world begins small and grows.
    ElasticStarts,
    /// Workers are killed, and replaced after some time: the world shrinks and grows.
    ElasticKilled,
    /// The leader is lost, and its replacement may start before the others have noticed.
    ElasticLeader,
    /// A training run with worlds that grow and shrink, in which workers start late, are killed, stopped or cut off, or
    /// fail silently, and connections break.
    ElasticStorm,
    /// A coordinator schedules closures, some of which fail.
    Coordinator,
    /// Workers of a coordinator are lost, stopped and cut off, connections break, and servers do not respond for some
    /// time.
    CoordinatorLosses,
    /// Like `CoordinatorLosses`, but coordinators are also killed or started while another one is running.
    CoordinatorStorm,
    /// Workers and spares of a training run are killed, and spares take the places of workers.
    SparesKilled,
    /// A training run with spares, in which workers and spares are killed, stopped or cut off, or fail silently, and
    /// connections break.
    SparesStorm,
    /// Workers cache and prefetch rows of tables that they train in lock step.
    Rows,
    /// Like `Rows`, but connections to servers break, responses are lost, and workers are killed and start again from
    /// a checkpoint.
    RowsLost,
    /// Workers of a training run are slow, and spares take their places. In half of the plans, workers and spares are
    /// also killed.
    SparesSlow,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Scenario; 34] = [
        Scenario::Starts,
        Scenario::Twins,
        Scenario::Joining,
        Scenario::Calls,
        Scenario::Declines,
        Scenario::Delays,
        Scenario::Pause,
        Scenario::Stop,
        Scenario::CrashInCall,
        Scenario::CrashBetween,
        Scenario::Partition,
        Scenario::Break,
        Scenario::Revenants,
        Scenario::Storm,
        Scenario::Crowd,
        Scenario::TrainKilled,
        Scenario::TrainHandover,
        Scenario::TrainHalves,
        Scenario::TrainParted,
        Scenario::TrainSupplanted,
        Scenario::TrainStorm,
        Scenario::TrainCrowd,
        Scenario::ElasticStarts,
        Scenario::ElasticKilled,
        Scenario::ElasticLeader,
        Scenario::ElasticStorm,
        Scenario::Coordinator,
        Scenario::CoordinatorLosses,
        Scenario::CoordinatorStorm,
        Scenario::SparesKilled,
        Scenario::SparesStorm,
        Scenario::Rows,
        Scenario::RowsLost,
        Scenario::SparesSlow,
    ];

    /// Simulates the plan that is derived from a seed. The history is only recorded if `kept` is `true`.
    pub fn run(self, seed: u64, planted: Option<Planted>, kept: bool) -> Report {
        if matches!(self, Scenario::Rows | Scenario::RowsLost) {
            return rows::run(self == Scenario::RowsLost, self.draw(seed), planted, kept);
        }
        match self.weather() {
            Some(weather) => coordinator::run(weather, self.draw(seed), planted, kept),
            None => Simulation::new(seed, self.plan(seed), planted, kept).run(),
        }
    }

    /// Returns the kinds of faults in a coordinator's cluster; `None` if the scenario has no coordinator.
    fn weather(self) -> Option<Weather> {
        match self {
            Scenario::Coordinator => Some(Weather::Fair),
            Scenario::CoordinatorLosses => Some(Weather::Rough),
            Scenario::CoordinatorStorm => Some(Weather::Storm),
            _ => None,
        }
    }

    fn draw(self, seed: u64) -> SplitMix {
        SplitMix(seed ^ (self as u64) << 56)
    }

    /// Creates the plan for a seed.
    fn plan(self, seed: u64) -> Plan {
        let mut draw = self.draw(seed);
        let seed = draw.bits();
        let is_crowd = matches!(self, Scenario::Crowd | Scenario::TrainCrowd);
        let has_spares =
            matches!(self, Scenario::SparesKilled | Scenario::SparesStorm | Scenario::SparesSlow);
        let least = if has_spares { 3 } else { 2 };
        let workers = if is_crowd { 64 } else { least + draw.below(5) };
        let script = Script {
            seed,
            workers,
            steps: 2 + draw.below(3) as u64,
            calls: 2 + draw.below(4) as u64,
            timeout: Duration::from_secs(60),
            compute: [ms(0), ms(50)],
            odd: 0,
            oddities: &[],
        };
        let starts = (0..workers).map(|_| ms(draw.below(300) as u64)).collect();
        let delay = [Duration::from_micros(50), ms(of(&mut draw, &[1, 5, 20]))];
        let join = Duration::from_secs(60);
        let mut plan = Plan {
            workers,
            script,
            course: None,
            elastic: None,
            starts,
            join,
            delay,
            faults: Vec::new(),
            certain: Certain::Nothing,
            one_blame: true,
        };
        self.disturb(&mut plan, &mut draw);
        plan
    }

    fn disturb(self, plan: &mut Plan, draw: &mut SplitMix) {
        let workers = plan.workers;
        match self {
            Scenario::Starts => {
                plan.certain = Certain::All;
                plan.starts = (0..workers).map(|_| ms(draw.below(30_000) as u64)).collect();
            }
            Scenario::Twins => {
                plan.certain = Certain::All;
                let when = When::At(ms(draw.below(600) as u64));
                plan.faults.push((when, Fault::Twin(1 + draw.below(workers - 1))));
            }
            Scenario::Joining => {
                plan.one_blame = false;
                plan.starts = (0..workers).map(|_| ms(draw.below(5_000) as u64)).collect();
                for _ in 0..1 + draw.below(4) {
                    let when = When::At(ms(draw.below(6_000) as u64));
                    let rank = draw.below(workers);
                    let fault = match draw.below(5) {
                        0 => Fault::Break(rank, draw.below(workers)),
                        1 => cut(draw, workers, 4_000),
                        2 => Fault::Pause(rank, ms(draw.below(8_000) as u64)),
                        _ => Fault::Kill(rank),
                    };
                    plan.faults.push((when, fault));
                }
            }
            Scenario::Calls => {
                plan.certain = Certain::All;
                (plan.script.odd, plan.script.oddities) = (30, &[Deed::Call { other: true }]);
            }
            Scenario::Declines => {
                plan.certain = Certain::All;
                (plan.script.odd, plan.script.oddities) = (40, &ODDITIES);
            }
            Scenario::Delays => {
                plan.certain = Certain::NobodyLost;
                let timeout = 200 + draw.below(3_000) as u64;
                // If the timeout of a call is shorter than the wait for a decision, a late decision may
                // overlap with the next round, which other workers have begun.
                plan.one_blame = timeout > 1_200;
                plan.script.timeout = ms(timeout);
                plan.script.compute = [ms(0), ms(timeout * 11 / 10)];
                plan.delay = [ms(0), ms(of(draw, &[5, 50, 100]))];
                // A worker that ends the session for its own reason does so for every decision of the others.
                (plan.script.odd, plan.script.oddities) =
                    (20, &[Deed::Call { other: true }, Deed::Decline, Deed::Leave]);
            }
            Scenario::Pause => {
                plan.certain = Certain::NobodyLost;
                // As in delays: if the timeout of a call is shorter than this, two workers may decide at
                // once.
                plan.script.timeout = ms(1_201 + draw.below(800) as u64);
                for _ in 0..1 + draw.below(2) {
                    let fault = Fault::Pause(draw.below(workers), ms(800 + draw.below(2_000) as u64));
                    plan.faults.push((in_call(draw, plan), fault));
                }
            }
            Scenario::Stop => {
                plan.one_blame = false;
                plan.script.timeout = ms(500 + draw.below(4_000) as u64);
                let fault = Fault::Pause(draw.below(workers), ms(draw.below(10_000) as u64));
                plan.faults.push((in_call(draw, plan), fault));
            }
            Scenario::CrashInCall => {
                let crashes = 1 + draw.below(2);
                plan.one_blame = crashes == 1;
                for _ in 0..crashes {
                    let when = in_call(draw, plan);
                    let When::InCall { rank, .. } = when else { continue };
                    plan.faults.push((
                        when,
                        if draw.below(4) == 0 { Fault::Vanish(rank) } else { Fault::Kill(rank) },
                    ));
                }
                plan.certain = Certain::NobodyLate;
            }
            Scenario::CrashBetween => {
                let When::InCall { rank, step, call, .. } = in_call(draw, plan) else { return };
                // This is longer than a call takes, so the other workers wait in the next one.
                let after = ms(80 + draw.below(200) as u64);
                plan.script.compute = [ms(0), ms(400)];
                plan.faults
                    .push((When::InCall { generation: 1, rank, step, call, after }, Fault::Kill(rank)));
            }
            Scenario::Partition => {
                plan.one_blame = false;
                plan.script.timeout = ms(of(draw, &[500, 2_000, 60_000]));
                let fault = cut(draw, workers, 8_000);
                plan.faults.push((in_call(draw, plan), fault));
            }
            Scenario::Break => {
                plan.one_blame = false;
                for _ in 0..1 + draw.below(2) {
                    let (a, b) = (draw.below(workers), draw.below(workers));
                    plan.faults.push((in_call(draw, plan), Fault::Break(a, b)));
                }
            }
            Scenario::Revenants => {
                plan.one_blame = false;
                let rank = draw.below(workers);
                let begin = in_call(draw, plan);
                plan.faults.push((begin, Fault::Kill(rank)));
                plan.delay[1] = ms(of(draw, &[5, 50, 200]));
                for _ in 0..4 + draw.below(8) {
                    let when = When::At(ms(400 + draw.below(3_500) as u64));
                    plan.faults.push((when, Fault::Revenant(1 + draw.below(workers - 1))));
                }
            }
            Scenario::Storm => {
                plan.one_blame = false;
                plan.script.timeout = ms(of(draw, &[500, 3_000, 60_000]));
                (plan.script.odd, plan.script.oddities) = (20, &ODDITIES);
                for _ in 0..1 + draw.below(5) {
                    let rank = draw.below(workers);
                    let fault = match draw.below(6) {
                        0 => Fault::Kill(rank),
                        1 => Fault::Vanish(rank),
                        2 => Fault::Pause(rank, ms(draw.below(8_000) as u64)),
                        3 => cut(draw, workers, 8_000),
                        4 => Fault::Break(rank, draw.below(workers)),
                        _ => Fault::Revenant(1 + draw.below(workers - 1)),
                    };
                    let when = if draw.below(2) == 0 {
                        in_call(draw, plan)
                    } else {
                        When::At(ms(draw.below(6_000) as u64))
                    };
                    plan.faults.push((when, fault));
                }
            }
            Scenario::Crowd => {
                plan.one_blame = false;
                (plan.script.steps, plan.script.calls) = (2, 2);
                for _ in 0..2 {
                    let rank = draw.below(workers);
                    plan.faults.push((in_call(draw, plan), Fault::Kill(rank)));
                }
            }
            Scenario::ElasticStarts
            | Scenario::ElasticKilled
            | Scenario::ElasticLeader
            | Scenario::ElasticStorm => elastic::disturb(self, plan, draw),
            Scenario::SparesKilled | Scenario::SparesStorm | Scenario::SparesSlow => {
                spares::disturb(self, plan, draw);
            }
            _ => trainings::disturb(self, plan, draw),
        }
    }
}

/// The actions that may replace a worker's normal call.
const ODDITIES: [Deed; 4] = [Deed::Call { other: true }, Deed::Decline, Deed::Abandon, Deed::Leave];

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn of(draw: &mut SplitMix, all: &[u64]) -> u64 {
    draw.of(all)
}

/// Returns a time shortly after a random worker has begun a random call.
fn in_call(draw: &mut SplitMix, plan: &Plan) -> When {
    let (rank, after) = (draw.below(plan.workers), Duration::from_micros(draw.below(40_000) as u64));
    let [step, call] = [plan.script.steps, plan.script.calls].map(|most| 1 + draw.bits() % most);
    When::InCall { generation: 1, rank, step, call, after }
}

fn cut(draw: &mut SplitMix, workers: usize, most: usize) -> Fault {
    let one = draw.below(workers);
    let sides = (0..workers).map(|host| host == one || draw.below(3) == 0).collect();
    Fault::Cut { sides, one_way: draw.below(3) == 0, lasts: ms(draw.below(most) as u64) }
}
