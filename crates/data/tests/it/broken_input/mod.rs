//! Broken input, by source and operation: the number of elements before the error, and its text. The error names the
//! file and the position in it, or the element.
//!
//! Each case is read directly, again, after a `prefetch`, and by two workers, and ends in the same way each time. Then
//! the pass is over, and nothing hangs.

mod distribution;
mod elements;
mod files;
mod skipped;

use distribute_data::{AutoShardPolicy, Dataset, DistributeOptions, Distribution, Layout, Location, Result};
use distribute_tensor::Nest;

/// Returns the number of elements and the error that ends the pass.
fn end<T>(mut pass: impl Iterator<Item = Result<T>>) -> (usize, String) {
    let mut elements = 0;
    for element in pass.by_ref() {
        match element {
            Ok(_) => elements += 1,
            Err(error) => {
                assert!(pass.next().is_none(), "after {error} the pass is over");
                return (elements, error.to_string());
            }
        }
    }
    (elements, "no error".into())
}

/// Checks that the pass ends with this error after this number of elements.
#[track_caller]
fn broken<T: Nest + 'static>(data: Dataset<T>, elements: usize, error: &str) {
    let expected = (elements, error.to_string());
    assert_eq!(end(data.iter()), expected);
    assert_eq!(end(data.iter()), expected, "once more");
    assert_eq!(end(data.prefetch(2).iter()), expected, "behind a prefetch");
    let layout = Layout { workers: 2, replicas: 1 };
    let options = DistributeOptions { policy: AutoShardPolicy::Data, ..DistributeOptions::default() };
    let workers = Distribution::new(&data.batch(1), layout, options).unwrap();
    assert_eq!(end(workers.lockstep(0).unwrap()), expected, "on two workers");
}

#[track_caller]
fn refused<T>(result: Result<T>, error: &str) {
    assert_eq!(result.map(|_| ()).unwrap_err().to_string(), error);
}

fn file(name: &str, bytes: impl Into<Vec<u8>>) -> Location {
    Location::bytes(name, bytes.into())
}
