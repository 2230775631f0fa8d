//! Models that threads cannot share: this crate's `Sequential`, and models that each thread builds.

use super::{assert_close, flat, mirrored, numbers};
use candle_core::{DType, Result, Tensor};
use candle_nn::{BatchNorm, Linear, Module, VarBuilder, linear};
use distribute::nn::{self, Activation, PerThread};
use distribute::prelude::*;
use distribute_testing::watched;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_sequential_has_candles_methods_and_values() {
    watched(|| {
        fn layers(vb: &VarBuilder) -> Result<[Linear; 2]> {
            Ok([linear(3, 4, vb.pp("0"))?, linear(4, 2, vb.pp("1"))?])
        }
        assert!(nn::seq().is_empty());
        let strategy = mirrored(2);
        let ours = strategy.replicate(|vb: VarBuilder| -> Result<_> {
            let [a, b] = layers(&vb.to_dtype(DType::F64))?;
            Ok(nn::seq().add(a).add(Activation::Silu).add(b).add_fn(|x| x * 2.))
        });
        let ours = ours.unwrap();
        let theirs = ours.models().values()[0].len();
        assert_eq!((theirs, ours.models().values()[0].is_empty()), (4, false));
        assert_eq!(format!("{:?}", ours.models().values()[0]), "Sequential(4 layers)");
        let theirs = strategy.replicate(|vb: VarBuilder| -> Result<_> {
            let [a, b] = layers(&vb.to_dtype(DType::F64))?;
            Ok(candle_nn::seq().add(a).add(Activation::Silu).add(b).add_fn(|x| x * 2.))
        });
        let theirs = theirs.unwrap();
        let theirs = &theirs.models().values()[0];
        let x = (numbers(&[5, 3], DType::F64) - 5.).unwrap();
        let outputs = strategy.run(&ours, |_, ours| Ok((ours.forward(&x)?, ours.forward_all(&x)?))).unwrap();
        for (y, all) in outputs {
            assert_close(&y, &theirs.forward(&x).unwrap(), 0., "forward");
            let expected = theirs.forward_all(&x).unwrap();
            assert_eq!(all.len(), expected.len());
            all.iter().zip(&expected).for_each(|(a, b)| assert_close(a, b, 0., "forward_all"));
        }
        assert_close(&nn::seq().forward(&x).unwrap(), &x, 0., "no layer");
    });
}

/// A model that is neither `Send` nor `Sync`, and counts its instances.
struct Counted {
    layers: Vec<Rc<dyn Module>>,
    calls: Cell<usize>,
    alive: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Module for Counted {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.calls.set(self.calls.get() + 1);
        self.layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
    }
}

/// The number of models that have been built, and the number of models that exist now.
#[derive(Clone, Default)]
struct Counts {
    built: Arc<AtomicUsize>,
    alive: Arc<AtomicUsize>,
}

impl Counts {
    fn build(&self, vb: VarBuilder<'static>) -> Result<Counted> {
        self.built.fetch_add(1, Ordering::SeqCst);
        self.alive.fetch_add(1, Ordering::SeqCst);
        let layers: Vec<Rc<dyn Module>> = vec![
            Rc::new(linear(3, 4, vb.pp("a"))?),
            Rc::new(Activation::Relu),
            Rc::new(linear(4, 2, vb.pp("b"))?),
        ];
        Ok(Counted { layers, calls: Cell::new(0), alive: self.alive.clone() })
    }

    fn now(&self) -> [usize; 2] {
        [&self.built, &self.alive].map(|count| count.load(Ordering::SeqCst))
    }
}

// INV-79
#[test]
fn each_thread_builds_one_model_from_the_existing_variables() {
    watched(|| {
        let (strategy, counts) = (mirrored(3), Counts::default());
        let build = counts.clone();
        let model = strategy.replicate(move |vb| {
            let build = build.clone();
            nn::per_thread(vb, move |vb| build.build(vb))
        });
        let model = model.unwrap();
        let (names, before) = (model.variables.names(), model.variables.sha256().unwrap());
        assert_eq!((counts.now(), names.len()), ([3, 3], 4));
        let x = numbers(&[2, 3], DType::F32);
        let mut calls = Vec::new();
        for _ in 0..4 {
            let run = strategy.run(&model, |_, model: &PerThread<Counted>| {
                let y = (model.forward(&x)?, flat(&model.forward(&x)?));
                Ok((flat(&y.0), y.1, model.get()?.calls.get()))
            });
            calls = run.unwrap().into_values();
        }
        // Replica 0 may run on the thread that has built the models, and the others never do.
        let [built, _] = counts.now();
        assert!((5..=6).contains(&built), "{built}");
        // Each model belongs to one replica, and was called twice in each of four runs.
        assert!(
            calls.iter().all(|(a, b, calls)| *calls == 8 && a == b && *a == calls_of(&model, &x)),
            "{calls:?}"
        );
        assert_eq!((model.variables.names(), model.variables.sha256().unwrap()), (names, before));

        // It also works on any other thread, and the model that this thread has built is dropped with it.
        let [built, alive] = counts.now();
        let y = std::thread::scope(|scope| {
            scope.spawn(|| flat(&model.models().values()[1].forward(&x).unwrap())).join().unwrap()
        });
        assert_eq!((y, counts.now()), (calls_of(&model, &x), [built + 1, alive]));
        // Models are dropped with their owner on this thread, and on the strategy's threads when these exit.
        drop(model);
        drop(strategy);
    });
}

fn calls_of(model: &Replicated<PerThread<Counted>>, x: &Tensor) -> Vec<f64> {
    flat(&model.models().values()[0].forward(x).unwrap())
}

#[test]
fn a_thread_drops_models_that_nothing_owns_any_more() {
    watched(|| {
        let counts = Counts::default();
        let vb = || VarBuilder::zeros(DType::F32, &candle_core::Device::Cpu);
        let make = || {
            let build = counts.clone();
            nn::per_thread(vb(), move |vb| build.build(vb)).unwrap()
        };
        let (first, second) = (make(), make());
        assert_eq!(counts.now(), [2, 2]);
        drop(first);
        assert_eq!(counts.now(), [2, 1]);
        // If the owner is dropped on another thread, its model on this thread is dropped when the next one is built.
        std::thread::spawn(move || drop(second)).join().unwrap();
        assert_eq!(counts.now(), [2, 1]);
        let third = make();
        assert_eq!(counts.now(), [3, 1]);
        assert_eq!(format!("{third:?}"), format!("PerThread({})", std::any::type_name::<Counted>()));
    });
}

#[test]
fn a_model_that_asks_for_other_variables_later_is_refused_by_name() {
    watched(|| {
        let (strategy, built) = (mirrored(2), Arc::new(AtomicUsize::new(0)));
        let model = strategy.replicate(move |vb| {
            let built = built.clone();
            nn::per_thread(vb, move |vb| {
                let late = built.fetch_add(1, Ordering::SeqCst) >= 2;
                Ok(Rc::new(linear(2, 1, vb.pp(if late { "late" } else { "early" }))?))
            })
        });
        let model = model.unwrap();
        let error = strategy.run(&model, |_, model| Ok(model.get()?.weight().dims().len())).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rebuilt on another thread") && text.contains("late.weight"), "{text}");
        assert_eq!(model.variables.names(), ["early.bias", "early.weight"]);
    });
}

#[test]
fn a_rebuilt_model_has_the_same_variables_as_the_first_build() {
    watched(|| {
        let strategy = mirrored(2);
        // As candle_transformers' models look for tied weights.
        let model = strategy.replicate(|vb| {
            nn::per_thread(vb, |vb| {
                let before = vb.contains_tensor("a.weight");
                let layer = Rc::new(linear(2, 2, vb.pp("a"))?);
                Ok((before, vb.contains_tensor("a.weight"), layer))
            })
        });
        let model = model.unwrap();
        let said =
            strategy.run(&model, |_, model| model.get().map(|model| (model.0, model.1)).map_err(Into::into));
        assert_eq!(said.unwrap().values(), [(false, true), (false, true)]);
    });
}

/// A model with both kinds of layers, a `ModuleT`, and a layer that changes itself.
struct Mixed {
    norm: Rc<BatchNorm>,
    inner: PerThread<Rc<Linear>>,
    steps: usize,
}

#[test]
fn layers_that_are_no_modules_nested_or_mutable_are_available_by_get() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy.replicate(|vb| {
            nn::per_thread(vb, |vb| {
                let inner = nn::per_thread(vb.pp("inner"), |vb| Ok(Rc::new(linear(2, 1, vb)?)))?;
                let norm = Rc::new(candle_nn::batch_norm(2, 1e-5, vb.pp("norm"))?);
                Ok(RefCell::new(Mixed { norm, inner, steps: 0 }))
            })
        });
        let model = model.unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        let x = numbers(&[4, 2], DType::F32);
        for step in 1..4 {
            let run = strategy.run(&model, |ctx, model| {
                let model = model.get()?;
                let mut model = model.borrow_mut();
                model.steps += 1;
                let hidden = candle_nn::ModuleT::forward_t(&*model.norm, &x, true)?;
                let y = model.inner.get()?.forward(&hidden)?;
                optimizer.minimize(ctx, y.sqr()?.mean_all()?, 4)?;
                Ok(model.steps)
            });
            assert_eq!(run.unwrap().values(), [step; 2]);
        }
        // Each replica has written its own running statistics, and all of them the same.
        assert!(flat(&model.variables.get("norm.running_mean").unwrap()).iter().all(|mean| *mean > 1.));
        let of_norm = strategy.replicate(|vb| nn::per_thread(vb, |vb| candle_nn::batch_norm(2, 1e-5, vb)));
        let of_norm = of_norm.unwrap();
        strategy.run(&of_norm, |_, norm| Ok(norm.forward_t(&x, true)?)).unwrap();
        assert!(flat(&of_norm.variables.get("running_mean").unwrap()).iter().all(|mean| *mean > 0.1));
    });
}
