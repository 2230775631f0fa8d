//! [`Distributed`]: values that are split between replicas.

use super::{Mirrored, PerReplica};
use candle_core::{Tensor, Var};
use distribute_base::{Error, Result};
use distribute_tensor::{HostTensor, IndexedSlices};

/// A value that is split between the local replicas. Each replica gets its component of a [`PerReplica`], and its copy
/// of a [`Mirrored`]. A variable, a tensor or a number is passed unchanged.
///
/// In a nested value (a tuple, an array, a `Vec`, an `Option`, a map by name or a
/// [`Tree`](distribute_tensor::Tree)), each item is split separately. A struct with `#[derive(Nest)]` is
/// passed unchanged to all replicas.
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
    message = "`{Self}` cannot be passed to replicas",
    label = "this has no part for each replica",
    note = "a model that is passed as `&model` is read by several threads, so it must be `Sync`; if it is not, because \
            it has a `Cell` or a `RefCell`, pass it as `&mut model`: each replica then gets its own to change",
    note = "a model with a `Box<dyn Module>`, such as `candle_nn::Sequential`, is neither `Sync` nor `Send`: use \
            `distribute::nn::seq()` instead, or build any model on each thread with \
            `strategy.replicate(|vb| distribute::nn::per_thread(vb, |vb| ..))`",
    note = "let the closure capture values that are equal on all replicas; use a `PerReplica` for values that differ, \
            and `#[derive(Nest)]` for a struct of tensors and numbers"
)]
pub trait Distributed: Sized {
    /// The type of the part for one replica.
    type Local: Send;

    /// Splits the value into one part for each of `replicas` local replicas.
    ///
    /// # Errors
    /// - [`Error::Parts`]: the value was created for a different number of replicas.
    fn split(self, replicas: usize) -> Result<Vec<Self::Local>>;

    /// Returns the number of rows in the part for local replica `replica`, if the part is a per-replica batch;
    /// otherwise `None`. If the value contains several batches, returns the smallest number.
    fn rows(&self, replica: usize) -> Option<usize> {
        let _ = replica;
        None
    }

    /// Returns `true` if any item in the value has one value per replica.
    fn is_per_replica(&self) -> bool {
        false
    }

    /// Returns the variables of a model, such as running statistics, that only local replica `replica` writes while it
    /// runs.
    #[doc(hidden)]
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        let _ = replica;
        Vec::new()
    }

    /// Returns the number of results of `Strategy::local_results` for this value: one for a single value that is
    /// not distributed, otherwise one per local replica.
    fn local_results(&self, replicas: usize) -> usize {
        replicas
    }
}

pub(super) const OPERATION: &str = "splitting a value between replicas";

/// Returns `values` if there is one per replica, and an error otherwise. `what` describes the value in the error.
pub fn require_one_each<T>(values: Vec<T>, replicas: usize, what: impl FnOnce() -> String) -> Result<Vec<T>> {
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

/// Returns the name of a type, without module paths.
pub fn short_name<T: ?Sized>() -> String {
    let parts =
        std::any::type_name::<T>().split_inclusive(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    parts.map(|part| part.rsplit("::").next().unwrap_or(part)).collect()
}

impl<T: Send> Distributed for PerReplica<T> {
    type Local = T;
    fn split(self, replicas: usize) -> Result<Vec<T>> {
        require_one_each(self.into_values(), replicas, per_replica)
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
        require_one_each(self.iter().collect(), replicas, per_replica)
    }
    fn is_per_replica(&self) -> bool {
        true
    }
    fn rows(&self, replica: usize) -> Option<usize> {
        self.rows_of(replica)
    }
}

/// Gives each replica a mutable reference to its component.
impl<'a, T: Send> Distributed for &'a mut PerReplica<T> {
    type Local = &'a mut T;
    fn split(self, replicas: usize) -> Result<Vec<&'a mut T>> {
        require_one_each(self.iter_mut().collect(), replicas, per_replica)
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
            _ => require_one_each(copies, replicas, mirrored),
        }
    }
}

impl<'a, T: Sync> Distributed for &'a Mirrored<T> {
    type Local = &'a T;
    fn split(self, replicas: usize) -> Result<Vec<&'a T>> {
        match self.copies().len() {
            _ if replicas == 1 => Ok(vec![self.get()]),
            1 => Ok(vec![self.get(); replicas]),
            _ => require_one_each(self.copies(), replicas, mirrored),
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
