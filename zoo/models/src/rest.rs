//! Models that make images, and modules of which nothing is built.

use crate::examine::Row;
use crate::language::small;
use crate::{Entry, config, entry, numbers, ones, run, tokens, with};
use candle_core::{DType, Device, Tensor};
use candle_transformers::models as zoo;
use serde_json::json;

fn rows_of(width: usize) -> Tensor {
    Tensor::zeros((1, 4, width), DType::F32, &Device::Cpu).expect("positions")
}

pub fn models() -> Vec<Entry> {
    vec![
        entry("flux (transformer)", |vb| {
            use zoo::flux::{
                WithForward,
                model::{Config, Flux},
            };
            let flux = Config {
                in_channels: 4,
                vec_in_dim: 8,
                context_in_dim: 8,
                hidden_size: 16,
                mlp_ratio: 2.,
                num_heads: 2,
                depth: 1,
                depth_single_blocks: 1,
                axes_dim: vec![4, 2, 2],
                theta: 10_000,
                qkv_bias: true,
                guidance_embed: false,
            };
            let model = Flux::new(&flux, vb)?;
            run(move || {
                let (image, text, vector) = (numbers(&[1, 4, 4]), numbers(&[1, 4, 8]), numbers(&[1, 8]));
                model.forward(&image, &rows_of(3), &text, &rows_of(3), &ones(&[1], DType::F32), &vector, None)
            })
        }),
        entry("flux (autoencoder)", |vb| {
            use zoo::flux::autoencoder::{AutoEncoder, Config};
            let flux = Config {
                resolution: 8,
                in_channels: 3,
                ch: 32,
                out_ch: 3,
                ch_mult: vec![1, 1],
                num_res_blocks: 1,
                z_channels: 4,
                scale_factor: 0.4,
                shift_factor: 0.1,
            };
            let model = AutoEncoder::new(&flux, vb)?;
            run(move || model.decode(&numbers(&[1, 4, 4, 4])))
        }),
        entry("mmdit", |vb| {
            use zoo::mmdit::model::{Config, MMDiT};
            let mmdit = Config {
                patch_size: 2,
                in_channels: 4,
                out_channels: 4,
                depth: 2,
                head_size: 8,
                adm_in_channels: 8,
                pos_embed_max_size: 8,
                context_embed_size: 16,
                frequency_embedding_size: 8,
            };
            let model = MMDiT::new(&mmdit, false, vb)?;
            run(move || {
                model.forward(
                    &numbers(&[1, 4, 8, 8]),
                    &ones(&[1], DType::F32),
                    &numbers(&[1, 8]),
                    &numbers(&[1, 3, 16]),
                    None,
                )
            })
        }),
        entry("stable_diffusion (unet)", |vb| {
            use zoo::stable_diffusion::unet_2d::{
                BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
            };
            let unet = UNet2DConditionModelConfig {
                blocks: vec![
                    BlockConfig { out_channels: 32, use_cross_attn: Some(1), attention_head_dim: 2 },
                    BlockConfig { out_channels: 32, use_cross_attn: None, attention_head_dim: 2 },
                ],
                layers_per_block: 1,
                norm_num_groups: 4,
                cross_attention_dim: 8,
                ..Default::default()
            };
            let model = UNet2DConditionModel::new(vb, 4, 4, false, unet)?;
            run(move || model.forward(&numbers(&[1, 4, 8, 8]), 10., &numbers(&[1, 3, 8])))
        }),
        entry("stable_diffusion (vae)", |vb| {
            use zoo::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
            let vae = AutoEncoderKLConfig {
                block_out_channels: vec![8, 8],
                layers_per_block: 1,
                latent_channels: 4,
                norm_num_groups: 4,
                ..Default::default()
            };
            let model = AutoEncoderKL::new(vb, 3, 3, vae)?;
            run(move || model.decode(&numbers(&[1, 4, 4, 4])))
        }),
        entry("wuerstchen (prior)", |vb| {
            let model = zoo::wuerstchen::prior::WPrior::new(4, 16, 8, 8, 2, 2, false, vb)?;
            run(move || model.forward(&numbers(&[1, 4, 4, 4]), &ones(&[1], DType::F32), &numbers(&[1, 3, 8])))
        }),
        entry("z_image (text encoder)", |vb| {
            let model = zoo::z_image::ZImageTextEncoder::new(&config(small()), vb)?;
            run(move || model.forward(&tokens()))
        }),
        entry("z_image (transformer)", |vb| {
            let more = json!({"all_patch_size": [2], "all_f_patch_size": [1], "in_channels": 4, "dim": 16, "n_layers": 1,
                "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": 8, "axes_dims": [4, 2, 2],
                "axes_lens": [64, 32, 32], "use_accelerated_attn": false});
            let model = zoo::z_image::ZImageTransformer2DModel::new(&config(with(small(), more)), vb)?;
            run(move || {
                model.forward(
                    &numbers(&[1, 4, 1, 8, 8]),
                    &ones(&[1], DType::F32),
                    &numbers(&[1, 4, 8]),
                    &ones(&[1, 4], DType::U8),
                )
            })
        }),
        entry("z_image (vae)", |vb| {
            let vae: zoo::z_image::VaeConfig =
                config(json!({"latent_channels": 4, "block_out_channels": [8, 8],
                "layers_per_block": 1, "norm_num_groups": 4}));
            let model = zoo::z_image::AutoEncoderKL::new(&vae, vb)?;
            run(move || model.decode(&numbers(&[1, 4, 4, 4])))
        }),
    ]
}

/// Modules of which nothing is built, and why.
pub fn not_built() -> Vec<Row> {
    const QUANTIZED: &str =
        "lacks: `QMatMul`, the product with a quantized matrix, has no backward; for inference alone";
    const NO_SMALL: &str = "not examined: its configuration is private, and its own sizes are large";
    const PARTS: &str = "not examined as a whole; its parts are other rows";
    let quantized = [
        "quantized_blip",
        "quantized_blip_text",
        "quantized_gemma3",
        "quantized_glm4",
        "quantized_lfm2",
        "quantized_llama",
        "quantized_llama2_c",
        "quantized_metavoice",
        "quantized_mistral",
        "quantized_mixformer",
        "quantized_moondream",
        "quantized_mpt",
        "quantized_phi",
        "quantized_phi3",
        "quantized_qwen2",
        "quantized_qwen3",
        "quantized_qwen3_moe",
        "quantized_recurrent_gemma",
        "quantized_rwkv_v5",
        "quantized_rwkv_v6",
        "quantized_stable_lm",
        "quantized_t5",
    ];
    let others = [
        ("csm", NO_SMALL),
        ("mpt", NO_SMALL),
        ("yi", NO_SMALL),
        ("nvembed_v2", NO_SMALL),
        ("vgg", "not examined: its sizes have 133 million weights or more"),
        ("qwen3_vl", "not examined: text and image are computed together"),
        ("rwkv_v7", "not examined: it asks for variables without their shapes, which only files answer"),
        ("persimmon", "a configuration without a model"),
        ("moondream", "not examined: the width of its images is fixed"),
        ("llava", PARTS),
        ("mobileclip", PARTS),
        ("paddleocr_vl", "not examined: text and image are computed together"),
        ("with_tracing", "layers of candle_nn: train"),
        ("llama2_c_weights", "reads files"),
    ];
    let quantized = quantized.into_iter().map(|name| (name, QUANTIZED));
    let rows = quantized.chain(others);
    rows.map(|(name, result)| Row { name: name.into(), variables: String::new(), result: result.into() })
        .collect()
}
