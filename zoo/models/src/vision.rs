//! Models of images.

use crate::language::small;
use crate::{Entry, config, entry, numbers, run, tokens, with};
use candle_core::Module;
use candle_nn::ModuleT;
use candle_transformers::models as zoo;
use serde_json::json;

/// A model that candle_transformers has in sizes of its own, with ten classes and images of a size.
macro_rules! sized {
    ($name:literal, $module:ident::$function:ident($($config:tt)*), $side:literal) => {
        entry($name, |vb| {
            let model = zoo::$module::$function($($config)* 10, vb)?;
            run(move || model.forward_t(&numbers(&[2, 3, $side, $side]), false))
        })
    };
}

pub fn models() -> Vec<Entry> {
    vec![
        entry("vit", |vb| {
            let more = json!({"hidden_act": "gelu", "image_size": 8, "patch_size": 4, "num_channels": 3, "qkv_bias": true});
            let model = zoo::vit::Model::new(&config(with(small(), more)), 10, vb)?;
            run(move || model.forward(&numbers(&[2, 3, 8, 8])))
        }),
        entry("beit", |vb| {
            let model = zoo::beit::BeitVisionTransformer::new(vb, 1, 8, 2)?;
            run(move || model.forward(&numbers(&[1, 3, 384, 384])))
        }),
        entry("dinov2", |vb| {
            let model = zoo::dinov2::DinoVisionTransformer::new(vb, 2, 8, 2)?;
            run(move || model.forward(&numbers(&[1, 3, 28, 28])))
        }),
        entry("dinov2reg4", |vb| {
            let model = zoo::dinov2reg4::DinoVisionTransformer::new(vb, 1, 8, 2)?;
            run(move || model.forward(&numbers(&[1, 3, 518, 518])))
        }),
        entry("eva2", |vb| {
            let model = zoo::eva2::EVA2VisionTransformer::new(vb, 1, 128, 2)?;
            run(move || model.forward(&numbers(&[1, 3, 448, 448])))
        }),
        entry("segformer", |vb| {
            let segformer: zoo::segformer::Config = config(json!({
                "num_channels": 3, "num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "sr_ratios": [2, 2, 1, 1],
                "hidden_sizes": [8, 8, 16, 16], "patch_sizes": [7, 3, 3, 3], "strides": [2, 2, 2, 1],
                "num_attention_heads": [1, 2, 2, 2], "mlp_ratios": [2, 2, 2, 2], "hidden_act": "gelu",
                "layer_norm_eps": 1e-6, "decoder_hidden_size": 16
            }));
            let model = zoo::segformer::SemanticSegmentationModel::new(&segformer, 5, vb)?;
            run(move || model.forward(&numbers(&[2, 3, 32, 32])))
        }),
        entry("siglip", |vb| {
            let text =
                with(small(), json!({"hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 5}));
            let image = with(
                small(),
                json!({"hidden_act": "gelu_pytorch_tanh", "image_size": 8, "patch_size": 4, "num_channels": 3}),
            );
            let model =
                zoo::siglip::Model::new(&config(json!({"text_config": text, "vision_config": image})), vb)?;
            run(move || model.forward(&numbers(&[2, 3, 8, 8]), &tokens()).map(|both| both.0))
        }),
        entry("clip", |vb| {
            use zoo::clip::{ClipConfig, ClipModel, text_model::Activation};
            let mut clip = ClipConfig::vit_base_patch32();
            let (text, image) = (&mut clip.text_config, &mut clip.vision_config);
            (text.vocab_size, text.embed_dim, text.intermediate_size, text.max_position_embeddings) =
                (32, 16, 24, 8);
            (text.num_hidden_layers, text.num_attention_heads, text.projection_dim) = (2, 4, 16);
            (image.embed_dim, image.intermediate_size, image.num_hidden_layers, image.num_attention_heads) =
                (16, 24, 2, 4);
            (image.projection_dim, image.image_size, image.patch_size, image.activation) =
                (16, 8, 4, Activation::QuickGelu);
            // Without it in the builder, the model makes a random one.
            vb.get(16, "vision_model.embeddings.class_embedding")?;
            let model = ClipModel::new(vb, &clip)?;
            let tokens = || tokens().to_dtype(candle_core::DType::I64);
            run(move || model.forward(&numbers(&[2, 3, 8, 8]), &tokens()?).map(|both| both.0))
        }),
        entry("chinese_clip", |vb| {
            use zoo::chinese_clip::{ChineseClipConfig, ChineseClipModel};
            let mut clip = ChineseClipConfig::clip_vit_base_patch16();
            let (text, image) = (&mut clip.text_config, &mut clip.vision_config);
            (text.vocab_size, text.hidden_size, text.intermediate_size, text.max_position_embeddings) =
                (32, 16, 24, 64);
            (text.num_hidden_layers, text.num_attention_heads) = (2, 4);
            (
                image.hidden_size,
                image.intermediate_size,
                image.num_hidden_layers,
                image.num_attention_heads,
            ) = (16, 24, 2, 4);
            (image.projection_dim, image.image_size, image.patch_size, clip.projection_dim) = (16, 8, 4, 16);
            vb.get(16, "vision_model.embeddings.class_embedding")?;
            let model = ChineseClipModel::new(vb, &clip)?;
            run(move || model.forward(&numbers(&[2, 3, 8, 8]), &tokens(), None, None).map(|both| both.0))
        }),
        entry("blip", |vb| {
            let text = with(
                small(),
                json!({"hidden_act": "gelu", "encoder_hidden_size": 16, "projection_dim": 16, "is_decoder": true}),
            );
            let image = with(
                small(),
                json!({"hidden_act": "gelu", "projection_dim": 16, "image_size": 8, "patch_size": 4}),
            );
            let blip = json!({"text_config": text, "vision_config": image, "projection_dim": 16, "image_text_hidden_size": 16});
            let mut model = zoo::blip::BlipForConditionalGeneration::new(&config(blip), vb)?;
            run(move || {
                model.reset_kv_cache();
                let seen = model.vision_model().forward(&numbers(&[1, 3, 8, 8]))?;
                model.text_decoder().forward(&tokens().narrow(0, 0, 1)?, &seen)
            })
        }),
        entry("trocr", |vb| {
            let image: zoo::vit::Config = config(with(
                small(),
                json!({"hidden_act": "gelu", "image_size": 8, "patch_size": 4,
                "num_channels": 3, "qkv_bias": false}),
            ));
            let text: zoo::trocr::TrOCRConfig = config(with(
                small(),
                json!({"d_model": 16, "cross_attention_hidden_size": 16,
                "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 24, "activation_function": "gelu",
                "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "decoder_start_token_id": 2,
                "init_std": 0.02, "decoder_layerdrop": 0.0, "scale_embedding": false,
                "use_learned_position_embeddings": true, "tie_word_embeddings": true}),
            ));
            let mut model = zoo::trocr::TrOCRModel::new(&image, &text, vb)?;
            run(move || {
                model.reset_kv_cache();
                let seen = model.encoder().forward(&numbers(&[2, 3, 8, 8]))?;
                model.decode(&tokens(), &seen, 0)
            })
        }),
        entry("depth_anything_v2", |vb| {
            use zoo::depth_anything_v2::{DepthAnythingV2, DepthAnythingV2Config};
            let dino = zoo::dinov2::DinoVisionTransformer::new(vb.pp("pretrained"), 4, 8, 2)?;
            let depth = DepthAnythingV2Config::new([4, 4, 8, 8], 8, 8, false, false, vec![0, 1, 2, 3], 28, 2);
            let model = DepthAnythingV2::new(std::sync::Arc::new(dino), depth, vb)?;
            run(move || model.forward(&numbers(&[1, 3, 28, 28])))
        }),
        entry("efficientnet", |vb| {
            use zoo::efficientnet::{EfficientNet, MBConvConfig};
            let mut blocks = MBConvConfig::b0();
            blocks.truncate(2);
            let model = EfficientNet::new(vb, blocks, 10)?;
            run(move || model.forward(&numbers(&[2, 3, 16, 16])))
        }),
        sized!("convmixer", convmixer::c1024_20(), 14),
        sized!("convnext", convnext::convnext(&zoo::convnext::Config::atto(),), 32),
        sized!("efficientvit", efficientvit::efficientvit(&zoo::efficientvit::Config::m0(),), 224),
        sized!("fastvit", fastvit::fastvit(&zoo::fastvit::Config::t8(),), 64),
        sized!("hiera", hiera::hiera(&zoo::hiera::Config::tiny(),), 224),
        sized!("mobilenetv4", mobilenetv4::mobilenetv4(&zoo::mobilenetv4::Config::small(),), 32),
        sized!("mobileone", mobileone::mobileone(&zoo::mobileone::Config::s0(),), 32),
        sized!("repvgg", repvgg::repvgg(&zoo::repvgg::Config::a0(),), 32),
        sized!("resnet", resnet::resnet18(), 32),
        entry("segment_anything (image encoder)", |vb| {
            let model = zoo::segment_anything::image_encoder::ImageEncoderViT::new(
                32,
                8,
                3,
                16,
                2,
                2,
                8,
                true,
                true,
                true,
                2,
                &[1],
                vb,
            )?;
            run(move || model.forward(&numbers(&[1, 3, 32, 32])))
        }),
        entry("segment_anything (mask decoder)", |vb| {
            let model = zoo::segment_anything::mask_decoder::MaskDecoder::new(16, 3, 3, 16, vb)?;
            run(move || {
                let (image, sparse) = (numbers(&[1, 16, 4, 4]), numbers(&[1, 2, 16]));
                model.forward(&image, &image, &sparse, &image, true).map(|both| both.0)
            })
        }),
        entry("pixtral (vision)", |vb| {
            let more = json!({"image_size": 8, "patch_size": 4, "num_channels": 3});
            let model = zoo::pixtral::vision_model::Model::new(&config(with(small(), more)), vb)?;
            run(move || model.forward(&numbers(&[1, 3, 8, 8])))
        }),
        entry("paligemma", |vb| {
            let image = with(
                small(),
                json!({"hidden_act": "gelu_pytorch_tanh", "image_size": 8, "patch_size": 4, "num_channels": 3}),
            );
            let paligemma = json!({"vision_config": image, "text_config": with(small(), json!({"hidden_act": null})), "projection_dim": 16});
            let mut model = zoo::paligemma::Model::new(&config(paligemma), vb)?;
            run(move || {
                model.clear_kv_cache();
                model.setup(&numbers(&[2, 3, 8, 8]), &tokens())
            })
        }),
        entry("colpali", |vb| {
            let image = with(
                small(),
                json!({"hidden_act": "gelu_pytorch_tanh", "image_size": 8, "patch_size": 4, "num_channels": 3}),
            );
            let text = with(small(), json!({"hidden_size": 2048, "hidden_act": null}));
            let colpali = json!({"vision_config": image, "text_config": text, "projection_dim": 2048});
            let mut model = zoo::colpali::Model::new(&config(colpali), vb)?;
            run(move || model.forward_images(&numbers(&[2, 3, 8, 8]), &tokens()))
        }),
    ]
}
