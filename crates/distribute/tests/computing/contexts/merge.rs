//! Merging of the results of replicas into one distributed value.

use crate::contexts::{floats, mirrored, one_device, tensor};
use distribute::tensor::DType as HostDType;
use distribute::values::{Components, Parts};
use distribute::{
    Error, HostTensor, Leaf, Mirrored, Nest, PerReplica, ReduceOp, Reducible, Tree, Variable,
    VariableAggregation, VariableSynchronization,
};
use distribute_testing::watched;
use std::collections::{BTreeMap, HashMap};

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

/// A struct of plain values, which has no `Clone`.
#[derive(Debug, PartialEq, Nest)]
struct Rates {
    rate: f32,
    rows: [i64; 2],
}

fn named<T>(items: impl IntoIterator<Item = (&'static str, T)>) -> BTreeMap<String, T> {
    items.into_iter().map(|(name, item)| (name.to_string(), item)).collect()
}

#[test]
fn run_3_arguments_are_any_nested_structure() {
    watched(|| {
        let strategy = mirrored(2);
        let ids = || PerReplica::from_values(vec![0usize, 1]);
        let weight = strategy.scope(|| Variable::new("weight", 2f32)).unwrap();
        let map = named([("ids", ids())]);
        let hash: HashMap<String, Mirrored<f32>> = HashMap::from([("half".to_string(), Mirrored::new(0.5))]);
        let tree = Tree::List(vec![Tree::Leaf(ids()), Tree::None]);
        let args = (
            (
                map,
                hash,
                [Some(ids()), None],
                vec![(ids(), true)],
                tree,
                weight.clone(),
                Rates { rate: 0.1, rows: [1, 2] },
            ),
            (1u8, 2u8, 3u8, 4u8, 5u8, 6u8, 7u8, ids()),
        );
        let found = strategy.run(args, |ctx, (mine, eight)| {
            let (map, hash, [some, none], list, tree, weight, rates) = mine;
            let id = ctx.replica_id_in_sync_group();
            assert_eq!((map["ids"], hash["half"], some, none, eight.7), (id, 0.5, Some(id), None, id));
            assert_eq!((list, tree), (vec![(id, true)], Tree::List(vec![Tree::Leaf(id), Tree::None])));
            assert_eq!(rates, Rates { rate: 0.1, rows: [1, 2] });
            weight.read::<f32>()
        });
        assert_eq!(found.unwrap().values(), [2., 2.]);
        // Made for another number of replicas: the error says where.
        let three = named([("three", [PerReplica::from_values(vec![1, 2, 3])])]);
        let error = strategy.run((1, three), |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("args.1.three[0]") && error.contains("3 parts"), "{error}");
    });
}

#[test]
fn arguments_of_update_and_results_of_merge_call_are_any_nested_structure() {
    watched(|| {
        let strategy = mirrored(2);
        let (weight, other) =
            strategy.scope(|| Ok((Variable::new("weight", 0f32)?, Variable::new("other", 1f32)?))).unwrap();
        let merged = strategy.run((), |ctx, ()| {
            let id = ctx.replica_id_in_sync_group() as f32;
            ctx.merge_call(id, |strategy, ids| {
                let total = strategy.reduce_to(ReduceOp::Sum, &ids, &weight)?;
                let args = (named([("total", total)]), other.clone(), Some(Rates { rate: 2., rows: [3, 4] }));
                strategy.update(&weight, args, |weight, (totals, other, rates)| {
                    let rate = rates.map_or(0., |rates| rates.rate);
                    weight.assign_add(totals["total"] * rate + other.read::<f32>()?)
                })?;
                Ok((named([("ids", [Some(ids)])]), Rates { rate: 3., rows: [5, 6] }, other.clone()))
            })
        });
        for (id, (map, rates, other)) in (0..).zip(merged.unwrap()) {
            assert_eq!((map["ids"], rates), ([Some(id as f32)], Rates { rate: 3., rows: [5, 6] }));
            assert_eq!(other.name(), "other");
        }
        assert_eq!(weight.copies::<f32>().unwrap(), [3., 3.]);
    });
}

#[test]
fn local_1_a_structure_has_one_result_for_each_replica() {
    let strategy = mirrored(2);
    let ids = || PerReplica::from_values(vec![0, 1]);
    assert_eq!(strategy.local_results([ids(), ids()]).unwrap(), [[0, 0], [1, 1]]);
    let maps = strategy.local_results(named([("ids", ids())])).unwrap();
    assert_eq!(maps, [named([("ids", 0)]), named([("ids", 1)])]);
    // What may be there is as many as that, and nothing is one value.
    assert_eq!(strategy.local_results(Some(ids())).unwrap(), [Some(0), Some(1)]);
    assert_eq!(strategy.local_results(None::<PerReplica<i32>>).unwrap(), [None]);
}

/// A custom value that has one part for any number of replicas.
struct OnePart;

impl Reducible for OnePart {
    type Nest = f32;
    fn into_parts(self, _: &'static str, _: usize) -> distribute::Result<Parts> {
        Ok(Tree::Leaf(Components::PerReplica(vec![HostTensor::scalar(1f32).into()])))
    }
}

#[test]
fn a_value_of_a_programs_own_has_a_part_for_each_replica() {
    let strategy = mirrored(2);
    let refused = [
        strategy.reduce(ReduceOp::Sum, OnePart, None).map(drop),
        strategy.reduce_to(ReduceOp::Sum, OnePart, "cpu:0").map(drop),
        strategy.gather(OnePart, 0).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(error.to_string().contains("the value has 1 parts for 2 replicas"), "{error}");
    }
}

#[test]
fn red_10_a_nest_of_values_of_each_kind_is_reduced_leaf_by_leaf() {
    watched(|| {
        let strategy = mirrored(2);
        let ids = PerReplica::from_values(vec![1f32, 2.]);
        let own = strategy
            .scope(|| {
                let own = Variable::builder("own", 1f32).synchronization(VariableSynchronization::OnRead);
                own.aggregation(VariableAggregation::Mean).create()
            })
            .unwrap();
        let nest = (named([("ids", &ids)]), [Mirrored::new(5f32)], Some(own), None::<f32>);
        let (map, [same], own, none) = strategy.reduce(ReduceOp::Sum, nest, None).unwrap();
        let own = own.unwrap().to_host().unwrap().item::<f32>().unwrap();
        assert_eq!((map["ids"], same, own, none), (3., 10., 2., None));
        // A value that is not distributed has a mean only.
        let mixed = || (&ids, Rates { rate: 7., rows: [1, 2] });
        assert!(
            strategy
                .reduce(ReduceOp::Sum, mixed(), None)
                .unwrap_err()
                .to_string()
                .contains("not distributed")
        );
        assert_eq!(strategy.reduce(ReduceOp::Mean, (&ids, 7f32), None).unwrap(), (1.5, 7.));
        let to = strategy.reduce_to(ReduceOp::Mean, (&ids, [7f32]), "cpu:1").unwrap();
        assert_eq!(to.copies(), [&(1.5, [7.])]);
        let parts = PerReplica::from_values(vec![tensor(&[1.]), tensor(&[2., 3.])]);
        let (a, b) = strategy.gather((&parts, [tensor(&[4.])]), 0).unwrap();
        assert_eq!((floats(&a), floats(&b[0])), (vec![1., 2., 3.], vec![4.]));
        let (sum, _) = strategy.reduce(ReduceOp::Sum, (&parts, [tensor(&[4.])]), 0).unwrap();
        assert_eq!(floats(&sum), [6.]);
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
