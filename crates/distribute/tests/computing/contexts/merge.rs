//! Merging the results of replicas into one distributed value.

use crate::contexts::{each, everywhere, floats, mirrored, of_all, one_device, tensor};
use distribute::tensor::{DType as HostDType, Leaf, Tree};
use distribute::values::{Components, Mirrored, Parts, Reducible};
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{Error, HostTensor, Nest, PerReplica, ReduceOp, Strategy, Variable};
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
        let check = |strategy: &Strategy| {
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
            let parts = |of: &dyn Fn(usize) -> String| each(strategy, of).into_values().join("|");
            let ids = parts(&|id| id.to_string());
            let (twos, halves) = (parts(&|_| "2".into()), parts(&|_| "0.5".into()));
            let tens = parts(&|id| (10 + id).to_string());
            let expected = format!(
                r#"([{ids}, {twos}], {{"a": {tens}, "b": {ids}}}, {{"count": {ids}, "loss": {halves}}})"#
            );
            assert_eq!(merged.describe(&show), expected, "{strategy}");
        };
        everywhere(check);
    });
}

/// A struct of plain values, which does not implement `Clone`.
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
    let check = |strategy: &Strategy| {
        let ids = || each(strategy, |id| id);
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
        assert_eq!(found.unwrap().values(), vec![2.; strategy.world().replicas()], "{strategy}");
        // Made for another number of replicas: the error says where.
        let nine = named([("nine", [PerReplica::from_values(vec![0; 9])])]);
        let error = strategy.run((1, nine), |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("args.1.nine[0]") && error.contains("9 parts"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn arguments_of_update_and_results_of_merge_call_are_any_nested_structure() {
    let check = |strategy: &Strategy| {
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
        for (id, (map, rates, other)) in strategy.world().local_replicas().zip(merged.unwrap()) {
            assert_eq!((map["ids"], rates), ([Some(id as f32)], Rates { rate: 3., rows: [5, 6] }));
            assert_eq!(other.name(), "other");
        }
        let expected = 2. * of_all(strategy, |id| id as f32).iter().sum::<f32>() + 1.;
        assert!(weight.copies::<f32>().unwrap().iter().all(|copy| *copy == expected), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn local_1_a_structure_has_one_result_for_each_replica() {
    let check = |strategy: &Strategy| {
        let (ids, replicas) = (|| each(strategy, |id| id), strategy.world().replicas());
        let pairs = strategy.local_results([ids(), ids()]).unwrap();
        assert_eq!(pairs, each(strategy, |id| [id, id]).into_values(), "{strategy}");
        let maps = strategy.local_results(named([("ids", ids())])).unwrap();
        assert_eq!(maps, each(strategy, |id| named([("ids", id)])).into_values(), "{strategy}");
        // An option of a distributed value has one for each replica, and none is one value.
        let some = strategy.local_results(Some(ids())).unwrap();
        assert_eq!(some, each(strategy, Some).into_values(), "{strategy}");
        assert_eq!(some.len(), replicas, "{strategy}");
        assert_eq!(strategy.local_results(None::<PerReplica<i32>>).unwrap(), [None], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
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
fn a_custom_value_has_a_part_for_each_replica() {
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
    let check = |strategy: &Strategy| {
        let (world, count) = (strategy.world(), strategy.num_replicas_in_sync() as f32);
        let value = |id: usize| 1. + id as f32;
        let sum: f32 = of_all(strategy, value).iter().sum();
        let ids = each(strategy, value);
        let own = strategy
            .scope(|| {
                let own = Variable::builder("own", 1f32).synchronization(VariableSynchronization::OnRead);
                own.aggregation(VariableAggregation::Mean).create()
            })
            .unwrap();
        let nest = (named([("ids", &ids)]), [Mirrored::new(5f32)], Some(own), None::<f32>);
        let (map, [same], own, none) = strategy.reduce(ReduceOp::Sum, nest, None).unwrap();
        let own = own.unwrap().to_host().unwrap().item::<f32>().unwrap();
        assert_eq!((map["ids"], same, own, none), (sum, 5. * count, count, None), "{strategy}");
        // A value that is not distributed only has a mean; over several workers it counts once per worker (RED-13).
        let mixed = strategy.reduce(ReduceOp::Sum, (&ids, Rates { rate: 7., rows: [1, 2] }), None);
        if world.is_multi_worker() || count == 1. {
            let workers = world.workers();
            let rates = Rates { rate: 7. * workers as f32, rows: [1, 2].map(|row| row * workers as i64) };
            assert_eq!(mixed.unwrap(), (sum, rates), "{strategy}");
        } else {
            assert!(mixed.unwrap_err().to_string().contains("not distributed"), "{strategy}");
        }
        let mean = strategy.reduce(ReduceOp::Mean, (&ids, 7f32), None).unwrap();
        assert_eq!(mean, (sum / count, 7.), "{strategy}");
        let to = strategy.reduce_to(ReduceOp::Mean, (&ids, [7f32]), "cpu:0").unwrap();
        assert_eq!(to.copies(), [&(sum / count, [7.])], "{strategy}");
        let parts = each(strategy, |id| tensor(&vec![value(id); id + 1]));
        let all = of_all(strategy, |id| vec![value(id); id + 1]).concat();
        let (a, b) = strategy.gather((&parts, [tensor(&[4.])]), 0).unwrap();
        assert_eq!((floats(&a), floats(&b[0])), (all.clone(), vec![4.; world.workers()]), "{strategy}");
        let (total, _) = strategy.reduce(ReduceOp::Sum, (&parts, [tensor(&[4.])]), 0).unwrap();
        assert_eq!(floats(&total), [all.iter().sum::<f32>()], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
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
    let check = |strategy: &Strategy| {
        let captured = tensor(&[1.]);
        let values = strategy.run((), |_, ()| Ok(captured.clone())).unwrap();
        assert_eq!(values.len(), strategy.world().replicas(), "{strategy}");
        assert!(values.iter().all(|value| value.id() == captured.id()), "{strategy}");
        assert_eq!(values.regroup().unwrap().leaves()[0].len(), strategy.world().replicas(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
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
        // The values can be read. Only merging them fails, and the error names the position.
        assert_eq!(run(|id| id == 0).values(), [Some(1.), None]);
        let text = run(|id| id == 0).regroup().unwrap_err().to_string();
        assert!(text.contains("a leaf") && text.contains("nothing"), "{text}");
    });
}
