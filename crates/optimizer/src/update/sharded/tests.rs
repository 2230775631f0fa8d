use crate::Optimizer;
use crate::rules::{Float, Formula, SlotSpec, Step};
use candle_core::{Device, Module, Tensor};
use candle_nn::{VarBuilder, linear};
use distribute_base::Error;
use distribute_cluster::Fault;
use distribute_collective::group::Links;
use distribute_core::{CommunicationOptions, ReplicaContext, Strategy};
use distribute_strategies::MultiWorkerMirroredStrategy;
use distribute_testing::watched;
use std::fmt;
use std::time::Duration;

/// A momentum rule that ends its worker's group in the step `in_step`, after the worker has received all gradients.
pub(super) struct Ends {
    pub(super) strategy: Strategy,
    pub(super) in_step: u64,
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ends")
    }
}

impl Formula for Ends {
    type Slots<T: Copy> = [T; 1];

    fn label(&self) -> &'static str {
        "ends"
    }

    fn layout(&self) -> [SlotSpec; 1] {
        [SlotSpec::zeros("m")]
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
        if at.number() == self.in_step {
            self.strategy.extended().group().unwrap().end();
        }
        |var, grad, [m]| (var - (m + grad), [m + grad])
    }
}

// INV-40
#[test]
fn a_worker_that_ends_between_update_and_exchange_leaves_the_others_with_all_their_weights() {
    watched(|| {
        let options = CommunicationOptions { timeout: Some(Duration::from_secs(30)), ..Default::default() };
        for (workers, links) in [(2, Links::Memory), (2, Links::Shared), (3, Links::Tcp)] {
            let all = MultiWorkerMirroredStrategy::on_threads_over(links, options, workers, 1, |strategy| {
                let model = strategy.replicate(|vb: VarBuilder| linear(300, 100, vb))?;
                let ends = strategy.world().worker() == workers - 1;
                let rule = Ends { strategy: strategy.clone(), in_step: if ends { 3 } else { u64::MAX } };
                let optimizer = Optimizer::with_rule(rule, &model.variables, 0.1)?.shard_state()?;
                let step = || {
                    strategy.run(&model, |ctx: &ReplicaContext, linear| {
                        let x = Tensor::ones((2, 300), candle_core::DType::F32, &Device::Cpu)?;
                        optimizer.minimize(ctx, linear.forward(&x)?.sqr()?.mean_all()?, 2)
                    })
                };
                step()?;
                step()?;
                let before = model.variables.sha256()?;
                let third = step();
                if ends {
                    // The worker that ends may have received the values of the others.
                    return Ok(());
                }
                let error = third.unwrap_err();
                assert_eq!(error.blame().map(|blame| blame.fault), Some(Fault::Lost), "{error}");
                assert!(error.to_string().contains("step 3 of this optimizer"), "{error}");
                assert!(error.to_string().contains("its update: its weights"), "{error}");
                assert_eq!((model.variables.sha256()?, optimizer.finished_steps()), (before, 2));
                assert!(optimizer.inner.progress.is_incomplete());
                // Reading slots requires all workers, one of which is gone.
                let slot = optimizer.slot("weight", "m").unwrap_err();
                assert!(
                    matches!(slot, Error::IncompleteState { step: 3, .. } | Error::Collective(_)),
                    "{slot}"
                );
                Ok(())
            });
            all.unwrap();
        }
    });
}
