//! Optimizers with different settings on the workers: no step is made, and all workers get one error that names the
//! setting, its values and the workers.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::{MissingGradients, NotFinite, Transform, rules, schedules};
use distribute::{Error, ErrorKind, Result, nn, prelude::*};
use distribute_collective::group::local;

type Model = Replicated<(Tensor, Tensor)>;
type Set = fn(Adam) -> Result<Adam>;

/// Creates two variables of the same shape, so that the gradient of one could be added to the other.
fn model(strategy: &Strategy) -> Result<Model> {
    strategy.replicate(|vb: VarBuilder| -> candle_core::Result<_> {
        let get = |name| vb.get_with_hints(2, name, Init::Const(1.));
        Ok((get("a")?, get("b")?))
    })
}

/// Makes a step in which the gradient of `a` is 1, and that of `b` is 10.
fn step(strategy: &Strategy, model: &Model, optimizer: &Adam) -> Result<()> {
    let run = strategy
        .run(model, |ctx, (a, b)| optimizer.minimize(ctx, (a.sum_all()? + (b.sum_all()? * 10.)?)?, 1));
    run.map(drop)
}

fn values(model: &Model) -> Result<Vec<Vec<f32>>> {
    ["a", "b"].iter().map(|name| Ok(model.variables.get(name)?.to_vec1::<f32>()?)).collect()
}

fn adam(model: &Model, beta1: f64) -> Result<Adam> {
    Adam::with_rule(rules::Adam { beta1, ..Default::default() }, &model.variables, 0.125)
}

/// Returns the message of the error that all workers get if only worker 1 applies `set` to its optimizer. Checks that
/// no variable changes, and that a step succeeds afterwards with equal settings.
fn refused(workers: usize, replicas: usize, set: Set) -> String {
    let mut texts = crate::multi_worker::on_workers(workers, replicas, move |strategy| {
        let (model, other) = (model(strategy)?, strategy.world().worker() == 1);
        let (one, two) = (adam(&model, 0.5)?, adam(&model, 0.5)?);
        let one = if other { set(one)? } else { one };
        let mut texts = Vec::new();
        for _ in 0..2 {
            let error = step(strategy, &model, &one).expect_err("the weights would differ");
            assert!(
                matches!(error.root_cause(), Error::Failed { operation: "minimize", .. })
                    && error.kind() == ErrorKind::Disagreement,
                "{error}"
            );
            assert_eq!((values(&model)?, one.finished_steps()), (vec![vec![1.; 2]; 2], 0));
            texts.push(error.root_cause().to_string());
        }
        assert_eq!(texts[0], texts[1]);
        let two = set(two)?;
        step(strategy, &model, &two)?;
        step(strategy, &model, &two)?;
        assert_eq!(two.finished_steps(), 2);
        Ok(texts.remove(0))
    });
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:#?}");
    texts.remove(0)
}

#[test]
fn every_setting_that_differs_is_named_with_its_values_and_workers() {
    let cases: [(Set, &[&str]); 11] = [
        (
            |optimizer| optimizer.freeze(|name| name == "b"),
            &["variable b: trained float32[2] on worker 0, frozen float32[2] on worker 1"],
        ),
        (
            |optimizer| optimizer.rate_factor(|name| name == "b", 0.5),
            &["rate_factor of b: none on worker 0, 0.5 on worker 1"],
        ),
        (
            |optimizer| {
                optimizer.with_rule_for(|name| name == "a", rules::Adam { beta2: 0.75, ..Default::default() })
            },
            &["rule of a: none on worker 0, Adam { ", "beta2: 0.75"],
        ),
        (
            |optimizer| optimizer.before_reduce(Transform::clip_by_value(-1., 1.)),
            &["before_reduce: [] on worker 0, [clip_by_value(-1, 1)] on worker 1"],
        ),
        (
            |optimizer| optimizer.after_reduce(Transform::clip_by_norm(1.)),
            &["after_reduce: [] on worker 0, [clip_by_norm(1)] on worker 1"],
        ),
        (
            |optimizer| optimizer.after_reduce(Transform::each(|_, gradient| Ok(gradient))),
            &["after_reduce: [] on worker 0, [each(..)] on worker 1"],
        ),
        (
            |optimizer| optimizer.with_schedule(schedules::ExponentialDecay::new(0.125, 10, 0.5)),
            &["learning rate: set by hand on worker 0, from a schedule on worker 1"],
        ),
        (
            |optimizer| Ok(optimizer.on_not_finite(NotFinite::Skip)),
            &["on_not_finite: WarnOfLoss on worker 0, Skip on worker 1"],
        ),
        (
            |optimizer| Ok(optimizer.on_missing_gradients(MissingGradients::Error)),
            &["on_missing_gradients: Warn on worker 0, Error on worker 1"],
        ),
        (
            |optimizer| optimizer.freeze(|name| name == "a")?.after_reduce(Transform::weight_decay(0.1)),
            &["variable a: trained", "after_reduce: [] on worker 0, [weight_decay(0.1)] on worker 1"],
        ),
        (|optimizer| optimizer.rate_factor(|_| true, 2.), &["rate_factor of a: ", "rate_factor of b: "]),
    ];
    for (number, (set, parts)) in cases.into_iter().enumerate() {
        let (workers, replicas) = [(2, 1), (2, 2), (3, 1)][number % 3];
        let text = refused(workers, replicas, set);
        assert!(text.contains("the workers have different settings of this optimizer: "), "{text}");
        for part in parts.iter().filter(|_| workers == 2) {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn a_hyper_parameter_that_differs_is_named() {
    let mut texts = crate::multi_worker::on_workers(3, 1, |strategy| {
        let model = model(strategy)?;
        let optimizer = adam(&model, if strategy.world().worker() == 2 { 0.25 } else { 0.5 })?;
        Ok(step(strategy, &model, &optimizer).expect_err("the weights would differ").root_cause().to_string())
    });
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:#?}");
    assert!(
        texts[0].contains("settings of this optimizer: beta1: 0.5 on workers 0 and 1, 0.25 on worker 2; no"),
        "{}",
        texts[0]
    );
}

// INV-25
/// Checks workers that each train a different variable: the gradient of one must not be added to the other.
#[test]
fn workers_that_freeze_different_variables_do_not_mix_their_gradients() {
    let mut texts = crate::multi_worker::on_workers(2, 2, |strategy| {
        let (model, frozen) = (model(strategy)?, ["a", "b"][strategy.world().worker()]);
        let optimizer = adam(&model, 0.5)?.freeze(|name| name == frozen)?;
        let error = step(strategy, &model, &optimizer).expect_err("the gradients would be mixed");
        assert_eq!(values(&model)?, vec![vec![1.; 2]; 2]);
        Ok(error.root_cause().to_string())
    });
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:#?}");
    assert!(
        texts[0].contains(
            "variable b: trained float32[2] on worker 0, frozen float32[2] on worker 1; \
             variable a: frozen float32[2] on worker 0, trained float32[2] on worker 1"
        ),
        "{}",
        texts[0]
    );
}

/// Checks layers that send gradients before the step, in the layout that the workers agreed on in the previous step.
#[test]
fn a_setting_that_changes_between_steps_is_compared_again() {
    let texts = crate::multi_worker::on_workers(2, 1, |strategy| {
        let model = strategy.replicate(|vb: VarBuilder| -> candle_core::Result<_> {
            Ok((nn::linear(4, 4, vb.pp("a"))?, nn::linear(4, 4, vb.pp("b"))?))
        })?;
        let step = |optimizer: &Adam| {
            strategy.run(&model, |ctx, (a, b)| {
                let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
                let y = candle_nn::Module::forward(b, &candle_nn::Module::forward(a, &x)?)?;
                optimizer.minimize(ctx, y.mean_all()?, 3)
            })
        };
        let mut optimizer = Adam::new(&model.variables, 1e-2)?;
        for _ in 0..3 {
            step(&optimizer)?;
        }
        // On all workers: the digests are equal.
        optimizer = optimizer.freeze(|name| name == "a.bias")?;
        for _ in 0..3 {
            step(&optimizer)?;
        }
        // On one worker, while the other has compared its settings before.
        let mut text = String::new();
        if strategy.world().worker() == 1 {
            optimizer = optimizer.freeze(|name| name == "b.bias")?;
        }
        let before = model.variables.sha256()?;
        for _ in 0..2 {
            text = step(&optimizer).expect_err("the other worker trains b.bias").root_cause().to_string();
        }
        assert_eq!((model.variables.sha256()?, optimizer.finished_steps()), (before, 6));
        // The other one follows.
        if strategy.world().worker() == 0 {
            optimizer = optimizer.freeze(|name| name == "b.bias")?;
        }
        for _ in 0..3 {
            step(&optimizer)?;
        }
        assert_eq!(optimizer.finished_steps(), 9);
        Ok((text, model.variables.sha256()?))
    });
    assert_eq!(texts[0], texts[1]);
    assert!(
        texts[0].0.contains("variable b.bias: trained float32[4] on worker 0, frozen float32[4] on worker 1"),
        "{}",
        texts[0].0
    );
}

/// Checks settings of connections, which have no effect on a group that is already connected.
#[test]
fn settings_without_effect_on_a_group_are_refused() {
    type Builder = distribute::strategy::MultiWorkerMirroredStrategyBuilder;
    let settings: [fn(Builder) -> Builder; 4] = [
        |builder| builder.job("other"),
        |builder| builder.listen("0.0.0.0:1"),
        |builder| builder.join_timeout(std::time::Duration::from_secs(1)),
        |builder| builder.min_workers(1),
    ];
    for set in settings {
        let group = local::groups(distribute::strategy::Links::Memory, 1, 2).unwrap().remove(0);
        let error = set(MultiWorkerMirroredStrategy::builder().group(group)).build().unwrap_err().to_string();
        assert!(error.contains("a group was passed"), "{error}");
    }
}
