//! Shared code of the tests of failures: a small model, and the checks after every failure.

pub use crate::support::tensor;
use candle_core::Tensor;
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::prelude::*;
use distribute::{Error, Result};

/// Returns the error of a run of `body`, in which one replica makes a wrong call. Checks that runs before and after it
/// succeed.
pub fn fault<R: Send>(replicas: usize, body: impl Fn(&ReplicaContext) -> Result<R> + Sync) -> Error {
    let strategy = MirroredStrategy::cpus(replicas).unwrap();
    fault_on(&strategy, body)
}

/// Acts like [`fault`], on an existing strategy. The faulty run is the strategy's second one.
pub fn fault_on<R: Send>(strategy: &Strategy, body: impl Fn(&ReplicaContext) -> Result<R> + Sync) -> Error {
    healthy(strategy);
    let error = strategy.run((), |ctx, ()| body(ctx)).map(|_| ()).expect_err("the fault is an error");
    assert!(error.to_string().contains("failed in step 2"), "{error}");
    healthy(strategy);
    error
}

/// Makes every kind of call in a run, and checks the results.
pub fn healthy(strategy: &Strategy) {
    let n = strategy.num_replicas_in_sync();
    let sums = strategy.run((), |ctx, ()| {
        let id = ctx.replica_id_in_sync_group() as i64;
        let sum = ctx.all_reduce(ReduceOp::Sum, id)?;
        let all = ctx.all_gather(HostTensor::vector(vec![id]), 0)?;
        let count = ctx.merge_call(id, |_, ids| Ok(ids.len() as i64))?;
        Ok((sum, all.to_vec::<i64>()?, count))
    });
    let ids: Vec<i64> = (0..n as i64).collect();
    for (sum, all, count) in sums.expect("the strategy can be used again") {
        assert_eq!((sum, &all, count), (ids.iter().sum(), &ids, n as i64));
    }
}

/// Checks that the message of an error contains all `parts`.
#[track_caller]
pub fn assert_message(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// A linear model and its optimizer, with everything that a step needs.
pub struct Training {
    pub model: Replicated<Linear>,
    pub optimizer: Sgd,
}

impl Training {
    pub fn new(strategy: &Strategy) -> Self {
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb.pp("fc"))).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.01).unwrap();
        Self { model, optimizer }
    }

    pub fn loss(&self, ctx: &ReplicaContext) -> Result<Tensor> {
        let id = ctx.replica_id_in_sync_group();
        let input = tensor(&[1., id as f32]).unsqueeze(0)?;
        Ok(self.model.models().values()[id].forward(&input)?.sqr()?.mean_all()?)
    }

    #[track_caller]
    pub fn minimize(&self, ctx: &ReplicaContext) -> Result<Tensor> {
        self.optimizer.minimize(ctx, self.loss(ctx)?, 1)
    }
}
