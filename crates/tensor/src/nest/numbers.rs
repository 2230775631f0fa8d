//! [`Nest`] for plain numbers, booleans and strings, which are scalars.

use super::{leaf, mismatch};
use crate::{DType, Element, HostTensor, Leaf, Nest, Result, Tree};

/// Returns the element of a scalar. A different dtype is an error, for example the float that results from a MEAN of
/// integers.
fn scalar<T: Element>(tree: Tree<Leaf>) -> Result<T> {
    match leaf("a scalar", tree)? {
        Leaf::Host(tensor) => match (tensor.as_slice::<T>(), tensor.dims()) {
            (Some([value]), []) => Ok(value.clone()),
            _ => Err(mismatch(
                &format!("a scalar of {}", T::DTYPE),
                &format!(
                    "{} of shape {:?} (a mean of integers is a float: pass a HostTensor)",
                    tensor.dtype(),
                    tensor.dims()
                ),
            )),
        },
        other => Err(mismatch("a scalar", other.kind())),
    }
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Nest for $t {
            type Batch = HostTensor;

            fn into_tree(self) -> Tree<Leaf> {
                Tree::Leaf(Leaf::Host(HostTensor::scalar(self)))
            }
            fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
                scalar(tree)
            }
            fn scalar_dtypes() -> Option<Tree<DType>> {
                Some(Tree::Leaf(<$t as Element>::DTYPE))
            }
        }
    )*};
}
numbers!(f32, f64, i8, u8, i16, u16, i32, u32, i64, u64, bool);

impl Nest for usize {
    type Batch = HostTensor;

    fn into_tree(self) -> Tree<Leaf> {
        (self as u64).into_tree()
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        Ok(u64::from_tree(tree)? as usize)
    }
    fn scalar_dtypes() -> Option<Tree<DType>> {
        u64::scalar_dtypes()
    }
}

impl Nest for String {
    type Batch = HostTensor;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::Leaf(Leaf::Host(HostTensor::scalar(self.into_bytes())))
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        String::from_utf8(scalar(tree)?).map_err(|_| mismatch("UTF-8 text", "other bytes"))
    }
    fn scalar_dtypes() -> Option<Tree<DType>> {
        Some(Tree::Leaf(DType::String))
    }
}
