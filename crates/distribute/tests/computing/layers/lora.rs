//! Low-rank adapters for a model that itself does not change.

use super::{assert_close, flat, mirrored, numbers};
use crate::everywhere::everywhere;
use candle_core::{DType, Result, Tensor, Var};
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::checkpoint::RestoreFilter;
use distribute::nn::{self, Lora, PerThread};
use distribute::prelude::*;
use distribute::{Replicated, Strategy};
use distribute_testing::watched;

type Layers = (Linear, Linear);

const SCALE: f64 = 1.5;

fn replicate(strategy: &Strategy) -> Replicated<PerThread<Layers>> {
    let lora = Lora::new(2).scale(SCALE).of(|name| name.starts_with("second."));
    let build = move |vb: VarBuilder<'static>| -> Result<Layers> {
        let vb = lora.wrap(vb.to_dtype(DType::F64));
        Ok((linear(3, 4, vb.pp("first"))?, linear(4, 2, vb.pp("second"))?))
    };
    strategy.replicate_seeded(3, move |vb| nn::per_thread(vb, build.clone())).unwrap()
}

fn inputs() -> Tensor {
    (numbers(&[6, 3], DType::F64) * 0.1).unwrap()
}

fn forward((first, second): &Layers, x: &Tensor) -> Result<Tensor> {
    second.forward(&first.forward(x)?.tanh()?)
}

/// Trains three steps. Returns the values of all variables before and after.
fn train(strategy: &Strategy) -> [Vec<(String, Tensor)>; 2] {
    let model = replicate(strategy);
    let values = || -> Vec<_> {
        let names = model.variables.names().into_iter();
        names.map(|name| (name.clone(), model.variables.get(&name).unwrap())).collect()
    };
    let before = values();
    let optimizer = Sgd::new(&model.variables, 0.3).unwrap().freeze(|name| !Lora::is_adapter(name)).unwrap();
    for _ in 0..3 {
        let step = strategy.run(&model, |ctx, model| {
            let loss = forward(&model.rebuilt()?, &inputs())?.sqr()?.mean_all()?;
            optimizer.minimize(ctx, loss, 6)
        });
        step.unwrap();
    }
    [before, values()]
}

#[test]
fn adapters_are_trained_under_all_strategies_and_nothing_else_is() {
    watched(|| {
        // The reference: the same training with candle only.
        let [before, _] = train(&mirrored(1));
        let of = |name: &str| before.iter().find(|(found, _)| found == name).unwrap().1.clone();
        let [down, up] =
            ["second.lora_A.weight", "second.lora_B.weight"].map(|name| Var::from_tensor(&of(name)).unwrap());
        for _ in 0..3 {
            let weight = (of("second.weight") + (up.matmul(&down).unwrap() * SCALE).unwrap()).unwrap();
            let layers = (
                Linear::new(of("first.weight"), Some(of("first.bias"))),
                Linear::new(weight, Some(of("second.bias"))),
            );
            let loss = forward(&layers, &inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
            let gradients = loss.backward().unwrap();
            for var in [&down, &up] {
                var.set(&(var.as_detached_tensor() - (gradients.get(var).unwrap() * 0.3).unwrap()).unwrap())
                    .unwrap();
            }
        }
        for (strategy, workers) in everywhere(train) {
            for [before, after] in workers {
                assert_eq!(after.len(), 6, "{strategy}");
                for ((name, before), (_, after)) in before.iter().zip(&after) {
                    let expected = match name.as_str() {
                        "second.lora_A.weight" => down.as_tensor(),
                        "second.lora_B.weight" => up.as_tensor(),
                        _ => before,
                    };
                    let limit = if Lora::is_adapter(name) { 1e-12 } else { 0. };
                    assert_close(after, expected, limit, &format!("{strategy}: {name}"));
                }
            }
        }
        assert!(flat(up.as_tensor()).iter().all(|x| x.abs() > 1e-6), "the adapter has not moved");
    });
}

#[test]
fn adapters_are_saved_alone_and_loaded_over_the_same_base() {
    watched(|| {
        let strategy = mirrored(2);
        let model = replicate(&strategy);
        let file = tempfile::NamedTempFile::new().unwrap();
        for name in model.variables.names().iter().filter(|name| Lora::is_adapter(name)) {
            let moved = (model.variables.get(name).unwrap() + 0.5).unwrap();
            model.variables.set(name, &moved).unwrap();
        }
        model.variables.save_some(file.path(), Lora::is_adapter).unwrap();
        let other = replicate(&strategy);
        let adapters = RestoreFilter::named(|name| Lora::is_adapter(name).then(|| name.to_owned()));
        let loaded = other.variables.load_some([file.path()], &adapters).unwrap();
        assert_eq!(loaded.restored.len(), 2);
        let of = |model: &Replicated<PerThread<Layers>>| {
            strategy.run(model, |_, model| Ok(forward(&model.rebuilt()?, &inputs())?)).unwrap().values()[0]
                .clone()
        };
        assert_close(&of(&other), &of(&model), 0., "outputs");
        // Without a rebuild, a thread's model is the first one that it has built.
        let first = strategy.run(&other, |_, model| Ok(forward(&*model.get()?, &inputs())?)).unwrap();
        assert_ne!(flat(&first.values()[0]), flat(&of(&other)));
    });
}
