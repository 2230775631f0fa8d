//! Replicas whose devices have memory of their own compute with copies of the weights and by candle's operations, and train to the weights of
//! replicas that compute on the CPU. A process with `DISTRIBUTE_GENERIC_DEVICES=1` treats CPUs so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{BatchNormConfig, Conv2dConfig, Init, Module, ModuleT, VarBuilder};
use distribute::data::Dataset;
use distribute::nn::{
    self, BagMode, BatchNorm, Conv2d, Dropout, Embedding, EmbeddingBag, LayerNorm, Linear, loss,
};
use distribute::optimizer::rules::{Adagrad, Adam, AdamW, Ftrl, Momentum, RmsProp, Rule, Sgd};
use distribute::optimizer::{Gradients, NotFinite, Transform};
use distribute::{
    Checkpoint, HostTensor, IndexedSlices, LocalCluster, MirroredStrategy, MultiWorkerMirroredStrategy,
    OneDeviceStrategy, Optimizer, ParameterServerStrategy, ReduceOp, ReplicaContext, Result, Strategy,
    Variables,
};
use distribute_testing::{child, watched};
use std::time::Duration;

const SWITCH: &str = "DISTRIBUTE_GENERIC_DEVICES";
const GENERIC: &str = "generic";
const ROWS: usize = 11;

/// Of each kind of layer one.
struct Model {
    words: Embedding,
    bag: EmbeddingBag,
    image: Conv2d,
    norm: BatchNorm,
    hidden: Linear,
    layer_norm: LayerNorm,
    dropout: Dropout,
    out: Linear,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            words: nn::embedding(9, 4, vb.pp("words"))?,
            bag: nn::embedding_bag(9, 4, BagMode::Mean, vb.pp("bag"))?,
            // The last row and column of an image are in no place of the kernel. A bias before the norm has no gradient but what is rounded, by
            // which Adam would divide.
            image: nn::conv2d_no_bias(
                1,
                2,
                2,
                Conv2dConfig { stride: 2, ..Default::default() },
                vb.pp("image"),
            )?,
            norm: nn::batch_norm(2, BatchNormConfig::default(), vb.pp("norm"))?,
            hidden: nn::linear(8 + 8, 6, vb.pp("hidden"))?,
            layer_norm: nn::layer_norm(6, 1e-5, vb.pp("layer_norm"))?,
            dropout: Dropout::new(0.25, 7, "dropout")?,
            out: nn::linear(6, 3, vb.pp("out"))?,
        })
    }

    fn forward(&self, ids: &Tensor, images: &Tensor) -> candle_core::Result<Tensor> {
        let words = self.words.forward(&ids.narrow(1, 0, 1)?.squeeze(1)?)?;
        let bag = self.bag.forward(ids)?;
        let image = self.norm.forward_t(&self.image.forward(images)?, true)?.flatten_from(1)?;
        let all = Tensor::cat(&[&words, &bag, &image], 1)?;
        // No relu: a kink would turn a difference of one bit into one of another path.
        let hidden = self.layer_norm.forward(&self.hidden.forward(&all)?.tanh()?)?;
        self.out.forward(&self.dropout.forward(&hidden, true)?)
    }
}

type Examples = (Tensor, Tensor, Tensor);

fn examples(dtype: DType) -> Examples {
    let ids: Vec<u32> = (0..ROWS as u32 * 3).map(|i| (i * i + 3) % 9).collect();
    let pixels: Vec<f64> = (0..ROWS * 25).map(|i| ((i * 37 + 11) % 41) as f64 / 20. - 1.).collect();
    let labels: Vec<u32> = (0..ROWS as u32).map(|i| (i * 7 + 3) % 3).collect();
    let of = &Device::Cpu;
    let pixels = Tensor::from_vec(pixels, (ROWS, 1, 5, 5), of).unwrap().to_dtype(dtype).unwrap();
    (Tensor::from_vec(ids, (ROWS, 3), of).unwrap(), pixels, Tensor::from_vec(labels, ROWS, of).unwrap())
}

/// Weights by their names.
type Weights = Vec<(String, Vec<f64>)>;

/// The weights after two epochs of uneven batches, each with its name.
fn train<R: Rule>(strategy: &Strategy, rule: R, rate: f64, clips: bool, dtype: DType) -> Result<Weights> {
    let model = strategy.replicate_seeded(3, move |vb: VarBuilder| Model::new(vb.to_dtype(dtype)))?;
    let mut optimizer = Optimizer::with_rule(rule, &model.variables, rate)?;
    if clips {
        optimizer = optimizer.after_reduce(Transform::clip_by_global_norm(0.5))?;
    }
    // The last batch has one row: another replica has none.
    let batches = strategy.distribute_dataset(Dataset::from_slices(examples(dtype))?.batch(5))?;
    for _ in 0..2 {
        for batch in &batches {
            strategy.run((&model, batch?), |ctx, (model, (ids, images, labels))| {
                let logits = model.forward(&ids, &images)?;
                optimizer.minimize(ctx, loss::cross_entropy(&logits, &labels)?, labels.dim(0)?)
            })?;
        }
    }
    values(&model.variables)
}

fn values(variables: &Variables) -> Result<Weights> {
    let of = |name: String| {
        let value = variables.get(&name)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok((name, value))
    };
    variables.names().into_iter().map(of).collect()
}

/// On one replica, whose gradients and losses stay on its device, with all that is done to gradients.
fn train_alone<R: Rule>(rule: R, rate: f64, dtype: DType) -> Result<Weights> {
    let strategy: Strategy = OneDeviceStrategy::new("cpu:0")?.into();
    let model = strategy.replicate_seeded(3, move |vb: VarBuilder| Model::new(vb.to_dtype(dtype)))?;
    let optimizer = Optimizer::with_rule(rule, &model.variables, rate)?
        .before_reduce(Transform::clip_by_value(-0.3, 0.4))?
        .after_reduce(Transform::weight_decay(1e-2))?
        .after_reduce(Transform::clip_by_norm(0.5))?
        .after_reduce(Transform::clip_by_global_norm(0.7))?
        .rate_factor(|name| name.ends_with("bias"), 0.5)?;
    let batches = strategy.distribute_dataset(Dataset::from_slices(examples(dtype))?.batch(5))?;
    for epoch in 0..2 {
        for batch in &batches {
            let mean = strategy.run((&model, batch?), |ctx, (model, (ids, images, labels))| {
                let loss = |from, rows| -> Result<(Tensor, usize)> {
                    let part = |of: &Tensor| of.narrow(0, from, rows);
                    let logits = model.forward(&part(&ids)?, &part(&images)?)?;
                    Ok((loss::cross_entropy(&logits, &part(&labels)?)?, rows))
                };
                let rows = labels.dim(0)?;
                match (epoch, rows) {
                    // In micro-batches.
                    (1, 5) => optimizer.minimize_each(ctx, [loss(0, 3), loss(3, 2)]),
                    _ => loss(0, rows).and_then(|(loss, rows)| optimizer.minimize(ctx, loss, rows)),
                }
            })?;
            assert!(mean.values()[0].to_dtype(DType::F64)?.to_scalar::<f64>()?.is_finite());
        }
    }
    values(&model.variables)
}

fn mirrored() -> Strategy {
    MirroredStrategy::cpus(2).unwrap().into()
}

/// All trainings, by a text that says which.
fn trained() -> Vec<(String, f64, Weights)> {
    let mut all = Vec::new();
    for (dtype, limit) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        let mut add = |what: &str, made: Result<Weights>| {
            all.push((format!("{what} {dtype:?}"), limit, made.unwrap()));
        };
        add("sgd", train(&mirrored(), Sgd, 0.1, false, dtype));
        add("clipped", train(&mirrored(), Sgd, 0.1, true, dtype));
        add("momentum", train(&mirrored(), Momentum::default(), 0.1, false, dtype));
        add("adagrad", train(&mirrored(), Adagrad::default(), 0.1, false, dtype));
        add("ftrl", train(&mirrored(), Ftrl::default(), 0.1, false, dtype));
        let workers = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
            train(strategy, Momentum::default(), 0.1, false, dtype)
        });
        add("two workers", workers.map(|mut all| all.remove(1)));
        let cluster = LocalCluster::new(1, 2).unwrap();
        let servers =
            ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build().unwrap();
        add("servers", train(&servers, Adagrad::default(), 0.1, false, dtype));
        add("alone, sgd", train_alone(Sgd, 0.1, dtype));
        add("alone, momentum", train_alone(Momentum::nesterov(0.9), 0.1, dtype));
        add("alone, adagrad", train_alone(Adagrad::default(), 0.1, dtype));
        add("alone, ftrl", train_alone(Ftrl { l1: 1e-3, ..Ftrl::default() }, 0.1, dtype));
        if dtype == DType::F64 {
            add("alone, adam", train_alone(Adam::default(), 0.01, dtype));
            add("alone, lazy adam", train_alone(Adam::lazy(), 0.01, dtype));
            add("alone, adamw", train_alone(AdamW::default(), 0.01, dtype));
            add("alone, rmsprop", train_alone(RmsProp::default(), 0.01, dtype));
            // These divide gradients by their size: of a small one all bits of it count.
            add("adam", train(&mirrored(), Adam::default(), 0.01, false, dtype));
            add("adamw", train(&mirrored(), AdamW::default(), 0.01, false, dtype));
            add("rmsprop", train(&mirrored(), RmsProp::default(), 0.01, false, dtype));
        }
    }
    all
}

// INV-68
#[test]
fn replicas_with_memory_of_their_own_train_to_the_weights_of_those_on_the_cpu() {
    const TEST: &str = "replicas_with_memory_of_their_own_train_to_the_weights_of_those_on_the_cpu";
    if child::part().is_some() {
        for (what, limit, weights) in trained() {
            for (name, values) in weights {
                let bits: Vec<String> = values.iter().map(|x| format!("{:x}", x.to_bits())).collect();
                println!("weights|{what}|{limit}|{name}|{}", bits.join(","));
            }
        }
        return;
    }
    let weights = |switch| -> Vec<String> {
        let mut command = child::command(TEST, GENERIC);
        command.env(SWITCH, switch);
        let (said, _) = child::output(command, Duration::from_secs(100));
        said.lines().filter_map(|line| Some(line.split_once("weights|")?.1.to_owned())).collect()
    };
    let (on_cpus, on_devices) = (weights("0"), weights("1"));
    assert_eq!(on_cpus.len(), on_devices.len());
    let mut differing = 0;
    for (cpu, device) in on_cpus.iter().zip(&on_devices) {
        let fields = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
        let (cpu, device) = (fields(cpu), fields(device));
        let ([what, limit, name, cpu], [device_what, _, device_name, device]) = (&cpu[..], &device[..])
        else {
            panic!("{cpu:?} {device:?}");
        };
        assert_eq!((what, name), (device_what, device_name));
        let limit: f64 = limit.parse().unwrap();
        let numbers = |bits: &str| -> Vec<f64> {
            let number = |bits| f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
            bits.split(',').map(number).collect()
        };
        let (cpu, device) = (numbers(cpu), numbers(device));
        assert_eq!(cpu.len(), device.len(), "{what} {name}");
        for (a, b) in device.into_iter().zip(cpu) {
            assert!((a - b).abs() <= limit * b.abs().max(1.), "{what} {name}: {a}, not {b}");
            differing += usize::from(a != b);
        }
    }
    // Else one process has computed as the other did.
    assert!(differing > 0 && !on_cpus.is_empty());
}

/// Runs the test in a process that treats CPUs as devices with memory of their own.
fn generic(test: &str, body: impl FnOnce() + Send + 'static) {
    if child::part().is_some() {
        return watched(body);
    }
    let mut command = child::command(test, GENERIC);
    command.env(SWITCH, "1");
    child::output(command, Duration::from_secs(100));
}

// INV-68
#[test]
fn each_replica_computes_with_a_copy_that_has_what_was_written() {
    generic("each_replica_computes_with_a_copy_that_has_what_was_written", || {
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.))).unwrap();
        let [a, b] = model.models().values() else { panic!() };
        let own = model.variables.trainable().unwrap().remove(0).1;
        assert!(a.id() != b.id() && a.id() != own.id() && b.id() != own.id());
        let values = |tensor: &Tensor| tensor.to_vec1::<f32>().unwrap();

        // Outside of run at once; inside, behind the update and behind the merge.
        model.variables.set("w", &Tensor::new(&[2f32, 3.], &Device::Cpu).unwrap()).unwrap();
        assert_eq!((values(a), values(b)), (vec![2., 3.], vec![2., 3.]));
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let seen = strategy.run(&model, |ctx, w| {
            optimizer.minimize(ctx, w.sum_all()?, 1)?;
            let behind_step = values(w);
            let variable = model.variables.variable("w")?;
            ctx.merge_call((), |_, _| variable.assign(Tensor::new(&[7f32, 8.], &Device::Cpu)?))?;
            Ok((behind_step, values(w)))
        });
        assert_eq!(seen.unwrap().into_values(), vec![(vec![1., 2.], vec![7., 8.]); 2]);
        // What candle writes is not seen, but for those that were given out.
        own.set(&Tensor::new(&[4f32, 5.], &Device::Cpu).unwrap()).unwrap();
        let seen = strategy.run(&model, |_, w| Ok(values(w))).unwrap();
        assert_eq!(seen.into_values(), [[4., 5.], [4., 5.]]);
    });
}

#[test]
fn a_restored_model_is_restored_on_every_replica() {
    generic("a_restored_model_is_restored_on_every_replica", || {
        let folder = tempfile::tempdir().unwrap();
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.))).unwrap();
        let saved = Checkpoint::new().part("model", &model.variables);
        saved.save(folder.path().join("one")).unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
        saved.restore(folder.path().join("one")).unwrap();
        for w in model.models() {
            assert_eq!(w.to_vec1::<f32>().unwrap(), [1., 1.]);
        }
    });
}

#[test]
fn gradients_of_ones_own_are_of_the_copy_that_the_replica_computed_with() {
    generic("gradients_of_ones_own_are_of_the_copy_that_the_replica_computed_with", || {
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(1.))).unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        strategy
            .run(&model, |ctx, w| {
                let id = ctx.replica_id_in_sync_group() as f64;
                let store = (w.sum_all()? * (1. + id))?.backward()?;
                let gradients = Gradients::from_store(&optimizer, &store)?;
                assert_eq!(gradients.iter().count(), 1);
                optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
            })
            .unwrap();
        assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [1. - 3.]);
    });
}

/// One that uses a table by row and as a whole, such as a language model with tied weights.
#[test]
fn a_table_that_is_looked_up_and_multiplied_gets_both_gradients() {
    generic("a_table_that_is_looked_up_and_multiplied_gets_both_gradients", || {
        let strategy = mirrored();
        let tied = |vb: VarBuilder<'static>| -> candle_core::Result<(Embedding, Tensor)> {
            let rows = nn::embedding(3, 2, vb.pp("table"))?;
            Ok((rows, vb.pp("table").get((3, 2), "weight")?))
        };
        let model = strategy.replicate(tied).unwrap();
        let before = model.variables.get("table.weight").unwrap().to_vec2::<f32>().unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let ids = Tensor::new(&[1u32], &Device::Cpu).unwrap();
        strategy
            .run(&model, |ctx, (rows, whole)| {
                let loss = (rows.forward(&ids)?.sum_all()? + (whole.sum_all()? * 10.)?)?;
                optimizer.minimize(ctx, loss, 1)
            })
            .unwrap();
        let after = model.variables.get("table.weight").unwrap().to_vec2::<f32>().unwrap();
        for (row, (before, after)) in before.iter().zip(&after).enumerate() {
            let gradient = if row == 1 { 11. } else { 10. };
            for (before, after) in before.iter().zip(after) {
                assert!((before - gradient - after).abs() < 1e-5, "{row}: {before} {after}");
            }
        }
    });
}

/// By the table of the layer itself.
#[test]
fn the_whole_table_of_a_layer_is_the_replicas_copy() {
    generic("the_whole_table_of_a_layer_is_the_replicas_copy", || {
        let cluster = LocalCluster::new(1, 1).unwrap();
        let servers = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        for strategy in [mirrored(), servers.build().unwrap().into()] {
            let model = strategy.replicate(|vb: VarBuilder| nn::embedding(3, 2, vb)).unwrap();
            let before = model.variables.get("weight").unwrap().to_vec2::<f32>().unwrap();
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            let ids = Tensor::new(&[1u32], &Device::Cpu).unwrap();
            let seen = strategy.run(&model, |ctx, rows| {
                let loss = (rows.forward(&ids)?.sum_all()? + (rows.embeddings().sum_all()? * 10.)?)?;
                optimizer.minimize(ctx, loss, 1)?;
                Ok(rows.embeddings().to_vec2::<f32>()?)
            });
            let after = model.variables.get("weight").unwrap().to_vec2::<f32>().unwrap();
            assert!(seen.unwrap().iter().all(|seen| *seen == after));
            for (row, (before, after)) in before.iter().zip(&after).enumerate() {
                let gradient = if row == 1 { 11. } else { 10. };
                assert!((before[0] - gradient - after[0]).abs() < 1e-5, "{row}: {before:?} {after:?}");
            }
        }
    });
}

// INV-68
#[test]
fn what_replicas_write_together_their_copies_have_at_once() {
    generic("what_replicas_write_together_their_copies_have_at_once", || {
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(1.))).unwrap();
        let seen = strategy.run(&model, |ctx, w| {
            let variable = model.variables.variable("w")?;
            // One that the merge function fails behind.
            let failed = ctx.merge_call((), |_, _| -> Result<()> {
                variable.assign(Tensor::new(&[3f32], &Device::Cpu)?)?;
                Err(distribute::Error::other("no"))
            });
            Ok((failed.is_err(), w.to_vec1::<f32>()?))
        });
        assert_eq!(
            seen.map_or(vec![3.; 2], |seen| seen.iter().map(|(_, w)| w[0]).collect::<Vec<_>>()),
            [3., 3.]
        );
        assert!(model.models().iter().all(|w| w.to_vec1::<f32>().unwrap() == [3.]));
    });
}

#[test]
fn collectives_have_gradients_for_copies_too() {
    generic("collectives_have_gradients_for_copies_too", || {
        let strategy = mirrored();
        let gradients = strategy.run((), |ctx, ()| {
            let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
            let sum = ctx.all_reduce(ReduceOp::Sum, x.as_tensor().clone())?;
            let gathered = ctx.all_gather(x.as_tensor().clone(), 0)?;
            let loss = (sum.sum_all()? + gathered.sum_all()?)?;
            Ok(loss.backward()?.remove(&x).unwrap().to_vec1::<f32>()?)
        });
        assert_eq!(gradients.unwrap().into_values(), [[4., 4.], [4., 4.]]);
    });
}

// INV-68, INV-69
#[test]
fn what_was_updated_on_a_device_is_read_written_saved_and_trained_on_as_on_the_host() {
    generic("what_was_updated_on_a_device_is_read_written_saved_and_trained_on_as_on_the_host", || {
        let folder = tempfile::tempdir().unwrap();
        let strategies: [Strategy; 2] = [OneDeviceStrategy::new("cpu:0").unwrap().into(), mirrored()];
        for (number, strategy) in strategies.into_iter().enumerate() {
            let built = || {
                let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(8.))).unwrap();
                let optimizer = Optimizer::with_rule(Momentum::new(0.5), &model.variables, 1.).unwrap();
                (model, optimizer)
            };
            let value = |variables: &Variables| variables.get("w").unwrap().to_vec1::<f32>().unwrap();
            let slot = |optimizer: &Optimizer<Momentum>| {
                optimizer.slot("w", "accum").unwrap().to_vec1::<f32>().unwrap()
            };
            let (model, optimizer) = built();
            let step = |model, optimizer: &Optimizer<Momentum>| {
                strategy.run(model, |ctx, w: &Tensor| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
            };
            // accum: 1, 1.5, 1.75, …
            step(&model, &optimizer);
            step(&model, &optimizer);
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![5.5; 2], vec![1.5; 2]));
            assert!(model.models().iter().all(|w| w.to_vec1::<f32>().unwrap() == [5.5; 2]));

            let checkpoint = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            let path = folder.path().join(format!("{number}"));
            checkpoint.save(&path).unwrap();
            step(&model, &optimizer);
            assert_eq!(value(&model.variables), [3.75; 2]);
            checkpoint.restore(&path).unwrap();
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![5.5; 2], vec![1.5; 2]));
            step(&model, &optimizer);
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![3.75; 2], vec![1.75; 2]));

            // Written from outside, and in part.
            step(&model, &optimizer);
            let variable = model.variables.variable("w").unwrap();
            variable.assign_add(Tensor::new(&[0f32, 1.], &Device::Cpu).unwrap()).unwrap();
            assert_eq!(value(&model.variables), [1.875, 2.875]);
            step(&model, &optimizer);
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![-0.0625, 0.9375], vec![1.9375; 2]));

            // A rule of one's own goes by the host, on the same variables.
            let by_closure = Optimizer::with_rule(Sgd, &model.variables, 1.)
                .unwrap()
                .after_reduce(Transform::each(|_, gradient| Ok(gradient)))
                .unwrap();
            strategy.run(&model, |ctx, w| by_closure.minimize(ctx, w.sum_all()?, 1)).unwrap();
            assert_eq!(value(&model.variables), [-1.0625, -0.0625]);
            step(&model, &optimizer);
            // Who holds candle's variable reads and writes it at any time: the slots are on the host from now on.
            let trainable = model.variables.trainable().unwrap();
            let w = &trainable[0].1;
            assert_eq!(w.to_vec1::<f32>().unwrap(), value(&model.variables));
            w.set(&Tensor::new(&[4f32, 5.], &Device::Cpu).unwrap()).unwrap();
            step(&model, &optimizer);
            let accum = 2. - 1. / 64.;
            assert_eq!(
                (w.to_vec1::<f32>().unwrap(), slot(&optimizer)),
                (vec![4. - accum, 5. - accum], vec![accum; 2])
            );
        }
    });
}

#[test]
fn a_step_that_is_not_finite_is_left_out_on_a_device_too_and_its_error_says_where() {
    generic("a_step_that_is_not_finite_is_left_out_on_a_device_too_and_its_error_says_where", || {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap().into();
        let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(8.))).unwrap();
        let made = |how| {
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap().on_not_finite(how);
            let step = |factor: f64| {
                strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w.sum_all()? * factor)?, 1)).map(drop)
            };
            let steps = [step(1.), step(f64::NAN), step(1.)];
            (steps, optimizer.skipped_steps(), model.variables.get("w").unwrap().to_vec1::<f32>().unwrap())
        };
        let (steps, skipped, w) = made(NotFinite::Skip);
        assert_eq!((steps.iter().all(Result::is_ok), skipped, w), (true, 1, vec![6.; 2]));
        let ([_, bad, _], _, w) = made(NotFinite::Error);
        let error = bad.unwrap_err().to_string();
        assert!(
            error.contains("the loss is NaN") && error.contains("first by name w: NaN at element 0"),
            "{error}"
        );
        assert_eq!(w, [4.; 2]);
    });
}

// INV-68
#[test]
fn a_weight_in_a_penalty_is_that_of_the_step() {
    generic("a_weight_in_a_penalty_is_that_of_the_step", || {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap().into();
        let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(8.))).unwrap();
        let optimizer = Optimizer::with_rule(Momentum::new(0.5), &model.variables, 1.).unwrap();
        let w = model.variables.variable("w").unwrap();
        let step = |penalty: bool| {
            let step = |ctx: &ReplicaContext, of_model: &Tensor| {
                let of_model = of_model.sum_all()?;
                let loss = if penalty { (of_model + w.as_tensor()?.sqr()?.sum_all()?)? } else { of_model };
                optimizer.minimize(ctx, loss, 1).map(drop)
            };
            strategy.run(&model, step).unwrap();
            model.variables.get("w").unwrap().to_vec1::<f32>().unwrap()[0]
        };
        // accum: 1, then 0.5 + 1 + 2 · 7, then 7.75 + 1 + 2 · −8.5.
        assert_eq!((step(false), step(true), step(true)), (7., -8.5, -0.25));
    });
}

#[test]
fn a_gradient_of_no_rows_is_one_on_a_device_too() {
    generic("a_gradient_of_no_rows_is_one_on_a_device_too", || {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap().into();
        let table = strategy.replicate(|vb| vb.get_with_hints((3, 1), "table", Init::Const(8.))).unwrap();
        for (rule, after) in [(Adam::lazy(), [8.; 3]), (Adam::default(), [7.9328; 3])] {
            let optimizer = Optimizer::with_rule(rule, &table.variables, 0.1)
                .unwrap()
                .before_reduce(Transform::weight_decay(0.))
                .unwrap()
                .after_reduce(Transform::clip_by_global_norm(1.))
                .unwrap();
            table.variables.set("table", &Tensor::full(8f32, (3, 1), &Device::Cpu).unwrap()).unwrap();
            let step = |rows: &[i64]| {
                strategy.run((), |ctx, ()| {
                    let values = HostTensor::new(vec![1f32; rows.len()], [rows.len(), 1])?;
                    let indices = HostTensor::vector(rows.to_vec());
                    let mut gradients = Gradients::new(&optimizer);
                    gradients.insert("table", IndexedSlices::new(values, indices, None)?)?;
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
                })
            };
            if after[0] != 8. {
                step(&[0, 1, 2]).unwrap();
                table.variables.set("table", &Tensor::full(8f32, (3, 1), &Device::Cpu).unwrap()).unwrap();
            }
            step(&[]).unwrap();
            let values =
                table.variables.get("table").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let near =
                values.iter().zip(after).all(|(value, after): (&f32, f32)| (value - after).abs() < 1e-2);
            assert!(near && optimizer.finished_steps() > 0, "{values:?}");
        }
    });
}
