//! Training by `runner::run` instead of a loop: each replica makes its own batches.

use crate::data::Packages;
use crate::model::Model;
use crate::progress::Progress;
use crate::{BATCH, Options};
use candle_core::{Device, Tensor};
use distribute::optimizer::Adagrad;
use distribute::runner::{self, Datasets, Trainer};
use distribute::{nn::loss, prelude::*};
use std::cell::RefCell;
use std::sync::Arc;

pub fn train(
    model: &Replicated<Model>,
    optimizer: &Adagrad,
    packages: &Arc<Packages>,
    options: &Options,
    progress: &mut Progress,
) -> distribute::Result<()> {
    let (all, seed) = (packages.clone(), options.seed);
    let datasets = Datasets::new(move |context| {
        let packages = Dataset::from_slices(Tensor::new(&all.training[..], &Device::Cpu)?)?;
        let mine = packages.shard(context.num_input_pipelines, context.input_pipeline_id);
        Ok(mine.shuffle(all.training.len(), seed))
    });
    let all = packages.clone();
    // Each epoch has its own order; a package has the same sample of neighbours in all epochs.
    let datasets = datasets.batched(move |packages, batching| {
        let all = all.clone();
        let batches = packages.batch(batching.per_replica);
        Ok(batches.try_map(move |packages: Tensor| all.batch(&packages.to_vec1()?, seed)).prefetch(4))
    });
    let progress = RefCell::new(progress);
    // Without the bar: all ways to train print the same lines.
    let trainer = Trainer::new(BATCH).epochs(options.epochs).without_progress();
    let trainer = trainer.on_step(|step| progress.borrow_mut().step(step.loss));
    runner::run(&trainer, model, optimizer, &datasets, |model, batch, _phase| {
        let loss = loss::cross_entropy(&model.forward(&batch)?, &batch.sections)?;
        Ok((loss, batch.sections.dim(0)?))
    })?;
    Ok(())
}
