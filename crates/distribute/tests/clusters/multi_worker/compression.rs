//! Compressed gradients: the same bits on all workers and for any distribution of the replicas, fewer bytes, and
//! residuals as a part of the state.

mod digits;
mod feedback;

use crate::multi_worker::training::{ALL, Micro, Outcome, Parts, Plan, train};
use candle_core::{Device, Module, Tensor};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::nn::{self, embedding, linear};
use distribute::optimizer::{NotFinite, rules};
use distribute::strategy::{Compression, Links, TableHosts, TableOptions};
use distribute::{Error, MultiWorkerMirroredStrategy, Result, Sgd, Strategy};
use distribute_collective::group::{Group, Inbox, local};
use distribute_net::{Message, PollOutcome, Receiver, Transport, memory};
use distribute_testing::watched;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `worker` on a thread for each group. Worker `w` uses the compression `form(w)`.
pub(super) fn on_groups<R: Send>(
    groups: Vec<Group>,
    form: impl Fn(usize) -> Compression + Sync,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let start = |(number, group)| {
            let (form, worker) = (form(number), &worker);
            scope.spawn(move || {
                let strategy =
                    MultiWorkerMirroredStrategy::builder().group(group).compression(form).build().unwrap();
                worker(&strategy).unwrap()
            })
        };
        let threads: Vec<_> = groups.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the outcome of a training, which is the same on all workers. A single worker has no group.
pub(super) fn trained(form: Compression, workers: usize, replicas: usize, plan: Plan) -> Outcome {
    let rule = rules::Adam::lazy();
    if workers == 1 {
        return train(&alone(form, replicas), plan, &rule).unwrap();
    }
    let groups = local::groups(crate::multi_worker::links(workers, replicas), workers, replicas).unwrap();
    let all = on_groups(groups, |_| form, |strategy| train(strategy, plan, &rule));
    assert!(all.iter().all(|other| *other == all[0]), "{workers} workers of {replicas} replicas");
    all.into_iter().next().unwrap()
}

/// Returns a strategy of a single worker without a group.
pub(super) fn alone(form: Compression, replicas: usize) -> Strategy {
    let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse().unwrap();
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    builder.replicas(replicas).compression(form).build().unwrap()
}

fn assert_same_for_any_spread(forms: &'static [Compression], plan: Plan) {
    watched(move || {
        for form in forms.iter().copied() {
            let mut by_replicas: BTreeMap<usize, Outcome> = BTreeMap::new();
            for (workers, replicas) in
                [1, 2, 3].into_iter().flat_map(|w| [1, 2].map(|r| (w, r))).chain([(4, 1), (1, 6), (2, 3)])
            {
                let outcome = trained(form, workers, replicas, plan);
                let first = by_replicas.entry(workers * replicas).or_insert_with(|| outcome.clone());
                assert!(outcome == *first, "{workers} workers of {replicas} replicas, {form}: {plan:?}");
                if (workers, replicas) == (2, 1) {
                    assert!(outcome != trained(Compression::None, 2, 1, plan), "{form} has changed nothing");
                }
            }
        }
    });
}

const HALVES: [Compression; 2] = [Compression::Bf16, Compression::F16];

/// The kinds of compression with error feedback.
pub(super) const LOSSY: [Compression; 3] =
    [Compression::EightBits, Compression::TopK, Compression::LowRank { rank: 2 }];

/// Returns a plan whose model has variables that are large enough to be compressed.
fn large(rows: usize, batch: usize) -> Plan {
    Plan { width: 1100, ..Plan::new(rows, batch) }
}

// INV-7, INV-27
#[test]
fn error_feedback_gives_the_same_bits_on_all_workers_and_for_any_spread_of_the_replicas() {
    assert_same_for_any_spread(&LOSSY, Plan { parts: ALL, ..large(23, 12) });
    assert_same_for_any_spread(&LOSSY, Plan { clip: true, decay: true, ..large(11, 8) });
    assert_same_for_any_spread(&LOSSY, Plan { micro: Micro::Uneven, ..large(7, 5) });
}

// INV-40
#[test]
fn error_feedback_gives_the_same_bits_with_a_sharded_state() {
    let plan = Plan { clip: true, ..large(11, 8) };
    watched(move || {
        for form in LOSSY {
            for (workers, replicas) in [(2, 1), (3, 2), (2, 3)] {
                let whole = trained(form, workers, replicas, plan);
                let sharded = trained(form, workers, replicas, Plan { sharded: true, ..plan });
                assert!(whole == sharded, "{workers} workers of {replicas} replicas, {form}");
            }
        }
    });
}

// INV-7, INV-27
#[test]
fn halves_give_the_same_bits_on_all_workers_and_for_any_spread_of_the_replicas() {
    assert_same_for_any_spread(&HALVES, Plan { parts: ALL, ..Plan::new(23, 12) });
    assert_same_for_any_spread(
        &HALVES,
        Plan { parts: Parts { table: true, ..Parts::default() }, clip: true, ..Plan::new(11, 8) },
    );
    assert_same_for_any_spread(&HALVES, Plan { micro: Micro::Uneven, ..Plan::new(7, 5) });
}

// INV-40
#[test]
fn halves_give_the_same_bits_with_a_sharded_state() {
    let parts = Parts { table: true, ..Parts::default() };
    let plan = Plan { parts, width: 2500, words: 3300, clip: true, ..Plan::new(11, 8) };
    watched(move || {
        for (workers, replicas) in [(2, 1), (3, 2), (2, 3)] {
            let whole = trained(Compression::Bf16, workers, replicas, plan);
            let sharded = trained(Compression::Bf16, workers, replicas, Plan { sharded: true, ..plan });
            assert!(whole == sharded, "{workers} workers of {replicas} replicas");
        }
    });
}

// INV-86
#[test]
fn halves_give_the_same_bits_with_tables_on_workers() {
    let plan = Plan { parts: Parts { table: true, ..Parts::default() }, words: 33, ..Plan::new(23, 12) };
    watched(move || {
        for (workers, replicas) in [(2, 1), (3, 2)] {
            let mirrored = trained(Compression::Bf16, workers, replicas, plan);
            let tables = TableOptions { min_bytes: 0, ..TableHosts::Workers.into() };
            let builder =
                MultiWorkerMirroredStrategy::builder().replicas(replicas).compression(Compression::Bf16);
            let links = crate::multi_worker::links(workers, replicas);
            let train = |strategy: &Strategy| train(strategy, plan, &rules::Adam::lazy());
            for outcome in builder.tables(tables).on_threads(links, workers, train).unwrap() {
                assert!(outcome == mirrored, "{workers} workers of {replicas} replicas");
            }
        }
    });
}

/// A transport that counts the bytes of messages.
#[derive(Debug)]
struct Counting {
    inner: memory::Memory,
    bytes: Arc<AtomicUsize>,
}

impl Transport for Counting {
    fn send(&self, to: usize, message: Message) {
        self.bytes.fetch_add(message.head.len() + message.body.len(), Ordering::Relaxed);
        self.inner.send(to, message);
    }

    fn poll(&self, patience: std::time::Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.inner.poll(patience, is_there)
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// Returns groups whose workers are linked by memory, and the number of bytes that all of them together have sent.
pub(super) fn counting_groups(workers: usize, replicas: usize) -> (Vec<Group>, Arc<AtomicUsize>) {
    let bytes = Arc::new(AtomicUsize::new(0));
    let inboxes: Vec<_> = (0..workers).map(|_| Inbox::new(workers)).collect();
    let receivers = inboxes.iter().map(|inbox| Arc::new(inbox.clone()) as Arc<dyn Receiver>).collect();
    let groups =
        memory::transports(receivers).into_iter().zip(inboxes).enumerate().map(|(worker, (inner, inbox))| {
            let world = distribute::cluster::World::new(workers, worker, replicas).unwrap();
            Group::new(world, Arc::new(Counting { inner, bytes: bytes.clone() }), inbox)
        });
    (groups.collect(), bytes.clone())
}

/// Returns the number of bytes that all workers together send in one step, after the first two steps.
fn bytes_of_a_step(form: Compression, workers: usize, replicas: usize, by_row: bool) -> usize {
    let (groups, bytes) = counting_groups(workers, replicas);
    const STEPS: usize = 3;
    let counted = on_groups(
        groups,
        |_| form,
        |strategy| {
            let model = strategy.replicate(|vb| {
                Ok::<_, Error>((embedding(500, 64, vb.pp("table"))?, linear(64, 300, vb.pp("out"))?))
            })?;
            let optimizer =
                Sgd::new(&model.variables, 0.1)?.freeze(|name| by_row == name.starts_with("out"))?;
            let ids = Tensor::arange(0u32, 400, &Device::Cpu)?;
            let step = || {
                strategy.run(&model, |ctx, (table, out)| {
                    optimizer.minimize(ctx, out.forward(&table.forward(&ids)?)?.sqr()?.mean_all()?, 400)
                })
            };
            (0..2).try_for_each(|_| step().map(drop))?;
            // All workers have sent everything before the calls between steps are complete.
            let all = || strategy.run((), |ctx, ()| ctx.all_reduce(distribute::ReduceOp::Sum, 1f32));
            all()?;
            let before = bytes.load(Ordering::Relaxed);
            all()?;
            (0..STEPS).try_for_each(|_| step().map(drop))?;
            all()?;
            Ok(bytes.load(Ordering::Relaxed) - before)
        },
    );
    counted.into_iter().max().unwrap() / STEPS
}

#[test]
fn halves_take_half_of_the_bytes() {
    watched(|| {
        for (workers, replicas, by_row) in
            [(2, 1, false), (3, 1, false), (2, 3, false), (2, 1, true), (3, 2, true)]
        {
            let bytes = |form| bytes_of_a_step(form, workers, replicas, by_row) as f64;
            let (full, half) = (bytes(Compression::None), bytes(Compression::Bf16));
            let case = format!(
                "{workers} workers of {replicas} replicas, by row: {by_row}: {full} and {half} bytes"
            );
            assert!((0.45..0.58).contains(&(half / full)), "{case}");
        }
        // The sum of two replicas is sent as it is, and with more workers the total in halves.
        let bytes = |form, workers| bytes_of_a_step(form, workers, 2, false) as f64;
        assert!((bytes(Compression::Bf16, 2) / bytes(Compression::None, 2) - 1.).abs() < 0.02);
        assert!((bytes(Compression::Bf16, 3) / bytes(Compression::None, 3) - 0.75).abs() < 0.02);
    });
}

#[test]
fn error_feedback_takes_few_bytes() {
    watched(|| {
        for (workers, replicas) in [(2, 1), (3, 1)] {
            let bytes = |form| bytes_of_a_step(form, workers, replicas, false) as f64;
            // 19,200 weights, and 300 biases that are sent as they are. Each worker sends the packets to all others.
            let full = bytes(Compression::None);
            let others = (workers * (workers - 1)) as f64;
            let rest = 2. * 4. * 300. * others + 1000. * others;
            for (form, expected) in [
                (Compression::EightBits, 19_200. * 1.016),
                (Compression::TopK, 19_200. * 0.0372),
                (Compression::LowRank { rank: 1 }, 4. * 364.),
            ] {
                let (bytes, expected) = (bytes(form), expected * others);
                let case = format!("{workers} workers, {form}: {bytes} of {full} bytes, {expected} expected");
                assert!((expected..expected + rest).contains(&bytes), "{case}");
            }
        }
    });
}

#[test]
fn workers_with_different_forms_get_an_error_that_names_both() {
    let errors = watched(|| {
        let groups = local::groups(Links::Memory, 2, 1).unwrap();
        on_groups(
            groups,
            |worker| [Compression::None, Compression::Bf16][worker],
            |strategy| {
                let model = strategy.replicate(|vb| linear(2, 2, vb))?;
                let optimizer = Sgd::new(&model.variables, 0.1)?;
                let x = Tensor::ones((1, 2), candle_core::DType::F32, &Device::Cpu)?;
                let step = strategy
                    .run(&model, |ctx, model| optimizer.minimize(ctx, model.forward(&x)?.sum_all()?, 1));
                Ok(step.unwrap_err().to_string())
            },
        )
    });
    for error in errors {
        assert!(error.contains("compression: none on worker 0, bf16 on worker 1"), "{error}");
    }
}

#[test]
fn a_gradient_that_is_too_large_for_f16_is_found() {
    watched(|| {
        let groups = local::groups(Links::Memory, 2, 1).unwrap();
        on_groups(
            groups,
            |_| Compression::F16,
            |strategy| {
                let model = strategy.replicate(|vb| {
                    Ok::<_, Error>((
                        nn::embedding(3, 1, vb.pp("table"))?,
                        vb.get_with_hints(1, "w", candle_nn::Init::Const(0.))?,
                    ))
                })?;
                let optimizer = Sgd::new(&model.variables, 1e-9)?.on_not_finite(NotFinite::Error);
                let ids = Tensor::new(&[1u32], &Device::Cpu)?;
                let step = |of_rows: f64, of_w: f64| {
                    strategy.run(&model, |ctx, (table, w)| {
                        let loss = ((table.forward(&ids)?.sum_all()? * of_rows)? + (w.sum_all()? * of_w)?)?;
                        optimizer.minimize(ctx, loss, 1)
                    })
                };
                step(65_519., -65_519.)?;
                for (gradients, name) in [((65_520., 1.), "table.weight"), ((1., -65_520.), "w")] {
                    let error = step(gradients.0, gradients.1).unwrap_err();
                    let Error::NotFinite { variable, .. } = error.root_cause() else { panic!("{error}") };
                    assert_eq!(variable.as_deref(), Some(name), "{error}");
                }
                Ok(())
            },
        )
    });
}
