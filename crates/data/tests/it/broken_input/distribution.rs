//! Tests: inputs that cannot be partitioned over workers and replicas.

use super::{broken, end, file, refused};
use distribute_data::{
    AutoShardPolicy, Dataset, DistributeOptions, Distribution, Files, Layout, SplitRule, UnevenEnds, split,
    text_lines,
};
use distribute_tensor::HostTensor;
use distribute_testing::watched;

// AS-5
#[test]
fn fewer_files_than_workers() {
    watched(|| {
        let lines = Files::from([file("a.txt", "0\n1\n2\n"), file("b.txt", "3\n4\n")]);
        let data = text_lines(lines).batch(2);
        let layout = Layout { workers: 3, replicas: 1 };
        let with = |policy| {
            Distribution::new(&data, layout, DistributeOptions { policy, ..DistributeOptions::default() })
        };
        refused(
            with(AutoShardPolicy::File),
            "a source has 2 file(s), not enough for 3 workers: write more files, or use AutoShardPolicy::Data",
        );
        // With `Auto`, batches are split instead, and the decision states the reason.
        let auto = with(AutoShardPolicy::Auto).unwrap();
        let decision = auto.decision().unwrap();
        assert!(decision.fell_back && decision.taken == AutoShardPolicy::Data, "{decision:?}");
        let rows = auto.lockstep(0).unwrap().flat_map(Result::unwrap).flatten().map(|piece| piece.dims()[0]);
        assert_eq!(rows.sum::<usize>(), 5);
    });
}

#[test]
fn sources_that_cannot_be_partitioned_as_requested() {
    let layout = Layout { workers: 2, replicas: 1 };
    let data = Dataset::range(8);
    let with = |data: &Dataset<i64>, policy| {
        let options = DistributeOptions { policy, ..DistributeOptions::default() };
        Distribution::new(&data.batch(2), layout, options)
    };
    // AS-4, AS-10, AS-11
    refused(
        with(&data, AutoShardPolicy::File),
        "range 0..8 cannot be sharded by files over workers: use AutoShardPolicy::Data, or Auto, which \
         detects this",
    );
    let hinted = with(&data.shard_hint(), AutoShardPolicy::Auto);
    refused(
        hinted,
        "shard_hint only marks the position at which to shard the dataset: distribute it with \
         AutoShardPolicy::Hint, or call `shard(workers, index)` instead",
    );
    refused(
        with(&data.shard(2, 2), AutoShardPolicy::Off),
        "there is no worker 2: there are 2, counted from 0",
    );
}

// DIST-12
#[test]
fn datasets_of_different_lengths_side_by_side() {
    watched(|| {
        let odd = |n| Dataset::range(n).filter(|x| x % 2 == 1);
        let ends = |shorter, other| {
            format!("zip_equal: the {shorter} dataset ends after 2 elements, the other doesn't ({other})")
        };
        broken(odd(9).zip_equal(&odd(4)), 2, &ends("second", "length unknown"));
        broken(odd(4).zip_equal(&odd(9)), 2, &ends("first", "length unknown"));
        let numbers = Dataset::range(2).zip_equal(&Dataset::range(3));
        refused(numbers.check(), &ends("first", "3 elements"));
        refused(numbers.iter().next().unwrap(), &ends("first", "3 elements"));
        let has = |n, found| {
            format!("assert_cardinality: there must be {n} elements, but this dataset has {found}")
        };
        broken(odd(9).assert_cardinality(3), 3, &has(3, "more"));
        broken(odd(9).assert_cardinality(5), 4, &has(5, "4 elements"));
        let unequal = Dataset::range(4).batch(2).zip(&Dataset::range(6).batch(3));
        let plan = Distribution::new(&unequal, Layout::one_worker(2), DistributeOptions::default()).unwrap();
        let rows = "needs equal sizes of axis 0: value[0] has 2 rows, value[1] has 3";
        assert_eq!(end(plan.lockstep(0).unwrap()), (0, format!("split a batch {rows}")));
        let (x, y) = (HostTensor::vector(vec![0i64; 2]), HostTensor::vector(vec![0i64; 3]));
        refused(Dataset::from_slices((x, y)), &format!("from_slices {rows}"));
    });
}

// DIST-9, ITER-2
#[test]
fn scalars_where_a_batch_is_needed() {
    watched(|| {
        let two = Layout::one_worker(2);
        let plan = |data: &Dataset<HostTensor>| Distribution::new(data, two, DistributeOptions::default());
        let advice =
            "so it cannot be split over replicas: call `.batch(global_batch_size)` on the dataset first";
        let numbers = Dataset::range(3).typed::<HostTensor>();
        refused(plan(&numbers), &format!("the elements of the dataset are not batches, {advice}"));
        // The elements of a function are checked when they are created.
        let error = format!("value of an element is a scalar, {advice}");
        assert_eq!(end(plan(&numbers.map(|x| x)).unwrap().lockstep(0).unwrap()), (0, error.clone()));
        refused(split(HostTensor::scalar(1i64), 2, SplitRule::Even), &error);

        // The elements of a function's datasets need not be batches if there are enough for all replicas.
        let each = |ends| {
            let options = DistributeOptions { ends, ..DistributeOptions::default() };
            let plan = Distribution::from_function(two, false, options, |_| Ok(Dataset::range(3)));
            end(plan.unwrap().lockstep(0).unwrap())
        };
        assert_eq!(each(UnevenEnds::StopAll), (1, "no error".into()));
        let (steps, error) = each(UnevenEnds::PadEmpty);
        assert!(
            steps == 1 && error.starts_with("only 1 of 2 replicas have data for step 1, and no"),
            "{error}"
        );

        let error = "needs rows, but value is a scalar: it has no axis 0 to split";
        let scalar = || HostTensor::scalar(1i64);
        refused(Dataset::from_slices(scalar()), &format!("from_slices {error}"));
        broken(Dataset::from_items([scalar()]).unbatch::<i64>(), 0, &format!("unbatch {error}"));
        broken(Dataset::from_items([scalar()]).rebatch(&[1]), 0, &format!("rebatch {error}"));
    });
}
