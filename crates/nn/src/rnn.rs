//! Recurrent layers: LSTM and GRU.
//!
//! The names and signatures are those of [`candle_nn::rnn`]. Results are the same, except that products may be added up
//! in a different order. [`nn::Linear`](super::Linear) computes the products, so the gradients of all time steps are
//! accumulated in the memory that the optimizer reduces.
//!
//! ```
//! # use distribute::prelude::*;
//! use candle_core::{DType, Device, Module, Tensor};
//! use distribute::nn::{self, LSTM, LSTMConfig, Linear, RNN};
//!
//! struct Model {
//!     lstm: LSTM,
//!     out: Linear,
//! }
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! let model = strategy.replicate(|vb| {
//!     let lstm = nn::lstm(3, 8, LSTMConfig::default(), vb.pp("lstm"))?;
//!     distribute::Ok(Model { lstm, out: nn::linear(8, 1, vb.pp("out"))? })
//! })?;
//! let optimizer = Adam::new(&model.variables, 0.01)?;
//! let x = Tensor::ones((4, 5, 3), DType::F32, &Device::Cpu)?; // rows, time steps, features
//! strategy.run(&model, |ctx, model| {
//!     let states = model.lstm.seq(&x)?;
//!     let last = states.last().map_or(Err(distribute::Error::other("no time step")), |state| Ok(state.h()))?;
//!     optimizer.minimize(ctx, model.out.forward(last)?.sqr()?.mean_all()?, 4)
//! })?;
//! # Ok::<(), distribute::Error>(())
//! ```

pub use candle_nn::rnn::{Direction, GRUConfig, GRUState, LSTMConfig, LSTMState, RNN};

use super::{Linear, autocast};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder, ops::sigmoid};

/// A long short-term memory (LSTM): candle_nn's `LSTM`.
///
/// The variables are `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0` and `bias_hh_l0`. The number in these names is the
/// layer index in the configuration.
///
/// [`seq`](RNN::seq) takes a tensor of shape `[rows, time steps, in_dim]` and returns the state after each time
/// step. As in candle_nn, the variables of a layer with the direction `Backward` have different names, and the
/// caller must reverse the sequence.
#[doc(alias = "tf.keras.layers.LSTM")]
#[derive(Clone, Debug)]
pub struct LSTM {
    of_input: Linear,
    of_state: Linear,
    config: LSTMConfig,
    states: States,
}

/// A gated recurrent unit (GRU): candle_nn's `GRU`.
///
/// The variables are `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0` and `bias_hh_l0`.
///
/// [`seq`](RNN::seq) takes a tensor of shape `[rows, time steps, in_dim]` and returns the state after each time
/// step. As in candle_nn, [`states_to_tensor`](RNN::states_to_tensor) concatenates the states to `[rows, time steps
/// · hidden_dim]`, while those of an [`LSTM`] are stacked to `[rows, time steps, hidden_dim]`.
#[doc(alias = "tf.keras.layers.GRU")]
#[derive(Clone, Debug)]
pub struct GRU {
    of_input: Linear,
    of_state: Linear,
    config: GRUConfig,
    states: States,
}

/// Creates an [`LSTM`] layer. `in_dim` and `hidden_dim` are the sizes of an input and of the state.
///
/// # Errors
/// Returns the error of the `VarBuilder`, and an error if `hidden_dim` is 0.
pub fn lstm(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder) -> Result<LSTM> {
    LSTM::new(in_dim, hidden_dim, config, vb)
}

/// Creates a [`GRU`] layer. `in_dim` and `hidden_dim` are the sizes of an input and of the state.
///
/// # Errors
/// Returns the error of the `VarBuilder`, and an error if `hidden_dim` is 0.
pub fn gru(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder) -> Result<GRU> {
    GRU::new(in_dim, hidden_dim, config, vb)
}

impl LSTM {
    /// Creates a layer with inputs of size `in_dim` and a state of size `hidden_dim`.
    ///
    /// # Errors
    /// Returns the error of the `VarBuilder`, and an error if `hidden_dim` is 0.
    pub fn new(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder) -> Result<Self> {
        let direction = match config.direction {
            Direction::Forward => "",
            Direction::Backward => "_reverse",
        };
        let suffix = format!("l{}{direction}", config.layer_idx);
        let gates = 4 * hidden_dim;
        let weights = [(in_dim, config.w_ih_init), (hidden_dim, config.w_hh_init)];
        let [of_input, of_state] =
            layers(gates, &suffix, weights, [config.b_ih_init, config.b_hh_init], &vb)?;
        Ok(Self { of_input, of_state, config, states: States::new(hidden_dim, &vb) })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }
}

impl GRU {
    /// Creates a layer with inputs of size `in_dim` and a state of size `hidden_dim`.
    ///
    /// # Errors
    /// Returns the error of the `VarBuilder`, and an error if `hidden_dim` is 0.
    pub fn new(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder) -> Result<Self> {
        let gates = 3 * hidden_dim;
        let weights = [(in_dim, config.w_ih_init), (hidden_dim, config.w_hh_init)];
        let [of_input, of_state] = layers(gates, "l0", weights, [config.b_ih_init, config.b_hh_init], &vb)?;
        Ok(Self { of_input, of_state, config, states: States::new(hidden_dim, &vb) })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &GRUConfig {
        &self.config
    }
}

impl RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let zeros = self.states.zeros(batch_dim)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        let gates = (self.of_input.forward(input)? + self.of_state.forward(&state.h)?)?.chunk(4, 1)?;
        let (enter, forget, leave) = (sigmoid(&gates[0])?, sigmoid(&gates[1])?, sigmoid(&gates[3])?);
        let c = ((forget * &state.c)? + (enter * gates[2].tanh()?)?)?;
        Ok(LSTMState::new((leave * c.tanh()?)?, c))
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        Tensor::stack(&states.iter().map(LSTMState::h).collect::<Vec<_>>(), 1)
    }
}

impl RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> Result<GRUState> {
        Ok(GRUState { h: self.states.zeros(batch_dim)? })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> Result<GRUState> {
        let of_input = self.of_input.forward(input)?.chunk(3, 1)?;
        let of_state = self.of_state.forward(&state.h)?.chunk(3, 1)?;
        let reset = sigmoid(&(&of_input[0] + &of_state[0])?)?;
        let keep = sigmoid(&(&of_input[1] + &of_state[1])?)?;
        let new = (&of_input[2] + (reset * &of_state[2])?)?.tanh()?;
        Ok(GRUState { h: ((&keep * &state.h)? - ((&keep - 1.)? * new)?)? })
    }

    fn states_to_tensor(&self, states: &[GRUState]) -> Result<Tensor> {
        Tensor::cat(&states.iter().map(GRUState::h).collect::<Vec<_>>(), 1)
    }
}

/// The size, dtype and device of a layer's initial states, which are zeros.
#[derive(Clone, Debug)]
struct States {
    hidden_dim: usize,
    dtype: DType,
    device: Device,
}

impl States {
    fn new(hidden_dim: usize, vb: &VarBuilder) -> Self {
        Self { hidden_dim, dtype: vb.dtype(), device: vb.device().clone() }
    }

    fn zeros(&self, rows: usize) -> Result<Tensor> {
        Tensor::zeros((rows, self.hidden_dim), autocast::state_dtype(self.dtype), &self.device)
    }
}

/// Creates two layers: one computes the contribution of the input to all gates, the other that of the state. Variables
/// are created in candle_nn's order.
fn layers(
    gates: usize,
    suffix: &str,
    weights: [(usize, Init); 2],
    biases: [Option<Init>; 2],
    vb: &VarBuilder,
) -> Result<[Linear; 2]> {
    let [(in_dim, of_input), (hidden_dim, of_state)] = weights;
    if hidden_dim == 0 {
        candle_core::bail!(
            "the recurrent layer {:?} has a hidden_dim of 0: it has to be at least 1",
            vb.prefix()
        );
    }
    let of_input = vb.get_with_hints((gates, in_dim), &format!("weight_ih_{suffix}"), of_input)?;
    let of_state = vb.get_with_hints((gates, hidden_dim), &format!("weight_hh_{suffix}"), of_state)?;
    let bias = |kind: &str, init: Option<Init>| {
        init.map(|init| vb.get_with_hints(gates, &format!("bias_{kind}_{suffix}"), init)).transpose()
    };
    let (of_input_bias, of_state_bias) = (bias("ih", biases[0])?, bias("hh", biases[1])?);
    Ok([Linear::new(of_input, of_input_bias), Linear::new(of_state, of_state_bias)])
}
