//! The slices of a tensor: whether they cover it, and where the elements of each are.

use std::ops::Range;

/// A box of elements of a tensor: the first index and the size on each axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Region {
    pub(crate) start: Vec<usize>,
    pub(crate) shape: Vec<usize>,
}

impl Region {
    /// Creates the region that is the complete tensor.
    pub(crate) fn whole(shape: &[usize]) -> Self {
        Self { start: vec![0; shape.len()], shape: shape.to_vec() }
    }

    /// Returns the number of elements, or `None` if it overflows.
    pub(crate) fn len(&self) -> Option<usize> {
        count(&self.shape)
    }

    /// Returns the rows (indices of axis 0 of the tensor). A scalar is one row.
    pub(crate) fn rows(&self) -> Range<usize> {
        match (self.start.first(), self.shape.first()) {
            (Some(start), Some(count)) => *start..start.saturating_add(*count),
            _ => 0..1,
        }
    }

    /// Calls `copy` with each run of elements that is contiguous both in this region and in a tensor of shape `outer`:
    /// the index of its first element in the tensor and in the region, and its length. The region must be within the
    /// tensor.
    pub(crate) fn runs(&self, outer: &[usize], mut copy: impl FnMut(usize, usize, usize)) {
        // Axes after `axis` are complete, so that indices of `axis` follow each other.
        let partial = self.shape.iter().zip(outer).rposition(|(mine, all)| mine != all);
        let axis = partial.unwrap_or(0).min(self.shape.len().saturating_sub(1));
        let run: usize = self.shape.iter().skip(axis).product();
        let total: usize = self.shape.iter().product();
        if total == 0 {
            return;
        }
        let mut index = vec![0; axis];
        for at in (0..total).step_by(run) {
            let mut there = 0;
            for (dim, outer) in outer.iter().enumerate() {
                let mine = index.get(dim).copied().unwrap_or(0);
                there = there * outer + self.start[dim] + mine;
            }
            copy(there, at, run);
            for dim in (0..axis).rev() {
                index[dim] += 1;
                if index[dim] < self.shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let mut axes = self.start.iter().zip(&self.shape).zip(other.start.iter().zip(&other.shape));
        axes.all(|((a, a_len), (b, b_len))| *a < b + b_len && *b < a + a_len)
    }
}

/// Returns the number of elements of a shape, or `None` if it overflows.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |all, axis| all.checked_mul(*axis))
}

/// Checks that regions cover each element of a tensor exactly once.
///
/// # Errors
/// Returns the reason as text if they do not.
pub(crate) fn require_cover(shape: &[usize], regions: &[Region]) -> Result<(), String> {
    let mut sum = 0usize;
    for region in regions {
        let fits = region.start.len() == shape.len()
            && region
                .start
                .iter()
                .zip(&region.shape)
                .zip(shape)
                .all(|((start, len), all)| start.checked_add(*len).is_some_and(|end| end <= *all));
        if !fits {
            return Err(format!("{region:?} is no slice of shape {shape:?}"));
        }
        sum = region.len().and_then(|len| sum.checked_add(len)).ok_or("the slices have too many elements")?;
    }
    if count(shape) != Some(sum) {
        return Err(format!("the slices have {sum} elements, and the tensor has shape {shape:?}"));
    }
    // By their first row: only those that begin before the end of a slice can overlap it.
    let mut sorted: Vec<_> = regions.iter().filter(|region| region.len() != Some(0)).collect();
    sorted.sort_by_key(|region| region.rows().start);
    for (at, region) in sorted.iter().enumerate() {
        let near = sorted[at + 1..].iter().take_while(|other| other.rows().start < region.rows().end);
        if let Some(other) = near.into_iter().find(|other| region.overlaps(other)) {
            return Err(format!("{region:?} and {other:?} overlap"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region<const N: usize>(start: [usize; N], shape: [usize; N]) -> Region {
        Region { start: start.to_vec(), shape: shape.to_vec() }
    }

    #[test]
    fn runs_copy_each_element_to_its_place() {
        let outer = [4, 3, 5];
        for part in [
            region([0; 3], [4, 3, 5]),
            region([1, 0, 0], [2, 3, 5]),
            region([1, 1, 0], [2, 1, 5]),
            region([2, 1, 3], [2, 2, 2]),
            region([0, 0, 4], [4, 3, 1]),
            region([0, 0, 0], [4, 0, 5]),
        ] {
            let mut found = Vec::new();
            part.runs(&outer, |there, here, len| (0..len).for_each(|i| found.push((here + i, there + i))));
            let [a, b, c] = [0, 1, 2].map(|dim| part.start[dim]..part.start[dim] + part.shape[dim]);
            let all = a.flat_map(|i| b.clone().map(move |j| (i, j)));
            let all = all.flat_map(|(i, j)| c.clone().map(move |k| (i * 3 + j) * 5 + k));
            assert!(found.into_iter().eq(all.enumerate()), "{part:?}");
        }
        let mut scalar = Vec::new();
        Region::whole(&[]).runs(&[], |there, here, len| scalar.push((there, here, len)));
        assert_eq!(scalar, [(0, 0, 1)]);
    }

    #[test]
    fn slices_must_cover_each_element_once() {
        let halves = [region([0, 0], [2, 4]), region([2, 0], [2, 1]), region([2, 1], [2, 3])];
        assert_eq!(require_cover(&[4, 4], &halves), Ok(()));
        assert!(require_cover(&[4, 4], &halves[..2]).is_err());
        assert!(require_cover(&[3, 4], &halves).is_err());
        // 16 elements, of which four are there twice.
        let twice = [halves[0].clone(), halves[0].clone()];
        assert!(require_cover(&[4, 4], &twice).is_err_and(|reason| reason.contains("overlap")));
        let across = [region([0, 0], [3, 4]), region([2, 0], [1, 4])];
        assert!(require_cover(&[4, 4], &across).is_err_and(|reason| reason.contains("overlap")));
        assert_eq!(require_cover(&[0, 3], &[region([0, 0], [0, 3])]), Ok(()));
        let huge = region([0, 0], [usize::MAX, 2]);
        assert!(require_cover(&[usize::MAX, 2], &[huge]).is_err());
    }
}
