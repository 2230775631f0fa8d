//! Tests: the end of a pass.

use super::*;

/// Checks AS-7, ITER-2 and ITER-4: a worker whose function made a dataset without elements gets empty batches while
/// others continue.
#[test]
fn a_dataset_without_elements_has_empty_batches() {
    let make = |context: InputContext| {
        let x = HostTensor::new(vec![0f32; 6], [3, 2]).unwrap();
        let data = Dataset::from_slices(x).unwrap();
        Ok(data.take(if context.input_pipeline_id == 0 { 3 } else { 0 }).batch(2))
    };
    let layout = Layout { workers: 2, replicas: 1 };
    let plan = Distribution::from_function(layout, false, DistributeOptions::default(), make).unwrap();
    let steps: Vec<_> = plan.lockstep(0).unwrap().map(Result::unwrap).collect();
    let dims =
        |step: &Vec<Vec<HostTensor>>| step.iter().flatten().map(|x| x.dims().to_vec()).collect::<Vec<_>>();
    assert_eq!(steps.iter().map(dims).collect::<Vec<_>>(), [[[2, 2], [0, 2]], [[1, 2], [0, 2]]]);
}

/// Checks that a pass has no more steps after its end or an error.
#[test]
fn an_iterator_stays_finished_after_the_end_or_an_error() {
    let sizes = [4usize, 3, 4];
    let data = Dataset::from_items(sizes.map(|n| HostTensor::vector(vec![0i64; n])));
    let options = DistributeOptions { ends: UnevenEnds::Drop, ..Default::default() };
    let mut pass = plan(&data, 1, 1, &options).worker(0, 0).unwrap();
    let steps: Vec<bool> = (0..4).map(|_| pass.step().unwrap().is_some()).collect();
    assert_eq!(steps, [true, false, false, false]);

    let data = Dataset::range(6).try_map(|x| if x == 2 { Err("bad") } else { Ok(x) }).batch(2);
    let mut pass = plan(&data, 1, 1, &DistributeOptions::default()).worker(0, 0).unwrap();
    assert!(pass.step().unwrap().is_some());
    assert!(pass.step().is_err());
    assert!(pass.step().unwrap().is_none());
}

/// Checks that the size of a full step is that of the first step of the pass, not of the first step after the
/// position.
#[test]
fn a_short_batch_is_dropped_after_a_position() {
    let options = DistributeOptions { ends: UnevenEnds::Drop, ..Default::default() };
    let data = Dataset::range(10).batch(4).map(|batch: HostTensor| batch);
    let mut pass = plan(&data, 1, 2, &options).worker(0, 0).unwrap();
    assert_eq!((0..2).filter(|_| pass.step().unwrap().is_some()).count(), 2);
    for replicas in [2, 3] {
        let mut pass = plan(&data, 1, replicas, &options).resume(0, &pass.position()).unwrap();
        assert!(pass.step().unwrap().is_none(), "{replicas}");
    }
}

/// Checks ITER-2: a missing empty batch is noticed before the workers decide, so no worker takes a step that another
/// cannot.
#[test]
fn a_worker_reports_before_a_step_that_it_has_no_empty_batch() {
    let layout = Layout { workers: 2, replicas: 2 };
    let make = |context: InputContext| Ok(Dataset::range([2, 4][context.input_pipeline_id]));
    let plan = Distribution::from_function(layout, false, DistributeOptions::default(), make).unwrap();
    let mut passes = [0, 1].map(|worker| plan.worker(worker, 0).unwrap());
    for (step, unfilled) in [0, 2].into_iter().enumerate() {
        let counts = passes.each_mut().map(|pass| pass.prepare().unwrap());
        assert_eq!(counts.map(|counts| counts.unfilled), [unfilled, 0]);
        for pass in &mut passes {
            let all = pass.total(&counts).unwrap();
            let taken = pass.finish(all).map(|pieces| pieces.is_some()).map_err(|error| error.to_string());
            match step {
                0 => assert_eq!(taken, Ok(true)),
                _ => assert!(taken.unwrap_err().starts_with("only 2 of 4 replicas have data for step 1")),
            }
        }
    }
}

/// Checks that a worker that ends before others is an error if workers take parts of the same batches, because they
/// have read different data. With [`AutoShardPolicy::Off`], it is not.
#[test]
fn a_worker_that_ends_before_others_is_named_where_all_read_the_same() {
    for (policy, refused) in [(AutoShardPolicy::Data, true), (AutoShardPolicy::Off, false)] {
        let options = DistributeOptions { policy, ..Default::default() };
        let layout = Layout { workers: 2, replicas: 1 };
        let mut passes = [8, 4].map(|n| {
            let plan = Distribution::new(&Dataset::range(n).batch(4), layout, options.clone()).unwrap();
            plan.worker(usize::from(n == 4), 0).unwrap()
        });
        let mut seen = Vec::new();
        for _ in 0..2 {
            let counts = passes.each_mut().map(|pass| pass.prepare().unwrap());
            for pass in &mut passes {
                seen.push(pass.total(&counts).map_err(|error| error.to_string()));
                pass.finish(counts.into_iter().sum()).unwrap();
            }
        }
        assert!(seen[..2].iter().all(Result::is_ok));
        for end in &seen[2..] {
            match end {
                Err(error) => {
                    assert!(error.starts_with("at step 1, worker 1 is at the end of the data"), "{error}")
                }
                Ok(_) => assert!(!refused),
            }
        }
    }
}
