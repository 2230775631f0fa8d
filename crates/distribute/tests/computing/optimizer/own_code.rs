//! User code inside a step that hangs, fails, or reads variables while they are updated.

use crate::optimizer::{mirrored, value, vectors};
use candle_core::{DType, Tensor, Var};
use candle_nn::{Init, VarBuilder};
use distribute::cluster::Fault;
use distribute::optimizer::rules::{self, Float, Formula, SlotSpec, Step};
use distribute::optimizer::{Gradients, Transform};
use distribute::strategy::CommunicationOptions;
use distribute::tensor::IndexedSlices;
use distribute::{Result, prelude::*};
use distribute_testing::watched;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// A gate that delays the first caller until the others have timed out.
struct Gate {
    gave_up: Mutex<mpsc::Receiver<()>>,
    tell: Mutex<mpsc::Sender<()>>,
    passed: AtomicBool,
    others: usize,
}

impl Gate {
    fn new(others: usize) -> Arc<Self> {
        let (tell, gave_up) = mpsc::channel();
        let (tell, gave_up) = (Mutex::new(tell), Mutex::new(gave_up));
        Arc::new(Self { gave_up, tell, passed: AtomicBool::new(false), others })
    }

    fn pass(&self) {
        if !self.passed.swap(true, Ordering::SeqCst) {
            for _ in 0..self.others {
                self.gave_up.lock().unwrap().recv_timeout(MINUTE).expect("the others are held");
            }
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

/// Makes a step on 3 replicas, one of which waits at the gate in user code. Checks that the others get an error at the
/// deadline that names the replica and the call, that nothing has changed, and that the next step succeeds.
fn assert_times_out<R: rules::Rule>(
    prepare: impl FnOnce(&Variables, Arc<Gate>) -> Result<Optimizer<R>>,
    culprit: Option<usize>,
    part: &str,
) {
    // Long enough for the replicas to make the call on a busy machine.
    let short = Duration::from_millis(500);
    let strategy: Strategy =
        MirroredStrategy::builder().devices(["cpu:0", "cpu:1", "cpu:2"]).timeout(short).build().unwrap();
    let (model, gate) = (vectors(&strategy, &["w"]), Gate::new(2));
    let optimizer = prepare(&model.variables, gate.clone()).unwrap();
    let before = model.variables.sha256().unwrap();
    let step = |timeout| {
        strategy.run(&model, |ctx, model| {
            let ctx = ctx.with_options(CommunicationOptions { timeout, ..Default::default() })?;
            let made = optimizer.minimize(&ctx, model[0].sum_all()?, 1);
            if made.is_err() {
                gate.tell.lock().unwrap().send(()).unwrap();
            }
            made
        })
    };
    let error = step(None).unwrap_err();
    let blame = error.blame().unwrap_or_else(|| panic!("{error}"));
    assert_eq!((blame.fault, blame.culprits.len()), (Fault::TimedOut, 1), "{error}");
    assert!(culprit.is_none_or(|culprit| blame.culprits == [culprit]), "{error}");
    for part in ["waited 500ms in minimize", part, "own_code.rs:", "did not arrive"] {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
    assert_eq!((model.variables.sha256().unwrap(), optimizer.finished_steps()), (before, 0));
    step(Some(MINUTE)).unwrap();
    assert_eq!((value(&model, "w"), optimizer.finished_steps()), (vec![0.; 3], 1));
}

// INV-3
#[test]
fn a_schedule_that_hangs_delays_no_replica_beyond_the_deadline() {
    watched(|| {
        let prepare = |variables: &Variables, gate: Arc<Gate>| {
            Sgd::new(variables, 1.)?.with_schedule(move |_: u64| {
                gate.pass();
                1.
            })
        };
        assert_times_out(prepare, Some(0), "minimize (sgd");
    });
}

// INV-3
#[test]
fn a_gradient_transform_that_hangs_delays_no_replica_beyond_the_deadline() {
    watched(|| {
        let prepare = |variables: &Variables, gate: Arc<Gate>| {
            Sgd::new(variables, 1.)?.after_reduce(Transform::each(move |_, gradient| {
                gate.pass();
                Ok(gradient)
            }))
        };
        assert_times_out(prepare, Some(0), "a closure of after_reduce on replica 0");
    });
}

/// A rule of plain descent that waits at the gate.
#[derive(Debug)]
struct Waits(Arc<Gate>);

impl Formula for Waits {
    type Slots<T: Copy> = [T; 0];

    fn label(&self) -> &'static str {
        "waits"
    }

    fn layout(&self) -> [SlotSpec; 0] {
        []
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 0]) -> (F, [F; 0]) {
        self.0.pass();
        let rate = F::from_f64(at.learning_rate());
        move |var, grad, []| (var - rate * grad, [])
    }
}

// INV-3
#[test]
fn a_rule_that_hangs_delays_no_replica_beyond_the_deadline() {
    watched(|| {
        assert_times_out(
            |variables, gate| Optimizer::with_rule(Waits(gate), variables, 1.),
            None,
            "its update rule",
        )
    });
}

/// A rule of plain descent that reads the variable that it updates.
#[derive(Debug)]
struct Reads(Arc<OnceLock<Var>>);

impl Formula for Reads {
    type Slots<T: Copy> = [T; 0];

    fn label(&self) -> &'static str {
        "reads"
    }

    fn layout(&self) -> [SlotSpec; 0] {
        []
    }

    fn kernel<F: Float>(&self, _: Step) -> impl Fn(F, F, [F; 0]) -> (F, [F; 0]) {
        let now = self.0.get().unwrap().as_tensor().mean_all().unwrap().to_scalar::<f64>().unwrap();
        let rate = F::from_f64(now);
        move |var, grad, []| (var - rate * grad, [])
    }
}

#[test]
fn a_rule_may_read_the_variable_that_is_updated_as_it_was_before() {
    watched(|| {
        for n in [1, 2, 3] {
            let strategy = mirrored(n);
            let model = strategy.replicate(|vb: VarBuilder| {
                vb.get_with_hints_dtype(10_000, "w", Init::Const(3.), DType::F64)
            });
            let (model, cell) = (model.unwrap(), Arc::new(OnceLock::new()));
            cell.set(model.variables.trainable().unwrap().remove(0).1).unwrap();
            let optimizer = Optimizer::with_rule(Reads(cell), &model.variables, 1.).unwrap();
            strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
            assert_eq!(value(&model, "w"), vec![0.; 10_000]);
        }
    });
}

/// A rule of this crate, wrapped as if a user had written it.
#[derive(Debug)]
struct Own<R>(R);

impl<R: Formula> Formula for Own<R> {
    type Slots<T: Copy> = R::Slots<T>;

    fn label(&self) -> &'static str {
        "own"
    }

    fn layout(&self) -> R::Slots<SlotSpec> {
        self.0.layout()
    }

    fn every_row(&self) -> bool {
        self.0.every_row()
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, R::Slots<F>) -> (F, R::Slots<F>) {
        self.0.kernel(at)
    }
}

/// Trains a large and a small variable and a table on `n` replicas. Returns the bits of all variables and slots.
fn bits<R: rules::Rule>(n: usize, rule: R) -> Vec<Vec<u64>> {
    let strategy = mirrored(n);
    let model = strategy.replicate_seeded(1, |vb: VarBuilder| -> candle_core::Result<Vec<Tensor>> {
        let vb = vb.to_dtype(DType::F64);
        let init = Init::Uniform { lo: -1., up: 1. };
        let large = vb.get_with_hints((30, 200), "large", init)?;
        Ok(vec![large, vb.get_with_hints(3, "small", init)?, vb.get_with_hints((7, 600), "table", init)?])
    });
    let model = model.unwrap();
    let optimizer = Optimizer::with_rule(rule, &model.variables, 0.1).unwrap();
    let optimizer = optimizer.after_reduce(Transform::weight_decay(0.1)).unwrap();
    let optimizer = optimizer.after_reduce(Transform::clip_by_global_norm(0.5)).unwrap();
    let optimizer = optimizer.rate_factor(|name| name == "small", 0.5).unwrap();
    for step in 0..3 {
        let run = strategy.run(&model, |ctx, model| {
            let replica = ctx.replica_id_in_sync_group();
            let loss = (model[0].sqr()?.sum_all()? + model[1].sin()?.sum_all()?)?;
            let mut gradients = Gradients::of(&optimizer, &(loss * (1. + replica as f64))?)?;
            let rows = [(replica + step) % 7, (3 * replica) % 7, 5].map(|row| row as i64);
            let values: Vec<f64> = (0..1800).map(|i| ((i + replica) as f64).cos()).collect();
            let values = HostTensor::new(values, [3, 600])?;
            gradients
                .insert("table", IndexedSlices::new(values, HostTensor::vector(rows.to_vec()), None)?)?;
            optimizer.apply_gradients(ctx, gradients, ReduceOp::Mean)
        });
        run.unwrap();
    }
    assert_eq!(optimizer.finished_steps(), 3);
    let of = |tensor: Tensor| -> Vec<u64> {
        tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
    };
    let mut all: Vec<_> =
        ["large", "small", "table"].map(|name| of(model.variables.get(name).unwrap())).into();
    for slot in optimizer.slot_names() {
        all.extend(["large", "small", "table"].map(|name| of(optimizer.slot(name, slot).unwrap())));
    }
    all
}

// INV-11
#[test]
fn a_custom_rule_is_bit_identical_to_the_same_builtin_rule() {
    watched(|| {
        for n in [1, 2, 3] {
            let lazy = rules::Adam { lazy: true, ..Default::default() };
            assert!(bits(n, lazy) == bits(n, Own(lazy)), "lazy, {n}");
            assert!(
                bits(n, rules::Adam::default()) == bits(n, Own(rules::Adam::default())),
                "every row, {n}"
            );
            assert!(bits(n, rules::Sgd) == bits(n, Own(rules::Sgd)), "without slots, {n}");
        }
    });
}

/// A rule that writes values and then panics.
#[derive(Debug)]
struct Panics;

impl Formula for Panics {
    type Slots<T: Copy> = [T; 1];

    fn label(&self) -> &'static str {
        "panics"
    }

    fn layout(&self) -> [SlotSpec; 1] {
        [SlotSpec::zeros("m")]
    }

    fn kernel<F: Float>(&self, _: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
        let count = std::cell::Cell::new(0);
        move |var, _, [m]| {
            count.set(count.get() + 1);
            assert!(count.get() < 3, "the rule's own panic");
            (var + var, [m + var])
        }
    }
}

// INV-12
#[test]
fn a_rule_that_panics_has_changed_nothing() {
    watched(|| {
        for n in [1, 2] {
            let strategy = mirrored(n);
            let model = vectors(&strategy, &["w"]);
            let optimizer = Optimizer::with_rule(Panics, &model.variables, 1.).unwrap();
            let said = strategy.run(&model, |ctx, model| {
                Ok(optimizer.minimize(ctx, model[0].sum_all()?, 1).unwrap_err().root_cause().to_string())
            });
            assert_eq!(said.unwrap().into_values(), vec!["panicked: the rule's own panic"; n]);
            assert_eq!(value(&model, "w"), [1.; 3]);
            assert_eq!(optimizer.slot("w", "m").unwrap().to_vec1::<f64>().unwrap(), [0.; 3]);
            assert_eq!(optimizer.finished_steps(), 0);
        }
    });
}
