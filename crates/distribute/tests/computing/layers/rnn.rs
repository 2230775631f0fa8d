//! Recurrent layers: candle's values and gradients, gradients compared with finite differences, and training on
//! replicas with empty batches.

use super::{assert_close, by_differences, flat, mirrored, numbers, one_device};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use distribute::nn::rnn::Direction;
use distribute::nn::{self, GRU, GRUConfig, LSTM, LSTMConfig, RNN};
use distribute::optimizer::backward;
use distribute::prelude::*;
use distribute_testing::watched;

/// A function from a sequence to the states of a layer, concatenated into one tensor.
type Layer = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

fn layer<R: RNN + 'static>(rnn: R) -> Layer {
    Box::new(move |x| rnn.states_to_tensor(&rnn.seq(x)?))
}

/// Creates this crate's layer and candle's with the same variables.
fn both(name: &str, vb: VarBuilder) -> [Layer; 2] {
    let lstm = |config: LSTMConfig| {
        let theirs = candle_nn::lstm(3, 2, config, vb.clone()).unwrap();
        [layer(nn::lstm(3, 2, config, vb.clone()).unwrap()), layer(theirs)]
    };
    let gru = |config: GRUConfig| {
        let theirs = candle_nn::gru(3, 2, config, vb.clone()).unwrap();
        [layer(nn::gru(3, 2, config, vb.clone()).unwrap()), layer(theirs)]
    };
    match name {
        "lstm" => lstm(LSTMConfig::default()),
        "lstm without bias" => lstm(LSTMConfig::default_no_bias()),
        "lstm backward" => {
            lstm(LSTMConfig { layer_idx: 1, direction: Direction::Backward, ..LSTMConfig::default() })
        }
        "gru" => gru(GRUConfig::default()),
        _ => gru(GRUConfig::default_no_bias()),
    }
}

#[test]
fn values_equal_candles_and_gradients_candles_and_differences() {
    for name in ["lstm", "lstm without bias", "lstm backward", "gru", "gru without bias"] {
        let map = VarMap::new();
        let [ours, theirs] = both(name, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu).pp("rnn"));
        let variables = map.data().lock().unwrap().clone();
        assert_eq!(
            variables.len(),
            if name.ends_with("bias") { 2 } else { 4 },
            "{name}: {:?}",
            variables.keys()
        );
        for (number, variable) in variables.values().enumerate() {
            // Also biases, which begin with 0.
            let value =
                ((numbers(variable.dims(), DType::F64) - 5.).unwrap() * (0.3 + 0.1 * number as f64)).unwrap();
            variable.set(&value).unwrap();
        }
        let x = candle_core::Var::from_tensor(&(numbers(&[2, 4, 3], DType::F64) - 5.).unwrap()).unwrap();
        let (y, expected) = (ours(&x).unwrap(), theirs(&x).unwrap());
        assert_close(&y, &expected, 1e-14, name);
        let of_each = numbers(y.dims(), DType::F64);
        let loss = |layer: &Layer| (layer(&x)? * &of_each)?.sum_all();
        let store = backward(&loss(&ours).unwrap()).unwrap();
        let of_candle = loss(&theirs).unwrap().backward().unwrap();
        for (part, variable) in variables.iter().map(|(part, var)| (part.as_str(), var)).chain([("x", &x)]) {
            let what = format!("{name}, {part}");
            let found = store.get(variable).unwrap();
            assert_close(found, of_candle.get(variable).unwrap(), 1e-12, &what);
            for (found, expected) in flat(found).into_iter().zip(by_differences(variable, &|| loss(&ours))) {
                assert!((found - expected).abs() < 1e-6, "{what}: {found}, not {expected}");
            }
        }
        // No rows, and rows without a time step.
        let rows = ours(&Tensor::zeros((0, 4, 3), DType::F64, &Device::Cpu).unwrap()).unwrap();
        assert_eq!((rows.dim(0).unwrap(), rows.elem_count()), (0, 0), "{name}");
    }
}

#[test]
fn a_layer_without_state_is_refused_by_its_name() {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("rnn");
    let lstm = nn::lstm(3, 0, LSTMConfig::default(), vb.clone()).map(|_| ());
    let gru = nn::gru(3, 0, GRUConfig::default(), vb).map(|_| ());
    for made in [lstm, gru] {
        let error = made.unwrap_err().to_string();
        assert!(error.contains("\"rnn\" has a hidden_dim of 0"), "{error}");
    }
}

struct Model {
    lstm: LSTM,
    gru: GRU,
    out: nn::Linear,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        let vb = vb.to_dtype(DType::F64);
        Ok(Self {
            lstm: nn::lstm(3, 4, LSTMConfig::default(), vb.pp("lstm"))?,
            gru: nn::gru(4, 3, GRUConfig::default(), vb.pp("gru"))?,
            out: nn::linear(3, 1, vb.pp("out"))?,
        })
    }

    fn loss(&self, x: &Tensor) -> Result<Tensor> {
        let states = self.lstm.seq(x)?;
        let states = self.gru.seq(&self.lstm.states_to_tensor(&states)?)?;
        let last = states.last().ok_or(candle_core::Error::msg("no time step"))?;
        (last.h().apply(&self.out)? - 1.)?.sqr()?.mean_all()
    }
}

// INV-9
#[test]
fn replicas_train_to_the_weights_of_one_device_including_empty_batches() {
    watched(|| {
        let train = |strategy: Strategy| {
            let model = strategy.replicate(Model::new).unwrap();
            let optimizer = Adam::new(&model.variables, 0.02).unwrap();
            let data = Dataset::from_slices(numbers(&[9, 4, 3], DType::F64)).unwrap().batch(4).repeat(5);
            let mut losses = Vec::new();
            for batch in &strategy.distribute_dataset(data).unwrap() {
                let run = strategy.run((&model, batch.unwrap()), |ctx, (model, x)| {
                    optimizer.minimize(ctx, model.loss(&x)?, x.dim(0)?)
                });
                losses.push(flat(&run.unwrap().values()[0])[0]);
            }
            assert!(losses[14] < 0.8 * losses[0], "{losses:?}");
            model
        };
        let one = train(one_device());
        assert_eq!(one.variables.names().len(), 10);
        for n in [1, 2, 3] {
            // The last batch has one row.
            let model = train(mirrored(n));
            for name in one.variables.names() {
                let (a, b) = (model.variables.get(&name).unwrap(), one.variables.get(&name).unwrap());
                assert_close(&a, &b, 1e-9, &format!("{name} on {n} replicas"));
            }
        }
    });
}
