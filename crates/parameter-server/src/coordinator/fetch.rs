//! [`Fetch`]: results that are nested in tuples and containers.

use crate::remote::RemoteValue;
use distribute_base::Result;
use serde::de::DeserializeOwned;

/// A result, or a tuple or container of results, that can be fetched. See
/// [`ClusterCoordinator::fetch`](super::ClusterCoordinator::fetch).
pub trait Fetch {
    /// The type of the fetched values, with the same structure.
    type Values;

    /// Waits for the results and returns their values.
    ///
    /// # Errors
    /// Returns the error of the first result in the structure whose closure failed.
    fn fetch(&self) -> Result<Self::Values>;
}

impl<T: DeserializeOwned> Fetch for RemoteValue<T> {
    type Values = T;

    fn fetch(&self) -> Result<T> {
        RemoteValue::fetch(self)
    }
}

impl<F: Fetch> Fetch for &F {
    type Values = F::Values;

    fn fetch(&self) -> Result<F::Values> {
        (*self).fetch()
    }
}

impl<F: Fetch> Fetch for &[F] {
    type Values = Vec<F::Values>;

    fn fetch(&self) -> Result<Vec<F::Values>> {
        self.iter().map(F::fetch).collect()
    }
}

impl<F: Fetch> Fetch for Vec<F> {
    type Values = Vec<F::Values>;

    fn fetch(&self) -> Result<Vec<F::Values>> {
        self.iter().map(F::fetch).collect()
    }
}

impl<F: Fetch> Fetch for Option<F> {
    type Values = Option<F::Values>;

    fn fetch(&self) -> Result<Option<F::Values>> {
        self.as_ref().map(F::fetch).transpose()
    }
}

macro_rules! tuples {
    ($(($($F:ident $at:tt),+);)+) => {$(
        impl<$($F: Fetch),+> Fetch for ($($F,)+) {
            type Values = ($($F::Values,)+);

            fn fetch(&self) -> Result<Self::Values> {
                Ok(($(self.$at.fetch()?,)+))
            }
        }
    )+};
}

tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
}
