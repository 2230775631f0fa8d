//! Variables without a gradient.

use crate::optimizer::{Log, mirrored, vectors};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Linear, RmsNorm, VarBuilder, linear, rms_norm};
use candle_transformers::models::llama2_c::{Cache, Config, Llama};
use candle_transformers::models::{bert, distilbert};
use distribute::optimizer::MissingGradients;
use distribute::prelude::*;
use distribute::{Error, Result};
use distribute_testing::watched;

/// A model with candle's fused norm, so that only its last layer is trained.
struct Cut {
    below: Linear,
    norm: RmsNorm,
    head: Linear,
}

impl Cut {
    fn new(vb: VarBuilder, name: &str) -> candle_core::Result<Self> {
        let vb = vb.pp(name);
        let below = linear(4, 4, vb.pp("below"))?;
        Ok(Self { below, norm: rms_norm(4, 1e-5, vb.pp("norm"))?, head: linear(4, 2, vb.pp("head"))? })
    }

    fn loss(&self) -> Result<Tensor> {
        let x = Tensor::arange(0f32, 8., &Device::Cpu)?.reshape((2, 4))?;
        let hidden = self.norm.forward(&self.below.forward(&x)?)?;
        Ok(self.head.forward(&hidden)?.sqr()?.mean_all()?)
    }
}

fn cut(strategy: &Strategy, name: &'static str) -> Replicated<Cut> {
    strategy.replicate(move |vb: VarBuilder| Cut::new(vb, name)).unwrap()
}

fn step(strategy: &Strategy, model: &Replicated<Cut>, optimizer: &Sgd) -> Result<()> {
    strategy.run(model, |ctx, model| optimizer.minimize(ctx, model.loss()?, 2)).map(drop)
}

#[test]
fn a_model_that_trains_only_its_head_gets_one_warning_by_name() {
    watched(|| {
        let log = Log::of_process();
        for (n, name) in [(1, "only_a"), (3, "only_b")] {
            let strategy = mirrored(n);
            let model = cut(&strategy, name);
            let optimizer = Sgd::new(&model.variables, 0.01).unwrap();
            // A step without an example on any replica logs nothing, and the warning can still be logged later.
            strategy.run((), |ctx, ()| optimizer.skip(ctx)).unwrap_err();
            assert!(log.lines(name).is_empty());
            (0..3).for_each(|_| step(&strategy, &model, &optimizer).unwrap());
            let lines = log.lines(&format!("{name}.below"));
            assert_eq!(lines.len(), 1, "{lines:?}");
            for part in [
                "WARN",
                "minimize: 3 of 5 variables got no gradient in the first step",
                &format!("{name}.below.bias, {name}.below.weight, {name}.norm.weight"),
                &format!("only {name}.head got one"),
                "rms_norm",
                "distribute::nn",
            ] {
                assert!(lines[0].contains(part), "{part:?} is not in {}", lines[0]);
            }
        }
    });
}

#[test]
fn unmodified_llama_gets_a_warning() {
    watched(|| {
        let log = Log::of_process();
        let config = Config {
            dim: 8,
            hidden_dim: 16,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 2,
            vocab_size: 10,
            seq_len: 6,
            norm_eps: 1e-5,
        };
        let strategy = mirrored(2);
        let model = strategy.replicate(move |vb: VarBuilder| -> candle_core::Result<(Llama, Cache)> {
            Ok((Llama::load(vb.clone(), config.clone())?, Cache::new(false, &config, vb.pp("rot"))?))
        });
        let model = model.unwrap();
        let optimizer = AdamW::new(&model.variables, 1e-3).unwrap();
        for _ in 0..2 {
            let run = strategy.run(&model, |ctx, (llama, cache)| {
                let tokens = Tensor::new(&[[1u32, 2, 3, 4, 5]], &Device::Cpu)?;
                let logits = llama.forward(&tokens, 0, &mut cache.clone())?;
                optimizer.minimize(ctx, logits.sqr()?.mean_all()?, 1)
            });
            run.unwrap();
        }
        let lines = log.lines("model.embed_tokens.weight");
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in
            ["22 of 23 variables got no gradient", "12 more", "only lm_head got one", "rms_norm", "rope"]
        {
            assert!(lines[0].contains(part), "{part:?} is not in {}", lines[0]);
        }
    });
}

/// Returns the warnings about the variable `name` after a model's first step on five tokens, and the variables that had
/// a gradient.
fn warnings_and_weights<M: Send + Sync>(
    load: impl Fn(VarBuilder) -> candle_core::Result<M> + Send + Sync + 'static,
    forward: impl Fn(&M, &Tensor) -> candle_core::Result<Tensor> + Sync,
    name: &str,
) -> (Vec<String>, Vec<String>) {
    let (log, strategy) = (Log::of_process(), mirrored(2));
    let model = strategy.replicate(move |vb: VarBuilder| load(vb)).unwrap();
    let step = |optimizer: &Sgd| {
        let run = strategy.run(&model, |ctx, model| {
            let tokens = Tensor::new(&[[1u32, 2, 3, 4, 5]], &Device::Cpu)?;
            optimizer.minimize(ctx, forward(model, &tokens)?.sqr()?.mean_all()?, 1)
        });
        run.map(drop)
    };
    let optimizer = || Sgd::new(&model.variables, 1e-3).unwrap();
    step(&optimizer()).unwrap();
    let error = step(&optimizer().on_missing_gradients(MissingGradients::Error)).unwrap_err();
    let Error::MissingGradients { variables, .. } = error.root_cause() else { panic!("{error}") };
    let trained = model.variables.names().into_iter().filter(|name| !variables.contains(name)).collect();
    (log.lines(name), trained)
}

#[test]
fn unmodified_bert_gets_a_warning() {
    watched(|| {
        let config = bert::Config {
            vocab_size: 10,
            hidden_size: 8,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            intermediate_size: 16,
            max_position_embeddings: 6,
            ..Default::default()
        };
        let (lines, trained) = warnings_and_weights(
            move |vb| bert::BertForMaskedLM::load(vb, &config),
            |model, tokens| model.forward(tokens, &tokens.zeros_like()?, None),
            ": bert.embeddings.LayerNorm.bias",
        );
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(trained, ["cls.predictions.decoder.bias", "cls.predictions.decoder.weight"]);
        for part in
            ["41 of 43 variables got no gradient", "only cls.predictions.decoder got one", "layer_norm"]
        {
            assert!(lines[0].contains(part), "{part:?} is not in {}", lines[0]);
        }
    });
}

#[test]
fn unmodified_distilbert_gets_a_warning() {
    watched(|| {
        let config = serde_json::json!({
            "vocab_size": 10, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "activation": "gelu",
            "max_position_embeddings": 6, "initializer_range": 0.02, "pad_token_id": 0, "model_type": "distilbert",
        });
        let (lines, trained) = warnings_and_weights(
            move |vb| {
                let config = serde_json::from_value(config.clone()).map_err(candle_core::Error::wrap)?;
                distilbert::DistilBertForMaskedLM::load(vb, &config)
            },
            |model, tokens| model.forward(tokens, &tokens.zeros_like()?.to_dtype(DType::U8)?),
            ": distilbert.embeddings.LayerNorm.bias",
        );
        assert_eq!(lines.len(), 1, "{lines:?}");
        // The head's weight is the table of words.
        assert_eq!(trained, ["distilbert.embeddings.word_embeddings.weight", "vocab_projector.bias"]);
        for part in [
            "variables got no gradient",
            "only distilbert.embeddings.word_embeddings and vocab_projector got one",
        ] {
            assert!(lines[0].contains(part), "{part:?} is not in {}", lines[0]);
        }
    });
}

#[test]
fn on_request_it_is_an_error_of_every_replica_and_nothing_has_changed() {
    watched(|| {
        for n in [1, 2] {
            let strategy = mirrored(n);
            let model = cut(&strategy, "strict");
            let optimizer =
                Sgd::new(&model.variables, 0.01).unwrap().on_missing_gradients(MissingGradients::Error);
            let before = model.variables.sha256().unwrap();
            for _ in 0..2 {
                let said = strategy.run(&model, |ctx, model| {
                    let error = optimizer.minimize(ctx, model.loss()?, 2).unwrap_err();
                    let Error::MissingGradients { variables, .. } = error.root_cause() else {
                        panic!("{error}")
                    };
                    Ok(variables.clone())
                });
                let names = ["strict.below.bias", "strict.below.weight", "strict.norm.weight"];
                assert!(said.unwrap().iter().all(|variables| *variables == names));
            }
            assert_eq!((model.variables.sha256().unwrap(), optimizer.finished_steps()), (before, 0));
        }
    });
}

#[test]
fn deliberately_frozen_variables_get_no_warning() {
    watched(|| {
        let log = Log::of_process();
        let strategy = mirrored(2);
        let model = cut(&strategy, "frozen_cut");
        let optimizer =
            Sgd::new(&model.variables, 0.01).unwrap().freeze(|name| !name.contains("head")).unwrap();
        let optimizer = optimizer.on_missing_gradients(MissingGradients::Error);
        step(&strategy, &model, &optimizer).unwrap();
        let model = cut(&strategy, "quiet_cut");
        let optimizer =
            Sgd::new(&model.variables, 0.01).unwrap().on_missing_gradients(MissingGradients::Quiet);
        step(&strategy, &model, &optimizer).unwrap();
        assert!(log.lines("frozen_cut").is_empty() && log.lines("quiet_cut").is_empty());
    });
}

#[test]
fn a_gradient_on_one_replica_is_enough_and_later_steps_are_not_looked_at() {
    watched(|| {
        let log = Log::of_process();
        let strategy = mirrored(2);
        let model = vectors(&strategy, &["expert_a", "expert_b"]);
        let optimizer = Sgd::new(&model.variables, 0.01).unwrap();
        let step = |of: fn(usize) -> usize| {
            let run = strategy.run(&model, |ctx, experts| {
                let loss = experts[of(ctx.replica_id_in_sync_group())].to_dtype(DType::F32)?.sum_all()?;
                optimizer.minimize(ctx, loss, 1)
            });
            run.unwrap();
        };
        // The replicas use different experts in the first step, and the same one in the second.
        step(|replica| replica);
        step(|_| 0);
        assert!(log.lines("expert_b").is_empty());
    });
}
