//! [`Mapping`]: the tensors of a checkpoint of this project that are read from one of TensorFlow.

use crate::TfCheckpoint;
use crate::bundle::Piece;
use crate::damage::entry;
use crate::read;
use crate::segments::Segments;
use crate::slots::{Rule, slot_key};
use distribute_checkpoint::{Error, Result, Writer};
use distribute_tensor::{HostTensor, with_buffer};
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The name of [`TfCheckpoint::into_writer`] in error messages.
const OPERATION: &str = "into_writer";

/// A list of tensors to read from a checkpoint of TensorFlow, with their names in a checkpoint of this project.
///
/// The new names are those of a `distribute::Checkpoint` with the components `model` (the variables) and `optimizer`.
///
/// ```
/// # use distribute_tf_checkpoint::{Mapping, TfCheckpoint};
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tf1");
/// let mapping = Mapping::new()
///     .variable("embedding", "embedding.weight")
///     .kernel("dense/kernel", "dense.weight") // transposed, with its slots
///     .optimizer("adagrad", "global_step");
/// let writer = TfCheckpoint::open(folder)?.into_writer(&mapping)?;
/// assert!(writer.names().eq([
///     "model/dense.weight",
///     "model/embedding.weight",
///     "optimizer/accum/dense.weight",
///     "optimizer/accum/embedding.weight",
/// ]));
/// # Ok::<(), distribute_checkpoint::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mapping {
    model: String,
    variables: Vec<Variable>,
    others: Vec<(String, String)>,
    optimizers: Vec<Optimizer>,
}

/// A variable, with its names in the checkpoints of TensorFlow and of this project.
#[derive(Clone, Debug)]
struct Variable {
    from: String,
    to: String,
    is_transposed: bool,
}

/// An optimizer of this project, whose slots are read.
#[derive(Clone, Debug)]
struct Optimizer {
    /// The optimizer's path in TensorFlow's checkpoint, or its first slot's name in TensorFlow 1; `None` if there is
    /// only one.
    from: Option<String>,
    component: String,
    rule: String,
    steps: String,
}

impl Default for Mapping {
    fn default() -> Self {
        Self::new()
    }
}

impl Mapping {
    /// Creates an empty mapping to a checkpoint whose variables are the component `model`.
    pub fn new() -> Self {
        Self { model: "model".into(), variables: Vec::new(), others: Vec::new(), optimizers: Vec::new() }
    }

    /// Sets the name of the component with the variables.
    pub fn component(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// Adds a variable. `from` is a [name](TfCheckpoint#names) in TensorFlow's checkpoint, `to` the name in the model.
    pub fn variable(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.with(from.into(), to.into(), false)
    }

    /// Adds the kernel of a dense layer. A kernel of TensorFlow has shape [inputs, outputs], and the weight of candle's
    /// `Linear` has shape [outputs, inputs], so the kernel and its slots are transposed. The kernel must fit into
    /// memory.
    pub fn kernel(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.with(from.into(), to.into(), true)
    }

    fn with(mut self, from: String, to: String, is_transposed: bool) -> Self {
        self.variables.push(Variable { from, to, is_transposed });
        self
    }

    /// Adds any tensor. `to` is the complete name in the checkpoint of this project, including the component.
    pub fn tensor(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.others.push((from.into(), to.into()));
        self
    }

    /// Adds an optimizer with its slots of all variables, as the component `optimizer`. `rule` is the name of the
    /// update rule in this project, and `steps` is the name of the tensor with the number of finished steps, such as
    /// `optimizer/_iterations` or `global_step`.
    ///
    /// | rule | slots here | TensorFlow 1 | Keras |
    /// |---|---|---|---|
    /// | `adam`, `adamw` | `m`, `v` | `…/Adam`, `…/Adam_1` | `momentum`, `velocity`; earlier `m`, `v` |
    /// | `adagrad` | `accum` | `…/Adagrad` | `accumulator` |
    /// | `ftrl` | `accum`, `linear` | `…/Ftrl`, `…/Ftrl_1` | `accumulator`, `linear` |
    /// | `momentum` | `accum` | `…/Momentum` | none: its velocity contains the learning rate |
    /// | `sgd` | | | |
    ///
    /// Hyper-parameters and the learning rate are not read. The optimizer that is restored keeps its own.
    pub fn optimizer(self, rule: impl Into<String>, steps: impl Into<String>) -> Self {
        self.optimizer_named("optimizer", rule, steps)
    }

    /// Acts like [`optimizer`](Self::optimizer), for a component with another name.
    pub fn optimizer_named(
        self,
        component: impl Into<String>,
        rule: impl Into<String>,
        steps: impl Into<String>,
    ) -> Self {
        self.with_optimizer(None, component.into(), rule.into(), steps.into())
    }

    /// Acts like [`optimizer_named`](Self::optimizer_named), for a checkpoint with several optimizers of the same
    /// variables. `from` is the path of the optimizer, such as `optimizer` or `second/optimizer`. For TensorFlow 1, it
    /// is the name of its first slot: `Adam_2` for the second `AdamOptimizer`.
    pub fn optimizer_from(
        self,
        from: impl Into<String>,
        component: impl Into<String>,
        rule: impl Into<String>,
        steps: impl Into<String>,
    ) -> Self {
        self.with_optimizer(Some(from.into()), component.into(), rule.into(), steps.into())
    }

    fn with_optimizer(
        mut self,
        from: Option<String>,
        component: String,
        rule: String,
        steps: String,
    ) -> Self {
        self.optimizers.push(Optimizer { from, component, rule, steps });
        self
    }
}

impl TfCheckpoint {
    /// Returns a checkpoint of this project, to be saved with [`Writer::save`] or restored from [`Writer::image`].
    ///
    /// Tensors with rows are read while the writer is saved, in ranges of about 8 MiB, unless they are transposed or
    /// contain strings. A checksum that differs makes the save fail. The optimizer's number of steps becomes metadata,
    /// like that of an optimizer that this project has saved.
    ///
    /// # Errors
    /// - The errors of [`tensor`](Self::tensor) for each name.
    /// - [`Error::Entry`]: two tensors get the same name, a kernel is not a matrix, or a variable lacks a slot; several
    ///   optimizers of the checkpoint have slots for a variable, and the mapping does not [choose
    ///   one](Mapping::optimizer_from); the rule of an optimizer is not in the table of [`Mapping::optimizer`], or its
    ///   number of steps is not an integer.
    pub fn into_writer(&self, mapping: &Mapping) -> Result<Writer> {
        let mut writer = Writer::new();
        for Variable { from, to, is_transposed } in &mapping.variables {
            self.insert(from, &format!("{}/{to}", mapping.model), *is_transposed, &mut writer)?;
        }
        for (from, to) in &mapping.others {
            self.insert(from, to, false, &mut writer)?;
        }
        for Optimizer { from: optimizer, component, rule, steps } in &mapping.optimizers {
            let known = Rule::of(rule).ok_or_else(|| {
                entry(
                    OPERATION,
                    component,
                    format!("the slots of rule {rule:?} are not mapped; add them with Mapping::tensor"),
                )
            })?;
            for Variable { from, to, is_transposed } in &mapping.variables {
                let (key, _, _) = self.find(OPERATION, from)?;
                for (at, slot) in known.slots().iter().enumerate() {
                    let key = slot_key(self, key, known, at, optimizer.as_deref()).map_err(|several| {
                        let reason = format!(
                            "several optimizers have a slot {} of it: {}; choose one with Mapping::optimizer_from",
                            slot.here,
                            several.join(" and ")
                        );
                        entry(OPERATION, from, reason)
                    })?;
                    let key = key.ok_or_else(|| {
                        let of = optimizer.as_ref().map(|of| format!(" of optimizer {of:?}"));
                        let reason = format!(
                            "there is no slot {} of rule {rule}{}",
                            slot.here,
                            of.unwrap_or_default()
                        );
                        entry(OPERATION, from, reason)
                    })?;
                    self.insert(
                        &key,
                        &format!("{component}/{}/{to}", slot.here),
                        *is_transposed,
                        &mut writer,
                    )?;
                }
            }
            let finished_steps = self.steps(steps)?;
            let state = json!({ "rule": rule, "finished_steps": finished_steps });
            writer.metadata(format!("{component}:optimizer"), state);
        }
        Ok(writer)
    }

    /// Adds the tensor `from` of this checkpoint as `to`.
    fn insert(&self, from: &str, to: &str, is_transposed: bool, writer: &mut Writer) -> Result<()> {
        let (key, tensor, dtype) = self.find(OPERATION, from)?;
        if is_transposed {
            return writer.insert(to, transposed(&self.tensor(key)?, from)?);
        }
        if tensor.shape.is_empty() || dtype.bytes().is_none() {
            return writer.insert(to, self.tensor(key)?);
        }
        let (all, sums) = (tensor.clone(), Mutex::new(BTreeMap::<(Arc<Path>, u64), Segments>::new()));
        writer.insert_read(to, dtype, tensor.shape.clone(), move |rows| {
            let mut observe = |piece: &Piece, rows: Range<usize>, bytes: &[u8]| {
                let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                let place = (piece.file.clone(), piece.offset);
                sums.entry(place).or_default().add(piece, rows, bytes)
            };
            Ok(read::rows(&all, dtype, rows, &mut observe)?)
        })
    }

    /// Reads the step count in the tensor `name`, which must contain a single integer.
    fn steps(&self, name: &str) -> Result<u64> {
        let tensor = self.tensor(name)?;
        let steps = match (tensor.as_slice::<i64>(), tensor.as_slice::<i32>()) {
            (Some([steps]), _) => u64::try_from(*steps).ok(),
            (_, Some([steps])) => u64::try_from(*steps).ok(),
            _ => None,
        };
        steps.ok_or_else(|| {
            let reason = format!("a number of steps is an integer, not {}", tensor.describe());
            entry(OPERATION, name, reason)
        })
    }
}

/// Returns the transposed matrix, or an error if the tensor is not a matrix. `name` is its name in errors.
fn transposed(tensor: &HostTensor, name: &str) -> Result<HostTensor> {
    fn turned<T: Clone>(elements: &[T], rows: usize, columns: usize) -> Vec<T> {
        let columns_first = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
        columns_first.map(|at| elements[at].clone()).collect()
    }
    let [rows, columns] = *tensor.dims() else {
        let reason =
            format!("{} is no matrix, so it cannot be transposed; use Mapping::variable", tensor.describe());
        return Err(entry(OPERATION, name, reason));
    };
    with_buffer!(tensor.buffer(), elements => {
        HostTensor::new(turned(elements, rows, columns), [columns, rows]).map_err(Error::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_transposed() {
        let matrix = HostTensor::new(vec![1i8, 2, 3, 4, 5, 6], [2, 3]).unwrap();
        let turned = HostTensor::new(vec![1i8, 4, 2, 5, 3, 6], [3, 2]).unwrap();
        assert_eq!(transposed(&matrix, "m").unwrap(), turned);
        let empty = HostTensor::new(Vec::<f32>::new(), [0, 3]).unwrap();
        assert_eq!(transposed(&empty, "m").unwrap().dims(), [3, 0]);
        let error = transposed(&HostTensor::scalar(1u8), "m").unwrap_err().to_string();
        assert!(error.contains("uint8[] is no matrix"), "{error}");
    }
}
