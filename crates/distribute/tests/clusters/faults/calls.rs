//! Replicas that do not make the same calls (MC-4, AR-1, GA-8; collectives T7).

use crate::faults::support::{Training, assert_message, fault, fault_on, healthy};
use distribute::cluster::Fault;
use distribute::tensor::{Leaf, Tree};
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;
use std::sync::Mutex;

type Call = fn(&ReplicaContext) -> Result<()>;

/// Returns the source location of a named call, as error texts contain it.
fn line_of(call: &str) -> String {
    let source = include_str!("calls.rs");
    let line = source.lines().position(|line| line.contains(call) && line.contains("fn ")).unwrap();
    format!("calls.rs:{}:", line + 1)
}

// Each call is on one line, because the tests search for the line that contains its name.
#[rustfmt::skip]
mod one_a_line {
    use super::{list, matrix, pair};
    use crate::faults::support::tensor;
    use distribute::Result;
    use distribute::prelude::*;

    pub fn sum_2(ctx: &ReplicaContext) -> Result<()> { ctx.all_reduce(ReduceOp::Sum, tensor(&[1., 2.])).map(drop) }
    pub fn sum_3(ctx: &ReplicaContext) -> Result<()> { ctx.all_reduce(ReduceOp::Sum, tensor(&[1., 2., 3.])).map(drop) }
    pub fn mean_2(ctx: &ReplicaContext) -> Result<()> { ctx.all_reduce(ReduceOp::Mean, tensor(&[1., 2.])).map(drop) }
    pub fn sum_i64(ctx: &ReplicaContext) -> Result<()> { ctx.all_reduce(ReduceOp::Sum, HostTensor::vector(vec![1i64, 2])).map(drop) }
    pub fn sum_pair(ctx: &ReplicaContext) -> Result<()> { ctx.all_reduce(ReduceOp::Sum, pair()).map(drop) }
    pub fn sum_list(ctx: &ReplicaContext) -> Result<()> { ctx.all_reduce(ReduceOp::Sum, list()).map(drop) }
    pub fn gather_0(ctx: &ReplicaContext) -> Result<()> { ctx.all_gather(matrix(), 0).map(drop) }
    pub fn gather_1(ctx: &ReplicaContext) -> Result<()> { ctx.all_gather(matrix(), 1).map(drop) }
    pub fn gather_wide(ctx: &ReplicaContext) -> Result<()> { ctx.all_gather(HostTensor::new(vec![1f32; 6], [2, 3])?, 0).map(drop) }
    pub fn merge_i32(ctx: &ReplicaContext) -> Result<()> { ctx.merge_call(1i32, |_, _| Ok(())) }
    pub fn merge_text(ctx: &ReplicaContext) -> Result<()> { ctx.merge_call("text", |_, _| Ok(())) }
}
use one_a_line::*;

fn pair() -> Tree<Leaf> {
    Tree::Tuple(vec![HostTensor::scalar(1f32).into_tree(), HostTensor::scalar(2f32).into_tree()])
}
fn list() -> Tree<Leaf> {
    Tree::List(vec![HostTensor::scalar(1f32).into_tree(), HostTensor::scalar(2f32).into_tree()])
}
fn matrix() -> HostTensor {
    HostTensor::new(vec![1f32; 4], [2, 2]).unwrap()
}

/// Pairs of different calls, with the names of both and the texts that distinguish them.
const PAIRS: &[(&str, Call, &str, Call, [&str; 2])] = &[
    ("sum_2", sum_2, "sum_3", sum_3, ["all_reduce (SUM float32[2])", "all_reduce (SUM float32[3])"]),
    ("sum_2", sum_2, "mean_2", mean_2, ["SUM", "MEAN"]),
    ("sum_2", sum_2, "sum_i64", sum_i64, ["float32[2]", "int64[2]"]),
    (
        "sum_pair",
        sum_pair,
        "sum_list",
        sum_list,
        ["SUM (float32[], float32[])", "SUM [float32[], float32[]]"],
    ),
    ("gather_0", gather_0, "gather_1", gather_1, ["axis 0", "axis 1"]),
    ("gather_0", gather_0, "gather_wide", gather_wide, ["float32[*, 2]", "float32[*, 3]"]),
    ("sum_2", sum_2, "gather_0", gather_0, ["all_reduce", "all_gather"]),
    ("sum_2", sum_2, "merge_i32", merge_i32, ["all_reduce", "merge_call"]),
    ("gather_0", gather_0, "merge_i32", merge_i32, ["all_gather", "merge_call"]),
    ("merge_i32", merge_i32, "merge_text", merge_text, ["merge_call (i32)", "merge_call (&str)"]),
];

#[test]
fn t7_every_pair_of_different_calls_names_both_replicas_calls_lines_step_and_remedy() {
    watched(|| {
        for replicas in 2..=4 {
            let strategy = MirroredStrategy::cpus(replicas).unwrap();
            let mut step = 0;
            for (right_name, right, odd_name, odd, texts) in PAIRS {
                for culprit in 0..replicas {
                    let body = |ctx: &ReplicaContext| {
                        if ctx.replica_id_in_sync_group() == culprit { odd(ctx) } else { right(ctx) }
                    };
                    let error = strategy.run((), |ctx, ()| body(ctx)).unwrap_err();
                    step += 1;
                    let text = error.to_string();
                    let blame = error.blame().unwrap_or_else(|| panic!("no blame: {text}"));
                    assert_eq!(blame.fault, Fault::Mismatch, "{text}");
                    let expected = if replicas == 2 { vec![0, 1] } else { vec![culprit] };
                    assert_eq!(blame.culprits, expected, "{text}");
                    assert_message(&error, &texts[..]);
                    assert_message(
                        &error,
                        &[&line_of(right_name), &line_of(odd_name), &format!("step {step}, call 1:")],
                    );
                    assert_message(
                        &error,
                        &[
                            &format!("replica {culprit} called"),
                            "have to make the same calls in the same order",
                        ],
                    );
                    // With three or more replicas, the error is that of the replica that differs.
                    if replicas > 2 {
                        assert!(text.starts_with(&format!("replica {culprit} (")), "{text}");
                    }
                }
            }
            healthy(&strategy);
        }
    });
}

/// Makes the given calls, one after the other.
fn program(ctx: &ReplicaContext, calls: &[Call]) -> Result<()> {
    calls.iter().try_for_each(|call| call(ctx))
}

#[test]
fn mc_4_a_missing_an_additional_and_a_reordered_collective() {
    watched(|| {
        for replicas in 2..=4 {
            for culprit in 0..replicas {
                let run = |odd: &[Call]| {
                    fault(replicas, |ctx| {
                        if ctx.replica_id_in_sync_group() == culprit {
                            program(ctx, odd)
                        } else {
                            program(ctx, &[sum_2, gather_0, merge_i32])
                        }
                    })
                };
                let named = format!("replica {culprit} ");
                let missing = run(&[sum_2, merge_i32]);
                assert_message(
                    &missing,
                    &[
                        "step 2, call 2",
                        "all_gather",
                        "merge_call",
                        &named,
                        &line_of("gather_0"),
                        &line_of("merge_i32"),
                    ],
                );
                let last_missing = run(&[sum_2, gather_0]);
                let text = [
                    &format!("replica {culprit} returned without making this call")[..],
                    "its last call was all_gather",
                ];
                assert_message(&last_missing, &text);
                assert_message(
                    &last_missing,
                    &["step 2, call 3", "in merge_call", &line_of("merge_i32"), &line_of("gather_0")],
                );
                assert_eq!(last_missing.blame().unwrap().fault, Fault::Returned);
                let additional = run(&[sum_2, gather_0, merge_i32, sum_3]);
                assert_message(
                    &additional,
                    &[
                        &format!("replica {culprit} waits in all_reduce"),
                        "call 4",
                        &line_of("sum_3"),
                        "returned",
                    ],
                );
                if replicas > 2 {
                    assert_eq!(additional.blame().unwrap().culprits, [culprit]);
                }
                let reordered = run(&[gather_0, sum_2, merge_i32]);
                assert_message(
                    &reordered,
                    &["step 2, call 1", &named, &line_of("gather_0"), &line_of("sum_2")],
                );
            }
        }
    });
}

#[test]
fn minimize_against_all_reduce_and_another_number_of_minimize_calls() {
    watched(|| {
        for replicas in 2..=4 {
            let strategy = MirroredStrategy::cpus(replicas).unwrap();
            let training = Training::new(&strategy);
            let odd = replicas - 1;
            let is_odd = |ctx: &ReplicaContext| ctx.replica_id_in_sync_group() == odd;
            let error =
                fault_on(
                    &strategy,
                    |ctx| if is_odd(ctx) { sum_2(ctx) } else { training.minimize(ctx).map(drop) },
                );
            assert_message(
                &error,
                &["minimize (", "calls.rs:", "all_reduce (SUM float32[2])", &line_of("sum_2")],
            );
            assert_message(&error, &[&format!("replica {odd} called all_reduce")]);

            let before = training.model.variables.get("fc.weight").unwrap().to_vec2::<f32>().unwrap();
            let error = strategy.run((), |ctx, ()| {
                (0..if is_odd(ctx) { 2 } else { 3 }).try_for_each(|_| training.minimize(ctx).map(drop))
            });
            let error = error.unwrap_err();
            assert_message(
                &error,
                &["call 3", "in minimize (", &format!("replica {odd} returned without making this call")],
            );
            assert_message(&error, &["its last call was minimize (", "calls.rs:", "same number of calls"]);
            // Two steps were made, the third was not.
            assert_eq!(training.optimizer.finished_steps(), 2);
            let after = training.model.variables.get("fc.weight").unwrap().to_vec2::<f32>().unwrap();
            assert_ne!(before, after);
            strategy.run((), |ctx, ()| training.minimize(ctx)).unwrap();
            assert_eq!(training.optimizer.finished_steps(), 3);
        }
    });
}

#[test]
fn a_mismatch_that_all_get_over_costs_one_call_only() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(3).unwrap();
        let texts = Mutex::new(Vec::new());
        let sums = strategy.run((), |ctx, ()| {
            let call = if ctx.replica_id_in_sync_group() == 1 { sum_2 } else { sum_3 };
            let text = call(ctx).unwrap_err().to_string();
            texts.lock().unwrap().push(text);
            ctx.all_reduce(ReduceOp::Sum, 1i32)
        });
        assert_eq!(sums.unwrap().values(), [3, 3, 3]);
        let texts = texts.into_inner().unwrap();
        assert!(texts.iter().all(|text| *text == texts[0]), "all get one text: {texts:?}");
    });
}

#[test]
fn values_that_cannot_be_reduced_are_an_error_on_all() {
    watched(|| {
        let error = fault(3, |ctx| ctx.all_reduce(ReduceOp::Sum, true));
        assert!(matches!(error.root_cause(), Error::Tensor { operation: "all_reduce", .. }), "{error}");
        let error = fault(3, |ctx| ctx.all_gather(1f32, 0));
        assert!(matches!(error.root_cause(), Error::Tensor { operation: "all_gather", .. }), "{error}");
    });
}
