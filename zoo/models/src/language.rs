//! Models that continue a text.

use crate::{Entry, config, entry, run, tokens, with};
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_transformers::models as zoo;
use serde_json::{Value, json};

/// The fields that most of them have.
pub fn small() -> Value {
    json!({
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64,
        "hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false, "mlp_bias": false,
        "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_epsilon": 1e-5, "norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 64,
        "max_window_layers": 2, "partial_rotary_factor": 0.5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "use_cache": false, "initializer_range": 0.02, "use_bias": true, "use_flash_attn": false,
        "type_vocab_size": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "qk_layernorm": false, "num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4,
        "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "position_embedding_type": "absolute",
    })
}

/// A model whose cache is cleared before each step.
macro_rules! cleared {
    ($name:literal, $($path:ident)::+, $more:tt) => {
        entry($name, |vb| {
            let mut model = zoo::$($path)::+::new(&config(with(small(), json!($more))), vb)?;
            run(move || {
                model.clear_kv_cache();
                model.forward(&tokens(), 0)
            })
        })
    };
}

/// The same for a single text.
macro_rules! of_one {
    ($name:literal, $($path:ident)::+, $more:tt) => {
        entry($name, |vb| {
            let mut model = zoo::$($path)::+::new(&config(with(small(), json!($more))), vb)?;
            run(move || {
                model.clear_kv_cache();
                model.forward(&tokens().narrow(0, 0, 1)?, 0)
            })
        })
    };
}

/// The same without a position.
macro_rules! without_position {
    ($name:literal, $($path:ident)::+, $more:tt, $clear:ident) => {
        entry($name, |vb| {
            let mut model = zoo::$($path)::+::new(&config(with(small(), json!($more))), vb)?;
            run(move || {
                model.$clear();
                model.forward(&tokens())
            })
        })
    };
}

/// A model that cannot clear its cache.
macro_rules! not_cleared {
    ($name:literal, $($path:ident)::+, $more:tt) => {
        entry($name, |vb| {
            let mut model = zoo::$($path)::+::new(&config(with(small(), json!($more))), vb)?;
            run(move || model.forward(&tokens(), 0))
        })
    };
}

/// The same for a single text.
macro_rules! not_cleared_of_one {
    ($name:literal, $($path:ident)::+, $more:tt) => {
        entry($name, |vb| {
            let mut model = zoo::$($path)::+::new(&config(with(small(), json!($more))), vb)?;
            run(move || model.forward(&tokens().narrow(0, 0, 1)?, 0))
        })
    };
}

macro_rules! gemma {
    ($name:literal, $module:ident, $more:tt) => {
        entry($name, |vb| {
            let mut model = zoo::$module::Model::new(false, &config(with(small(), json!($more))), vb)?;
            run(move || {
                model.clear_kv_cache();
                model.forward(&tokens(), 0)
            })
        })
    };
}

/// ChatGLM and what came of it.
fn glm() -> Value {
    json!({
        "num_layers": 2, "padded_vocab_size": 32, "hidden_size": 16, "ffn_hidden_size": 24, "kv_channels": 4,
        "num_attention_heads": 4, "seq_length": 64, "layernorm_epsilon": 1e-5, "rmsnorm": true,
        "apply_residual_connection_post_layernorm": false, "post_layer_norm": true, "add_bias_linear": false,
        "add_qkv_bias": true, "bias_dropout_fusion": true, "multi_query_attention": true,
        "multi_query_group_num": 2, "apply_query_key_layer_scaling": true, "attention_softmax_in_fp32": true,
        "fp32_residual_connection": false, "rope_ratio": 1
    })
}

pub fn models() -> Vec<Entry> {
    vec![
        cleared!("deepseek2", deepseek2::DeepSeekV2, {
            "n_shared_experts": 1, "n_routed_experts": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            "q_lora_rank": null, "qk_rope_head_dim": 4, "kv_lora_rank": 8, "v_head_dim": 4, "qk_nope_head_dim": 4,
            "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "topk_method": "greedy",
            "scoring_func": "softmax", "norm_topk_prob": false
        }),
        of_one!("glm4_new", glm4_new::ModelForCausalLM, {}),
        cleared!("helium", helium::Model, {}),
        cleared!("mistral", mistral::Model, {}),
        cleared!("olmo", olmo::Model, {}),
        cleared!("olmo2", olmo2::Model, {}),
        cleared!("phi3", phi3::Model, {"partial_rotary_factor": null}),
        cleared!("qwen2", qwen2::ModelForCausalLM, {}),
        cleared!("qwen2_moe", qwen2_moe::Model, {}),
        cleared!("qwen3", qwen3::ModelForCausalLM, {}),
        cleared!("qwen3_moe", qwen3_moe::ModelForCausalLM, {}),
        cleared!("starcoder2", starcoder2::Model, {}),
        cleared!("smol (smollm3)", smol::smollm3::ModelForCausalLM, {"no_rope_layer_interval": 2}),
        without_position!("phi", phi::Model, {"partial_rotary_factor": 1.0}, clear_kv_cache),
        without_position!("mixformer", mixformer::MixFormerSequentialForCausalLM, {
            "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
            "activation_function": "gelu_new", "pad_vocab_size_multiple": 8
        }, clear_kv_cache),
        not_cleared!("mixtral", mixtral::Model, {}),
        not_cleared!("stable_lm", stable_lm::Model, {}),
        not_cleared!("recurrent_gemma", recurrent_gemma::Model, {
            "attention_window_size": 16, "conv1d_width": 4, "logits_soft_cap": 30.0,
            "block_types": ["recurrent", "attention"], "num_key_value_heads": 1
        }),
        not_cleared_of_one!("based", based::Model, {
            "n_embd": 16, "n_inner": 32, "n_layer": 3, "n_head": 4, "alt_mixer_layers": [1], "alt_mixer_2_layers": [2],
            "alt_mixer": {"num_heads": 4, "feature_dim": 4, "feature_map": {"input_dim": 4}},
            "alt_mixer_2": {"num_heads": 4, "window_size": 8}
        }),
        gemma!("gemma", gemma, {"hidden_act": null}),
        gemma!("gemma2", gemma2, {
            "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 4
        }),
        gemma!("gemma3", gemma3, {
            "final_logit_softcapping": null, "attn_logit_softcapping": null, "query_pre_attn_scalar": 4,
            "sliding_window": 8, "sliding_window_pattern": 2, "rope_local_base_freq": 10000.0
        }),
        entry("gemma4 (text)", |vb| {
            let more = json!({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
                "global_head_dim": 4, "num_global_key_value_heads": null, "final_logit_softcapping": null});
            let mut model = zoo::gemma4::text::TextModel::new(&config(with(small(), more)), vb)?;
            run(move || {
                model.clear_kv_cache();
                model.forward(&tokens(), 0)
            })
        }),
        entry("falcon", |vb| {
            let more = json!({"hidden_dropout": 0.0, "attention_dropout": 0.0, "n_head_kv": null, "alibi": false,
                "new_decoder_architecture": false, "multi_query": true, "parallel_attn": true, "bias": false});
            let mut model = zoo::falcon::Falcon::load(vb, config(with(small(), more)))?;
            run(move || {
                model.clear_kv_cache();
                model.forward(&tokens().narrow(0, 0, 1)?)
            })
        }),
        entry("codegeex4_9b", |vb| {
            let mut model = zoo::codegeex4_9b::Model::new(&config(glm()), vb)?;
            run(move || {
                model.reset_kv_cache();
                model.forward(&tokens())
            })
        }),
        entry("glm4", |vb| {
            let mut model = zoo::glm4::Model::new(&config(glm()), vb)?;
            run(move || {
                model.reset_kv_cache();
                model.forward(&tokens())
            })
        }),
        entry("chatglm", |vb| {
            let mut glm3 = zoo::chatglm::Config::glm3_6b();
            (glm3.num_layers, glm3.padded_vocab_size, glm3.hidden_size, glm3.ffn_hidden_size) =
                (2, 32, 16, 24);
            (glm3.kv_channels, glm3.num_attention_heads, glm3.seq_length, glm3.multi_query_group_num) =
                (4, 4, 64, 2);
            let mut model = zoo::chatglm::Model::new(&glm3, vb)?;
            run(move || {
                model.reset_kv_cache();
                model.forward(&tokens())
            })
        }),
        entry("bigcode", |vb| {
            let mut coder = zoo::bigcode::Config::starcoder_1b();
            (coder.vocab_size, coder.max_position_embeddings, coder.num_hidden_layers) = (32, 64, 2);
            (coder.hidden_size, coder.n_inner, coder.num_attention_heads, coder.use_cache) =
                (16, Some(24), 4, false);
            let mut model = zoo::bigcode::GPTBigCode::load(vb, coder)?;
            run(move || model.forward(&tokens(), 0))
        }),
        entry("llama", |vb| {
            let llama: zoo::llama::LlamaConfig = config(small());
            let llama = llama.into_config(false);
            let model = zoo::llama::Llama::load(vb, &llama)?;
            run(move || {
                let mut cache = zoo::llama::Cache::new(false, DType::F32, &llama, &Device::Cpu)?;
                model.forward(&tokens(), 0, &mut cache)
            })
        }),
        entry("granite", |vb| {
            let granite: zoo::granite::GraniteConfig = config(small());
            let granite = granite.into_config(false);
            let model = zoo::granite::Granite::load(vb, &granite)?;
            run(move || {
                let mut cache = zoo::granite::Cache::new(false, DType::F32, &granite, &Device::Cpu)?;
                model.forward(&tokens(), 0, &mut cache)
            })
        }),
        entry("granitemoehybrid", |vb| {
            use zoo::granitemoehybrid::{GraniteMoeHybrid, GraniteMoeHybridCache, GraniteMoeHybridConfig};
            let more = json!({"layer_types": ["attention", "attention"], "shared_intermediate_size": 24});
            let granite: GraniteMoeHybridConfig = config(with(small(), more));
            let granite = granite.into_config(false);
            let model = GraniteMoeHybrid::load(vb, &granite)?;
            run(move || {
                let mut cache = GraniteMoeHybridCache::new(false, DType::F32, &granite, &Device::Cpu)?;
                model.forward(&tokens(), 0, &mut cache)
            })
        }),
        entry("lfm2", |vb| {
            let more = json!({"layer_types": ["conv", "full_attention"], "block_multiple_of": 8});
            let lfm: zoo::lfm2::Lfm2Config = config(with(small(), more));
            let lfm = lfm.into_config(false);
            let model = zoo::lfm2::Model::new(&lfm, vb)?;
            run(move || {
                let mut cache = zoo::lfm2::Cache::new(false, DType::F32, &lfm, &Device::Cpu)?;
                model.forward(&tokens(), 0, &mut cache)
            })
        }),
        entry("llama2_c", |vb| {
            use zoo::llama2_c::{Cache, Config, Llama};
            let llama = || Config {
                dim: 16,
                hidden_dim: 24,
                n_layers: 2,
                n_heads: 4,
                n_kv_heads: 2,
                vocab_size: 32,
                seq_len: 8,
                norm_eps: 1e-5,
            };
            let model = Llama::load(vb, llama())?;
            run(move || {
                let tables =
                    candle_nn::VarBuilder::from_tensors(Default::default(), DType::F32, &Device::Cpu);
                model.forward(&tokens(), 0, &mut Cache::new(false, &llama(), tables)?)
            })
        }),
        entry("mamba", |vb| {
            let mamba: zoo::mamba::Config =
                config(json!({"d_model": 8, "n_layer": 2, "vocab_size": 32, "pad_vocab_size_multiple": 8}));
            let model = zoo::mamba::Model::new(&mamba, vb)?;
            run(move || {
                let mut state = zoo::mamba::State::new(1, &mamba, DType::F32, &Device::Cpu)?;
                let each = (0..5).map(|i| model.forward(&tokens().i((..1, i))?, &mut state));
                Tensor::stack(&each.collect::<candle_core::Result<Vec<_>>>()?, 1)
            })
        }),
        entry("mamba2", |vb| {
            let mamba: zoo::mamba2::Config =
                config(json!({"d_model": 16, "n_layer": 2, "vocab_size": 32, "d_state": 8,
                "expand": 2, "headdim": 8, "ngroups": 1, "pad_vocab_size_multiple": 8}));
            let model = zoo::mamba2::Model::new(&mamba, vb)?;
            run(move || {
                let mut state = zoo::mamba2::State::new(2, &mamba, DType::F32, &Device::Cpu)?;
                model.forward_prefill(&tokens(), &mut state, 4)
            })
        }),
        entry("rwkv_v5", |vb| {
            let rwkv: zoo::rwkv_v5::Config = config(with(
                small(),
                json!({"attention_hidden_size": 16, "head_size": 4,
                "rescale_every": 6, "num_attention_heads": 4}),
            ));
            let model = zoo::rwkv_v5::Model::new(&rwkv, vb)?;
            run(move || {
                let mut state = zoo::rwkv_v5::State::new(1, &rwkv, &Device::Cpu)?;
                let each = (0..3).map(|i| model.forward(&tokens().i((..1, i..i + 1))?, &mut state));
                Tensor::cat(&each.collect::<candle_core::Result<Vec<_>>>()?, 1)
            })
        }),
        entry("rwkv_v6", |vb| {
            let rwkv: zoo::rwkv_v5::Config = config(with(
                small(),
                json!({"attention_hidden_size": 16, "head_size": 4,
                "rescale_every": 6, "num_attention_heads": 4}),
            ));
            let model = zoo::rwkv_v6::Model::new(&rwkv, vb)?;
            run(move || {
                let mut state = zoo::rwkv_v5::State::new(1, &rwkv, &Device::Cpu)?;
                let each = (0..3).map(|i| model.forward(&tokens().i((..1, i..i + 1))?, &mut state));
                Tensor::cat(&each.collect::<candle_core::Result<Vec<_>>>()?, 1)
            })
        }),
    ]
}
