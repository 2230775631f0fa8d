//! Random programs of collectives with one planted fault: the error names the planted replica, nothing hangs, and the
//! strategy works afterwards. Programs without a fault are compared with a serial model.

use crate::faults::support::{Training, healthy};
use candle_nn::Module;
use distribute::tensor::{Leaf, Tree};
use distribute::{Error, Result, prelude::*};
use distribute_testing::{SplitMix, watched};

/// A nest of int64 vectors. A leaf is the number of elements of a vector.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Leaf(usize),
    Tuple(Vec<Shape>),
    List(Vec<Shape>),
}

impl Shape {
    fn random(random: &mut SplitMix, depth: usize) -> Self {
        let items = |random: &mut SplitMix| {
            (0..1 + random.below(3)).map(|_| Self::random(random, depth - 1)).collect()
        };
        match if depth == 0 { 0 } else { random.below(3) } {
            0 => Shape::Leaf(1 + random.below(4)),
            1 => Shape::Tuple(items(random)),
            _ => Shape::List(items(random)),
        }
    }

    /// Returns the values of one replica. Elements differ between leaves, calls and replicas.
    fn fill(&self, replica: i64, next: &mut i64) -> Tree<Leaf> {
        match self {
            Shape::Leaf(n) => {
                let values: Vec<i64> = (0..*n as i64).map(|i| (*next + i) * 10 + replica).collect();
                *next += *n as i64;
                Tree::Leaf(Leaf::Host(HostTensor::vector(values)))
            }
            Shape::Tuple(items) => Tree::Tuple(items.iter().map(|item| item.fill(replica, next)).collect()),
            Shape::List(items) => Tree::List(items.iter().map(|item| item.fill(replica, next)).collect()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Call {
    Reduce(Shape),
    Gather(usize),
    Merge,
    Minimize,
    Barrier,
}

impl Call {
    fn random(random: &mut SplitMix) -> Self {
        match random.below(6) {
            0 | 1 => Call::Reduce(Shape::random(random, 2)),
            2 => Call::Gather(1 + random.below(3)),
            3 => Call::Merge,
            4 => Call::Minimize,
            _ => Call::Barrier,
        }
    }

    /// Returns whether replicas could confuse the two calls.
    fn is_like(&self, other: &Call) -> bool {
        let gathers = |call: &Call| matches!(call, Call::Gather(_));
        self == other || (gathers(self) && gathers(other))
    }

    /// Makes the call. If `check` is `true`, compares its result with that of a single thread that has the values of
    /// all replicas.
    fn make(&self, ctx: &ReplicaContext, number: usize, training: &Training, check: bool) -> Result<()> {
        let (id, n) = (ctx.replica_id_in_sync_group() as i64, ctx.num_replicas_in_sync() as i64);
        let number = number as i64 * 1000;
        match self {
            Call::Reduce(shape) => {
                let sum = ctx.all_reduce(ReduceOp::Sum, shape.fill(id, &mut number.clone()))?;
                let all: Vec<_> = (0..n).map(|r| shape.fill(r, &mut number.clone())).collect();
                let expected = Tree::zip(all)?.map(&mut |leaves| {
                    let parts: Vec<Vec<i64>> = leaves.iter().map(numbers).collect();
                    (0..parts[0].len()).map(|i| parts.iter().map(|p| p[i]).sum()).collect::<Vec<i64>>()
                });
                assert!(!check || sum.map(&mut |leaf| numbers(&leaf)) == expected);
            }
            Call::Gather(rows) => {
                // Each replica has another number of rows.
                let piece = |r: i64| vec![number + r; *rows + r as usize];
                let all = ctx.all_gather(HostTensor::vector(piece(id)), 0)?;
                assert!(!check || all.to_vec::<i64>()? == (0..n).flat_map(piece).collect::<Vec<_>>());
            }
            Call::Merge => {
                let total =
                    ctx.merge_call(number + id, |strategy, ids| strategy.reduce(ReduceOp::Sum, ids, None))?;
                assert!(!check || total == (0..n).map(|r| number + r).sum::<i64>());
            }
            // The other replicas have examples.
            Call::Minimize if id > 0 && number % 2000 == 0 => drop(training.optimizer.skip(ctx)?),
            Call::Minimize => drop(training.minimize(ctx)?),
            Call::Barrier => ctx.merge_call((), |_, _| Ok(()))?,
        }
        Ok(())
    }
}

fn numbers(leaf: &Leaf) -> Vec<i64> {
    match leaf {
        Leaf::Host(tensor) => tensor.to_vec().unwrap(),
        other => panic!("{other}"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Panic,
    Fail,
    Return,
    Missing,
    Additional,
    Swapped,
    Other,
}

const FAULTS: [Fault; 7] = [
    Fault::Panic,
    Fault::Fail,
    Fault::Return,
    Fault::Missing,
    Fault::Additional,
    Fault::Swapped,
    Fault::Other,
];

/// Creates a strategy with a model for each number of replicas.
fn bench() -> Vec<(Strategy, Training)> {
    let make = |n| {
        let strategy = MirroredStrategy::cpus(n).unwrap();
        let training = Training::new(&strategy);
        (strategy, training)
    };
    (2..=4).map(make).collect()
}

fn run(strategy: &Strategy, body: impl Fn(&ReplicaContext) -> Result<()> + Sync) -> Result<()> {
    strategy.run((), |ctx, ()| body(ctx)).map(drop)
}

/// Returns the calls of the replica with the fault.
fn with_fault(calls: &[Call], fault: Fault, at: usize, random: &mut SplitMix) -> Vec<Call> {
    let mut calls = calls.to_vec();
    let mut unlike = |call: &Call| loop {
        let other = Call::random(random);
        if !other.is_like(call) {
            break other;
        }
    };
    match fault {
        Fault::Panic | Fault::Fail | Fault::Return => calls.truncate(at),
        Fault::Missing => drop(calls.remove(at)),
        Fault::Additional => {
            let other = unlike(&calls[at]);
            calls.insert(at, other);
        }
        Fault::Swapped => match (at + 1..calls.len()).find(|i| !calls[*i].is_like(&calls[at])) {
            Some(i) => calls.swap(at, i),
            None => calls[at] = unlike(&calls[at]),
        },
        Fault::Other => calls[at] = unlike(&calls[at]),
    }
    calls
}

#[test]
fn a_thousand_programs_with_one_planted_fault_each() {
    watched(|| {
        let bench = bench();
        let mut kinds = [0; FAULTS.len()];
        for seed in 0..1000 {
            let random = &mut SplitMix(seed);
            let (strategy, training) = &bench[random.below(bench.len())];
            let n = strategy.num_replicas_in_sync();
            let calls: Vec<Call> = (0..1 + random.below(8)).map(|_| Call::random(random)).collect();
            let (kind, at, planted) =
                (random.below(FAULTS.len()), random.below(calls.len()), random.below(n));
            kinds[kind] += 1;
            let fault = FAULTS[kind];
            let faulty = with_fault(&calls, fault, at, random);
            let error = run(strategy, |ctx| {
                let is_planted = ctx.replica_id_in_sync_group() == planted;
                for (number, call) in if is_planted { &faulty } else { &calls }.iter().enumerate() {
                    call.make(ctx, number, training, false)?;
                }
                match fault {
                    Fault::Panic if is_planted => std::panic::resume_unwind(Box::new("planted")),
                    Fault::Fail if is_planted => Err(Error::other("planted")),
                    _ => Ok(()),
                }
            })
            .expect_err(&format!("seed {seed}: {fault:?} went unnoticed"));
            let what = format!("seed {seed}, {fault:?} at {at} on {planted} of {n}: {error}");
            match (fault, error.blame()) {
                (Fault::Panic, None) => {
                    assert!(
                        what.contains(&format!("replica {planted} (")) && what.contains("panicked: planted"),
                        "{what}"
                    );
                }
                (Fault::Fail, None) => {
                    assert!(
                        what.contains(&format!("replica {planted} (")) && what.ends_with(": planted"),
                        "{what}"
                    );
                }
                (Fault::Panic | Fault::Fail, Some(_)) | (_, None) => panic!("{what}"),
                (_, Some(blame)) => {
                    // If one of two replicas differs, the culprit is unknown: both are named.
                    let text = blame.to_string();
                    let does =
                        ["called", "returned", "waits"].map(|does| format!("replica {planted} {does}"));
                    assert!(does.iter().any(|does| text.contains(does)), "{what}");
                    assert!(n == 2 || blame.culprits == [planted], "culprits {:?}: {what}", blame.culprits);
                    assert!(what.contains("random_programs.rs:"), "{what}");
                }
            }
            healthy(strategy);
        }
        assert!(kinds.iter().all(|count| *count > 80), "every kind was planted: {kinds:?}");
    });
}

#[test]
fn two_hundred_programs_without_a_fault_equal_one_thread() {
    watched(|| {
        for seed in 0..200 {
            let random = &mut SplitMix(seed ^ 0xfeed);
            let n = 2 + random.below(3);
            let strategy = MirroredStrategy::cpus(n).unwrap();
            let training = Training::new(&strategy);
            let calls: Vec<Call> = (0..1 + random.below(12)).map(|_| Call::random(random)).collect();
            // The serial model of the training: gradient descent on the mean of the examples that are not skipped.
            let weight = training.model.variables.get("fc.weight").unwrap().to_vec2::<f32>().unwrap();
            let bias = training.model.variables.get("fc.bias").unwrap().to_vec1::<f32>().unwrap();
            let mut w = [weight[0][0], weight[0][1], bias[0]].map(f64::from);
            for (number, _) in calls.iter().enumerate().filter(|(_, call)| **call == Call::Minimize) {
                let examples = if number % 2 == 0 { 1 } else { n };
                let mut gradient = [0.; 3];
                for id in 0..examples {
                    let x = [1., id as f64, 1.];
                    let y: f64 = x.iter().zip(&w).map(|(x, w)| x * w).sum();
                    (0..3).for_each(|i| gradient[i] += 2. * y * x[i] / examples as f64);
                }
                (0..3).for_each(|i| w[i] -= 0.01 * gradient[i]);
            }
            run(&strategy, |ctx| {
                calls
                    .iter()
                    .enumerate()
                    .try_for_each(|(number, call)| call.make(ctx, number, &training, true))
            })
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let y = training.model.models().values()[0]
                .forward(&crate::faults::support::tensor(&[1., 2.]).unsqueeze(0).unwrap());
            let y = y.unwrap().to_vec2::<f32>().unwrap()[0][0];
            assert!(
                (f64::from(y) - (w[0] + 2. * w[1] + w[2])).abs() < 1e-5,
                "seed {seed}: {y} instead of {w:?}"
            );
        }
    });
}
