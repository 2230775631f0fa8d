//! Tests that compare kernels on a GPU with candle's operations and with rules on slices. Without a GPU, they are
//! skipped.

use crate::Optimizer;
use crate::rules::{
    Adagrad, Adam, AdamW, Averaged, Ftrl, Lion, Momentum, NAdam, RmsProp, Rule, RuleExt, Sgd, Step,
};
use candle_core::{Device, Tensor, Var};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::Number;
use distribute_core::Strategy;
use distribute_kernels::cuda::Prepared;
use distribute_kernels::{Programs, program};
use distribute_strategies::OneDeviceStrategy;
use distribute_testing::{skipped, watched_for};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(300);

fn on_gpu(body: impl FnOnce(Device) + Send + 'static) {
    watched_for(PATIENCE, || match Device::new_cuda_with_stream(0) {
        Ok(device) => body(device),
        Err(error) => skipped(error),
    });
}

fn rules() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(Sgd),
        Box::new(Momentum::new(0.9)),
        Box::new(Momentum::nesterov(0.9)),
        Box::new(Adagrad::default()),
        Box::new(Adam::default()),
        Box::new(AdamW::default()),
        Box::new(RmsProp { momentum: 0.5, ..RmsProp::default() }),
        Box::new(Ftrl { l1: 0.1, l2: 0.2, l2_shrinkage: 0.3, ..Ftrl::default() }),
        Box::new(Ftrl { lr_power: -0.7, ..Ftrl::default() }),
        Box::new(NAdam::default()),
        Box::new(Lion { weight_decay: 0.1, ..Lion::default() }),
        Box::new(Averaged { rule: std::sync::Arc::new(Adam::default()), momentum: 0.9 }),
    ]
}

fn numbers<F: Number>(count: usize, seed: usize) -> Vec<F> {
    (0..count).map(|at| F::of(((at * 37 + seed * 11) % 101) as f64 / 25. - 2.)).collect()
}

/// Compares three steps of a rule by kernels on the GPU, by candle's operations on the GPU, and on slices.
fn same<F: Number>(rule: &dyn Rule, count: usize, gpu: &Device) {
    let slots = rule.slots();
    let mut values: Vec<F> = numbers(count, 1);
    let mut of_slots: Vec<Vec<F>> = slots.iter().map(|slot| vec![F::of(slot.initial); count]).collect();
    let tensor = |values: &[F]| Tensor::from_slice(values, count, gpu).unwrap();
    let start: Vec<Tensor> = std::iter::once(&values).chain(&of_slots).map(|values| tensor(values)).collect();
    let (mut fused, mut operations) = (start.clone(), start);
    for finished in 0..3u64 {
        let at = Step::after(finished, 0.013);
        let gradient: Vec<F> = numbers(count, finished as usize + 2);
        let made = rule.program(at).unwrap().unwrap();
        let inputs = |of: &[Tensor]| [&of[..1], &[tensor(&gradient)], &of[1..]].concat();
        assert!(
            Prepared::new(rule.name(), &made, &fused[0]).is_some_and(|prepared| prepared.is_trusted()),
            "{rule:?}"
        );
        let handed_out = fused.clone();
        let before: Vec<Vec<F>> = handed_out.iter().map(|tensor| tensor.to_vec1().unwrap()).collect();
        fused = Programs::default().run(rule.name(), &made, &[inputs(&fused)]).unwrap().remove(0);
        operations = program::run(&made, &inputs(&operations)).unwrap();
        let mut views: Vec<&mut [F]> = of_slots.iter_mut().map(Vec::as_mut_slice).collect();
        rule.update(at, &mut values, &gradient, &mut views).unwrap();
        for (handed_out, before) in handed_out.iter().zip(before) {
            assert_eq!(handed_out.to_vec1::<F>().unwrap(), before, "what was handed out has changed");
        }
        for (number, expected) in std::iter::once(&values).chain(&of_slots).enumerate() {
            let [fused, operations] = [&fused, &operations].map(|of| of[number].to_vec1::<F>().unwrap());
            // Both use the powers of the GPU.
            if rule.spec().is_some_and(|_| format!("{rule:?}").contains("lr_power: -0.7")) {
                let near = |a: &F, b: &F| (a.to_f64() - b.to_f64()).abs() <= 1e-4 * b.to_f64().abs().max(1.);
                assert!(
                    fused.iter().zip(expected).all(|(a, b)| near(a, b)),
                    "{rule:?}: {fused:?} {expected:?}"
                );
                assert!(
                    fused.iter().zip(&operations).all(|(a, b)| near(a, b)),
                    "{rule:?}: {fused:?} {operations:?}"
                );
            } else {
                assert_eq!(&fused, expected, "{rule:?}, result {number}");
                assert_eq!(fused, operations, "{rule:?}, result {number}");
            }
        }
    }
}

// INV-71
#[test]
fn kernels_operations_and_slices_give_the_same_bits() {
    on_gpu(|gpu| {
        for rule in rules() {
            for count in [1, 255, 256, 1025] {
                same::<f32>(&*rule, count, &gpu);
                same::<f64>(&*rule, count, &gpu);
            }
        }
    });
}

#[test]
fn inputs_may_be_parts_of_tensors_transposed_alike_or_empty() {
    on_gpu(|gpu| {
        let at = Step::after(0, 0.5);
        let update = |var: &Tensor, gradient: &Tensor| {
            let made = Sgd.program(at).unwrap().unwrap();
            Programs::default()
                .run("sgd", &made, &[vec![var.clone(), gradient.clone()]])
                .unwrap()
                .remove(0)
                .remove(0)
        };
        let all = Tensor::arange(0f32, 24., &gpu).unwrap().reshape((4, 6)).unwrap();
        let part = all.narrow(0, 1, 2).unwrap();
        let transposed = all.narrow(1, 2, 2).unwrap().t().unwrap().narrow(1, 0, 2).unwrap();
        let one = all.narrow(0, 3, 1).unwrap().narrow(1, 5, 1).unwrap();
        let square = all.narrow(0, 1, 2).unwrap().narrow(1, 0, 2).unwrap();
        let spread = one.broadcast_as((2, 6)).unwrap();
        for (var, gradient) in [(&part, &spread), (&square, &transposed), (&part, &part), (&one, &one)] {
            let expected = (var - (gradient * 0.5).unwrap()).unwrap();
            let made = update(var, gradient);
            assert!(made.is_contiguous() && made.shape() == var.shape());
            assert_eq!(made.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
        }
        let made = Sgd.program(at).unwrap().unwrap();
        let of_other_shape = [part.clone(), one.clone()];
        let error =
            Programs::default().run("sgd", &made, &[of_other_shape.to_vec()]).unwrap_err().to_string();
        assert!(error.contains("shapes"), "{error}");
        let none = all.narrow(0, 0, 0).unwrap();
        assert_eq!(update(&none, &none).dims(), [0, 6]);
    });
}

/// Returns the weights after some steps, whose gradients are the same on all devices.
fn trained<R: Rule + Clone>(device: &str, rule: &R) -> Vec<f32> {
    let strategy: Strategy = OneDeviceStrategy::new(device).unwrap();
    let init = Init::Uniform { lo: -1., up: 1. };
    let model = strategy.replicate(move |vb: VarBuilder| vb.get_with_hints((7, 5), "weight", init)).unwrap();
    let optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.1).unwrap();
    for step in 0..4 {
        let x: Vec<f32> = numbers(35, step);
        strategy
            .run(&model, |ctx, weight| {
                let x = Tensor::from_slice(&x, (7, 5), weight.device())?;
                optimizer.minimize(ctx, (weight * x)?.sum_all()?, 1)
            })
            .unwrap();
    }
    let weight = model.variables.get("weight").unwrap();
    weight.to_device(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

// INV-71
#[test]
fn optimizers_on_a_gpu_give_the_weights_of_the_cpu() {
    on_gpu(|_| {
        assert_eq!(trained("gpu:0", &Sgd), trained("cpu:0", &Sgd));
        let momentum = Momentum::nesterov(0.9);
        assert_eq!(trained("gpu:0", &momentum), trained("cpu:0", &momentum));
        assert_eq!(trained("gpu:0", &Adagrad::default()), trained("cpu:0", &Adagrad::default()));
        assert_eq!(trained("gpu:0", &Adam::default()), trained("cpu:0", &Adam::default()));
        assert_eq!(trained("gpu:0", &AdamW::default()), trained("cpu:0", &AdamW::default()));
        let rms = RmsProp { momentum: 0.5, ..RmsProp::default() };
        assert_eq!(trained("gpu:0", &rms), trained("cpu:0", &rms));
        let ftrl = Ftrl { l1: 0.1, l2: 0.2, l2_shrinkage: 0.3, ..Ftrl::default() };
        assert_eq!(trained("gpu:0", &ftrl), trained("cpu:0", &ftrl));
    });
}

/// Checks that a kernel reads a variable's memory in place, and does not write to it.
#[test]
fn a_variable_keeps_its_value_until_it_is_set() {
    on_gpu(|gpu| {
        let var = Var::new(&[1f32, 2.], &gpu).unwrap();
        let made = Sgd.program(Step::after(0, 1.)).unwrap().unwrap();
        let inputs = [var.as_detached_tensor(), var.as_detached_tensor()];
        let made = Programs::default().run("sgd", &made, &[inputs.to_vec()]).unwrap().remove(0);
        assert_eq!(var.to_vec1::<f32>().unwrap(), [1., 2.]);
        var.set(&made[0]).unwrap();
        assert_eq!(var.to_vec1::<f32>().unwrap(), [0., 0.]);
    });
}
