//! The source lines in errors of a training.

use super::*;
use distribute::context::get_replica_context;
use std::time::Duration;

#[test]
fn gnn_4_errors_of_steps_name_the_call_of_run_and_lines_of_the_loss() {
    watched(|| {
        for trainer in
            [Trainer::new(GLOBAL_BATCH), Trainer::new(GLOBAL_BATCH).recover(Duration::from_secs(1))]
        {
            names_lines(&trainer);
        }
    });
}

fn names_lines(trainer: &Trainer<'_>) {
    let strategy = MirroredStrategy::cpus(2).unwrap();
    let (model, optimizer) = made(&strategy, 7);
    let (called, run) = (AtomicUsize::new(0), line!() + 1);
    let error = runner::run(trainer, &model, &optimizer, &datasets(), |net, batch, _| {
        let context = get_replica_context().expect("losses are computed in replicas");
        if context.replica_id_in_sync_group() == 1 {
            called.store(line!() as usize + 1, Ordering::Relaxed);
            context.all_reduce(ReduceOp::Sum, 1f32)?;
        }
        net.loss(&batch)
    });
    let error = error.unwrap_err().to_string();
    for line in [run as usize, called.into_inner()] {
        assert!(error.contains(&format!("places.rs:{line}")), "line {line}: {error}");
    }
    assert!(!error.contains("run.rs"), "{error}");
}
