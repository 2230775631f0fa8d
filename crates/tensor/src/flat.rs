//! Conversion of dense leaves to one flat vector and back, so that many small leaves are sent as efficiently as a
//! single large one.

use crate::host::joined;
use crate::{DType, Element, Error, HostTensor, Leaf, Result, with_buffer};

/// Concatenates the elements of dense leaves with the same dtype, in row-major order.
///
/// # Errors
/// - [`Error::Empty`]: `leaves` is empty.
/// - [`Error::LeafKind`]: a leaf is indexed slices.
/// - [`Error::DTypeMismatch`]: the leaves have different dtypes.
/// - `Error::ForeignDType`: the dtype is one of candle's 4-, 6- and 8-bit floats.
/// - `Error::Candle`: a candle tensor cannot be copied, or the leaves are candle tensors on the CPU with different
///   dtypes.
pub fn join(leaves: &[&Leaf]) -> Result<HostTensor> {
    #[cfg(feature = "candle")]
    {
        let candle = |leaf: &&Leaf| if let Leaf::Candle(tensor) = leaf { Some(tensor.clone()) } else { None };
        if let Some(tensors) = leaves.iter().map(candle).collect::<Option<Vec<_>>>()
            && !tensors.is_empty()
        {
            return crate::candle::joined(&tensors.iter().collect::<Vec<_>>());
        }
    }
    let host = leaves.iter().map(|leaf| dense(leaf)?.to_host()).collect::<Result<Vec<_>>>()?;
    joined(&host.iter().collect::<Vec<_>>())
}

fn dense(leaf: &Leaf) -> Result<&Leaf> {
    match leaf {
        Leaf::Slices(_) => {
            Err(Error::LeafKind { operation: "join", expected: "a dense tensor", found: leaf.kind() })
        }
        dense => Ok(dense),
    }
}

/// Splits the concatenated elements of `pieces` into leaves with the shapes, kinds and devices of `like`. The leaves
/// have the dtype of the pieces, or float32 if there are no pieces.
///
/// # Errors
/// - [`Error::DTypeMismatch`]: the dtypes of the pieces differ.
/// - [`Error::ElementCount`]: the pieces have more or fewer elements than the leaves.
/// - [`Error::UnsupportedDType`], `Error::Candle`: the elements cannot be copied to a candle tensor.
pub fn split(pieces: &[HostTensor], like: &[&Leaf]) -> Result<Vec<Leaf>> {
    fn all<T: Element>(_: &[T], pieces: &[HostTensor], like: &[&Leaf]) -> Result<Vec<Leaf>> {
        let mut pieces =
            pieces.iter().map(|piece| piece.typed::<T>("split")).collect::<Result<Vec<_>>>()?.into_iter();
        let mut rest: &[T] = &[];
        let mut leaf = |like: &&Leaf| {
            let mut missing: usize = like.dims().iter().product();
            let mut elements = Vec::with_capacity(missing);
            while missing > 0 {
                if rest.is_empty() {
                    let shape = like.dims().to_vec();
                    rest = pieces.next().ok_or(Error::ElementCount { shape, elements: elements.len() })?;
                }
                let (these, others) = rest.split_at(missing.min(rest.len()));
                elements.extend_from_slice(these);
                (missing, rest) = (missing - these.len(), others);
            }
            Leaf::Host(HostTensor::new(elements, like.dims())?).to_device_of(like)
        };
        let leaves = like.iter().map(&mut leaf).collect::<Result<Vec<_>>>()?;
        match rest.len() + pieces.map(<[T]>::len).sum::<usize>() {
            0 => Ok(leaves),
            elements => Err(Error::ElementCount { shape: vec![0], elements }),
        }
    }
    match pieces.first() {
        Some(first) => with_buffer!(first.buffer(), v => all(v, pieces, like)),
        None => all::<f32>(&[], pieces, like),
    }
}

/// Returns the size of `elements` elements in bytes. Returns `None` for strings, and on overflow.
pub fn size(dtype: DType, elements: usize) -> Option<usize> {
    dtype.bytes()?.checked_mul(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn leaves_come_back_however_they_are_cut(
            lens in proptest::collection::vec(0usize..20, 1..6), cuts in proptest::collection::vec(0usize..60, 0..5),
        ) {
            let mut next = 0u64;
            let mut leaf = |len: &usize| {
                let elements = (0..*len).map(|_| { next += 1; next }).collect::<Vec<_>>();
                Leaf::Host(HostTensor::vector(elements))
            };
            let leaves: Vec<Leaf> = lens.iter().map(&mut leaf).collect();
            let like: Vec<&Leaf> = leaves.iter().collect();
            let flat = join(&like).unwrap();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(flat.len())).chain([0, flat.len()]).collect();
            cuts.sort_unstable();
            let piece = |ends: &[usize]| flat.narrow(0, ends[0], ends[1] - ends[0]).unwrap();
            let pieces: Vec<_> = cuts.windows(2).map(piece).collect();
            let back = split(&pieces, &like).unwrap();
            for (back, leaf) in back.iter().zip(&leaves) {
                prop_assert_eq!(back.to_host().unwrap(), leaf.to_host().unwrap());
            }
            if !flat.is_empty() {
                prop_assert!(split(&pieces[..0], &like).is_err());
                prop_assert!(split(&[pieces.clone(), vec![HostTensor::vector(vec![1u64])]].concat(), &like).is_err());
            }
        }
    }
}
