//! Cases of trainings whose result must not depend on the number of replicas, and of the optimizers' rules.

use super::case::{Case, Inputs, Ran, Stop};
use super::compare::compare;
use super::tensors::{candle_json, tensor};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Init, VarBuilder};
use distribute::data::Dataset;
use distribute::nn::loss;
use distribute::optimizer::rules::{self, Rule};
use distribute::optimizer::{Gradient, Gradients};
use distribute::tensor::IndexedSlices;
use distribute::{
    HostTensor, MirroredStrategy, OneDeviceStrategy, Optimizer, ReduceOp, Replicated, Strategy,
};
use serde_json::{Value, json};

/// Evaluates an expression with a rule, after a check that the optimizer has no unknown fields.
macro_rules! checked {
    ($o:ident, $value:expr, $rule:ident => $body:expr) => {{
        let $rule = $value;
        $o.finish()?;
        $body
    }};
}

/// Evaluates an expression with the rule and the learning rate that the case names.
macro_rules! with_rule {
    ($inputs:expr, $rule:ident, $rate:ident => $body:expr) => {{
        let o = $inputs.object("optimizer")?;
        let $rate = o.float("lr")?;
        match o.text("name")? {
            "sgd" => checked!(o, rules::Sgd, $rule => $body),
            "momentum" => {
                let rule = rules::Momentum { momentum: o.float("momentum")?, nesterov: o.flag("nesterov")? };
                checked!(o, rule, $rule => $body)
            }
            name @ ("adam" | "adam_lazy") => {
                let (beta1, beta2, epsilon) = (o.float("beta1")?, o.float("beta2")?, o.float("epsilon")?);
                checked!(o, rules::Adam { beta1, beta2, epsilon, lazy: name == "adam_lazy" }, $rule => $body)
            }
            "adagrad" => {
                let initial_accumulator_value = o.float("initial_accumulator_value")?;
                checked!(o, rules::Adagrad { initial_accumulator_value, epsilon: o.float("epsilon")? }, $rule => $body)
            }
            "ftrl" => {
                let rule = rules::Ftrl {
                    initial_accumulator_value: o.float("initial_accumulator_value")?,
                    lr_power: o.float("lr_power")?,
                    l1: o.float("l1")?,
                    l2: o.float("l2")?,
                    l2_shrinkage: o.float("l2_shrinkage")?,
                    ..rules::Ftrl::default()
                };
                checked!(o, rule, $rule => $body)
            }
            "rmsprop" => {
                let (rho, momentum, epsilon) = (o.float("rho")?, o.float("momentum")?, o.float("epsilon")?);
                checked!(o, rules::RmsProp { rho, momentum, epsilon }, $rule => $body)
            }
            other => Err(format!("unknown optimizer {other:?}").into()),
        }
    }};
}

/// Runs the cases of training.json.
pub fn oracle_training(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let op = inputs.text("op")?;
    let dtype = inputs.text("dtype")?;
    with_rule!(inputs, rule, rate => match (op, dtype) {
        ("train_mlp", "float32" | "float64") => {
            let mlp = Mlp::read(inputs)?;
            same_for_every_count(case, inputs, |strategy| mlp.train(strategy, rule, rate))
        }
        ("train_embedding", "float32" | "float64") => {
            let embedding = Embedding::read(inputs)?;
            same_for_every_count(case, inputs, |strategy| embedding.train(strategy, rule, rate))
        }
        ("optimizer_dense", "float32" | "float64") => {
            let gradients = inputs.list("gradients")?.iter().map(|gradient| Ok(candle(gradient)?.into()));
            apply_each(inputs, rule, rate, gradients.collect::<Result<_, Stop>>()?)
        }
        ("optimizer_sparse", "float32" | "float64") => {
            let gradients = inputs.list("gradients")?.iter().map(|gradient| Ok(slices(gradient)?.into()));
            apply_each(inputs, rule, rate, gradients.collect::<Result<_, Stop>>()?)
        }
        (op, dtype) => Err(format!("unknown op {op:?} or dtype {dtype:?}").into()),
    })
}

/// Trains with each number of replicas, and checks that every outcome is the expected one. Returns the last.
fn same_for_every_count(case: &Case, inputs: &Inputs<'_>, train: impl Fn(&Strategy) -> Ran) -> Ran {
    let mut outcomes = Vec::new();
    for count in inputs.list("replica_counts")? {
        let count = count.as_u64().ok_or_else(|| format!("{count} is no count"))?;
        outcomes.push((count, train(&MirroredStrategy::cpus(count as usize)?)?));
    }
    let (_, last) = outcomes.last().cloned().ok_or_else(|| Stop::Runner("no replica counts".into()))?;
    // Each outcome is compared with that of TensorFlow.
    if let super::case::Expect::Outcome(Value::Object(want)) = &case.expect {
        for (count, got) in &outcomes {
            for (name, want) in want {
                let got = got.get(name).ok_or_else(|| format!("the runner gives no {name:?}"))?;
                compare(&format!("{count} replicas: {name}"), got, want, case.tolerance)?;
            }
        }
    }
    Ok(last)
}

pub fn candle(value: &Value) -> Result<Tensor, Stop> {
    Ok(tensor(value)?.to_candle(&Device::Cpu)?)
}

/// Creates a model of variables with the given initial values, in their order.
pub fn variables(strategy: &Strategy, initial: &[Tensor]) -> distribute::Result<Replicated<Vec<Tensor>>> {
    let kinds: Vec<_> = initial.iter().map(|tensor| (tensor.shape().clone(), tensor.dtype())).collect();
    let build = move |vb: VarBuilder| -> candle_core::Result<Vec<Tensor>> {
        let one = |(i, (shape, dtype)): (usize, &(candle_core::Shape, DType))| {
            vb.get_with_hints_dtype(shape.clone(), &name(i), Init::Const(0.), *dtype)
        };
        kinds.iter().enumerate().map(one).collect()
    };
    let model = strategy.replicate(build)?;
    for (i, value) in initial.iter().enumerate() {
        model.variables.set(&name(i), value)?;
    }
    Ok(model)
}

fn name(i: usize) -> String {
    format!("w{i}")
}

pub fn weights(model: &Replicated<Vec<Tensor>>) -> distribute::Result<Vec<Value>> {
    model.variables.names().iter().map(|name| Ok(candle_json(&model.variables.get(name)?))).collect()
}

fn slots<R: Rule>(
    model: &Replicated<Vec<Tensor>>,
    optimizer: &Optimizer<R>,
) -> distribute::Result<Vec<Value>> {
    let mut all = Vec::new();
    for variable in model.variables.names() {
        for slot in optimizer.slot_names() {
            all.push(candle_json(&optimizer.slot(&variable, slot)?));
        }
    }
    Ok(all)
}

struct Mlp {
    weights: Vec<Tensor>,
    x: Tensor,
    y: Tensor,
    activation: fn(&Tensor) -> candle_core::Result<Tensor>,
    cross_entropy: bool,
    global_batch: usize,
    epochs: usize,
}

impl Mlp {
    fn read(inputs: &Inputs<'_>) -> Result<Self, Stop> {
        Ok(Self {
            weights: inputs.list("weights")?.iter().map(candle).collect::<Result<_, _>>()?,
            x: candle(inputs.get("x")?)?,
            y: candle(inputs.get("y")?)?,
            activation: match inputs.text("activation")? {
                "tanh" => Tensor::tanh,
                "relu" => Tensor::relu,
                "sigmoid" => candle_nn::ops::sigmoid,
                other => return Err(format!("unknown activation {other:?}").into()),
            },
            cross_entropy: match inputs.text("loss")? {
                "mse" => false,
                "softmax_xent" => true,
                other => return Err(format!("unknown loss {other:?}").into()),
            },
            global_batch: inputs.count("global_batch")?,
            epochs: inputs.count("epochs")?,
        })
    }

    fn train<R: Rule + Clone>(&self, strategy: &Strategy, rule: R, rate: f64) -> Ran {
        let model = variables(strategy, &self.weights)?;
        let optimizer = Optimizer::with_rule(rule, &model.variables, rate)?;
        let dataset =
            Dataset::from_slices((self.x.clone(), self.y.clone())).map_err(distribute::Error::from)?;
        let batches = strategy.distribute_dataset(dataset.batch(self.global_batch))?;
        let (mut losses, mut after_first) = (Vec::new(), Value::Null);
        for _ in 0..self.epochs {
            for batch in &batches {
                let loss = strategy.run((&model, batch?), |ctx, (weights, (x, y))| {
                    let rows = x.dim(0)?;
                    // The oracle divides by the global batch in a partial one too, minimize by the examples there are.
                    let present = ctx.all_reduce(ReduceOp::Sum, rows as f64)?;
                    if rows == 0 {
                        return optimizer.skip(ctx);
                    }
                    let mean = self.loss(weights, &x, &y)?;
                    optimizer.minimize(ctx, (mean * (present / self.global_batch as f64))?, rows)
                })?;
                losses.push(candle_json(&loss.values()[0]));
                if losses.len() == 1 {
                    after_first = weights(&model)?.into();
                }
            }
        }
        Ok(json!({
            "losses": losses,
            "weights_after_first_step": after_first,
            "weights": weights(&model)?,
            "slots": slots(&model, &optimizer)?,
        }))
    }

    fn loss(&self, weights: &[Tensor], x: &Tensor, y: &Tensor) -> candle_core::Result<Tensor> {
        let [w1, b1, w2, b2] = weights else { candle_core::bail!("an MLP has four weights") };
        let hidden = (self.activation)(&x.matmul(w1)?.broadcast_add(b1)?)?;
        let out = hidden.matmul(w2)?.broadcast_add(b2)?;
        if self.cross_entropy { loss::cross_entropy(&out, y) } else { loss::mse(&out, y) }
    }
}

struct Embedding {
    table: Tensor,
    ids: Tensor,
    y: Tensor,
    global_batch: usize,
    epochs: usize,
}

impl Embedding {
    fn read(inputs: &Inputs<'_>) -> Result<Self, Stop> {
        Ok(Self {
            table: candle(inputs.get("table")?)?,
            ids: candle(inputs.get("ids")?)?,
            y: candle(inputs.get("y")?)?,
            global_batch: inputs.count("global_batch")?,
            epochs: inputs.count("epochs")?,
        })
    }

    fn train<R: Rule + Clone>(&self, strategy: &Strategy, rule: R, rate: f64) -> Ran {
        let model = variables(strategy, std::slice::from_ref(&self.table))?;
        let optimizer = Optimizer::with_rule(rule, &model.variables, rate)?;
        let dataset =
            Dataset::from_slices((self.ids.clone(), self.y.clone())).map_err(distribute::Error::from)?;
        let batches = strategy.distribute_dataset(dataset.batch(self.global_batch))?;
        let (mut losses, mut after_first) = (Vec::new(), Value::Null);
        for _ in 0..self.epochs {
            for batch in &batches {
                let loss = strategy.run((&model, batch?), |ctx, (weights, (ids, y))| {
                    let (loss, gradient) = self.gradient(&weights[0], &ids, &y)?;
                    let mut gradients = Gradients::new(&optimizer);
                    gradients.insert(&name(0), gradient)?;
                    // The losses are divided by the global batch already.
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)?;
                    ctx.all_reduce(ReduceOp::Sum, loss)
                })?;
                losses.push(candle_json(&loss.values()[0]));
                if losses.len() == 1 {
                    after_first = weights(&model)?.into();
                }
            }
        }
        Ok(json!({
            "losses": losses,
            "weights_after_first_step": after_first,
            "weights": weights(&model)?,
            "slots": slots(&model, &optimizer)?,
        }))
    }

    /// Returns this replica's loss and its sparse gradient: one row for each lookup.
    fn gradient(
        &self,
        table: &Tensor,
        ids: &Tensor,
        y: &Tensor,
    ) -> distribute::Result<(Tensor, IndexedSlices)> {
        let (n, k) = ids.dims2()?;
        let (height, width) = table.dims2()?;
        let flat = ids.flatten_all()?;
        let (loss, rows) = match n {
            0 => (
                Tensor::zeros((), table.dtype(), table.device())?,
                Tensor::zeros((0, width), table.dtype(), table.device())?,
            ),
            _ => {
                let rows = Var::from_tensor(&table.index_select(&flat, 0)?)?;
                let out = rows.reshape((n, k, width))?.sum(1)?;
                let loss = ((out - y)?.sqr()?.mean(1)?.sum_all()? / self.global_batch as f64)?;
                let gradient =
                    loss.backward()?.remove(&rows).ok_or_else(|| distribute::Error::other("no gradient"))?;
                (loss.detach(), gradient)
            }
        };
        let (values, indices) = (HostTensor::from_candle(&rows)?, HostTensor::from_candle(&flat)?);
        Ok((loss, IndexedSlices::new(values, indices, Some(vec![height, width]))?))
    }
}

/// Makes one step for each gradient, and returns the weights and slots after each.
fn apply_each<R: Rule>(inputs: &Inputs<'_>, rule: R, rate: f64, gradients: Vec<Gradient>) -> Ran {
    let strategy = OneDeviceStrategy::new("cpu:0")?;
    let model = variables(&strategy, &[candle(inputs.get("initial")?)?])?;
    let optimizer = Optimizer::with_rule(rule, &model.variables, rate)?;
    let mut steps = Vec::new();
    for gradient in gradients {
        strategy.run((), |ctx, ()| {
            let mut gradients = Gradients::new(&optimizer);
            gradients.insert(&name(0), gradient.clone())?;
            optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
        })?;
        steps.push(json!({"weights": weights(&model)?[0], "slots": slots(&model, &optimizer)?}));
    }
    Ok(json!({"steps": steps}))
}

fn slices(gradient: &Value) -> Result<IndexedSlices, Stop> {
    let fields =
        Inputs::new(gradient.as_object().ok_or_else(|| Stop::Runner("a gradient is no object".into()))?);
    let indices =
        fields.list("indices")?.iter().map(|i| i.as_i64().ok_or_else(|| format!("{i} is no index")));
    let indices = HostTensor::vector(indices.collect::<Result<Vec<i64>, _>>()?);
    let values = tensor(fields.get("values")?)?;
    fields.finish()?;
    Ok(IndexedSlices::new(values, indices, None)?)
}
