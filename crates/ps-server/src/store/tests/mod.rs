//! One server's tables in this process: losses and refusals.

mod changed;
mod closures;
mod comes_back;
mod disks;
mod fuzz;

use super::{Core, StateHeader};
use crate::codec::{Call, Encoded};
use crate::log::{self, open_disk};
use crate::{Durability, OpenError, ServerOptions, inspect};
use distribute_optim::{Momentum, RowAdagrad, RuleSpec, Step, StochasticRounding};
use distribute_ps_tables::{
    Contents, DynamicOptions, Eviction, ImageContents, Initializer, Origin, Push, Refusal, RefusalKind,
    Request, Response, TableSpec,
};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, Wire, Write};
use distribute_testing::{SplitMix, watched};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

type Answers = Vec<Result<Response, Refusal>>;

fn options(folder: &Path) -> ServerOptions {
    ServerOptions::new(folder).snapshot_every(Duration::from_secs(3600))
}

fn open(folder: &Path) -> Core {
    Core::open(options(folder), Arc::new(open_disk)).unwrap()
}

fn ask(core: &Core, first: u64, request: Request) -> Answers {
    let message = Encoded::new(request, Wire::Full).unwrap().message(5, first).unwrap();
    core.answer(&Call::decode(message).unwrap())
}

fn tables() -> Request {
    let initializer = Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, 3, "ids");
    let options = DynamicOptions {
        admit_after: 2,
        max_rows: Some(40),
        max_age: Some(9),
        waiting: 50,
        eviction: Eviction::LeastFrequent,
    };
    let contents = Contents::Dynamic { row_shape: vec![3], dtype: DType::F64, initializer, options };
    // One slot has a number for each row, and the other the shape of the values.
    let rule = RuleSpec::RowAdagrad(RowAdagrad::default());
    let averaged = RuleSpec::Averaged { ema_momentum: 0.9, of: Box::new(rule.clone()) };
    Request::Batch(vec![
        Request::Create(TableSpec { name: "ids".into(), contents, rule: Some(averaged), rounding: None }),
        Request::Create(
            TableSpec::values("w", HostTensor::new(vec![1f32; 3000], [1000, 3]).unwrap())
                .rule(rule)
                .rounding(StochasticRounding::new(5, 6)),
        ),
        Request::Create(TableSpec::values("count", HostTensor::scalar(0i64))),
        Request::Create(TableSpec::values("names", HostTensor::vector(vec![b"ab".to_vec(), Vec::new()]))),
    ])
}

/// Returns the `i`-th change of a training run.
fn change(i: u64) -> Request {
    let mut random = SplitMix(i);
    let push = Push::at(Step::after(i, 0.1));
    let rows: Vec<i64> = (0..20).map(|_| random.below(70) as i64).collect();
    match random.below(9) {
        0 => Request::Push {
            table: "w".into(),
            push,
            gradient: HostTensor::new(vec![i as f32; 3000], [1000, 3]).unwrap(),
        },
        1..3 => {
            let gradient = HostTensor::new((0..60).map(|x| (x + i) as f32).collect(), [20, 3]).unwrap();
            Request::PushRows { table: "w".into(), push, rows, gradient }
        }
        3..6 => {
            let gradient = HostTensor::new((0..60).map(|x| (x * i) as f64).collect(), [20, 3]).unwrap();
            Request::PushRows { table: "ids".into(), push, rows, gradient }
        }
        6 => Request::Evict { table: "ids".into(), now: i },
        // This request is refused.
        7 => Request::Write { table: "w".into(), how: Write::Add, value: HostTensor::scalar(i as f32) },
        _ => Request::Write { table: "count".into(), how: Write::Add, value: HostTensor::scalar(1i64) },
    }
}

fn is_refused(i: u64) -> bool {
    matches!(&change(i), Request::Write { table, .. } if table == "w")
}

/// Returns the whole state, except versions.
fn contents(core: &Core) -> Vec<String> {
    let image = |name: &String| {
        let mut image = core.tables.image(name).unwrap().unwrap();
        if let ImageContents::Dense(state) = &mut image.contents {
            state.version = 0;
        }
        format!("{image:?}")
    };
    core.tables.names().iter().map(image).chain([format!("{:?}", core.ledger.clients())]).collect()
}
