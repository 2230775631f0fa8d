//! A replica's gradient of one variable, on its way from backward to the update.

use super::bucket::{Bucket, Deposit};
use super::{Deposited, Rows};
use crate::number::Elements;
use candle_core::{DType, Device, Result, Tensor, Var};
use std::sync::Arc;

/// A replica's gradient of one variable, wherever its elements are.
#[derive(Clone, Debug)]
pub enum LocalGradient {
    /// Contiguous.
    Dense(Tensor),
    /// Dense, where layers have put it.
    Deposited(Deposited),
    /// Some rows of a table.
    Rows(Rows),
}

impl LocalGradient {
    /// Of each variable what layers have put into the bucket and what candle has `found`. Of one that is used by layers and by
    /// other operations, too, the gradients add up.
    pub fn collected(mut bucket: Bucket, found: Vec<Option<Self>>) -> Result<Vec<Option<Self>>> {
        let (mut all, mut dense, mut joined) = (found, Vec::new(), Vec::new());
        for (number, gradient) in all.iter_mut().enumerate() {
            let joins = bucket.is_in_packs(number) && matches!(gradient, Some(Self::Dense(_)));
            if gradient.is_some() {
                joined.push(number);
            }
            if joins || bucket.has(number) {
                match gradient.take() {
                    Some(Self::Dense(tensor)) => bucket.add(number, &tensor)?,
                    Some(Self::Rows(rows)) => bucket.add_rows(number, rows),
                    Some(Self::Deposited(_)) | None => {}
                }
            }
            match bucket.take(number) {
                Deposit::Nothing => {}
                Deposit::Rows(rows) => *gradient = Some(Self::Rows(rows)),
                Deposit::Dense => dense.push(number),
            }
        }
        let packs = bucket.take_packs(&dense, joined);
        let bucket = Arc::new(bucket);
        for number in dense {
            all[number] = Some(Self::Deposited(match &packs {
                Some(packs) if packs.layout().has(number) => Deposited::in_flat(packs, number),
                _ => Deposited::in_bucket(&bucket, number),
            }));
        }
        Ok(all)
    }

    /// That of a replica which has none: no rows.
    pub fn no_rows(variable: &Var) -> Self {
        Self::Rows(Rows { rows: Vec::new(), values: Elements::none(variable.dtype()) })
    }

    /// The same with a number for each element: beside a dense one, rows are no shorter way.
    pub fn to_dense(&self, variable: &Var) -> Result<Self> {
        let (Self::Rows(rows), count, shape) = (self, variable.elem_count(), variable.shape()) else {
            return Ok(self.clone());
        };
        Ok(Self::Dense(match variable.dtype() {
            DType::F32 => Tensor::from_vec(rows.spread::<f32>(count), shape, &Device::Cpu)?,
            _ => Tensor::from_vec(rows.spread::<f64>(count), shape, &Device::Cpu)?,
        }))
    }
}
