//! The specs and the number of per-replica batches, determined before the first batch is read.

use distribute_data::{Cardinality, ElementSpec, Layout, UnevenEnds};
use distribute_values::PerReplica;

/// Returns the specs of the per-replica batches. The number of rows is known if there is one worker and the
/// batch size is a known multiple of the number of replicas. `replicas` is the number of replicas of this process.
pub(super) fn per_replica_spec(
    batch: &ElementSpec,
    layout: Layout,
    replicas: usize,
) -> PerReplica<ElementSpec> {
    let rows = |rows: Option<usize>| {
        let rows = rows.filter(|rows| layout.workers == 1 && rows.is_multiple_of(layout.total().max(1)))?;
        Some(rows / layout.total().max(1))
    };
    let batch = batch.clone().map(&mut |mut spec| {
        if let Some(first) = spec.dims.first_mut() {
            *first = rows(*first);
        }
        spec
    });
    PerReplica::from_values(vec![batch; replicas])
}

/// Returns the number of steps in a pass over `elements` elements, if each of `replicas` replicas takes one element per
/// step. Returns [`Cardinality::Unknown`] with several workers, because the other workers' element counts are unknown,
/// and for a finite number with [`UnevenEnds::Drop`].
pub(super) fn step_count(
    elements: Cardinality,
    replicas: usize,
    workers: usize,
    ends: UnevenEnds,
) -> Cardinality {
    match (elements, ends) {
        (Cardinality::Finite(n), UnevenEnds::PadEmpty) if workers == 1 => {
            Cardinality::Finite(n.div_ceil(replicas.max(1)))
        }
        (Cardinality::Finite(n), UnevenEnds::StopAll) if workers == 1 => {
            Cardinality::Finite(n / replicas.max(1))
        }
        (Cardinality::Infinite, _) if workers == 1 => Cardinality::Infinite,
        _ => Cardinality::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_data::Dataset;

    fn text(data: &Dataset<distribute_tensor::HostTensor>, workers: usize, replicas: usize) -> String {
        let spec = data.element_spec().unwrap();
        let pieces = per_replica_spec(&spec, Layout { workers, replicas }, replicas);
        assert_eq!(pieces.len(), replicas);
        pieces.values()[replicas - 1].describe(&ToString::to_string)
    }

    #[test]
    fn dist_11_the_number_of_rows_is_static_if_all_replicas_get_the_same() {
        let exact = Dataset::range(20).batch_exact(8);
        assert_eq!(text(&exact, 1, 1), "int64 [8]");
        assert_eq!(text(&exact, 1, 2), "int64 [4]");
        assert_eq!(text(&exact, 1, 3), "int64 [?]");
        assert_eq!(text(&exact, 2, 2), "int64 [?]");
        assert_eq!(text(&Dataset::range(20).batch(8), 1, 2), "int64 [?]");
        // Only the rows of the outer batch are distributed.
        assert_eq!(text(&exact.batch_exact(2), 1, 2), "int64 [1, 8]");
    }

    #[test]
    fn replicas_that_take_an_element_a_step_take_so_many_steps() {
        let steps = |n, workers, ends| step_count(Cardinality::Finite(n), 2, workers, ends).finite();
        assert_eq!(steps(5, 1, UnevenEnds::PadEmpty), Some(3));
        assert_eq!(steps(5, 1, UnevenEnds::StopAll), Some(2));
        assert_eq!(steps(5, 1, UnevenEnds::Drop), None);
        assert_eq!(steps(5, 2, UnevenEnds::PadEmpty), None);
        assert_eq!(step_count(Cardinality::Infinite, 2, 1, UnevenEnds::Drop), Cardinality::Infinite);
    }
}
