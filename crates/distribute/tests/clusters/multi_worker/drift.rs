//! Tests that variables that drift apart are detected within a number of steps, and that all workers get an error that
//! names them and the workers. Permitted differences are not reported.

use candle_core::{Device, Tensor, Var};
use candle_nn::{Init, Module, VarBuilder, linear};
use distribute::data::Dataset;
use distribute::nn::{batch_norm, loss};
use distribute::strategy::Links;
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{
    Adam, Error, HostTensor, MultiWorkerMirroredStrategy, Replicated, Result, Strategy, Variable,
};
use distribute_collective::group::local;
use distribute_testing::watched;
use std::thread;

/// Returns the result of each worker. Worker `w` compares all variables within `every(w)` steps.
fn on_workers_checking<R: Send + 'static>(
    every: impl Fn(usize) -> u64 + Send + Sync + 'static,
    workers: usize,
    replicas: usize,
    worker: impl Fn(&Strategy) -> Result<R> + Send + Sync + 'static,
) -> Vec<R> {
    watched(move || {
        let groups = local::groups(Links::Memory, workers, replicas).unwrap();
        thread::scope(|scope| {
            let start = |(number, group)| {
                let (every, worker) = (every(number), &worker);
                scope.spawn(move || {
                    let builder = MultiWorkerMirroredStrategy::builder().group(group);
                    worker(&builder.check_drift_every(every).build().unwrap()).unwrap()
                })
            };
            let threads: Vec<_> = groups.into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    })
}

/// Flips one bit of an element of a variable.
fn flip(variable: &Var, element: usize, bit: u32) -> Result<()> {
    let mut elements = variable.flatten_all()?.to_vec1::<f32>()?;
    elements[element] = f32::from_bits(elements[element].to_bits() ^ 1 << bit);
    Ok(variable.set(&Tensor::from_vec(elements, variable.dims(), &Device::Cpu)?)?)
}

/// Makes steps until one returns an error. Returns the number of that step and the error.
fn until_refused(step: impl Fn() -> Result<()>) -> (u64, Error) {
    (1..).find_map(|number| Some((number, step().err()?))).unwrap()
}

fn nothing(strategy: &Strategy) -> Result<()> {
    strategy.run((), |_, ()| Ok(())).map(drop)
}

/// Returns the variable and the workers that an error of drift names, and its message. Checks that all workers have the
/// same message.
fn drift(errors: &[Error]) -> (String, Vec<usize>, String) {
    let text = super::one_message(errors, &["run: before step ", "restore a checkpoint"]);
    let Error::Drift { variable, workers, .. } = &errors[0] else { panic!("{text}") };
    (variable.clone(), workers.clone(), text)
}

type Forward = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync>;
type Model = Replicated<Forward>;

/// Creates a model of two layers. Their order of creation differs from the order of their names.
fn model(strategy: &Strategy) -> Result<Model> {
    strategy.replicate(|vb: VarBuilder| -> candle_core::Result<Forward> {
        let out = linear(40, 3, vb.pp("z"))?;
        let hidden = linear(7, 40, vb.pp("a"))?;
        Ok(Box::new(move |x: &Tensor| out.forward(&hidden.forward(x)?.tanh()?)))
    })
}

/// Returns a function that makes one training step per call.
fn trained<'a>(strategy: &'a Strategy, model: &'a Model) -> Result<impl Fn() -> Result<()> + 'a> {
    let optimizer = Adam::new(&model.variables, 1e-2)?;
    let x = Tensor::arange(0f32, 84., &Device::Cpu)?.sin()?.reshape((12, 7))?;
    let y = Tensor::new((0..12u32).map(|i| i % 3).collect::<Vec<_>>(), &Device::Cpu)?;
    let batches = strategy.distribute_dataset(Dataset::from_slices((x, y))?.repeat(1000).batch(6))?;
    let batches = std::sync::Mutex::new(batches.iter());
    Ok(move || {
        let batch = batches.lock().unwrap().next().unwrap()?;
        strategy.run((model, batch), |ctx, (model, (x, y))| {
            optimizer.minimize(ctx, loss::cross_entropy(&model(&x)?, &y)?, y.dim(0)?)
        })?;
        Ok(())
    })
}

// INV-37
#[test]
fn one_bit_of_one_variable_of_one_worker_is_found_within_100_steps_and_named_on_all() {
    for (workers, replicas) in [(2, 1), (3, 1), (2, 2), (3, 2)] {
        for (case, name) in ["a.bias", "a.weight", "z.bias", "z.weight"].into_iter().enumerate() {
            let culprit = case % workers;
            let found = super::on_workers(workers, replicas, move |strategy| {
                let model = model(strategy)?;
                let step = trained(strategy, &model)?;
                (0..10 * case).try_for_each(|_| step())?;
                if strategy.world().worker() == culprit {
                    let all = model.variables.trainable()?;
                    let (_, variable) = all.into_iter().find(|(variable, _)| variable == name).unwrap();
                    // Bit 20 is large enough that a step does not round the difference away.
                    flip(&variable, case, 20)?;
                }
                let (number, error) = until_refused(&step);
                assert_eq!(strategy.steps(), 10 * case as u64 + number - 1, "a step that did not begin");
                Ok((number, error))
            });
            let (numbers, errors): (Vec<_>, Vec<_>) = found.into_iter().unzip();
            assert!(numbers.iter().all(|number| *number == numbers[0] && *number <= 100), "{numbers:?}");
            let (variable, named, text) = drift(&errors);
            assert_eq!(variable, name, "{text}");
            if workers == 2 {
                assert_eq!(named, [0, 1]);
                assert!(text.contains("is not the same on worker 0 as on worker 1, and no value"), "{text}");
            } else {
                assert_eq!(named, [culprit]);
                assert!(text.contains(&format!("on worker {culprit} is not that of the other 2;")), "{text}");
            }
        }
    }
}

// INV-37
#[test]
fn each_flipped_bit_is_detected_and_training_continues_after_its_repair() {
    let found = super::on_workers(3, 1, |strategy| {
        let model = model(strategy)?;
        let all = model.variables.trainable()?;
        let mut names = Vec::new();
        for case in 0..12 {
            let (name, variable) = &all[case % all.len()];
            let (element, bit) = (case * 17 % variable.elem_count(), (case * 11 % 32) as u32);
            let flip = || match strategy.world().worker() {
                2 => flip(variable, element, bit),
                _ => Ok(()),
            };
            flip()?;
            let (number, error) = until_refused(|| nothing(strategy));
            assert!(number <= 100, "{name}, element {element}, bit {bit}: {number} steps");
            assert!(
                matches!(&error, Error::Drift { variable, workers, .. } if variable == name && workers == &[2])
            );
            // The error is returned until the difference is removed.
            assert_eq!(nothing(strategy).unwrap_err().to_string(), error.to_string());
            flip()?;
            (0..100).try_for_each(|_| nothing(strategy))?;
            names.push(name.clone());
        }
        Ok(names)
    });
    assert_eq!(found[0].len(), 12);
}

// INV-37
#[test]
fn the_first_created_is_named_and_the_majority_of_five_is_right() {
    let errors = super::errors(5, 1, |strategy| {
        let model = model(strategy)?;
        if strategy.world().worker() % 3 == 1 {
            model.variables.trainable()?.iter().try_for_each(|(_, variable)| flip(variable, 1, 3))?;
        }
        let (_, error) = until_refused(|| nothing(strategy));
        Err::<(), _>(error)
    });
    let (variable, workers, text) = drift(&errors);
    assert_eq!(workers, [1, 4], "{text}");
    // `linear` asks for its weight first.
    assert_eq!(variable, "z.weight");
    let what = "variable z.weight (float32[3, 40]), the first of 4 that differ (then z.bias, a.weight, a.bias), on workers 1 \
                and 4 is not that of the other 3;";
    let Error::Drift { variables, .. } = &errors[0] else { panic!("{text}") };
    assert_eq!(variables[..], ["z.weight", "z.bias", "a.weight", "a.bias"]);
    assert!(text.contains(what), "{text}");
}

#[test]
fn variables_of_any_dtype_are_compared_including_those_written_between_steps() {
    let errors = super::errors(3, 2, |strategy| {
        let (seen, words) = strategy.scope(|| {
            let seen = Variable::new("seen", HostTensor::vector(vec![0i8; 3]))?;
            Ok((seen, Variable::new("words", HostTensor::vector(vec![b"one".to_vec(), b"two".to_vec()]))?))
        })?;
        // All workers assign the same value.
        seen.assign(HostTensor::vector(vec![1i8, 2, 3]))?;
        (0..100).try_for_each(|_| nothing(strategy))?;
        if strategy.world().worker() == 0 {
            words.assign(HostTensor::vector(vec![b"one".to_vec(), b"TWO".to_vec()]))?;
        }
        let (number, error) = until_refused(|| nothing(strategy));
        assert!(number <= 100, "{number}");
        Err::<(), _>(error)
    });
    let (variable, workers, text) = drift(&errors);
    assert_eq!((variable.as_str(), workers), ("words", vec![0]), "{text}");
}

#[test]
fn values_that_may_differ_are_not_compared() {
    let all = on_workers_checking(
        |_| 1,
        3,
        2,
        |strategy| {
            let worker = strategy.world().worker() as f32;
            let seen = strategy.scope(|| {
                Variable::builder("seen", Tensor::new(0f32, &Device::Cpu)?)
                    .synchronization(VariableSynchronization::OnRead)
                    .aggregation(VariableAggregation::Sum)
                    .create()
            })?;
            let own = Variable::new("of this worker alone", Tensor::new(worker, &Device::Cpu)?)?;
            let norm = strategy.replicate(|vb: VarBuilder| batch_norm(2, 1e-5, vb.pp("norm")))?;
            let optimizer = Adam::new(&norm.variables, 1e-2)?;
            let x = Tensor::arange(0f32, 48., &Device::Cpu)?.sin()?.reshape((24, 2))?;
            for batch in &strategy.distribute_dataset(Dataset::from_slices(x)?.repeat(5).batch(9))? {
                strategy.run((&norm, batch?), |ctx, (norm, x)| {
                    seen.assign_add(Tensor::new(x.dim(0)? as f32 + worker, &Device::Cpu)?)?;
                    let n = x.dim(0)?;
                    let out = candle_nn::ModuleT::forward_t(norm, &x, true)?;
                    optimizer.minimize(ctx, out.sqr()?.sum_all()?.affine(1. / n.max(1) as f64, 0.)?, n)
                })?;
            }
            own.assign_add(Tensor::new(1f32, &Device::Cpu)?)?;
            (0..10).try_for_each(|_| nothing(strategy))?;
            Ok(strategy.steps())
        },
    );
    assert_eq!(all, [all[0]; 3]);
}

#[test]
fn temporary_variables_are_compared_while_all_workers_have_them() {
    let errors = on_workers_checking(
        |_| 10,
        2,
        1,
        |strategy| {
            let new = |name: &str| {
                let name = name.to_string();
                strategy.replicate(move |vb: VarBuilder| vb.get_with_hints(50, &name, Init::Const(1.)))
            };
            let kept = new("kept")?;
            for round in 0..25 {
                let gone = new("gone")?;
                (0..round % 4).try_for_each(|_| nothing(strategy))?;
                if strategy.world().worker() == 1 {
                    gone.variables.set("gone", &Tensor::zeros(50, candle_core::DType::F32, &Device::Cpu)?)?;
                }
            }
            // One worker drops another before the others do: nothing is compared meanwhile.
            let mut gone = Some(new("gone")?);
            if strategy.world().worker() == 1 {
                gone = None;
            }
            (0..20).try_for_each(|_| nothing(strategy))?;
            drop(gone);
            if strategy.world().worker() == 1 {
                flip(&kept.variables.trainable()?[0].1, 49, 0)?;
            }
            let (number, error) = until_refused(|| nothing(strategy));
            // The round in which it was dropped compares nothing, the next all.
            assert!(number <= 20, "{number}");
            Ok(error)
        },
    );
    assert_eq!(drift(&errors).0, "kept");
}

#[test]
fn a_comparison_requested_on_none_or_some_workers_compares_nothing() {
    for of_first in [0, 50] {
        let every = move |worker| if worker == 0 { of_first } else { 0 };
        let all = on_workers_checking(every, 2, 1, |strategy| {
            let model = model(strategy)?;
            if strategy.world().worker() == 1 {
                flip(&model.variables.trainable()?[0].1, 0, 30)?;
            }
            (0..120).try_for_each(|_| nothing(strategy))?;
            Ok(strategy.steps())
        });
        assert_eq!(all, [120, 120]);
    }
}
