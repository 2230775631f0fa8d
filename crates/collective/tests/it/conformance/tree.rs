//! A reference reduction that combines two neighbours at a time.

use super::leaves::TABLE;
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, ReduceOp};

/// Returns the reduction of one leaf of each replica, as a balanced binary tree over their ids. The result is dense.
pub fn fold(op: ReduceOp, leaves: &[Leaf]) -> HostTensor {
    let dtype = leaves[0].dtype().unwrap();
    let summands = Leaf::summands(op, leaves).unwrap();
    let mut level: Vec<Leaf> = summands.iter().map(|leaf| dense(leaf).into()).collect();
    while level.len() > 1 {
        level = level.chunks(2).map(sum).collect();
    }
    level.remove(0).reduction(op, leaves.len(), dtype).unwrap().to_host().unwrap()
}

fn sum(pair: &[Leaf]) -> Leaf {
    match pair {
        [alone] => alone.clone(),
        two => Leaf::reduce(ReduceOp::Sum, two).unwrap(),
    }
}

/// Returns the table of some rows. Rows with the same index are added in their order.
pub fn dense(leaf: &Leaf) -> HostTensor {
    let Leaf::Slices(slices) = leaf else { return leaf.to_host().unwrap() };
    let width = slices.values.dims()[1];
    let mut table: Vec<Leaf> = vec![HostTensor::zeros(slices.values.dtype(), [width]).unwrap().into(); TABLE];
    let mut seen = [false; TABLE];
    for (row, index) in slices.to_rows().unwrap().into_iter().enumerate() {
        let value = Leaf::from(slices.values.clone()).row(row).unwrap();
        table[index] = if seen[index] { sum(&[table[index].clone(), value]) } else { value };
        seen[index] = true;
    }
    Leaf::stack(&table).unwrap().to_host().unwrap()
}

/// Returns the indices of merged rows, each once, in ascending order; `None` if a leaf is dense.
pub fn indices(leaves: &[Leaf]) -> Option<Vec<usize>> {
    let rows = |leaf: &Leaf| match leaf {
        Leaf::Slices(slices) => Some(IndexedSlices::to_rows(slices).unwrap()),
        _ => None,
    };
    let mut all: Vec<usize> = leaves.iter().map(rows).collect::<Option<Vec<_>>>()?.concat();
    all.sort_unstable();
    all.dedup();
    Some(all)
}
