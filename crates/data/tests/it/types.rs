//! The types of batches, and the types that can be sent between threads.

use distribute_data::{Dataset, Error, Iter};
use distribute_tensor::HostTensor;

#[test]
fn containers_are_batched_member_by_member() {
    let data = Dataset::range(4).map(|i| (vec![i, -i], Some([i as f32]), "ab".repeat(i as usize)));
    let (list, some, text) = data.batch(4).iter().next().unwrap().unwrap();
    assert_eq!(list[1].as_slice::<i64>().unwrap(), [0, -1, -2, -3]);
    assert_eq!(some.unwrap()[0].dims(), [4]);
    assert_eq!(text.as_slice::<Vec<u8>>().unwrap()[1], b"ab");
}

#[test]
fn datasets_and_passes_can_move_to_other_threads() {
    fn check<T: Send>() {}
    fn check_shared<T: Send + Sync>() {}
    check_shared::<Dataset<HostTensor>>();
    check::<Iter<HostTensor>>();
    check_shared::<Error>();
}
