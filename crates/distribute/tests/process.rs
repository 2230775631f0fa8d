//! Tests of programs that configure neither threads nor logging. Each runs in a process with only the main thread,
//! which is why this target has no test harness.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{Device, Module, Tensor};
use candle_nn::{Linear, VarBuilder, linear};
use distribute::nn::{Embedding, embedding};
use distribute::optimizer::rules;
use distribute::prelude::*;
use distribute_testing::child;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const THREADS: [&str; 2] = ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"];

fn settings() -> [Option<String>; 2] {
    THREADS.map(|name| std::env::var(name).ok())
}

/// Starts a thread that lives as long as the result.
fn other_thread() -> mpsc::Sender<()> {
    let (keep, wait) = mpsc::channel::<()>();
    std::thread::spawn(move || wait.recv_timeout(MINUTE));
    keep
}

fn two_replicas() -> Strategy {
    MirroredStrategy::builder()
        .devices(["cpu:0", "cpu:1"])
        .timeout(Duration::from_millis(50))
        .build()
        .unwrap()
}

/// Runs two replicas whose collective times out: replica 1 makes its call only after the other has given up.
fn hang(strategy: &Strategy) {
    let (told, wait) = mpsc::channel();
    let (told, wait) = (std::sync::Mutex::new(told), std::sync::Mutex::new(wait));
    let error = strategy.run((), |ctx, ()| {
        if ctx.replica_id_in_sync_group() == 1 {
            wait.lock().unwrap().recv_timeout(MINUTE).unwrap();
        }
        let sum = ctx.all_reduce(ReduceOp::Sum, 1f32);
        let _ = told.lock().unwrap().send(());
        sum
    });
    error.unwrap_err();
}

/// Trains a few rows of a table whose sharded state has copies. A step allocates no memory of the size of a shard.
fn sparse(strategy: &Strategy) -> distribute::Result<()> {
    const ROWS: usize = 100_000;
    let model = strategy.replicate(|vb: VarBuilder| embedding(ROWS, 8, vb.pp("table")))?;
    let optimizer = Optimizer::with_rule(rules::Adam::lazy(), &model.variables, 0.1)?;
    let optimizer = optimizer.shard_state_replicated()?;
    for step in 0..6u32 {
        if step == 3 {
            LARGEST.store(0, Ordering::Relaxed);
        }
        strategy.run(&model, |ctx: &ReplicaContext, table: &Embedding| {
            let rows = [step, 60_000 + step, 99_000 - step];
            let x = table.forward(&Tensor::new(&rows, &Device::Cpu)?)?;
            optimizer.minimize(ctx, x.sqr()?.sum_all()?, 3)
        })?;
    }
    // Each worker has half of the table, with slots of four bytes.
    let (largest, slot) = (LARGEST.load(Ordering::Relaxed), ROWS / 2 * 8 * 4);
    assert!(largest > 0 && largest < slot / 4, "{largest} bytes, with slots of {slot}");
    Ok(())
}

/// Runs the program of this name. [`main`] checks its standard error.
fn program(part: &str) {
    match part {
        "alone" => {
            assert_eq!(settings(), [None, None]);
            MirroredStrategy::cpus(1).unwrap();
            assert_eq!(settings(), [None, None], "one replica computes with what candle has");
            two_replicas();
            assert_eq!(settings(), [Some("1".into()), Some("1".into())]);
        }
        "set" => {
            two_replicas();
            assert_eq!(settings(), [Some("3".into()), Some("2".into())]);
        }
        "late" => {
            let _other = other_thread();
            two_replicas();
            two_replicas();
            assert_eq!(settings(), [None, None]);
        }
        "stuck" => hang(&two_replicas()),
        "own subscriber" => {
            tracing_subscriber::fmt().with_writer(std::io::stdout).init();
            let _other = other_thread();
            hang(&two_replicas());
        }
        "own subscriber later" => {
            distribute::init();
            let strategy = two_replicas();
            hang(&strategy);
            tracing_subscriber::fmt().with_writer(std::io::stdout).init();
            hang(&strategy);
        }
        "a step" => {
            let strategy = two_replicas();
            let model = strategy.replicate(|vb: VarBuilder| linear(2, 2, vb)).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let step = |ctx: &ReplicaContext, model: &Linear| {
                optimizer.minimize(ctx, model.weight().sum_all()?, 1) // not of the bias
            };
            strategy.run(&model, step).unwrap();
        }
        "log" => {
            let sums = two_replicas().run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32));
            assert_eq!(sums.unwrap().values(), [2., 2.]);
        }
        "sparse" => {
            MultiWorkerMirroredStrategy::on_threads(2, 1, sparse).unwrap();
        }
        _ => panic!("{part}?"),
    }
}

/// The number of blocks that have been allocated.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// The size in bytes of the largest block that has been allocated since it was last reset.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a counter.
struct Counting;

// SAFETY: the system's allocator does all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the same contract, and `alloc` has it from there.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Stands for the `main` of a typical program with a counting allocator. This file has its own `main`, and both use the
/// same allocator.
#[allow(dead_code)]
#[distribute::main(allocator = Counting)]
fn with_an_allocator() {}

/// Runs the program `part` in a process with the given environment variables, and returns its standard output and
/// error.
fn run(part: &str, settings: &[(&str, &str)]) -> (String, String) {
    let mut command = child::command("-", part);
    command.envs(settings.iter().copied());
    child::output(command, MINUTE)
}

fn main() {
    if let Some(part) = child::part() {
        return program(&part);
    }
    let cases: [(&str, fn()); 8] = [
        ("the_first_strategy_of_several_replicas_tames_candles_threads", || {
            assert_eq!(run("alone", &[]).1, "");
            assert_eq!(run("set", &[(THREADS[0], "3"), (THREADS[1], "2")]).1, "");
        }),
        ("where_it_is_too_late_for_that_a_line_says_so_once", || {
            let text = run("late", &[]).1;
            assert_eq!(
                text.matches("distribute: warning: other threads are already running").count(),
                1,
                "{text}"
            );
            assert!(text.contains("CANDLE_NUM_THREADS and RAYON_NUM_THREADS cannot be set"), "{text}");
        }),
        ("who_is_stuck_is_told_where_nobody_has_subscribed", || {
            let text = run("stuck", &[]).1;
            assert!(text.contains("distribute: error: ") && text.contains("replica 1"), "{text}");
        }),
        ("what_an_optimizer_has_to_say_is_told_where_nobody_has_subscribed", || {
            let text = run("a step", &[]).1;
            assert!(
                text.contains("distribute: warning: minimize: 1 of 2 variables got no gradient"),
                "{text}"
            );
            assert_eq!(run("a step", &[("DISTRIBUTE_LOG", "error")]).1, "");
        }),
        ("a_programs_own_subscriber_gets_it_before_or_later", || {
            let (out, err) = run("own subscriber", &[]);
            assert!(
                out.contains("other threads are already running") && out.contains("waited 50ms"),
                "{out}"
            );
            assert_eq!(err, "");
            let (out, err) = run("own subscriber later", &[]);
            assert!(out.contains("waited 50ms") && err.contains("waited 50ms"), "{out}\n{err}");
        }),
        ("distribute_log_is_a_filter_of_lines_on_standard_error", || {
            let (out, err) = run("log", &[("DISTRIBUTE_LOG", "distribute_collective=trace")]);
            assert!(err.contains("meets") && err.contains("all_reduce"), "{err}");
            assert_eq!(out, "");
            assert_eq!(run("log", &[("DISTRIBUTE_LOG", "error")]).1, "");
            let text = run("log", &[("DISTRIBUTE_LOG", "=?=")]).1;
            assert!(text.contains("DISTRIBUTE_LOG cannot be read as a filter"), "{text}");
        }),
        ("a_sparse_step_copies_no_slots_of_other_rows", || {
            run("sparse", &[]);
        }),
        ("the_allocator_that_main_names_is_used", || {
            let before = ALLOCATED.load(Ordering::Relaxed);
            drop(std::hint::black_box(Box::new(1)));
            assert!(ALLOCATED.load(Ordering::Relaxed) > before);
        }),
    ];
    for (name, case) in cases {
        println!("test {name}");
        case();
    }
    println!("test result: ok. {} passed", cases.len());
}
