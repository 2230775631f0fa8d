use crate::{Momentum, Transform};
use candle_core::{Device, Module, Tensor, Var};
use candle_nn::VarBuilder;
use distribute_base::Result;
use distribute_collective::group::Links;
use distribute_core::{CommunicationOptions, ReplicaContext, Strategy};
use distribute_nn::{Linear, linear};
use distribute_strategies::{MirroredStrategy, MultiWorkerMirroredStrategy};
use distribute_testing::watched;

/// A width at which each weight is a separate pack.
const WIDTH: usize = 264;
const STEPS: usize = 6;
/// The indices of the steps in which the model is used in a different way than in the others.
const OTHER: [usize; 2] = [2, 3];

/// The reason why gradients are not sent early, in some or all steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    Nothing,
    /// A layer is used more often than in the step before, so its gradient changes after it has been sent.
    UsedAgain,
    /// candle adds a gradient to that of a layer.
    Penalty,
    /// A layer has no gradient on one replica.
    Unused,
    /// A replica has no examples.
    NoExamples,
    /// Gradients are transformed before they are reduced.
    Clipped,
}

/// Each case, with the numbers of the steps (from 1) in which gradients are sent late. Step 1 is late because workers
/// learn the layout in it. A later step is late if its gradients cannot be sent early; then workers learn it again.
const CASES: [(Case, &[u64]); 6] = [
    (Case::Nothing, &[1]),
    (Case::UsedAgain, &[1, 3]),
    (Case::Penalty, &[1, 3]),
    (Case::Unused, &[1]),
    (Case::NoExamples, &[1, 3, 4]),
    (Case::Clipped, &[1, 2, 3, 4, 5, 6]),
];

struct Model {
    layers: [Linear; 3],
    weight: Tensor,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let layer = |name: &str| linear(WIDTH, WIDTH, vb.pp(name));
        let layers = [layer("c")?, layer("a")?, layer("b")?];
        Ok(Self { layers, weight: vb.pp("a").get((WIDTH, WIDTH), "weight")? })
    }

    fn loss(&self, case: Case, step: usize, replica: usize) -> Result<(Tensor, usize)> {
        let (other, first) = (OTHER.contains(&step), replica == 0);
        let mut x = Tensor::full((replica + step + 1) as f32 * 0.01, (3, WIDTH), &Device::Cpu)?;
        for (at, layer) in self.layers.iter().enumerate() {
            if (case, other, first, at) == (Case::Unused, true, true, 1) {
                continue;
            }
            x = layer.forward(&x)?.tanh()?;
        }
        if (case, other) == (Case::UsedAgain, true) {
            x = self.layers[2].forward(&x)?;
        }
        let mut loss = x.sqr()?.mean_all()?;
        if (case, other) == (Case::Penalty, true) {
            loss = (loss + (self.weight.sqr()?.mean_all()? * 0.1)?)?;
        }
        let none = (case, other, first) == (Case::NoExamples, true, true);
        Ok((loss, if none { 0 } else { 3 + replica }))
    }
}

/// Trains a model, and returns the bits of its weights.
fn train(strategy: &Strategy, case: Case, sharded: bool) -> Result<Vec<Vec<u32>>> {
    let model = strategy.replicate(|vb: VarBuilder| Model::new(vb))?;
    let mut optimizer = Momentum::new(&model.variables, 0.1)?;
    if sharded {
        optimizer = optimizer.shard_state()?;
    }
    if case == Case::Clipped {
        optimizer = optimizer.before_reduce(Transform::clip_by_norm(0.01))?;
    }
    for step in 0..STEPS {
        strategy.run(&model, |ctx: &ReplicaContext, model: &Model| {
            let (loss, examples) = model.loss(case, step, ctx.replica_id_in_sync_group())?;
            optimizer.minimize(ctx, loss, examples)
        })?;
    }
    let bits = |variable: &Var| -> Result<Vec<u32>> {
        Ok(variable.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    };
    optimizer.inner.parameters.variables.iter().map(|(_, variable)| bits(variable)).collect()
}

/// Returns the sequence numbers of the steps in which gradients were sent after the headers.
fn late(strategy: &Strategy) -> Vec<u64> {
    let group = strategy.extended().group().unwrap();
    let mut late: Vec<_> = group
        .last_calls()
        .into_iter()
        .filter(|call| call.call.detail.contains("its gradients"))
        .map(|call| call.step)
        .collect();
    late.sort_unstable();
    late.dedup();
    late
}

// INV-7, INV-35
#[test]
fn early_sends_of_gradients_are_bit_identical_to_one_process() {
    watched(|| {
        let options = CommunicationOptions::default();
        for (at, (case, expected)) in CASES.into_iter().enumerate() {
            for workers in [2, 3] {
                let one = train(&MirroredStrategy::cpus(workers).unwrap(), case, false).unwrap();
                let links = [Links::Memory, Links::Tcp, Links::Shared][(at + workers) % 3];
                let all =
                    MultiWorkerMirroredStrategy::on_threads_over(links, options, workers, 1, |strategy| {
                        Ok((train(strategy, case, false)?, late(strategy)))
                    });
                for (bits, late) in all.unwrap() {
                    assert!(bits == one, "{case:?} on {workers} workers over {links:?}");
                    // With more workers, a call in several parts is recorded as its last part, the sums.
                    assert!(workers > 2 || late == expected, "{case:?} over {links:?}: {late:?}");
                }
            }
        }
    });
}

// INV-7, INV-35, INV-40
#[test]
fn early_sends_to_the_owners_of_ranges_are_bit_identical_to_one_process() {
    watched(|| {
        let options = CommunicationOptions::default();
        for (at, (case, expected)) in CASES.into_iter().enumerate() {
            for workers in [2, 3, 4] {
                let one = train(&MirroredStrategy::cpus(workers).unwrap(), case, false).unwrap();
                let links = [Links::Memory, Links::Tcp, Links::Shared][(at + workers) % 3];
                let all =
                    MultiWorkerMirroredStrategy::on_threads_over(links, options, workers, 1, |strategy| {
                        Ok((train(strategy, case, true)?, late(strategy)))
                    });
                for (bits, late) in all.unwrap() {
                    assert!(bits == one, "{case:?} on {workers} workers over {links:?}");
                    assert_eq!(late, expected, "{case:?} on {workers} workers over {links:?}");
                }
            }
        }
    });
}
