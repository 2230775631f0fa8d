//! Conversions of other errors, for `?`.

use super::Error;
use distribute_cluster::{Blame, ClusterError};
use distribute_net::JoinError;
use std::sync::Arc;

impl From<ClusterError> for Error {
    fn from(error: ClusterError) -> Self {
        Error::Cluster(Box::new(error))
    }
}

impl From<distribute_ps_tables::Error> for Error {
    fn from(error: distribute_ps_tables::Error) -> Self {
        Error::Params(Box::new(error))
    }
}

#[cfg(feature = "hub")]
impl From<distribute_hub::Error> for Error {
    fn from(error: distribute_hub::Error) -> Self {
        Error::Hub(Box::new(error))
    }
}

/// Converts the error to one of the program's own, so that closures and `main` can use `?`.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::other(error)
    }
}

impl From<JoinError> for Error {
    fn from(error: JoinError) -> Self {
        Error::Join(Box::new(error))
    }
}

impl From<Arc<Blame>> for Error {
    fn from(blame: Arc<Blame>) -> Self {
        Error::Collective(blame)
    }
}

impl From<distribute_tensor::Error> for Error {
    fn from(source: distribute_tensor::Error) -> Self {
        Error::Tensor { operation: "tensor operation", source }
    }
}

impl From<distribute_optim::UpdateError> for Error {
    fn from(error: distribute_optim::UpdateError) -> Self {
        Error::invalid("update", error.to_string())
    }
}
