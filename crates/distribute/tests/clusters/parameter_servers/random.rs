//! Random programs on a variable, whose results and errors must be the same on servers as in one process.

use crate::parameter_servers::support::servers;
use distribute::tensor::{DType, Index, IndexedSlices};
use distribute::{HostTensor, OneDeviceStrategy, Result, Variable};
use distribute_testing::watched;
use proptest::prelude::*;

const ROWS: usize = 7;
const WIDTH: usize = 2;

/// An operation on a variable.
#[derive(Clone, Debug)]
enum Op {
    Write(usize, i64),
    Scatter(usize, Vec<i64>),
    Gather(Vec<i64>),
    Slice(Vec<Index>),
    Read,
}

fn ops() -> BoxedStrategy<Op> {
    // Some ids are outside the table.
    let ids = || prop::collection::vec(prop_oneof![9 => 0..ROWS as i64, 1 => -2i64..9], 0..6);
    let number = || prop::option::of(-9i64..9);
    let index = prop_oneof![
        (-8i64..8).prop_map(Index::At),
        (number(), number(), prop_oneof![-2i64..0, 1i64..4]).prop_map(|(a, b, c)| Index::slice(a, b, c)),
        Just(Index::Ellipsis),
    ];
    prop_oneof![
        (0usize..3, -9i64..9).prop_map(|(how, value)| Op::Write(how, value)),
        (0usize..7, ids()).prop_map(|(how, ids)| Op::Scatter(how, ids)),
        ids().prop_map(Op::Gather),
        prop::collection::vec(index, 0..3).prop_map(Op::Slice),
        Just(Op::Read),
    ]
    .boxed()
}

/// Runs an operation. Returns its result, or `None` if it is an error, and the value of the variable afterwards.
fn run(op: &Op, variable: &Variable, dtype: DType) -> (Option<HostTensor>, HostTensor) {
    let numbers = |rows: usize, from: i64| {
        let values = (0..(rows * WIDTH) as i64).map(|i| from + i).collect::<Vec<_>>();
        HostTensor::new(values, [rows, WIDTH]).unwrap().cast(dtype).unwrap()
    };
    let done = |result: Result<()>| result.map(|()| numbers(0, 0));
    let result = match op {
        Op::Write(how, value) => {
            let value = numbers(ROWS, *value);
            done(match how {
                0 => variable.assign(value),
                1 => variable.assign_add(value),
                _ => variable.assign_sub(value),
            })
        }
        Op::Scatter(how, ids) => {
            let rows = IndexedSlices::new(numbers(ids.len(), 1), HostTensor::vector(ids.clone()), None);
            // A negative index is refused.
            let Ok(rows) = rows else { return (None, variable.read().unwrap()) };
            done(match how {
                0 => variable.scatter_add(rows),
                1 => variable.scatter_sub(rows),
                2 => variable.scatter_mul(rows),
                3 => variable.scatter_div(rows),
                4 => variable.scatter_min(rows),
                5 => variable.scatter_max(rows),
                _ => variable.scatter_update(rows),
            })
        }
        Op::Gather(ids) => variable.gather(ids),
        Op::Slice(indices) => variable.slice(indices),
        Op::Read => variable.read(),
    };
    (result.ok(), variable.read().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_variable_on_servers_is_one_of_one_process(
        program in prop::collection::vec(ops(), 1..12),
        dtype in prop::sample::select(vec![DType::F32, DType::F64, DType::I32, DType::U8]),
        (count, shards) in (1usize..4, 1usize..9),
    ) {
        watched(move || {
            let make = |strategy: distribute::Strategy| {
                let zeros = HostTensor::zeros(dtype, [ROWS, WIDTH]).unwrap();
                strategy.scope(|| Variable::new("v", zeros)).unwrap()
            };
            let here = make(OneDeviceStrategy::new("cpu:0").unwrap());
            let there = make(servers(count, shards).into());
            for op in &program {
                let (expected, found) = (run(op, &here, dtype), run(op, &there, dtype));
                // NaN equals nothing: bits are compared.
                let same = |a: &HostTensor, b: &HostTensor| a.same_bits(b);
                let results = match (&expected.0, &found.0) {
                    (Some(a), Some(b)) => same(a, b),
                    (None, None) => true,
                    _ => false,
                };
                assert!(results && same(&expected.1, &found.1), "{op:?}: {expected:?}, on servers {found:?}");
            }
        });
    }
}
