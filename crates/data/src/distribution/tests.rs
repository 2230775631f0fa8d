//! Tests of a distribution: which elements each replica gets, on any number of workers, from any position.

mod dealt;
mod ends;
mod files;
mod operations;
mod prepare;

use super::*;
use crate::plan::ends::StepCounts;
use crate::testing::{quietly, values};
use distribute_tensor::HostTensor;
use proptest::prelude::*;

/// The ids of the elements that each replica gets, as `[step][worker][replica]`.
type Ids = Vec<Vec<Vec<Vec<i64>>>>;

fn ids(steps: Lockstep<HostTensor>) -> Ids {
    let piece = |piece: HostTensor| piece.as_slice::<i64>().unwrap().to_vec();
    let worker = |pieces: Vec<HostTensor>| pieces.into_iter().map(piece).collect();
    steps.map(|step| step.unwrap().into_iter().map(worker).collect()).collect()
}

fn plan(
    data: &Dataset<HostTensor>,
    workers: usize,
    replicas: usize,
    options: &DistributeOptions,
) -> Distribution<HostTensor> {
    quietly(|| Distribution::new(data, Layout { workers, replicas }, options.clone())).unwrap()
}

fn policies() -> impl proptest::strategy::Strategy<Value = AutoShardPolicy> {
    prop_oneof![Just(AutoShardPolicy::Auto), Just(AutoShardPolicy::Data), Just(AutoShardPolicy::Off)]
}

proptest! {
    // INV-10. Sizes follow the design: per-replica batches of a step differ by one row at most, the larger
    // ones first.
    #[test]
    fn every_element_is_in_one_piece(
        n in 0i64..60, batch in 1usize..9, workers in 1usize..5, replicas in 1usize..4, exact: bool, policy in policies(),
        shuffled: bool, ends in prop_oneof![Just(UnevenEnds::PadEmpty), Just(UnevenEnds::StopAll), Just(UnevenEnds::Drop)],
    ) {
        let range = Dataset::range(n);
        let range = if shuffled { range.shuffle(7, 3) } else { range };
        let data = if exact { range.batch_exact(batch) } else { range.batch(batch) };
        let plan = plan(&data, workers, replicas, &DistributeOptions { policy, ends, ..Default::default() });
        let steps = ids(plan.lockstep(2).unwrap());
        let mut kept = values_of(&data, 2);
        if policy == AutoShardPolicy::Off && workers > 1 {
            // Every worker reads everything, and all end together.
            for worker in 0..workers {
                let mine: Vec<i64> = steps.iter().flat_map(|step| step[worker].concat()).collect();
                if ends == UnevenEnds::PadEmpty {
                    prop_assert_eq!(&mine, &kept);
                } else {
                    prop_assert_eq!(&mine, &kept[..mine.len()]);
                }
            }
            return Ok(());
        }
        if ends == UnevenEnds::Drop {
            kept.truncate(kept.len() / batch * batch);
        }
        let all: Vec<i64> = steps.iter().flatten().flatten().flatten().copied().collect();
        prop_assert_eq!(all, kept);
        for step in &steps {
            let sizes: Vec<usize> = step.iter().flatten().map(Vec::len).collect();
            let rows: usize = sizes.iter().sum();
            let even: Vec<usize> = SplitRule::Even.pieces(rows, workers * replicas).iter().map(|p| p.len()).collect();
            prop_assert_eq!(sizes, even);
        }
    }

    // A pass that stops at any step can resume on any layout, twice in a row.
    #[test]
    fn a_pass_resumes_at_its_position(
        n in 0i64..50, batch in 1usize..7, shuffled: bool, policy in policies(),
        layouts in proptest::collection::vec((1usize..4, 1usize..4), 3),
        stops in proptest::collection::vec(1usize..5, 2),
    ) {
        let range = Dataset::range(n);
        let data = if shuffled { range.shuffle(9, 3).batch(batch) } else { range.map(|x| x).batch(batch) };
        let options = DistributeOptions { policy, ..Default::default() };
        let whole = counted(ids(plan(&data, layouts[0].0, layouts[0].1, &options).lockstep(1).unwrap()));
        let mut seen = Vec::new();
        let mut position: Option<Position> = None;
        for (i, (workers, replicas)) in layouts.into_iter().enumerate() {
            let plan = plan(&data, workers, replicas, &options);
            let mut passes: Vec<_> = (0..workers).map(|worker| match &position {
                None => plan.worker(worker, 1).unwrap(),
                Some(position) => plan.resume(worker, position).unwrap(),
            }).collect();
            let stop = stops.get(i).copied().unwrap_or(usize::MAX);
            let mut steps = 0;
            while steps < stop {
                let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
                let all = counts.into_iter().fold(StepCounts::default(), |a, b| a + b);
                let step: Option<Vec<_>> = passes.iter_mut().map(|pass| pass.finish(all).unwrap()).collect();
                let Some(step) = step else { break };
                seen.extend(step.into_iter().flatten().flat_map(|p| p.as_slice::<i64>().unwrap().to_vec()));
                steps += 1;
            }
            let positions: Vec<_> = passes.iter().map(WorkerPass::position).collect();
            prop_assert!(positions.iter().all(|position| *position == positions[0]));
            position = positions.into_iter().next();
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, whole);
    }
}

fn values_of(data: &Dataset<HostTensor>, epoch: u64) -> Vec<i64> {
    data.epoch(epoch).flat_map(|batch| batch.unwrap().as_slice::<i64>().unwrap().to_vec()).collect()
}

fn counted(steps: Ids) -> Vec<i64> {
    let mut all: Vec<i64> = steps.into_iter().flatten().flatten().flatten().collect();
    all.sort_unstable();
    all
}

/// Checks that a single worker's batches are split evenly, whatever the policy.
#[test]
fn batches_are_cut_evenly_whatever_the_policy() {
    for policy in [AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off, AutoShardPolicy::File]
    {
        let options = DistributeOptions { policy, ..Default::default() };
        let steps = ids(plan(&Dataset::range(10).batch(4), 1, 3, &options).lockstep(0).unwrap());
        assert_eq!(steps[0], [[vec![0, 1], vec![2], vec![3]]], "{policy}");
        assert_eq!(steps[2], [[vec![8], vec![9], vec![]]], "{policy}");
    }
}

/// Checks DIST-8, AS-6 and AS-2: with TensorFlow's rule, replicas get exactly the rows that they get in TensorFlow.
#[test]
fn tensorflows_rule_cuts_to_the_letter() {
    let rule = SplitRule::TensorFlow;
    let options = |policy| DistributeOptions { policy, rule, ..Default::default() };
    let data = Dataset::range(10).batch(4);
    let steps = ids(plan(&data, 1, 3, &options(AutoShardPolicy::Auto)).lockstep(0).unwrap());
    assert_eq!(
        steps,
        [
            [[vec![0, 1], vec![2, 3], vec![]]],
            [[vec![4, 5], vec![6, 7], vec![]]],
            [[vec![8], vec![9], vec![]]],
        ]
    );
    let steps = ids(plan(&data, 1, 3, &options(AutoShardPolicy::Off)).lockstep(0).unwrap());
    assert_eq!(steps[2], [[vec![8, 9], vec![], vec![]]]);
    let steps =
        ids(plan(&Dataset::range(13).batch(7), 2, 2, &options(AutoShardPolicy::Data)).lockstep(0).unwrap());
    assert_eq!(steps[0], [[vec![0, 1], vec![4, 5]], [vec![2, 3], vec![6]]]);
    assert_eq!(steps[1], [[vec![7, 8], vec![11, 12]], [vec![9, 10], vec![]]]);
    let steps =
        ids(plan(&Dataset::range(16).batch(4), 2, 2, &options(AutoShardPolicy::Off)).lockstep(0).unwrap());
    assert_eq!(steps[1], [[[2], [3]], [[2], [3]]]);
}

/// Checks AS-10: a hint becomes the worker's shard, and a pipeline with a hint needs the policy `Hint`.
#[test]
fn a_hint_is_replaced_where_it_stands() {
    let data = Dataset::range(8).shard_hint().map(|x| 10 * x).batch(4);
    let options = DistributeOptions { policy: AutoShardPolicy::Hint, ..Default::default() };
    let steps = ids(plan(&data, 2, 1, &options).lockstep(0).unwrap());
    assert_eq!(steps, [[[vec![0, 20]], [vec![10, 30]]], [[vec![40, 60]], [vec![50, 70]]]]);
    let refused = Distribution::new(&data, Layout::one_worker(2), DistributeOptions::default());
    assert!(matches!(refused.err(), Some(Error::Hinted)));
}

/// Checks AS-4, DIST-9 and AS-11: sources that are not files, elements that are not batches, and wrong numbers of
/// workers are refused with advice.
#[test]
fn an_impossible_split_is_refused_before_the_first_step() {
    let file = DistributeOptions { policy: AutoShardPolicy::File, ..Default::default() };
    let error = |data: Dataset<HostTensor>, workers, options: &DistributeOptions| {
        Distribution::new(&data, Layout { workers, replicas: 1 }, options.clone()).err().unwrap().to_string()
    };
    let text = error(Dataset::range(8).batch(4), 2, &file);
    assert!(
        text.starts_with("range 0..8 cannot be sharded by files over workers: use AutoShardPolicy::Data"),
        "{text}"
    );
    let single = Dataset::range(8).typed();
    assert!(error(single, 2, &DistributeOptions::default()).contains(".batch(global_batch_size)"));
    assert!(error(Dataset::range(8).batch(4), 0, &file).contains("the number of workers is 0"));
    let plan = plan(&Dataset::range(8).batch(4), 2, 1, &DistributeOptions::default());
    assert!(matches!(plan.worker(2, 0).err(), Some(Error::Worker { worker: 2, workers: 2 })));
}

/// Checks ITER-4 and FN-2: replicas whose dataset has ended get empty batches until all have ended, or all stop with
/// the first of them if the user chose `StopAll`.
#[test]
fn datasets_of_a_function_are_dealt_to_the_replicas() {
    let make = |context: InputContext| {
        let data = Dataset::range(5).shard(context.num_input_pipelines, context.input_pipeline_id);
        Ok(data.batch(2))
    };
    let layout = Layout { workers: 2, replicas: 1 };
    let run = |ends| {
        let options = DistributeOptions { ends, ..Default::default() };
        ids(Distribution::from_function(layout, false, options, make).unwrap().lockstep(0).unwrap())
    };
    assert_eq!(run(UnevenEnds::PadEmpty), [[[vec![0, 2]], [vec![1, 3]]], [[vec![4]], [vec![]]]]);
    assert_eq!(run(UnevenEnds::StopAll), [[[[0, 2]], [[1, 3]]]]);

    let each =
        Distribution::from_function(Layout::one_worker(2), true, DistributeOptions::default(), make).unwrap();
    assert_eq!(ids(each.lockstep(0).unwrap()), [[[vec![0, 2], vec![1, 3]]], [[vec![4], vec![]]]]);
}

/// Checks that `Drop` needs full global batches: over all workers together, not over one worker.
#[test]
fn a_single_worker_has_the_size_of_a_complete_batch() {
    for policy in [AutoShardPolicy::Data, AutoShardPolicy::Off] {
        let options = DistributeOptions { ends: UnevenEnds::Drop, policy, ..Default::default() };
        let plan = plan(&Dataset::range(11).batch(4), 2, 1, &options);
        let steps = ids(plan.lockstep(0).unwrap());
        let rows: Vec<usize> = steps.iter().map(|step| step.concat().concat().len()).collect();
        // Each worker reads all 11 elements: 22 in total, and the last two make no batch.
        let whole = if policy == AutoShardPolicy::Data { 2 } else { 5 };
        assert_eq!(rows, vec![4; whole], "{policy}");
    }
    let data = DistributeOptions { ends: UnevenEnds::Drop, ..Default::default() };
    let mut pass = plan(&Dataset::range(11).batch(4), 2, 1, &data).worker(1, 0).unwrap();
    let mut steps = 0;
    while pass.step().unwrap().is_some() {
        steps += 1;
    }
    assert_eq!(steps, 2);
}

/// Checks ITER-2: there is no empty scalar, and zeros would be data.
#[test]
fn scalars_for_fewer_than_all_replicas_are_an_error_with_advice() {
    let make = |_: InputContext| Ok(Dataset::range(3));
    let plan = Distribution::from_function(Layout::one_worker(2), false, DistributeOptions::default(), make)
        .unwrap();
    let steps: Vec<_> = plan.lockstep(0).unwrap().collect();
    assert_eq!(steps.len(), 2);
    let error = steps[1].as_ref().unwrap_err().to_string();
    assert!(error.starts_with("only 1 of 2 replicas have data for step 1"), "{error}");
}

#[test]
fn a_position_of_something_else_is_refused() {
    let options = DistributeOptions::default();
    let four = plan(&Dataset::range(20).batch(4), 1, 2, &options);
    let mut pass = four.worker(0, 0).unwrap();
    pass.step().unwrap();
    let position = pass.position();
    assert_eq!(position.to_string(), "epoch 0, step 1, begun by 1 worker of 2 replicas in batches of 4");
    let five = plan(&Dataset::range(20).batch(5), 1, 2, &options);
    let error = five.resume(0, &position).err().unwrap().to_string();
    assert!(error.ends_with("cannot be restored: the batch size is 5 here"), "{error}");
    let other = |data: Dataset<i64>| plan(&data.batch(4), 1, 2, &options).check_position(&position);
    other(Dataset::range(20).prefetch(3)).unwrap();
    let error = other(Dataset::range(20).shuffle(5, 1)).unwrap_err().to_string();
    assert!(error.contains("the dataset has other operations here"), "{error}");
    let mut many = position.clone();
    many.origin.layout.workers = usize::MAX;
    assert!(matches!(four.check_position(&many), Err(Error::Position { .. })));
}

#[test]
fn explain_lists_the_partition_of_each_worker_with_reasons() {
    let data = Dataset::range(10).batch(4);
    let plan = plan(&data, 2, 2, &DistributeOptions::default());
    let expected = "range 0..10 (10 elements)
batch 4, last one may be shorter (3 elements)
over 2 workers of 2 replicas, policy DATA (AUTO): range 0..10 cannot be sharded by files over workers: use AutoShardPolicy::Data, or Auto, which detects this
worker 0 reads everything, and takes its rows of each batch; rows of its replicas in a full step: 1 1
worker 1 reads everything, and takes its rows of each batch; rows of its replicas in a full step: 1 1
at the end: a shorter last batch is split evenly; replicas without data get batches without rows until all replicas are at the end
";
    assert_eq!(plan.explain(), expected);
    assert_eq!(values(&Dataset::range(1)), [0]);
}

/// Checks that workers that share batches must have the same ones. Otherwise some elements would be lost and others
/// repeated.
#[test]
fn batches_that_all_share_have_to_be_the_same_for_all() {
    let data = Dataset::range(8).map_unordered(2, |x| x).batch(4);
    let new = |workers, policy| {
        let options = DistributeOptions { policy, ..Default::default() };
        Distribution::new(&data, Layout { workers, replicas: 1 }, options).err()
    };
    let error = new(2, AutoShardPolicy::Auto).unwrap();
    assert!(
        matches!(&error, Error::Unordered { operation } if operation.starts_with("map_unordered")),
        "{error}"
    );
    assert!(new(2, AutoShardPolicy::Off).is_none() && new(1, AutoShardPolicy::Auto).is_none());
}

#[test]
fn a_position_that_no_distribution_gives_is_refused() {
    let options = DistributeOptions::default();
    let plan = plan(&Dataset::range(20).batch(4), 2, 1, &options);
    for policy in [AutoShardPolicy::Auto, AutoShardPolicy::File] {
        let mut position = plan.beginning(0);
        position.origin.policy = Some(policy);
        let error = plan.check_position(&position).unwrap_err();
        assert!(matches!(&error, Error::Position { .. }), "{error}");
    }
}
