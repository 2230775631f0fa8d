//! Random programs over several workers, each with one planted fault. Nothing hangs, all workers get the same message,
//! which names the culprit, and the remaining workers can continue with the same state.
//!
//! `DISTRIBUTE_TEST_SEEDS=1000` sets the number of seeds. A range sets the seeds themselves, for example `7..8` for a
//! single one.

mod program;
mod verdict;
mod worker;

use distribute::strategy::CommunicationOptions;
use distribute::{Error, Result, Strategy};
use distribute_testing::watched;
use program::{Kind, Mistake, Program};
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use verdict::Told;
use worker::{Gate, Worker};

/// The number of programs in a run of all tests.
const SEEDS: u64 = 200;

/// The number of programs that run at the same time. Some of them mostly wait for a deadline.
const LANES: usize = 4;

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("DISTRIBUTE_TEST_SEEDS") else { return 0..SEEDS };
    let (start, end) = text.split_once("..").unwrap_or(("0", &text));
    let number =
        |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("DISTRIBUTE_TEST_SEEDS is {text:?}"));
    number(start)..number(end)
}

#[test]
fn random_programs_with_a_planted_fault() {
    let (seeds, next) = (seeds(), AtomicU64::new(seeds().start));
    let kinds = Mutex::new(BTreeMap::new());
    let failed = Mutex::new(Vec::new());
    let lane = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < seeds.end
        {
            let program = Program::random(seed);
            *kinds.lock().unwrap().entry(kind(&program)).or_insert(0) += 1;
            if seeds.end - seeds.start == 1 {
                println!("seed {seed}: {program:?}");
            }
            let run = program.clone();
            if let Err(why) = watched(move || check(&run)) {
                println!("seed {seed}: {why}\n{program:?}");
                failed.lock().unwrap().push(seed);
            }
        }
    };
    std::thread::scope(|scope| (0..LANES).for_each(|_| drop(scope.spawn(lane))));
    let failed = failed.into_inner().unwrap();
    println!("{:#?}", kinds.lock().unwrap());
    assert!(failed.is_empty(), "of {seeds:?} failed {failed:?}: see above");
    let kinds = kinds.into_inner().unwrap();
    assert!(seeds.end - seeds.start < SEEDS || kinds.len() >= 17, "every kind of fault: {kinds:#?}");
}

/// Returns the name of a program's kind of fault.
fn kind(program: &Program) -> String {
    let (level, wrong) = match &program.fault.kind {
        Kind::Replica(_, wrong) => ("replica", format!("{wrong:?}")),
        Kind::Worker(mistake) => ("worker", format!("{mistake:?}")),
    };
    let name: String = wrong.chars().take_while(|c| c.is_alphabetic()).collect();
    format!("{level} {name}")
}

/// Runs a program, and checks the outcome.
fn check(program: &Program) -> std::result::Result<(), String> {
    let timeout = Duration::from_millis(if program.fault.is_timeout() { 5_000 } else { 20_000 });
    let options = CommunicationOptions { timeout: Some(timeout), ..Default::default() };
    let folder = tempfile::tempdir().unwrap();
    let (gate, told) = (Gate::default(), Mutex::new(Vec::new()));
    let ran = catch_unwind(AssertUnwindSafe(|| {
        crate::multi_worker::on_threads_with(options, program.workers, program.replicas, |strategy| {
            let worker = Worker::new(strategy, program, &gate, folder.path().to_path_buf())?;
            work(strategy, program, worker, &told)
        })
    }));
    let mut told = told.into_inner().unwrap();
    told.sort_by_key(|told: &Told| told.worker);
    let planted = |error: &Error| error.to_string().contains("planted");
    match ran.unwrap_or_else(|panic| resume_unwind(panic)) {
        Ok(_) => {}
        Err(error) if program.fault.stops_its_worker() && planted(&error) => {}
        Err(error) => return Err(format!("{error}\n{}", texts(&told))),
    }
    program.check(&told).map_err(|why| format!("{why}\n{}", texts(&told)))
}

fn texts(told: &[Told]) -> String {
    let text = |told: &Told| {
        format!("  worker {} got {:?}\n", told.worker, told.error.as_ref().map(ToString::to_string))
    };
    told.iter().map(text).collect()
}

/// Runs one worker of a program.
fn work(
    strategy: &Strategy,
    program: &Program,
    mut worker: Worker<'_>,
    told: &Mutex<Vec<Told>>,
) -> Result<()> {
    let me = strategy.world().worker();
    for (number, act) in program.acts[..program.fault.act].iter().enumerate() {
        worker.healthy(number, act)?;
    }
    if me == program.culprit() {
        match program.fault.kind {
            Kind::Worker(Mistake::Ends) => return Ok(()),
            Kind::Worker(Mistake::Fails) => return Err(Error::other("planted")),
            Kind::Worker(Mistake::Panics) => resume_unwind(Box::new("planted")),
            _ => {}
        }
    }
    let error = worker.planted().err();
    told.lock().unwrap().push(Told { worker: me, error });
    if !program.fault.stops_its_worker() {
        return worker.afterwards();
    }
    let error = worker.call_without_one().expect_err("one is gone");
    match error.blame() {
        Some(blame) if blame.culprits.contains(&program.fault.replica) => Ok(()),
        _ => Err(error),
    }
}
