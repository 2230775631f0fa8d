//! Deep graphs on small stacks: candle's backward pass recurses over the graph, and so does dropping the graph.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use distribute::prelude::*;
use distribute_testing::watched;
use rayon::prelude::*;

const OPERATIONS: usize = 10_000;

/// Returns the loss of a step whose graph is a long chain, which each replica creates, traverses and drops.
fn trained(replicas: usize) -> f32 {
    let strategy = MirroredStrategy::cpus(replicas).unwrap();
    let model = strategy.replicate(|vb: VarBuilder| vb.get(4, "w")).unwrap();
    let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
    let step = |ctx: &ReplicaContext, w: &Tensor| {
        let mut x = w.clone();
        for i in 0..OPERATIONS {
            x = if i % 2 == 0 { x.affine(0.999, 0.001)? } else { (&x + w)?.tanh()? };
        }
        let loss = x.sum_all()?;
        let by_hand = loss.backward()?;
        assert!(by_hand.get(w).is_some());
        optimizer.minimize(ctx, loss, 1)
    };
    let loss = strategy.run(&model, step).unwrap();
    assert!(model.variables.get("w").is_ok());
    loss.into_values()[0].to_scalar().unwrap()
}

fn on_a_thread_of_512_kib<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::Builder::new().stack_size(512 << 10).spawn(body).unwrap().join().unwrap()
}

#[test]
fn a_deep_graph_needs_no_large_thread() {
    watched(|| {
        let losses = on_a_thread_of_512_kib(|| [1, 2, 1, 2].map(trained));
        assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    });
}

#[test]
fn a_deep_graph_needs_no_large_thread_of_a_pool() {
    watched(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).stack_size(512 << 10).build().unwrap();
        let losses: Vec<_> = pool.install(|| [1, 2, 4].into_par_iter().map(trained).collect());
        assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    });
}
