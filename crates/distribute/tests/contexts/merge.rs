//! How the results of replicas become one distributed value.

use crate::{mirrored, one_device, tensor};
use distribute::tensor::DType as HostDType;
use distribute::{Error, Leaf, Nest, PerReplica, Tree};
use distribute_testing::watched;
use std::collections::BTreeMap;

#[test]
fn merge_1_to_3_lists_tuples_and_maps_keep_their_structure() {
    watched(|| {
        #[derive(Clone, Debug, PartialEq, Nest)]
        struct Named {
            loss: f32,
            count: i64,
        }
        let strategy = mirrored(2);
        let results = strategy.run((), |ctx, ()| {
            let r = ctx.replica_id_in_sync_group() as i64;
            let map = BTreeMap::from([("b".to_string(), r), ("a".to_string(), 10 + r)]);
            Ok((vec![r as f32, 2.], map, Named { loss: 0.5, count: r }))
        });
        let merged = results.unwrap().regroup().unwrap();
        let show = |leaf: &PerReplica<Leaf>| {
            let parts = leaf
                .iter()
                .map(|part| part.to_host().unwrap().cast(HostDType::F64).unwrap().item::<f64>().unwrap());
            parts.map(|x| x.to_string()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(
            merged.describe(&show),
            r#"([0|1, 2|2], {"a": 10|11, "b": 0|1}, {"count": 0|1, "loss": 0.5|0.5})"#
        );
    });
}

#[test]
fn merge_4_another_structure_on_a_later_replica_is_an_error_that_names_the_path() {
    watched(|| {
        let strategy = mirrored(2);
        let results = strategy.run((), |ctx, ()| {
            let leaf = || 5i32.into_tree();
            Ok(match ctx.replica_id_in_sync_group() {
                0 => Tree::Tuple(vec![leaf(), leaf()]),
                _ => Tree::Tuple(vec![leaf(), Tree::List(vec![leaf()])]),
            })
        });
        let error = results.unwrap().regroup().unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }));
        let text = error.to_string();
        assert!(
            text.contains("value[1]") && text.contains("a leaf") && text.contains("a list of 1"),
            "{text}"
        );
    });
}

#[test]
fn merge_6_values_are_never_merged_because_they_are_the_same_object() {
    watched(|| {
        let strategy = mirrored(2);
        let captured = tensor(&[1.]);
        let values = strategy.run((), |_, ()| Ok(captured.clone())).unwrap();
        assert_eq!(values.len(), 2);
        assert!(values.iter().all(|value| value.id() == captured.id()));
        assert_eq!(values.regroup().unwrap().leaves()[0].len(), 2);
    });
}

#[test]
fn merge_8_one_replica_is_a_per_replica_of_one() {
    let values = one_device().run((), |_, ()| Ok(7)).unwrap();
    assert_eq!(values.values(), [7]);
}

#[test]
fn merge_9_nothing_from_some_replicas_is_an_error_where_values_are_merged() {
    watched(|| {
        let strategy = mirrored(2);
        let run = |some: fn(usize) -> bool| {
            strategy.run((), |ctx, ()| Ok(some(ctx.replica_id_in_sync_group()).then_some(1f32))).unwrap()
        };
        assert_eq!(run(|_| false).values(), [None, None]);
        assert!(matches!(run(|_| false).regroup().unwrap(), Tree::None));
        // The values are there; only merging them fails, and says where.
        assert_eq!(run(|id| id == 0).values(), [Some(1.), None]);
        let text = run(|id| id == 0).regroup().unwrap_err().to_string();
        assert!(text.contains("a leaf") && text.contains("nothing"), "{text}");
    });
}
