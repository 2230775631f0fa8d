//! A dense gradient that is not a tensor.

use super::{Bucket, Flat};
use crate::number::Number;
use candle_core::{DType, Result, Tensor, Var};
use std::ops::Range;
use std::sync::Arc;

/// A dense gradient where layers have put it, or where it has arrived from another worker.
#[derive(Clone, Debug)]
pub struct Deposited {
    memory: Memory,
    /// Which of the optimizer's variables it is of.
    number: usize,
    /// Which of the elements that are there, if not all.
    range: Option<Range<usize>>,
}

#[derive(Clone, Debug)]
enum Memory {
    Bucket(Arc<Bucket>),
    Flat(Arc<Flat>),
}

impl Deposited {
    pub(super) fn in_bucket(bucket: &Arc<Bucket>, number: usize) -> Self {
        Self { memory: Memory::Bucket(bucket.clone()), number, range: None }
    }

    /// The gradient of the variable `number`, in packs that are laid out flat.
    pub fn in_flat(flat: &Arc<Flat>, number: usize) -> Self {
        Self { memory: Memory::Flat(flat.clone()), number, range: None }
    }

    /// The same, of a range of the elements.
    pub fn range(self, range: Range<usize>) -> Self {
        Self { range: Some(range), ..self }
    }

    /// The vector that it is part of, if it is.
    pub fn flat(&self) -> Option<&Arc<Flat>> {
        match &self.memory {
            Memory::Flat(flat) => Some(flat),
            Memory::Bucket(_) => None,
        }
    }

    /// Its elements. None for another dtype.
    pub fn elements<T: Number>(&self) -> Option<&[T]> {
        let all = match &self.memory {
            Memory::Bucket(bucket) => bucket.dense(self.number),
            Memory::Flat(flat) => flat.dense(self.number),
        };
        match &self.range {
            Some(range) => all?.get(range.clone()),
            None => all,
        }
    }

    /// A copy of the variable's shape.
    pub fn tensor(&self, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        match variable.dtype() {
            DType::F32 => Tensor::from_slice(self.elements::<f32>().unwrap_or_default(), shape, device),
            _ => Tensor::from_slice(self.elements::<f64>().unwrap_or_default(), shape, device),
        }
    }
}
