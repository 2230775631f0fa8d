//! Models that read a text, or translate it.

use crate::language::small;
use crate::{Entry, config, entry, numbers, ones, run, tokens, with};
use candle_core::{DType, Device, Module, Tensor};
use candle_transformers::models as zoo;
use serde_json::{Value, json};

fn bert() -> Value {
    with(small(), json!({"hidden_act": "gelu"}))
}

fn t5() -> Value {
    json!({
        "vocab_size": 32, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "dropout_rate": 0.0,
        "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": false, "is_encoder_decoder": true, "use_cache": false, "pad_token_id": 0, "eos_token_id": 1
    })
}

fn types() -> Tensor {
    tokens().zeros_like().expect("types")
}

pub fn models() -> Vec<Entry> {
    vec![
        entry("bert", |vb| {
            let model = zoo::bert::BertForMaskedLM::load(vb, &config(bert()))?;
            run(move || model.forward(&tokens(), &types(), None))
        }),
        entry("distilbert", |vb| {
            let more =
                json!({"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "activation": "gelu"});
            let model = zoo::distilbert::DistilBertForMaskedLM::load(vb, &config(with(bert(), more)))?;
            run(move || {
                model.forward(
                    &tokens(),
                    &Tensor::zeros((2, 5), DType::U8, &Device::Cpu)?.unsqueeze(1)?.unsqueeze(1)?,
                )
            })
        }),
        entry("debertav2", |vb| {
            let more = json!({"relative_attention": true, "max_relative_positions": -1, "position_biased_input": false,
                "pos_att_type": "p2c|c2p", "position_buckets": 8, "share_att_key": true, "norm_rel_ebd": "layer_norm"});
            let model = zoo::debertav2::DebertaV2Model::load(vb, &config(with(bert(), more)))?;
            run(move || model.forward(&tokens(), None, None))
        }),
        entry("jina_bert", |vb| {
            let more = json!({"position_embedding_type": "alibi"});
            let model = zoo::jina_bert::BertModel::new(vb, &config(with(bert(), more)))?;
            run(move || model.forward(&tokens()))
        }),
        entry("modernbert", |vb| {
            let more = json!({"global_attn_every_n_layers": 2, "global_rope_theta": 10000.0, "local_attention": 8,
                "local_rope_theta": 10000.0});
            let model = zoo::modernbert::ModernBertForMaskedLM::load(vb, &config(with(bert(), more)))?;
            run(move || model.forward(&tokens(), &ones(&[2, 5], DType::U32)))
        }),
        entry("nomic_bert", |vb| {
            let more = json!({"n_embd": 16, "n_head": 4, "n_layer": 2, "n_inner": 24, "n_positions": 64,
                "rotary_emb_fraction": 1.0, "rotary_emb_base": 1000.0, "rotary_emb_interleaved": false,
                "qkv_proj_bias": false, "mlp_fc1_bias": false, "mlp_fc2_bias": false, "activation_function": "swiglu",
                "prenorm": false});
            let model = zoo::nomic_bert::NomicBertModel::load(vb, &config(with(bert(), more)))?;
            run(move || model.forward(&tokens(), None, None))
        }),
        entry("xlm_roberta", |vb| {
            let model = zoo::xlm_roberta::XLMRobertaForMaskedLM::new(&config(bert()), vb)?;
            run(move || model.forward(&tokens(), &ones(&[2, 5], DType::U32), &types(), None, None, None))
        }),
        entry("stella_en_v5", |vb| {
            let more = json!({"variant": "Large", "embed_head": {"in_features": 16, "out_features": 8},
                "activation_fn": "silu", "scaling_factor": 1.0});
            let stella: zoo::stella_en_v5::Config = config(with(small(), more));
            let mut model = zoo::stella_en_v5::EmbeddingModel::new(&stella, vb.pp("base"), vb.pp("head"))?;
            run(move || model.forward(&tokens(), &ones(&[2, 5], DType::U32)))
        }),
        entry("t5", |vb| {
            let mut model = zoo::t5::T5ForConditionalGeneration::load(vb, &config(t5()))?;
            run(move || {
                model.clear_kv_cache();
                model.forward(&tokens(), &tokens())
            })
        }),
        entry("marian", |vb| {
            let marian: zoo::marian::Config = config(json!({
                "vocab_size": 32, "max_position_embeddings": 64, "encoder_layers": 2, "encoder_ffn_dim": 24,
                "encoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 24, "decoder_attention_heads": 4,
                "use_cache": false, "is_encoder_decoder": true, "activation_function": "silu", "d_model": 16,
                "decoder_start_token_id": 0, "scale_embedding": true, "pad_token_id": 0, "eos_token_id": 1,
                "forced_eos_token_id": 1, "share_encoder_decoder_embeddings": true
            }));
            let mut model = zoo::marian::MTModel::new(&marian, vb)?;
            run(move || {
                model.reset_kv_cache();
                let read = model.encoder().forward(&tokens(), 0)?;
                model.decode(&tokens(), &read, 0)
            })
        }),
        entry("blip_text", |vb| {
            let more = json!({"hidden_act": "gelu", "encoder_hidden_size": 16, "projection_dim": 16, "is_decoder": true});
            let mut model = zoo::blip_text::TextLMHeadModel::new(&config(with(small(), more)), vb)?;
            run(move || {
                model.reset_kv_cache();
                model.forward(&tokens().narrow(0, 0, 1)?, &numbers(&[1, 3, 16]))
            })
        }),
        entry("openclip (text)", |vb| {
            let mut clip = zoo::openclip::text_model::Config::vit_base_patch32();
            (clip.vocab_size, clip.embed_dim, clip.intermediate_size, clip.max_position_embeddings) =
                (32, 16, 24, 8);
            (clip.num_hidden_layers, clip.num_attention_heads, clip.projection_dim) = (2, 4, 16);
            let model = zoo::openclip::text_model::OpenClipTextTransformer::new(vb, &clip)?;
            run(move || model.forward(&tokens()))
        }),
        entry("parler_tts (decoder)", |vb| {
            let parler: zoo::parler_tts::DecoderConfig = config(with(
                small(),
                json!({"ffn_dim": 24,
                "num_key_value_heads": 4, "num_cross_attention_key_value_heads": 4, "activation_function": "gelu",
                "scale_embedding": false, "num_codebooks": 3, "rope_embeddings": false}),
            ));
            let mut model = zoo::parler_tts::Decoder::new(&parler, vb)?;
            run(move || {
                model.clear_kv_cache();
                let codes =
                    Tensor::cat(&[&tokens(), &tokens(), &tokens()], 0)?.narrow(0, 0, 3)?.unsqueeze(0)?;
                Tensor::stack(&model.forward(&codes, None, None, &numbers(&[1, 4, 16]), None, 0)?, 0)
            })
        }),
    ]
}
