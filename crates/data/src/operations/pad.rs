//! The padding and stacking of tensors of different sizes.

use super::encoding::encode;
use crate::chunk::Assembly;
use crate::{Error, Padding, Result};
use distribute_tensor::{Element, HostTensor, Leaf, Tree};

/// Pads elements and stacks them into a batch. `index` returns the index in the pass of the given element of the
/// batch.
pub(super) fn pad(
    operation: &'static str,
    padding: &Padding,
    elements: Assembly,
    index: impl Fn(usize) -> usize,
) -> Result<Tree<Leaf>> {
    let number = elements.number();
    let elements = elements.into_values()?;
    let count = elements.len();
    let path = paths(elements.first());
    let columns =
        Tree::zip(elements).map_err(|source| Error::Stack { batch: number, elements: count, source })?;
    let (columns, structure) = columns.flatten();
    let mut joined = Vec::with_capacity(columns.len());
    for (i, column) in columns.iter().enumerate() {
        let bad = |(element, why)| {
            let path = path.get(i).cloned().unwrap_or_default();
            Error::Pad { operation, path, index: index(element), why }
        };
        joined.push(pad_column(padding, i, columns.len(), column).map_err(bad)?);
    }
    Ok(structure.fill(joined.into_iter().map(Leaf::Host))?)
}

/// Returns a description of everything in the padding that determines batches, for
/// [`identity`](crate::pipeline::Operation::identity); empty for the default.
pub(super) fn identity(padding: &Padding) -> String {
    let mut text = String::new();
    if let Some(sizes) = &padding.sizes {
        text += &format!(", sizes {sizes:?}");
    }
    let value = |leaf: &Leaf| match encode(&Tree::Leaf(leaf.clone())) {
        Ok(bytes) => format!("{:08x}", crc32c::crc32c(&bytes)),
        // An error in the pass: only host tensors are padding values.
        Err(_) => leaf.kind().into(),
    };
    if let Some(values) = &padding.values {
        text += &format!(", values {:?}", values.iter().map(value).collect::<Vec<_>>());
    }
    text
}

/// Returns the path of each leaf of an element.
fn paths(element: Option<&Tree<Leaf>>) -> Vec<String> {
    let mut paths = Vec::new();
    let mut note = |path: &dyn Fn() -> String, _: &Leaf| {
        paths.push(path());
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(()) = element.map_or(Ok(()), |element| element.visit(&mut note));
    paths
}

/// The index in the batch of an element that cannot be padded, and the reason.
type Bad = (usize, String);

/// Pads and stacks tensor `i` of all elements of a batch. `of` is the number of tensors in an element.
fn pad_column(padding: &Padding, i: usize, of: usize, column: &[Leaf]) -> Result<HostTensor, Bad> {
    let dense = |(index, leaf): (usize, &Leaf)| match leaf {
        Leaf::Host(tensor) => Ok(tensor.clone()),
        other => Err((index, format!("it is {}, not a dense tensor in host memory", other.kind()))),
    };
    let tensors = column.iter().enumerate().map(dense).collect::<Result<Vec<_>, _>>()?;
    let sizes = given(padding.sizes.as_deref(), i, of, "sizes")?;
    let shape = common_shape(&tensors, sizes.map(Vec::as_slice))?;
    let value = match given(padding.values.as_deref(), i, of, "values")? {
        Some(Leaf::Host(value)) => Some(value),
        Some(other) => return Err((0, format!("the padding value is {}", other.kind()))),
        None => None,
    };
    let Some(first) = tensors.first() else { return Err((0, "there is none".into())) };
    distribute_tensor::with_buffer!(first.buffer(), elements => join(elements, &tensors, shape, value))
}

/// Returns the user's setting for tensor `i`; `None` if there is none. Returns an error if the number of settings is
/// not `of`, the number of tensors. `what` is the name of the setting in the error.
fn given<'a, X>(all: Option<&'a [X]>, i: usize, of: usize, what: &str) -> Result<Option<&'a X>, Bad> {
    match all {
        Some(all) if all.len() != of => {
            Err((0, format!("{what} were given for {} tensors, but an element has {of}", all.len())))
        }
        all => Ok(all.and_then(|all| all.get(i))),
    }
}

/// Returns the shape to which all tensors are padded.
fn common_shape(tensors: &[HostTensor], sizes: Option<&[Option<usize>]>) -> Result<Vec<usize>, Bad> {
    let rank = sizes.map_or(tensors.first().map_or(0, HostTensor::rank), <[_]>::len);
    let mut shape = vec![0; rank];
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.rank() != rank {
            return Err((index, format!("it has shape {:?}, but {rank} axes are needed", tensor.dims())));
        }
        for (axis, (most, found)) in shape.iter_mut().zip(tensor.dims()).enumerate() {
            match sizes.and_then(|sizes| sizes.get(axis).copied().flatten()) {
                Some(size) if *found > size => {
                    return Err((
                        index,
                        format!("axis {axis} has size {found}, more than the requested {size}"),
                    ));
                }
                Some(size) => *most = size,
                None => *most = (*most).max(*found),
            }
        }
    }
    Ok(shape)
}

/// Pads tensors of dtype `T` to shape `shape` with `value`, and stacks them.
fn join<T: Element>(
    _: &[T],
    tensors: &[HostTensor],
    shape: Vec<usize>,
    value: Option<&HostTensor>,
) -> Result<HostTensor, Bad> {
    let value = match value.map(HostTensor::item::<T>) {
        Some(Ok(value)) => value,
        Some(Err(error)) => {
            return Err((0, format!("its dtype is {}, the padding value: {error}", T::DTYPE)));
        }
        None => T::default(),
    };
    let each = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    let mut all: Vec<T> = Vec::new();
    let room = each.and_then(|each| each.checked_mul(tensors.len()));
    let (Some(each), Some(Ok(()))) = (each, room.map(|room| all.try_reserve_exact(room))) else {
        return Err((0, format!("{} tensors of shape {shape:?} are too large", tensors.len())));
    };
    for (index, tensor) in tensors.iter().enumerate() {
        let differs =
            || format!("its dtype is {}, that of the batch's first is {}", tensor.dtype(), T::DTYPE);
        let elements = tensor.as_slice::<T>().ok_or_else(|| (index, differs()))?;
        let start = all.len();
        if tensor.dims() == shape {
            all.extend_from_slice(elements);
        } else {
            all.resize(start + each, value.clone());
            place(all.get_mut(start..).unwrap_or_default(), &shape, elements, tensor.dims());
        }
    }
    let dims: Vec<usize> = [tensors.len()].into_iter().chain(shape).collect();
    HostTensor::from_buffer(T::into_buffer(all), dims).map_err(|error| (0, error.to_string()))
}

/// Copies a smaller tensor into a larger one of the same rank, from the beginning of each axis.
fn place<T: Clone>(to: &mut [T], to_dims: &[usize], from: &[T], from_dims: &[usize]) {
    if from.is_empty() {
        return;
    }
    match (to_dims, from_dims) {
        // From here on both have the same layout in memory.
        ([_, to_inner @ ..], [_, from_inner @ ..]) if to_inner != from_inner => {
            let (to_len, from_len) = (to_inner.iter().product(), from_inner.iter().product());
            for (to, from) in to.chunks_exact_mut(to_len).zip(from.chunks_exact(from_len)) {
                place(to, to_inner, from, from_inner);
            }
        }
        _ => to.iter_mut().zip(from).for_each(|(to, from)| to.clone_from(from)),
    }
}
