//! Tests: elements that do not fit together, and functions of users that fail.

use super::{broken, end, file, refused};
use distribute_data::{
    Cause, Dataset, DistributeOptions, Distribution, Interleave, Layout, Padding, text_lines,
};
use distribute_tensor::HostTensor;
use distribute_testing::watched;

#[test]
fn elements_that_do_not_fit_together() {
    watched(|| {
        let rows = Dataset::range(4).map(|n| HostTensor::vector(vec![n; 2 + n as usize / 2]));
        let (differs, advice) =
            ("differs from element 0: stack: shapes differ: [2] and [3]", "structure, dtype and shape");
        broken(
            rows.batch(3),
            0,
            &format!(
                "batch 0 cannot be assembled from its 3 elements: at value: element 2 {differs}; values \
                 are never broadcast; all elements of a batch need the same {advice}"
            ),
        );
        let error =
            "padded_batch: value of element 2 cannot be padded: axis 0 has size 3, more than the requested 2";
        broken(rows.padded_batch(4, Padding::new().sizes([vec![Some(2)]])), 0, error);

        // The type is checked only where it is needed.
        let (elements, error) = end(Dataset::range(2).typed::<f32>().iter());
        assert!(
            elements == 0 && error.starts_with("iterate: element 0 has another type than the dataset says"),
            "{error}"
        );
        let (elements, error) = end(text_lines(file("a.txt", b"one\n\xff\n".to_vec())).iter());
        assert!(
            elements == 1 && error.starts_with("iterate: element 1 has another type than the dataset says"),
            "{error}"
        );
    });
}

// INV-13
#[test]
fn functions_that_fail_or_panic() {
    watched(|| {
        let data = Dataset::range(8);
        let fail = |n: i64| if n == 5 { Err("no five") } else { Ok(n) };
        let panics = |n: i64| if n == 5 { panic!("no five") } else { n };
        let error = "map failed at element 5: no five";
        let panicked =
            |operation| format!("the function given to {operation} panicked at element 5: no five");
        broken(data.try_map(fail), 5, error);
        broken(data.try_map_parallel(2, fail), 5, "map_parallel failed at element 5: no five");
        broken(data.skip(2).try_map(fail), 3, "map failed at element 3: no five");
        broken(data.map(panics), 5, &panicked("map"));
        broken(data.map_parallel(2, panics), 5, &panicked("map_parallel"));
        // `map_unordered` cannot be used by two workers that must see the same batches.
        let unordered = data.map_unordered(1, panics);
        assert_eq!(end(unordered.iter()), (5, panicked("map_unordered")));
        broken(data.filter(move |n| panics(*n) < 9), 5, &panicked("filter"));
        broken(data.take_while(move |n| panics(*n) < 9), 5, &panicked("take_while"));
        broken(data.try_map(fail).cache(), 5, error);
        broken(data.try_map(fail).shuffle(1, 7).repeat(2), 5, error);

        let inner = move |n| fail(n).map(|n| Dataset::range(n..n + 1));
        broken(data.try_flat_map(inner), 5, "flat_map: the dataset of element 5 failed: no five");
        broken(data.flat_map(move |n| Dataset::range(panics(n)..n + 1)), 5, &panicked("flat_map"));
        broken(
            data.flat_map(move |n| Dataset::range(n..n + 1).try_map(fail)),
            5,
            "flat_map: the dataset of element 5 failed: map failed at element 0: no five",
        );
        let turns = Interleave { cycle_length: 1, ..Interleave::default() };
        broken(data.try_interleave(inner, turns), 5, "interleave: the dataset of element 5 failed: no five");

        broken(
            Dataset::from_generator(move || (0..8).map(fail)),
            5,
            "the generator failed at element 5: no five",
        );
        broken(
            Dataset::from_generator(move || (0..8).map(panics).map(Ok::<_, Cause>)),
            5,
            &panicked("from_generator"),
        );

        let made = Distribution::<i64>::from_function(
            Layout::one_worker(1),
            false,
            DistributeOptions::default(),
            |_| Err("no five".into()),
        );
        refused(
            made.unwrap().lockstep(0),
            "the function that makes datasets failed for input pipeline id 0, total: 1: no five",
        );
    });
}

#[test]
fn parameters_that_make_no_sense() {
    watched(|| {
        let data = Dataset::range(8);
        for (broken, error) in [
            (data.batch(0), "batch: the size is 0, but must be at least 1"),
            (data.shuffle(0, 1).batch(1), "shuffle: the buffer is 0, but must be at least 1"),
            (data.shard(2, 2).batch(1), "there is no worker 2: there are 2, counted from 0"),
            (
                data.map_parallel(0, |x| x).batch(1),
                "map_parallel: the number of threads is 0, but must be at least 1",
            ),
            (data.batch(2).rebatch(&[]), "rebatch: the largest size is 0, but must be at least 1"),
            (data.padded_batch(0, Padding::new()), "padded_batch: the size is 0, but must be at least 1"),
        ] {
            refused(broken.check(), error);
            refused(broken.iter().next().unwrap(), error);
        }
    });
}
