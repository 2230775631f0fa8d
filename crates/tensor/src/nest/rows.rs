//! Batches: nests whose leaves all have rows along axis 0.

use crate::{Error, Leaf, Nest, Result, Tree};

impl Tree<Leaf> {
    /// Returns the number of rows, which is the size of axis 0. It must be the same for all leaves.
    ///
    /// # Errors
    /// - [`Error::Empty`]: there are no leaves.
    /// - [`Error::At`]: a leaf is a scalar.
    /// - [`Error::Rows`]: two leaves have different numbers of rows.
    pub fn rows(&self) -> Result<usize> {
        let mut first: Option<(String, usize)> = None;
        self.visit(&mut |path, leaf| {
            let Some(found) = leaf.dims().first().copied() else {
                return Err(Error::At { path: path(), reason: Box::new(scalar("rows")) });
            };
            match &first {
                None => first = Some((path(), found)),
                Some((_, expected)) if *expected == found => {}
                Some((first, expected)) => {
                    return Err(Error::Rows {
                        first: first.clone(),
                        expected: *expected,
                        path: path(),
                        found,
                    });
                }
            }
            Ok(())
        })?;
        first.map(|(_, rows)| rows).ok_or(Error::Empty { operation: "rows" })
    }

    /// Stacks elements into a batch. Each leaf of the result has a new axis 0; see [`Leaf::stack`].
    ///
    /// # Errors
    /// Returns the errors of [`Tree::zip`] and [`Leaf::stack`], with the path of the leaf.
    pub fn stack(elements: Vec<Tree<Leaf>>) -> Result<Tree<Leaf>> {
        Tree::zip(elements)?.try_map_at(&mut |leaves: &Vec<Leaf>| Leaf::stack(leaves))
    }

    /// Joins batches along axis 0; see [`Leaf::concat`].
    ///
    /// # Errors
    /// Returns the errors of [`Tree::zip`] and [`Leaf::concat`], with the path of the leaf.
    pub fn concat_rows(batches: Vec<Tree<Leaf>>) -> Result<Tree<Leaf>> {
        Tree::zip(batches)?.try_map_at(&mut |leaves: &Vec<Leaf>| {
            Leaf::concat(leaves, 0).map_err(|error| match error {
                Error::Differs { index, reason, .. } => Error::Differs { what: "batch", index, reason },
                other => other,
            })
        })
    }

    /// Returns `len` rows of every leaf, beginning at index `start`.
    ///
    /// # Errors
    /// Returns the errors of [`Leaf::narrow`], with the path of the leaf.
    pub fn narrow_rows(&self, start: usize, len: usize) -> Result<Tree<Leaf>> {
        self.try_map_at(&mut |leaf| leaf.narrow(0, start, len))
    }

    /// Returns a batch with the same structure, but without rows; see [`Leaf::without_rows`].
    ///
    /// # Errors
    /// Returns the errors of [`Leaf::without_rows`], with the path of the leaf.
    pub fn without_rows(&self) -> Result<Tree<Leaf>> {
        self.try_map_at(&mut |leaf| leaf.without_rows())
    }

    /// Returns the given rows of every leaf, in the given order.
    ///
    /// # Errors
    /// Returns the errors of [`Leaf::take_rows`], with the path of the leaf.
    pub fn take_rows(&self, rows: &[usize]) -> Result<Tree<Leaf>> {
        self.try_map_at(&mut |leaf| leaf.take_rows(rows))
    }

    /// Returns one element of the batch: the row at `index` of every leaf, without axis 0.
    ///
    /// # Errors
    /// Returns the errors of [`Leaf::row`], with the path of the leaf.
    pub fn row(&self, index: usize) -> Result<Tree<Leaf>> {
        self.try_map_at(&mut |leaf| leaf.row(index))
    }
}

/// Calls [`Tree::rows`] for any nest.
///
/// # Errors
/// Returns the errors of [`Tree::rows`].
pub fn rows<N: Nest>(nest: N) -> Result<usize> {
    nest.into_tree().rows()
}

/// Calls [`Tree::stack`] for nests of the same type.
///
/// # Errors
/// Returns the errors of [`Tree::stack`].
pub fn stack<N: Nest>(elements: Vec<N>) -> Result<N> {
    N::from_tree(Tree::stack(elements.into_iter().map(N::into_tree).collect())?)
}

/// Calls [`Tree::concat_rows`] for nests of the same type.
///
/// # Errors
/// Returns the errors of [`Tree::concat_rows`].
pub fn concat_rows<N: Nest>(batches: Vec<N>) -> Result<N> {
    N::from_tree(Tree::concat_rows(batches.into_iter().map(N::into_tree).collect())?)
}

/// Joins the leaves of nests along an axis; see [`Leaf::concat`].
///
/// # Errors
/// Returns the errors of [`Tree::zip`] and [`Leaf::concat`], with the path of the leaf.
pub fn concat<N: Nest>(nests: Vec<N>, axis: usize) -> Result<N> {
    let trees = nests.into_iter().map(N::into_tree).collect();
    N::from_tree(Tree::zip(trees)?.try_map_at(&mut |leaves: &Vec<Leaf>| Leaf::concat(leaves, axis))?)
}

/// Calls [`Tree::narrow_rows`] for any nest.
///
/// # Errors
/// Returns the errors of [`Tree::narrow_rows`].
pub fn narrow_rows<N: Nest>(batch: N, start: usize, len: usize) -> Result<N> {
    N::from_tree(batch.into_tree().narrow_rows(start, len)?)
}

/// Calls [`Tree::take_rows`] for any nest.
///
/// # Errors
/// Returns the errors of [`Tree::take_rows`].
pub fn take_rows<N: Nest>(batch: N, rows: &[usize]) -> Result<N> {
    N::from_tree(batch.into_tree().take_rows(rows)?)
}

fn scalar(operation: &'static str) -> Error {
    Error::Axis { operation, axis: 0, rank: 0, shape: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensor;
    use std::collections::BTreeMap;

    type Example = (HostTensor, BTreeMap<String, HostTensor>);

    fn example(i: i32) -> Example {
        (
            HostTensor::vector(vec![i, 10 * i]),
            BTreeMap::from([("label".to_string(), HostTensor::scalar(i as u8))]),
        )
    }

    #[test]
    fn a_batch_gives_its_elements_back() {
        let elements: Vec<Example> = (0..4).map(example).collect();
        let batch = stack(elements.clone()).unwrap();
        assert_eq!(batch.0.dims(), [4, 2]);
        assert_eq!(batch.1["label"].dims(), [4]);
        assert_eq!(rows(batch.clone()).unwrap(), 4);
        let tree = batch.clone().into_tree();
        for (i, element) in elements.into_iter().enumerate() {
            assert_eq!(Example::from_tree(tree.row(i).unwrap()).unwrap(), element);
        }
        let halves =
            vec![narrow_rows(batch.clone(), 0, 1).unwrap(), narrow_rows(batch.clone(), 1, 3).unwrap()];
        assert_eq!(concat_rows(halves.clone()).unwrap(), batch);
        assert_eq!(concat(halves, 0).unwrap(), batch);
        assert_eq!(take_rows(batch, &[3, 3]).unwrap().1["label"], HostTensor::vector(vec![3u8, 3]));
    }

    #[test]
    fn rows_that_differ_name_both_leaves_and_sizes() {
        let uneven = (HostTensor::vector(vec![1, 2]), vec![HostTensor::vector(vec![1.0f32, 2.0, 3.0])]);
        let text = rows(uneven).unwrap_err().to_string();
        assert!(text.starts_with("value[1][0] has 3 rows, but value[0] has 2"), "{text}");
        let text = rows((HostTensor::vector(vec![1]), 3.0f32)).unwrap_err().to_string();
        assert!(text.starts_with("at value[1]: rows: axis 0"), "{text}");
        assert!(matches!(rows(Vec::<HostTensor>::new()), Err(Error::Empty { .. })));
    }

    #[test]
    fn errors_name_path_and_element() {
        let mut elements = vec![example(0), example(1), example(2)];
        elements[2].1.insert("label".into(), HostTensor::scalar(1.5f32));
        let text = stack(elements).unwrap_err().to_string();
        assert_eq!(
            text,
            "at value[1].label: element 2 differs from element 0: stack: dtypes differ: uint8 and float32; cast one \
             of them"
        );
        let batches = vec![(HostTensor::zeros(crate::DType::F32, [2, 3]).unwrap(),); 2];
        let mut wrong = batches.clone();
        wrong[1].0 = HostTensor::zeros(crate::DType::F32, [2, 4]).unwrap();
        let text = concat_rows(wrong).unwrap_err().to_string();
        assert!(
            text.starts_with("at value[0]: batch 1 differs from batch 0: concat: shapes differ"),
            "{text}"
        );
        let text = narrow_rows(batches, 1, 2).unwrap_err().to_string();
        assert_eq!(text, "at value[0][0]: narrow: index 2 is outside [0, 2)");
    }
}
