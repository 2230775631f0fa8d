//! Models of sound.

use crate::language::small;
use crate::{Entry, config, entry, numbers, run, tokens, with};
use candle_core::{DType, Device, Module, Tensor};
use candle_transformers::models as zoo;
use serde_json::json;

pub fn models() -> Vec<Entry> {
    vec![
        entry("whisper", |vb| {
            let whisper: zoo::whisper::Config = config(
                json!({"num_mel_bins": 8, "max_source_positions": 6, "d_model": 16,
                "encoder_attention_heads": 4, "encoder_layers": 2, "vocab_size": 32, "max_target_positions": 8,
                "decoder_attention_heads": 4, "decoder_layers": 2}),
            );
            let mut model = zoo::whisper::model::Whisper::load(&vb, whisper)?;
            run(move || {
                let heard = model.encoder.forward(&numbers(&[2, 8, 12]), true)?;
                let read = model.decoder.forward(&tokens(), &heard, true)?;
                model.decoder.final_linear(&read)
            })
        }),
        entry("voxtral (encoder)", |vb| {
            let voxtral = zoo::voxtral::VoxtralEncoderConfig {
                hidden_size: 16,
                intermediate_size: 24,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                num_key_value_heads: 4,
                head_dim: 4,
                num_mel_bins: 8,
                max_source_positions: 6,
                ..Default::default()
            };
            let model = zoo::voxtral::VoxtralEncoder::new(&voxtral, vb)?;
            run(move || model.forward(&numbers(&[2, 8, 12])))
        }),
        entry("voxtral (Llama)", |vb| {
            let llama: zoo::voxtral::VoxtralLlamaConfig =
                config(with(small(), json!({"rope_theta": 10000.0})));
            let model = zoo::voxtral::VoxtralLlama::load(vb, &llama)?;
            run(move || {
                let mut cache =
                    zoo::voxtral::VoxtralLlamaCache::new(false, DType::F32, &llama, &Device::Cpu)?;
                model.forward(&tokens(), 0, &mut cache)
            })
        }),
        entry("encodec (decoder)", |vb| {
            let encodec = zoo::encodec::Config {
                hidden_size: 8,
                num_filters: 4,
                upsampling_ratios: vec![2, 2],
                num_lstm_layers: 1,
                codebook_size: 16,
                ..Default::default()
            };
            let model = zoo::encodec::Decoder::new(&encodec, vb)?;
            run(move || model.forward(&numbers(&[1, 8, 6])))
        }),
        entry("encodec (encoder)", |vb| {
            let encodec = zoo::encodec::Config {
                hidden_size: 8,
                num_filters: 4,
                upsampling_ratios: vec![2, 2],
                num_lstm_layers: 1,
                codebook_size: 16,
                ..Default::default()
            };
            let model = zoo::encodec::Encoder::new(&encodec, vb)?;
            run(move || model.forward(&numbers(&[1, 1, 32])))
        }),
        entry("dac (encoder)", |vb| {
            let model = zoo::dac::Encoder::new(4, &[2, 2], 8, vb)?;
            run(move || model.forward(&numbers(&[1, 1, 32])))
        }),
        entry("dac (decoder)", |vb| {
            let model = zoo::dac::Decoder::new(8, 16, &[2, 2], 1, vb)?;
            run(move || model.forward(&numbers(&[1, 8, 6])))
        }),
        entry("snac (encoder)", |vb| {
            let snac: zoo::snac::Config = config(
                json!({"sampling_rate": 24000, "encoder_dim": 4, "encoder_rates": [2, 2],
                "decoder_dim": 16, "decoder_rates": [2, 2], "attn_window_size": null, "codebook_size": 16, "codebook_dim": 4,
                "vq_strides": [2, 1], "noise": false, "depthwise": false}),
            );
            let model = zoo::snac::Model::new(&snac, vb)?;
            run(move || model.encoder.forward(&numbers(&[1, 1, 32])))
        }),
        entry("snac (decoder)", |vb| {
            let snac: zoo::snac::Config = config(
                json!({"sampling_rate": 24000, "encoder_dim": 4, "encoder_rates": [2, 2],
                "decoder_dim": 16, "decoder_rates": [2, 2], "attn_window_size": null, "codebook_size": 16, "codebook_dim": 4,
                "vq_strides": [2, 1], "noise": false, "depthwise": false}),
            );
            let model = zoo::snac::Model::new(&snac, vb)?;
            run(move || model.decoder.forward(&numbers(&[1, 16, 6])))
        }),
        entry("mimi (encoder)", |vb| {
            let mut mimi = zoo::mimi::Config::v0_1(Some(2));
            (mimi.seanet.dimension, mimi.seanet.n_filters, mimi.seanet.ratios) = (16, 4, vec![2, 2]);
            (mimi.transformer.d_model, mimi.transformer.num_heads, mimi.transformer.num_layers) = (16, 4, 2);
            (mimi.transformer.dim_feedforward, mimi.transformer.context, mimi.transformer.max_seq_len) =
                (24, 16, 64);
            (mimi.quantizer_dim, mimi.quantizer_bins, mimi.frame_rate) = (8, 16, mimi.sample_rate / 8.);
            let mut model = zoo::mimi::Model::new(mimi, vb)?;
            run(move || {
                model.reset_state();
                model.encode_pre_quantize(&numbers(&[1, 1, 32]))
            })
        }),
        entry("metavoice (transformer)", |vb| {
            let mut metavoice = zoo::metavoice::transformer::Config::cfg1b_v0_1();
            (metavoice.vocab_size, metavoice.dim, metavoice.n_layer, metavoice.n_head) = (32, 16, 2, 4);
            (metavoice.intermediate_size, metavoice.block_size, metavoice.speaker_emb_dim) =
                (Some(24), 16, 8);
            let mut model = zoo::metavoice::transformer::Model::new(&metavoice, vb)?;
            run(move || {
                model.clear_kv_cache();
                model.forward(&tokens(), &numbers(&[1, 1, 8]), 0)
            })
        }),
        entry("metavoice (gpt)", |vb| {
            let mut gpt = zoo::metavoice::gpt::Config::cfg1b_v0_1();
            (gpt.n_layer, gpt.n_head, gpt.n_embd, gpt.block_size) = (2, 4, 16, 16);
            (gpt.vocab_sizes, gpt.target_vocab_sizes) = (vec![32, 32], vec![16, 16]);
            let model = zoo::metavoice::gpt::Model::new(gpt, vb)?;
            let both = Tensor::stack(&[tokens(), tokens()], 1)?;
            run(move || Tensor::stack(&model.forward(&both)?, 0))
        }),
    ]
}
