//! The distinct ids of a batch.

use distribute_tensor::kernel::{RowMerge, Sum};
use distribute_tensor::random::mix;
use hashbrown::HashTable;

/// The distinct ids of a batch, for requests to servers, and the mapping of their rows to the batch.
///
/// ```
/// use distribute_ps_tables::UniqueIds;
///
/// let batch = UniqueIds::new(&[7, 3, 7]);
/// assert_eq!(batch.ids(), [7, 3]);
/// // Each id has a row of one element.
/// assert_eq!(batch.spread(&[0.7, 0.3], 1), [0.7, 0.3, 0.7]);
/// // Gradients go the other way.
/// assert_eq!(batch.sum(&[1.0f32, 10.0, 100.0], 1), [101.0, 10.0]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueIds {
    ids: Vec<i64>,
    /// The index in `ids` of each id of the batch.
    places: Vec<usize>,
}

impl UniqueIds {
    /// Collects the distinct ids of a batch.
    pub fn new(batch: &[i64]) -> Self {
        Self::with_index(batch).0
    }

    /// Collects the distinct ids of a batch. Also returns an index of their positions.
    pub(crate) fn with_index(batch: &[i64]) -> (Self, IdIndex) {
        let (mut ids, mut places) = (Vec::new(), Vec::with_capacity(batch.len()));
        let mut index = IdIndex(HashTable::with_capacity(batch.len()));
        for id in batch {
            let place = index.insert(*id, ids.len());
            if place == ids.len() {
                ids.push(*id);
            }
            places.push(place);
        }
        (Self { ids, places }, index)
    }

    /// Returns the distinct ids, in the order of their first occurrence in the batch.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// Returns a row for each id of the batch, given the rows of [`ids`](Self::ids) with `width` elements each.
    pub fn spread<T: Clone>(&self, rows: &[T], width: usize) -> Vec<T> {
        let mut batch = Vec::with_capacity(self.places.len() * width);
        for location in &self.places {
            batch.extend_from_slice(&rows[location * width..(location + 1) * width]);
        }
        batch
    }

    /// Returns the gradient of [`ids`](Self::ids), given that of the batch with `width` elements for each id. Gradients
    /// of the same id are summed in the order of the batch. A table sums in the same order, so pushing either gradient
    /// gives bit-identical results.
    pub fn sum<T: Sum>(&self, gradient: &[T], width: usize) -> Vec<T> {
        let mut sums = vec![T::ZERO; self.ids.len() * width];
        RowMerge::new(&self.places).sum(gradient, width, 0, &mut sums);
        sums
    }
}

/// An index of the positions of distinct ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdIndex(HashTable<(i64, usize)>);

impl IdIndex {
    /// Returns the position of an id. An id without one gets `position`.
    fn insert(&mut self, id: i64, position: usize) -> usize {
        let entry = self.0.entry(Self::hash(id), |(found, _)| *found == id, |(found, _)| Self::hash(*found));
        entry.or_insert((id, position)).get().1
    }

    /// Returns the position of an id, if it has one.
    pub(crate) fn get(&self, id: i64) -> Option<usize> {
        self.0.find(Self::hash(id), |(found, _)| *found == id).map(|(_, position)| *position)
    }

    fn hash(id: i64) -> u64 {
        mix(id.cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Push, Table};
    use distribute_optim::{Momentum, Step};
    use distribute_tensor::{DType, HostTensor};
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        #[test]
        fn a_table_cannot_tell_whether_ids_were_made_unique(
            ids in prop::collection::vec(0i64..9, 0..40),
            values in prop::collection::vec(-3f32..3., 120),
        ) {
            let batch = UniqueIds::new(&ids);
            prop_assert!((1..batch.ids().len()).all(|i| !batch.ids()[..i].contains(&batch.ids()[i])));
            prop_assert_eq!(batch.spread(batch.ids(), 1), ids.clone());
            let (_, index) = UniqueIds::with_index(&ids);
            prop_assert!(batch.ids().iter().enumerate().all(|(i, id)| index.get(*id) == Some(i)));
            prop_assert_eq!(index.get(9), None);

            let gradient = &values[..ids.len() * 3];
            let pushed = |ids: &[i64], gradient: &[f32]| {
                let table = Table::new("t", HostTensor::zeros(DType::F32, [9, 3]).unwrap()).unwrap();
                table.set_rule(Arc::new(Momentum::new(0.9))).unwrap();
                let rows: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
                let gradient = HostTensor::new(gradient.to_vec(), [ids.len(), 3]).unwrap();
                table.push_rows(Push::at(Step::after(0, 0.1)), &rows, &gradient).unwrap();
                table.read().unwrap().value
            };
            let (all, unique) = (pushed(&ids, gradient), pushed(batch.ids(), &batch.sum(gradient, 3)));
            prop_assert!(all.same_bits(&unique));
        }
    }
}
