//! Workers that are slow for some reason: all name the right one, and why.
//!
//! `DISTRIBUTE_TEST_DRILLS=60 cargo test -p distribute --test clusters recovery::drills -- --nocapture` makes 60 of
//! them, and prints the figures of docs/train/watching.md. With `DISTRIBUTE_TEST_NAMESPACES=1`, as root, a fifth of
//! those of three workers have a slow link.

use crate::recovery::job::Job;
use crate::recovery::program::{At, Task};
use crate::recovery::slow_link::SlowLink;
use crate::recovery::slowness::{Reaction, Slowness, Throttled, Work};
use crate::recovery::worker;
use distribute::cluster::Stopwatch;
use distribute::strategy::StragglerCause;
use distribute::{Result, prelude::*};
use distribute_testing::{SplitMix, child, watched_for};
use std::collections::BTreeMap;
use std::time::Duration;

const WORKER: &str = "recovery::drills::a_worker_in_a_separate_process";

/// The processor time of a worker in a step.
const COMPUTING: Duration = Duration::from_millis(8);

/// The time after which the workers give up.
const GIVES_UP: f64 = 25.;

/// More steps than the workers make in this time.
const STEPS: usize = 10_000;

/// The number of values that the workers sum in a step.
const VALUES: usize = 12_000;

/// Runs a worker in a process that another test starts. This is not a test itself.
#[test]
fn a_worker_in_a_separate_process() {
    if let Some(part) = child::part() {
        worker::live(&part, named);
    }
}

/// Makes steps until a straggler is found. Returns it as text.
fn named(task: &Task, _: &At) -> Result<String> {
    let strategy = task.builder()?.build()?;
    let (work, workers, clock) = (task.work.unwrap(), strategy.world().workers(), Stopwatch::start());
    let read = move |element: i64| {
        work.read();
        element
    };
    let elements = Dataset::range((STEPS * workers) as i64).map(read).batch(workers);
    for (step, batch) in strategy.distribute_dataset(elements)?.iter().enumerate() {
        let sum = strategy.run(batch?, |ctx, _| {
            work.compute();
            // The time of the chief is that of all.
            let time = if task.worker == 0 { clock.seconds() } else { 0. };
            ctx.all_reduce(ReduceOp::Sum, HostTensor::vector(vec![time as f32; VALUES]))
        })?;
        if let Some(straggler) = strategy.straggler() {
            let (worker, cause, share) = (straggler.worker, straggler.cause, 100. * straggler.share);
            return Ok(format!("named {worker} {cause:?}, {share:.0} %, after {step} steps"));
        }
        if sum.values()[0].to_vec::<f32>()?[0] > GIVES_UP as f32 {
            break;
        }
        work.between();
    }
    Ok(format!("named nobody: {:?}", strategy.worker_times()))
}

/// The reason why a worker is slow in a drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The worker is stopped half of the time, as if other programs had its cores.
    CoresTaken,
    SlowInput,
    MoreWork,
    LongBreak,
    SlowLink,
    /// No worker is slow.
    Nothing,
}

impl Kind {
    fn cause(self) -> Option<StragglerCause> {
        match self {
            Kind::CoresTaken => Some(StragglerCause::Processor),
            Kind::SlowInput => Some(StragglerCause::Input),
            Kind::MoreWork => Some(StragglerCause::Computing),
            Kind::LongBreak => Some(StragglerCause::Outside),
            Kind::SlowLink => Some(StragglerCause::Link),
            Kind::Nothing => None,
        }
    }
}

/// Makes one drill. Returns whether all workers have named the right worker and cause, what they have named, and the
/// time until then.
fn drill(kind: Kind, workers: usize, draw: &mut SplitMix) -> (bool, String, Duration) {
    let slow = draw.below(workers);
    let time = Duration::from_millis(40 + draw.below(60) as u64);
    let slowness = match kind {
        Kind::SlowInput => Some(Slowness::Input(time)),
        Kind::MoreWork => Some(Slowness::Computing(time)),
        Kind::LongBreak => Some(Slowness::Outside(time)),
        Kind::CoresTaken | Kind::SlowLink | Kind::Nothing => None,
    };
    let work = Work { computing: COMPUTING, slowness: None, reaction: Reaction::Warn };
    let mut job = Job::with_workers(WORKER, workers, 0).working(work, slowness.map(|it| (slow, it)));
    if kind == Kind::SlowLink {
        job = job.over(SlowLink::new(slow, 10));
    }
    job.start_all(None);
    let joined = job.wait_for_line(slow, "all have joined", Duration::ZERO).at;
    let stopped = Duration::from_millis(20 + draw.below(40) as u64);
    let _throttled = (kind == Kind::CoresTaken).then(|| Throttled::new(job.pid(slow), stopped, stopped));
    let named: Vec<_> =
        (0..workers).map(|worker| job.wait_for_line(worker, "named ", Duration::ZERO)).collect();
    let expected = match kind.cause() {
        Some(cause) => format!("named {slow} {cause:?}, "),
        None => "named nobody".to_owned(),
    };
    let is_right = named.iter().all(|said| said.line.starts_with(&expected) && said.line == named[0].line);
    let lasted = named.iter().map(|said| said.at).max().unwrap() - joined;
    (is_right, format!("{kind:?} of worker {slow} of {workers}: {}", named[0].line), lasted)
}

#[test]
fn the_right_worker_is_named_with_its_cause() {
    if child::part().is_some() {
        return;
    }
    let drills: usize = std::env::var("DISTRIBUTE_TEST_DRILLS").map_or(2, |drills| drills.parse().unwrap());
    watched_for(Duration::from_secs(60 + 60 * drills as u64), move || {
        let mut kinds = vec![Kind::CoresTaken, Kind::SlowInput, Kind::MoreWork, Kind::LongBreak];
        let (mut draw, mut figures, mut wrong) = (SplitMix(42), BTreeMap::new(), Vec::new());
        if SlowLink::is_enabled() {
            kinds.push(Kind::SlowLink);
        }
        if drills > 2 {
            kinds.push(Kind::Nothing);
        }
        for number in 0..drills {
            let kind = kinds[number % kinds.len()];
            // Of two workers, each waits for the other.
            let workers = if kind == Kind::SlowLink { 3 } else { 2 + number / kinds.len() % 2 };
            let (is_right, what, lasted) = drill(kind, workers, &mut draw);
            println!("{what}, {:.1} s", lasted.as_secs_f64());
            let (right, all, times) = figures.entry(kind).or_insert((0, 0, Vec::new()));
            (*right, *all) = (*right + usize::from(is_right), *all + 1);
            times.push(lasted);
            if !is_right {
                wrong.push(what);
            }
        }
        for (kind, (right, all, mut times)) in figures {
            times.sort_unstable();
            let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
            println!("{kind:?}: {right} of {all}, median {median:.1?}, at most {most:.1?}");
        }
        assert!(wrong.is_empty(), "{} of {drills}: {wrong:#?}", wrong.len());
    });
}
