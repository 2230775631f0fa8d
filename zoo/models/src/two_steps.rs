//! Trains some models two steps on two replicas, and leaves their weights for pytorch.py, which does the same.

use crate::examine::Model;
use crate::{Entry, numbers};
use candle_core::safetensors::save;
use distribute::nn::per_thread;
use distribute::{MirroredStrategy, Sgd};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

const NAMES: [&str; 5] = ["bert", "gemma2", "llama", "mistral", "qwen3"];

/// Writes NAME.before, NAME.after (weights) and NAME.data (the target, the losses) of each model into a folder.
pub fn train(entries: &[Entry], folder: &Path) -> distribute::Result<()> {
    for entry in entries.iter().filter(|entry| NAMES.contains(&entry.name)) {
        let file = |part: &str| folder.join(format!("{}.{part}", entry.name));
        let initial = Model::new(entry)?;
        initial.save(&file("before"))?;
        let target = numbers(initial.build()?()?.dims());

        let strategy = MirroredStrategy::cpus(2)?;
        let build = entry.build;
        let model = strategy.replicate(move |vb| per_thread(vb, move |vb| Ok(RefCell::new(build(vb)?))))?;
        model.variables.load(file("before"))?;
        let optimizer = Sgd::new(&model.variables, 0.1)?;
        let mut losses = vec![];
        for _ in 0..2 {
            let step = strategy.run(&model, |ctx, model| {
                let y = model.get()?.borrow_mut()()?;
                optimizer.minimize(ctx, (y - &target)?.sqr()?.mean_all()?, 1)
            })?;
            losses.push(step.to_scalar::<f32>()?);
        }
        model.variables.save(file("after"))?;
        println!("{}: losses {losses:?}", entry.name);
        let losses = candle_core::Tensor::new(losses, &candle_core::Device::Cpu)?;
        save(&HashMap::from([("target", target), ("losses", losses)]), file("data"))?;
    }
    Ok(())
}
