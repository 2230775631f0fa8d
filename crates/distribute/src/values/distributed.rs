//! Values of which each replica gets its own part.

use super::{Mirrored, PerReplica};
use crate::{Error, Replicated, Result, Strategy};
use candle_core::{Tensor, Var};
use distribute_tensor::{HostTensor, IndexedSlices, Tree};
use std::convert::Infallible;

/// A value of which each local replica gets its part: its component of a [`PerReplica`]; a [`Mirrored`], a tensor or a
/// number as it is; the parts of the items of a tuple or `Vec`.
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given to replicas",
    label = "this has no part for each replica",
    note = "a model lent by `&model` is looked at from several threads, so it has to be `Sync`; where it is not, because it has \
            a `Cell` or a `RefCell`, lend it by `&mut model`: each replica then has its own to change",
    note = "what is the same for all replicas is captured by the closure; what differs is a `PerReplica`"
)]
pub trait Distributed: Sized {
    /// What one replica gets.
    type Local: Send;

    /// Splits the value into one part for each of `replicas` local replicas.
    ///
    /// # Errors
    /// [`Error::Parts`] for a value that was made for another number of replicas.
    fn split(self, replicas: usize) -> Result<Vec<Self::Local>>;

    /// The number of rows of local replica `replica`'s part, if it is a piece of a batch; the smallest number if it has
    /// several pieces.
    fn rows(&self, replica: usize) -> Option<usize> {
        let _ = replica;
        None
    }

    /// Whether any part of it is per replica.
    fn is_per_replica(&self) -> bool {
        false
    }

    /// The variables that a model writes for local replica `replica` alone while it runs, such as running statistics.
    #[doc(hidden)]
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        let _ = replica;
        Vec::new()
    }

    /// How many local results this value has on `replicas` local replicas: one if it is a single value that is not
    /// distributed.
    fn local_results(&self, replicas: usize) -> usize {
        replicas
    }
}

const OPERATION: &str = "giving each replica its part";

/// The values, if there is one for each replica; otherwise an error that describes them by `what`.
fn counted<T>(values: Vec<T>, replicas: usize, what: impl FnOnce() -> String) -> Result<Vec<T>> {
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

fn a_model<M>(strategy: &Strategy) -> String {
    format!("a model {} of {strategy}", short_name::<M>())
}

/// The name of a type without its modules.
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

/// Each replica gets its model by mutable reference, for methods that take `&mut self`, as many of candle_transformers do.
impl<'a, M: Send> Distributed for &'a mut Replicated<M> {
    type Local = &'a mut M;
    fn split(self, replicas: usize) -> Result<Vec<&'a mut M>> {
        let strategy = self.variables.strategy().clone();
        counted(self.models_mut().iter_mut().collect(), replicas, || a_model::<M>(&strategy))
    }
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        self.variables.own_variables(replica)
    }
}

// Makes the compiler say what to do with a model that is not `Sync`.
#[diagnostic::do_not_recommend]
impl<'a, M: Sync> Distributed for &'a Replicated<M> {
    type Local = &'a M;
    fn split(self, replicas: usize) -> Result<Vec<&'a M>> {
        let what = || a_model::<M>(self.variables.strategy());
        counted(self.models().iter().collect(), replicas, what)
    }
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        self.variables.own_variables(replica)
    }
}

impl<T: Clone + Send> Distributed for Mirrored<T> {
    type Local = T;
    fn split(self, replicas: usize) -> Result<Vec<T>> {
        let mut copies = self.into_copies();
        // They are equal, so any of them will do for one replica (UPD-8).
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

/// The parts of several values, by replica. In errors, `path` says which value does not fit.
fn split_all<D: Distributed>(
    values: Vec<D>,
    replicas: usize,
    path: impl Fn(usize) -> String,
) -> Result<Vec<Vec<D::Local>>> {
    let mut out: Vec<_> = (0..replicas).map(|_| Vec::with_capacity(values.len())).collect();
    for (i, value) in values.into_iter().enumerate() {
        let parts = value.split(replicas).map_err(|error| error.within(path(i)))?;
        out.iter_mut().zip(parts).for_each(|(out, part)| out.push(part));
    }
    Ok(out)
}

impl<D: Distributed> Distributed for Vec<D> {
    type Local = Vec<D::Local>;
    fn split(self, replicas: usize) -> Result<Vec<Vec<D::Local>>> {
        split_all(self, replicas, |i| format!("[{i}]"))
    }
    fn rows(&self, replica: usize) -> Option<usize> {
        self.iter().filter_map(|item| item.rows(replica)).min()
    }
    fn is_per_replica(&self) -> bool {
        self.iter().any(Distributed::is_per_replica)
    }
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        self.iter().flat_map(|item| item.own_variables(replica)).collect()
    }
}

impl<D: Distributed> Distributed for Tree<D> {
    type Local = Tree<D::Local>;
    fn split(self, replicas: usize) -> Result<Vec<Tree<D::Local>>> {
        let (leaves, structure) = self.flatten();
        let path = |leaf: usize| {
            let mut paths = Vec::new();
            let Ok(()) = structure.visit(&mut |path, ()| {
                paths.push(path());
                Ok::<(), Infallible>(())
            });
            // Paths begin with the word for the whole value.
            paths.get(leaf).map(|path| path.trim_start_matches("value").to_string()).unwrap_or_default()
        };
        let parts = split_all(leaves, replicas, path)?.into_iter();
        parts.map(|leaves| structure.fill(leaves).map_err(Error::tensor(OPERATION))).collect()
    }
    fn rows(&self, replica: usize) -> Option<usize> {
        self.leaves().into_iter().filter_map(|leaf| leaf.rows(replica)).min()
    }
    fn is_per_replica(&self) -> bool {
        self.leaves().into_iter().any(Distributed::is_per_replica)
    }
    fn local_results(&self, replicas: usize) -> usize {
        match self {
            Tree::Leaf(leaf) => leaf.local_results(replicas),
            Tree::None => 1,
            _ => replicas,
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

macro_rules! tuples {
    ($($($t:ident $v:ident $i:tt),*;)*) => {$(
        impl<$($t: Distributed),*> Distributed for ($($t,)*) {
            type Local = ($($t::Local,)*);
            #[allow(unused_variables, unused_mut, clippy::unused_unit)]
            fn split(self, replicas: usize) -> Result<Vec<Self::Local>> {
                $(let mut $v = self.$i.split(replicas).map_err(|error| error.within(concat!(".", $i)))?.into_iter();)*
                let missing = || Error::invalid(OPERATION, "a value has too few parts");
                (0..replicas).map(|_| Ok(($($v.next().ok_or_else(missing)?,)*))).collect()
            }
            #[allow(unused_variables)]
            fn rows(&self, replica: usize) -> Option<usize> {
                [None, $(self.$i.rows(replica)),*].into_iter().flatten().min()
            }
            fn is_per_replica(&self) -> bool {
                [false, $(self.$i.is_per_replica()),*].contains(&true)
            }
            #[allow(unused_variables)]
            fn own_variables(&self, replica: usize) -> Vec<Var> {
                [Vec::new(), $(self.$i.own_variables(replica)),*].concat()
            }
        }
    )*};
}
tuples! {
    ;
    A a 0;
    A a 0, B b 1;
    A a 0, B b 1, C c 2;
    A a 0, B b 1, C c 2, D d 3;
    A a 0, B b 1, C c 2, D d 3, E e 4;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5;
}
