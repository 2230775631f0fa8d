//! Checkpoints of sharded states, of which each worker writes its own rows.

use super::sharded::contents;
use crate::multi_worker::on_workers;
use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};
use distribute::checkpoint::Reader;
use distribute::optimizer::rules::{self, Rule};
use distribute::prelude::*;

/// Variables whose rows end inside the ranges of workers, are on several workers, or are all on one.
const SHAPES: [(&str, &[usize]); 8] = [
    ("narrow", &[3001, 7]),
    ("wide", &[9, 3000]),
    ("two", &[2, 9000]),
    ("one", &[1, 30_000]),
    ("deep", &[40, 3, 3, 64]),
    ("small", &[11]),
    ("long", &[20_000]),
    ("scalar", &[]),
];

fn saves_in_parts<R: Rule + Clone + 'static>(rule: R, replicated: bool) {
    for workers in 2..=5 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        let rule = rule.clone();
        on_workers(workers, 1, move |strategy| {
            let variables = |vb: VarBuilder| {
                let get = |(name, shape): (&str, &[usize])| {
                    vb.get_with_hints(shape, name, Init::Randn { mean: 0., stdev: 1. })
                };
                SHAPES.into_iter().map(get).collect::<candle_core::Result<Vec<_>>>()
            };
            let model = strategy.replicate_seeded(3, variables)?;
            let optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.05)?;
            let optimizer =
                if replicated { optimizer.shard_state_replicated()? } else { optimizer.shard_state()? };
            for step in 0..2 {
                strategy.run(&model, |ctx, all: &Vec<Tensor>| {
                    let factor = (ctx.replica_id_in_sync_group() + step + 1) as f64;
                    let squares =
                        all.iter().map(|x| x.sqr()?.sum_all()).collect::<candle_core::Result<Vec<_>>>()?;
                    let loss = (Tensor::stack(&squares, 0)?.sum_all()? * (factor * 1e-3))?;
                    optimizer.minimize(ctx, loss, 1)
                })?;
            }
            let state = Checkpoint::new().part("optimizer", &optimizer);
            state.save(path.join("parts"))?;
            // The chief writes what it has gathered.
            let gathered = state.writer()?;
            if strategy.is_chief() {
                gathered.save(path.join("gathered"), 1)?;
            }
            // Each worker has its own folder.
            let own = path.join(strategy.world().worker().to_string());
            std::fs::create_dir(&own).unwrap();
            state.save(own.join("alone"))?;
            let other = Optimizer::with_rule(rule.clone(), &model.variables, 0.01)?.shard_state()?;
            Checkpoint::new().part("optimizer", &other).restore(path.join("parts"))?;
            Checkpoint::new().part("optimizer", &other).save(path.join("again"))
        });
        let at = |name: &str| folder.path().join(name);
        for name in ["parts", "again", "0/alone"] {
            Reader::open(at(name)).unwrap().verify().unwrap();
            assert_eq!(contents(&at(name)), contents(&at("gathered")), "{name} of {workers}");
        }
        let count = |name: &str| {
            let names = distribute_testing::names_in(&at(name));
            names.into_iter().filter(|name| name.starts_with("part-")).count()
        };
        assert_eq!((count("parts"), count("again"), count("0/alone")), (workers, workers, 0));
        let wide = Reader::open(at("parts")).unwrap().describe("optimizer/accum/wide");
        assert!(wide.is_err() || wide.unwrap().slices.len() >= 2);
    }
}

// INV-40, INV-111
#[test]
fn each_worker_writes_the_slots_whose_rows_begin_in_its_range() {
    saves_in_parts(rules::Momentum::default(), false);
    saves_in_parts(rules::Adam::default(), true);
    // Each variable is updated by one worker.
    saves_in_parts(rules::RowAdagrad::default(), false);
}
