//! Transformers: the part of candle_transformers' llama2_c that trains unchanged, and the same model with changed
//! `use` lines, which the example `language` uses.

#[path = "../../../../examples/language/model.rs"]
mod model;

use crate::support::{flat, mirrored};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama2_c;
use distribute::data::Dataset;
use distribute::{PerReplica, Replicated, Sgd, Strategy, Variables, nn::loss};
use distribute_testing::watched;
use model::{Config, Llama};
use std::collections::HashMap;

const LENGTH: usize = 6;
const VOCABULARY: usize = 11;

fn config() -> Config {
    Config {
        dim: 16,
        hidden_dim: 24,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        vocab_size: VOCABULARY,
        seq_len: LENGTH,
        norm_eps: 1e-5,
    }
}

/// candle's model and its cache, which also contains the rotary tables.
type Stock = (llama2_c::Llama, llama2_c::Cache);

fn stock(vb: VarBuilder<'_>, of_tables: VarBuilder<'_>) -> candle_core::Result<Stock> {
    let Config { dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len, norm_eps } = config();
    let config =
        llama2_c::Config { dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len, norm_eps };
    let cache = llama2_c::Cache::new(false, &config, of_tables)?;
    Ok((llama2_c::Llama::load(vb, config)?, cache))
}

/// Returns rows of one token more than the model's input.
fn text(rows: usize) -> Tensor {
    let tokens =
        (0..rows * (LENGTH + 1)).map(|i| ((i * i * 7 + i * 3 + 1) % VOCABULARY) as u32).collect::<Vec<_>>();
    Tensor::from_vec(tokens, (rows, LENGTH + 1), &Device::Cpu).unwrap()
}

fn inputs(text: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
    Ok((text.narrow(1, 0, LENGTH)?, text.narrow(1, 1, LENGTH)?.flatten_all()?))
}

/// Returns the names of the variables that `train` changes, and the names of the others.
fn moved(variables: &Variables, train: impl FnOnce()) -> (Vec<String>, Vec<String>) {
    let values =
        || variables.names().into_iter().map(|name| flat(&variables.get(&name).unwrap())).collect::<Vec<_>>();
    let before = values();
    train();
    let (moved, kept): (Vec<_>, Vec<_>) = variables
        .names()
        .into_iter()
        .zip(before.into_iter().zip(values()))
        .partition(|(_, (before, after))| before != after);
    let names = |pairs: Vec<(String, _)>| pairs.into_iter().map(|(name, _)| name).collect();
    (names(moved), names(kept))
}

fn replicate_stock(strategy: &Strategy) -> Replicated<Stock> {
    // Tables that are found nowhere are computed.
    let nowhere = || VarBuilder::from_tensors(HashMap::new(), DType::F32, &Device::Cpu);
    strategy.replicate_seeded(3, move |vb: VarBuilder| stock(vb, nowhere())).unwrap()
}

fn replicate(strategy: &Strategy, dtype: DType) -> Replicated<Llama> {
    strategy.replicate_seeded(3, move |vb: VarBuilder| Llama::load(vb.to_dtype(dtype), &config())).unwrap()
}

#[test]
fn unmodified_llama_of_candle_trains_only_its_head() {
    watched(|| {
        let strategy = mirrored(2);
        let mut model = replicate_stock(&strategy);
        let variables = model.variables.clone();
        let optimizer = Sgd::new(&variables, 0.1).unwrap();
        let mut losses = Vec::new();
        let (moved, kept) = moved(&variables, || {
            for _ in 0..10 {
                let data = Dataset::from_slices(text(4)).unwrap().batch(4);
                for batch in &strategy.distribute_dataset(data).unwrap() {
                    let step = strategy.run((&mut model, batch.unwrap()), |ctx, ((llama, cache), text)| {
                        let (x, y) = inputs(&text)?;
                        let logits = llama.forward(&x, 0, cache)?.flatten_to(1)?;
                        optimizer.minimize(ctx, loss::cross_entropy(&logits, &y)?, y.dim(0)?)
                    });
                    losses.push(step.unwrap().values()[0].to_scalar::<f32>().unwrap());
                }
            }
        });
        // The loss does not show it.
        assert!(losses[9] < losses[0], "{losses:?}");
        // If this fails because candle's rms norm has a backward now: docs/train/transformers.md and README say
        // otherwise.
        assert_eq!(moved, ["lm_head.weight"]);
        assert_eq!(kept.len(), 20);
    });
}

#[test]
fn with_other_use_lines_it_is_the_same_model_and_all_of_it_trains() {
    watched(|| {
        let strategy = mirrored(2);
        let (mut before, model) = (replicate_stock(&strategy), replicate(&strategy, DType::F32));
        assert_eq!(model.variables.names(), before.variables.names());
        let x = inputs(&text(3)).unwrap().0;
        let logits = strategy
            .run((&mut before, &model), |_, ((llama, cache), model)| {
                Ok((llama.forward(&x, 0, cache)?, model.forward(&x)?))
            })
            .unwrap();
        for (stock, ours) in logits {
            for (stock, ours) in flat(&stock).into_iter().zip(flat(&ours)) {
                assert!((stock - ours).abs() < 1e-5, "{ours}, not {stock}");
            }
        }
        let (moved, kept) = moved(&model.variables, || drop(train(&strategy, &model, 4, 4)));
        assert_eq!((moved.len(), kept), (21, Vec::new()));
    });
}

/// Trains two epochs on `rows` rows in batches of `batch`. Returns the loss of each step.
fn train(strategy: &Strategy, model: &Replicated<Llama>, rows: usize, batch: usize) -> Vec<f64> {
    let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
    let mut losses = Vec::new();
    for _ in 0..2 {
        let data = Dataset::from_slices(text(rows)).unwrap().batch(batch);
        for batch in &strategy.distribute_dataset(data).unwrap() {
            let step = strategy.run((model, batch.unwrap()), |ctx, (model, text)| {
                let (x, y) = inputs(&text)?;
                let loss = loss::cross_entropy(&model.forward(&x)?.flatten_to(1)?, &y)?;
                // As many tokens in each row: rows would do, too.
                optimizer.minimize(ctx, loss, y.dim(0)?)
            });
            losses.push(flat(&step.unwrap().values()[0])[0]);
        }
    }
    losses
}

fn assert_same_weights(a: &Variables, b: &Variables, limit: f64, what: &str) {
    assert_eq!(a.names(), b.names());
    for name in a.names() {
        for (a, b) in flat(&a.get(&name).unwrap()).into_iter().zip(flat(&b.get(&name).unwrap())) {
            assert!((a - b).abs() <= limit * b.abs().max(1.), "{what}, {name}: {a}, not {b}");
        }
    }
}

// INV-9
#[test]
fn replicas_train_to_the_weights_of_one_including_uneven_and_empty_batches() {
    watched(|| {
        for (dtype, limit) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
            // Pieces of 2 and 2 rows; of 3 and 2, then of 1 and 1; of 2 and 1, then of 1 and none.
            for (rows, batch) in [(4, 4), (7, 5), (4, 3)] {
                let (one, two) = (mirrored(1), mirrored(2));
                let (on_one, on_two) = (replicate(&one, dtype), replicate(&two, dtype));
                let losses = (train(&one, &on_one, rows, batch), train(&two, &on_two, rows, batch));
                let what = format!("{dtype:?}, {rows} rows in batches of {batch}");
                assert!(losses.0.last() < losses.0.first(), "{what}: {losses:?}");
                for (a, b) in losses.1.into_iter().zip(losses.0) {
                    assert!((a - b).abs() <= limit * 10., "{what}: loss {a}, not {b}");
                }
                assert_same_weights(&on_two.variables, &on_one.variables, limit, &what);
            }
        }
    });
}

#[test]
fn tokens_with_padding_are_counted_automatically() {
    // Row i has i + 1 tokens; the rest is padding. The loss is the mean over the tokens of this replica, and n their
    // number.
    fn train(strategy: &Strategy) -> Replicated<Llama> {
        let model = replicate(strategy, DType::F64);
        let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
        let lengths: Vec<u32> = (1..=5).collect();
        let data =
            Dataset::from_slices((text(5), Tensor::new(lengths, &Device::Cpu).unwrap())).unwrap().batch(3);
        for batch in &strategy.distribute_dataset(data).unwrap() {
            strategy
                .run((&model, batch.unwrap()), |ctx, (model, (text, lengths))| {
                    let (x, y) = inputs(&text)?;
                    let tokens: Vec<u32> = (0..)
                        .zip(lengths.to_vec1::<u32>()?)
                        .flat_map(|(row, length)| (0..length).map(move |i| row * LENGTH as u32 + i))
                        .collect();
                    let tokens = Tensor::new(tokens, &Device::Cpu)?;
                    if tokens.dim(0)? == 0 {
                        return optimizer.skip(ctx);
                    }
                    let logits = model.forward(&x)?.flatten_to(1)?.index_select(&tokens, 0)?;
                    let loss = loss::cross_entropy(&logits, &y.index_select(&tokens, 0)?)?;
                    optimizer.minimize(ctx, loss, tokens.dim(0)?)
                })
                .unwrap();
        }
        model
    }
    watched(|| {
        let (one, two, three) = (train(&mirrored(1)), train(&mirrored(2)), train(&mirrored(3)));
        assert_same_weights(&two.variables, &one.variables, 1e-12, "2 replicas");
        assert_same_weights(&three.variables, &one.variables, 1e-12, "3 replicas");
    });
}

#[test]
fn tables_that_are_asked_of_the_models_builder_become_variables_of_zeros() {
    // What the guide warns of: with these, attention sees nothing.
    let model = mirrored(1).replicate(|vb: VarBuilder| stock(vb.clone(), vb)).unwrap();
    assert_eq!(model.variables.names().len(), 23);
    assert!(flat(&model.variables.get("freq_cis_real").unwrap()).iter().all(|x| *x == 0.));
}

#[test]
fn models_and_values_by_mutable_reference_are_separate_for_each_replica() {
    watched(|| {
        let strategy = mirrored(3);
        let mut model = strategy.replicate(|_vb: VarBuilder| Ok::<_, distribute::Error>(0)).unwrap();
        let mut calls = PerReplica::from_values(vec![10, 20, 30]);
        for _ in 0..2 {
            strategy
                .run((&mut model, &mut calls), |ctx, (model, calls)| {
                    *model += ctx.replica_id_in_sync_group();
                    *calls += 1;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(model.models().values(), [0, 2, 4]);
        assert_eq!(calls.values(), [12, 22, 32]);
        let error = mirrored(2).run(&mut calls, |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("3 parts") && error.contains("2 local replicas"), "{error}");
        let error = mirrored(2).run(&mut model, |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("3 parts") && error.contains("2 local replicas"), "{error}");
    });
}
