//! Values that are split between replicas.

use super::{Mirrored, PerReplica};
use crate::strategy::Strategy;
use candle_core::{Tensor, Var};
use distribute_base::{Error, Result};
use distribute_tensor::{HostTensor, IndexedSlices};

/// A value that is split between the local replicas. Each gets its component of a [`PerReplica`], and a
/// [`Mirrored`], a variable, a tensor or a number unchanged.
///
/// Nested values behave as their items do: a tuple, an array, a `Vec`, an `Option`, a map by name, a
/// [`Tree`](distribute_tensor::Tree). A struct with `#[derive(Nest)]` is the same for all replicas.
///
/// ```
/// # use distribute::prelude::*;
/// use std::collections::BTreeMap;
/// let strategy = MirroredStrategy::cpus(2)?;
/// let ids = strategy.distribute_values_from_function(|ctx| Ok(ctx.replica_id_in_sync_group))?;
/// let args = BTreeMap::from([("ids".to_string(), Some(ids)), ("nothing".to_string(), None)]);
/// let found = strategy.run((args, [1, 2]), |_, (args, [_, two])| Ok((args["ids"], args["nothing"], two)))?;
/// assert_eq!(found.values(), [(Some(0), None, 2), (Some(1), None, 2)]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given to replicas",
    label = "this has no part for each replica",
    note = "a model lent by `&model` is looked at from several threads, so it has to be `Sync`; where it is not, because it has \
            a `Cell` or a `RefCell`, lend it by `&mut model`: each replica then has its own to change",
    note = "a model of `Box<dyn Module>`, as `candle_nn::Sequential`, is neither `Sync` nor `Send`: use `distribute::nn::seq()` in its \
            place, or build any model on each thread by `strategy.replicate(|vb| distribute::nn::per_thread(vb, |vb| ..))`",
    note = "what is the same for all replicas is captured by the closure; what differs is a `PerReplica`; a struct of tensors and \
            numbers has `#[derive(Nest)]`"
)]
pub trait Distributed: Sized {
    /// The type of one replica's part.
    type Local: Send;

    /// Splits the value into one part for each of `replicas` local replicas.
    ///
    /// # Errors
    /// - [`Error::Parts`]: the value was made for another number of replicas.
    fn split(self, replicas: usize) -> Result<Vec<Self::Local>>;

    /// Returns the number of rows of local replica `replica`'s part, if it is a per-replica batch; the smallest
    /// number if there are several batches in it.
    fn rows(&self, replica: usize) -> Option<usize> {
        let _ = replica;
        None
    }

    /// Whether any part of it is per replica.
    fn is_per_replica(&self) -> bool {
        false
    }

    /// Returns the variables that a model writes for local replica `replica` alone while it runs, such as
    /// running statistics.
    #[doc(hidden)]
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        let _ = replica;
        Vec::new()
    }

    /// Returns the number of local results of this value on `replicas` local replicas: one if it is a single
    /// value that is not distributed.
    fn local_results(&self, replicas: usize) -> usize {
        replicas
    }
}

pub(super) const OPERATION: &str = "giving each replica its part";

/// Returns the values if there is one for each replica; otherwise an error that describes them by `what`.
pub(crate) fn counted<T>(values: Vec<T>, replicas: usize, what: impl FnOnce() -> String) -> Result<Vec<T>> {
    let parts = match values.len() {
        n if n == replicas => return Ok(values),
        1 => "1 part".into(),
        n => format!("{n} parts"),
    };
    let value = format!("{} of {parts}", what());
    Err(Error::Parts { operation: OPERATION, path: String::new(), value, replicas })
}

fn per_replica() -> String {
    "a PerReplica".into()
}

fn mirrored() -> String {
    "a Mirrored".into()
}

pub(crate) fn a_model<M>(strategy: &Strategy) -> String {
    format!("a model {} of {strategy}", short_name::<M>())
}

/// Returns the name of a type without its modules.
fn short_name<T: ?Sized>() -> String {
    let parts =
        std::any::type_name::<T>().split_inclusive(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    parts.map(|part| part.rsplit("::").next().unwrap_or(part)).collect()
}

impl<T: Send> Distributed for PerReplica<T> {
    type Local = T;
    fn split(self, replicas: usize) -> Result<Vec<T>> {
        counted(self.into_values(), replicas, per_replica)
    }
    fn is_per_replica(&self) -> bool {
        true
    }
    fn rows(&self, replica: usize) -> Option<usize> {
        self.rows_of(replica)
    }
}

impl<'a, T: Sync> Distributed for &'a PerReplica<T> {
    type Local = &'a T;
    fn split(self, replicas: usize) -> Result<Vec<&'a T>> {
        counted(self.iter().collect(), replicas, per_replica)
    }
    fn is_per_replica(&self) -> bool {
        true
    }
    fn rows(&self, replica: usize) -> Option<usize> {
        self.rows_of(replica)
    }
}

/// Each replica gets its component by mutable reference.
impl<'a, T: Send> Distributed for &'a mut PerReplica<T> {
    type Local = &'a mut T;
    fn split(self, replicas: usize) -> Result<Vec<&'a mut T>> {
        counted(self.iter_mut().collect(), replicas, per_replica)
    }
    fn is_per_replica(&self) -> bool {
        true
    }
    fn rows(&self, replica: usize) -> Option<usize> {
        self.rows_of(replica)
    }
}

impl<T: Clone + Send> Distributed for Mirrored<T> {
    type Local = T;
    fn split(self, replicas: usize) -> Result<Vec<T>> {
        let mut copies = self.into_copies();
        // All copies are equal, so one replica can use any of them (UPD-8).
        if replicas == 1 {
            copies.truncate(1);
        }
        match copies.as_slice() {
            [one] => Ok(vec![one.clone(); replicas]),
            _ => counted(copies, replicas, mirrored),
        }
    }
}

impl<'a, T: Sync> Distributed for &'a Mirrored<T> {
    type Local = &'a T;
    fn split(self, replicas: usize) -> Result<Vec<&'a T>> {
        match self.copies().len() {
            _ if replicas == 1 => Ok(vec![self.get()]),
            1 => Ok(vec![self.get(); replicas]),
            _ => counted(self.copies(), replicas, mirrored),
        }
    }
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Distributed for $t {
            type Local = $t;
            fn split(self, replicas: usize) -> Result<Vec<$t>> {
                Ok(vec![self; replicas])
            }
            fn local_results(&self, _: usize) -> usize {
                1
            }
        }
    )*};
}
plain!(
    Tensor,
    HostTensor,
    IndexedSlices,
    distribute_tensor::Leaf,
    f32,
    f64,
    i8,
    u8,
    i16,
    u16,
    i32,
    u32,
    i64,
    u64,
    usize,
    bool,
    String
);
