//! Llama 2, from `candle_transformers::models::llama2_c` (MIT or Apache-2.0, the candle authors), reduced to
//! training: without the KV cache, and with tables of angles that are not variables. The names and shapes of
//! variables are those of that model. The `use` lines take norms, rotary embeddings and attention from
//! `distribute::nn`, because candle's have no gradient.

use candle_core::{DType, Device, Result, Tensor};
use distribute::nn::{Embedding, Linear, Module, RmsNorm, VarBuilder};
use distribute::nn::{embedding, linear_no_bias as linear, ops, rms_norm, rotary_emb};

#[derive(Clone, Debug)]
pub struct Config {
    pub dim: usize,
    /// The width of the feed-forward layers.
    pub hidden_dim: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    /// The number of heads of keys and values, which divides the number of heads of queries.
    pub n_kv_heads: usize,
    pub vocab_size: usize,
    /// The maximum number of tokens in a sequence.
    pub seq_len: usize,
    pub norm_eps: f64,
}

/// The cosines and sines of the angles of each position, `[seq_len, width / 2]`: the same on all replicas,
/// and not trained.
struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    fn new(config: &Config, dtype: DType, device: &Device) -> Result<Self> {
        let width = config.dim / config.n_heads;
        let speed = |i: usize| 1f32 / 10_000f32.powf(2. * i as f32 / width as f32);
        let angles: Vec<f32> =
            (0..config.seq_len).flat_map(|t| (0..width / 2).map(move |i| t as f32 * speed(i))).collect();
        let angles = Tensor::from_vec(angles, (config.seq_len, width / 2), device)?;
        Ok(Self { cos: angles.cos()?.to_dtype(dtype)?, sin: angles.sin()?.to_dtype(dtype)? })
    }
}

struct CausalSelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    n_head: usize,
    n_key_value_head: usize,
    head_dim: usize,
}

impl CausalSelfAttention {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let head_dim = config.dim / config.n_heads;
        let (size_q, size_kv) = (head_dim * config.n_heads, head_dim * config.n_kv_heads);
        Ok(Self {
            q_proj: linear(config.dim, size_q, vb.pp("q_proj"))?,
            k_proj: linear(config.dim, size_kv, vb.pp("k_proj"))?,
            v_proj: linear(config.dim, size_kv, vb.pp("v_proj"))?,
            o_proj: linear(size_q, config.dim, vb.pp("o_proj"))?,
            n_head: config.n_heads,
            n_key_value_head: config.n_kv_heads,
            head_dim,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles) -> Result<Tensor> {
        let (b, t, n_embd) = x.dims3()?;
        let heads = |x: Tensor, n: usize| x.reshape((b, t, n, self.head_dim))?.transpose(1, 2);
        let q = heads(self.q_proj.forward(x)?, self.n_head)?;
        let k = heads(self.k_proj.forward(x)?, self.n_key_value_head)?;
        let v = heads(self.v_proj.forward(x)?, self.n_key_value_head)?;
        let q = rotary_emb::rope_i(&q, &angles.cos, &angles.sin)?;
        let k = rotary_emb::rope_i(&k, &angles.cos, &angles.sin)?;
        let scale = 1. / (self.head_dim as f32).sqrt();
        let y = ops::sdpa(&q, &k, &v, None, true, scale, 1.)?;
        self.o_proj.forward(&y.transpose(1, 2)?.reshape((b, t, n_embd))?)
    }
}

struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            gate_proj: linear(config.dim, config.hidden_dim, vb.pp("gate_proj"))?,
            up_proj: linear(config.dim, config.hidden_dim, vb.pp("up_proj"))?,
            down_proj: linear(config.hidden_dim, config.dim, vb.pp("down_proj"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (ops::silu(&self.gate_proj.forward(x)?)? * self.up_proj.forward(x)?)?;
        self.down_proj.forward(&x)
    }
}

struct Block {
    rms_1: RmsNorm,
    attn: CausalSelfAttention,
    rms_2: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            rms_1: rms_norm(config.dim, config.norm_eps, vb.pp("input_layernorm"))?,
            attn: CausalSelfAttention::load(vb.pp("self_attn"), config)?,
            rms_2: rms_norm(config.dim, config.norm_eps, vb.pp("post_attention_layernorm"))?,
            mlp: Mlp::load(vb.pp("mlp"), config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles) -> Result<Tensor> {
        let x = (self.attn.forward(&self.rms_1.forward(x)?, angles)? + x)?;
        self.mlp.forward(&self.rms_2.forward(&x)?)? + x
    }
}

pub struct Llama {
    wte: Embedding,
    blocks: Vec<Block>,
    ln_f: RmsNorm,
    lm_head: Linear,
    angles: Angles,
}

impl Llama {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let block = |i: usize| Block::load(vb.pp(format!("model.layers.{i}")), config);
        Ok(Self {
            wte: embedding(config.vocab_size, config.dim, vb.pp("model.embed_tokens"))?,
            blocks: (0..config.n_layers).map(block).collect::<Result<_>>()?,
            ln_f: rms_norm(config.dim, config.norm_eps, vb.pp("model.norm"))?,
            lm_head: linear(config.dim, config.vocab_size, vb.pp("lm_head"))?,
            angles: Angles::new(config, vb.dtype(), vb.device())?,
        })
    }

    /// Returns logits `[batch, positions, vocab_size]` of the token after each of `[batch, positions]`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = self.wte.forward(tokens)?;
        for block in &self.blocks {
            x = block.forward(&x, &self.angles)?;
        }
        self.lm_head.forward(&self.ln_f.forward(&x)?)
    }
}
