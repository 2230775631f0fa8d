//! A test that docs/reference/protocol.md shows the bytes that this crate writes.

use super::Encoded;
use distribute_optim::Step;
use distribute_ps_tables::{Push, Request};
use distribute_tensor::{HostTensor, Wire};
use distribute_testing::compare_bytes;

const PAGE: &str = "reference/protocol.md";

#[test]
fn the_page_of_the_protocol_has_the_bytes_of_requests() {
    let list = Encoded::new(Request::List, Wire::Full).unwrap().message(77, 0).unwrap();
    compare_bytes(PAGE, "call-list", &list.head);
    let gradient = HostTensor::new(vec![0.5f32, -1.], [1, 2]).unwrap();
    let push = Push::at(Step::after(0, 0.25)).counted();
    let push = Request::PushRows { table: "w".into(), push, rows: vec![3], gradient };
    let push = Encoded::new(push, Wire::Full).unwrap().message(77, 1000).unwrap();
    compare_bytes(PAGE, "call-push", &push.head);
    compare_bytes(PAGE, "body-push", &push.body);
}
