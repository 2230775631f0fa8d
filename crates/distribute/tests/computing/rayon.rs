//! Runs of a strategy on threads of a rayon pool. Tests run in separate processes, whose global pool has few threads.

use candle_core::{Device, Module, Tensor};
use candle_nn::VarBuilder;
use candle_nn::attention::{AttnMask, flash_attn};
use distribute::prelude::*;
use distribute_testing::{child, watched};
use rayon::prelude::*;
use std::sync::mpsc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the loss of a small training whose steps contain all of candle's operations that use rayon.
fn trained(replicas: usize) -> f32 {
    let strategy = MirroredStrategy::cpus(replicas).unwrap();
    let model = strategy.replicate(|vb: VarBuilder| candle_nn::linear(8, 8, vb.pp("a"))).unwrap();
    let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
    let x = Tensor::arange(0f32, 256., &Device::Cpu).unwrap().sin().unwrap().reshape((4, 1, 8, 8)).unwrap();
    let kernel = Tensor::ones((8, 1, 3, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
    let step = |ctx: &ReplicaContext, model: &candle_nn::Linear| {
        let wide = x.conv2d(&kernel, 1, 1, 1, 1)?;
        let heads = candle_nn::ops::softmax_last_dim(&wide)?;
        let seen = flash_attn::<f32>(&heads, &heads, &heads, 0.5, AttnMask::None, None, None)?;
        let (sorted, _) = seen.contiguous()?.sort_last_dim(true)?;
        let loss = model.forward(&sorted.reshape(((), 8))?)?.sqr()?.mean_all()?;
        optimizer.minimize(ctx, loss, 4)
    };
    let loss = |_, _| strategy.run(&model, step).unwrap().into_values()[0].to_scalar().unwrap();
    (0..2).fold(f32::NAN, loss)
}

/// Runs 100 rounds of the kind `part`, in a separate process.
fn rounds(part: &str) {
    let expected = trained(2);
    let same = |loss: f32| assert_eq!(loss, expected);
    for _ in 0..100 {
        match part {
            "spawn" => {
                let (done, wait) = mpsc::channel();
                rayon::spawn(move || done.send(trained(2)).unwrap());
                same(wait.recv_timeout(MINUTE).unwrap());
            }
            // Eight at a time are a round.
            "sweep" => (0..8).into_par_iter().map(|i| trained(1 + i % 3)).for_each(same),
            "nested" => {
                let both = || rayon::join(|| trained(2), || trained(3));
                rayon::scope(|scope| {
                    scope.spawn(|_| same(both().0));
                    scope.spawn(|_| same(both().1));
                });
            }
            "pool" => {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                same(pool.install(|| trained(2)));
            }
            _ => panic!("{part}?"),
        }
    }
}

// INV-3
#[test]
fn a_run_on_a_worker_of_a_pool_returns() {
    if let Some(part) = child::part() {
        return rounds(&part);
    }
    for part in ["spawn", "sweep", "nested", "pool"] {
        for threads in ["1", "2", "4"] {
            let mut command = child::command("rayon::a_run_on_a_worker_of_a_pool_returns", part);
            command.env("RAYON_NUM_THREADS", threads).env("CANDLE_NUM_THREADS", "1");
            child::output(command, 3 * MINUTE);
        }
    }
}

#[test]
fn rayon_tasks_of_a_replica_finish_before_the_run_returns() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(3).unwrap();
        let (done, wait) = mpsc::channel();
        let spawned = strategy.run((), |ctx, ()| {
            let (done, replica) = (done.clone(), ctx.replica_id_in_sync_group());
            rayon::spawn(move || done.send(replica).unwrap());
            Ok(())
        });
        spawned.unwrap();
        let mut who: Vec<_> = (0..3).map(|_| wait.recv_timeout(MINUTE).unwrap()).collect();
        who.sort_unstable();
        assert_eq!(who, [0, 1, 2]);
    });
}
