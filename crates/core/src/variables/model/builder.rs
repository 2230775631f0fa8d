//! A candle `VarBuilder` backend that returns a model's variables.

use super::{Variables, rebuild};
use crate::context::to_candle_error;
use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::{Init, var_builder::SimpleBackend};

/// The backend of a `VarBuilder` that returns the variables of one replica.
pub(super) struct ReplicaBackend {
    pub(super) variables: Variables,
    pub(super) replica: usize,
}

impl SimpleBackend for ReplicaBackend {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, _: &Device) -> Result<Tensor> {
        let exists = || self.variables.entries().contains_key(name);
        let got = rebuild::record_request(name, exists)
            .and_then(|()| self.variables.get_or_create(self.replica, name, &shape, &init, dtype));
        got.map_err(|error| match error {
            distribute_base::Error::Candle(error) => error,
            other => to_candle_error(other),
        })
    }

    fn get_unchecked(&self, name: &str, _: DType, device: &Device) -> Result<Tensor> {
        match self.variables.find("get_unchecked", name) {
            Ok(kind) => {
                let variable = kind.any().map_err(Error::msg)?;
                self.get(variable.shape().clone(), name, Init::Const(0.), variable.dtype(), device)
            }
            Err(error) => Err(Error::msg(error)),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        rebuild::is_requested(name).unwrap_or_else(|| self.variables.has_requested(self.replica, name))
    }
}
