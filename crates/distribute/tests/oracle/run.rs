//! Cases of `Strategy::run`, of merged and local results, of `merge_call` and of contexts.

use super::arithmetic::{add, subtract, times};
use super::case::{Case, Inputs, Ran, Stop};
use super::errors::raise;
use super::tensors::{
    Argument, all_json, argument, each, leaf, leaf_json, leaves_json, nest, nest_json, tensor,
};
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::context::{get_replica_context, get_strategy, has_strategy, in_cross_replica_context};
use distribute::tensor::{Leaf, Tree};
use distribute::{HostTensor, MirroredStrategy, PerReplica, ReduceOp, ReplicaContext, Strategy};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs the cases of run.json.
pub fn oracle_run(case: &Case, inputs: &Inputs<'_>) -> Ran {
    match inputs.text("op")? {
        "regroup" => regroup(case, inputs),
        "run" => run(case, inputs),
        "run_variable" => run_variable(case, inputs),
        "call_count" => {
            // There is no graph mode: each step calls the closure.
            let (steps, _traced) = (inputs.count("steps")?, inputs.flag("traced")?);
            let (strategy, calls) = (case.strategy(inputs)?, AtomicUsize::new(0));
            for _ in 0..steps {
                strategy.run((), |_, ()| Ok(calls.fetch_add(1, Ordering::Relaxed)))?;
            }
            Ok(json!({"calls": calls.into_inner()}))
        }
        "local_results" => {
            let strategy = case.strategy(inputs)?;
            let results = strategy.local_results(argument(inputs.get("value")?)?)?;
            Ok(json!({"local_results": all_json(&results)}))
        }
        "merge_call" => merge_call(case, inputs),
        "merge_call_mismatch" => {
            let strategy = case.strategy(inputs)?;
            let calling = inputs.list("replicas_that_call")?;
            strategy.run((), |ctx, ()| {
                if calling.contains(&json!(ctx.replica_id_in_sync_group())) {
                    ctx.merge_call(1i32, |strategy, ids| strategy.reduce(ReduceOp::Sum, ids, None))?;
                }
                Ok(())
            })?;
            Ok(json!({}))
        }
        "merge_call_raises" => {
            let (strategy, class) = (case.strategy(inputs)?, inputs.text("error")?);
            strategy.run((), |ctx, ()| ctx.merge_call(1i32, |_, _| Err::<i32, _>(raise(class))))?;
            Ok(json!({}))
        }
        "context_probe" => context_probe(case, inputs),
        "nested_run" => {
            let strategy = case.strategy(inputs)?;
            strategy.run((), |_, ()| strategy.run((), |_, ()| Ok(())))?;
            Ok(json!({}))
        }
        "nested_scopes" => {
            let outer = MirroredStrategy::cpus(case.replicas)?;
            let inner =
                if inputs.flag("same")? { outer.clone() } else { MirroredStrategy::cpus(case.replicas)? };
            let count = outer.scope(|| inner.scope(|| Ok(get_strategy().num_replicas_in_sync())))?;
            Ok(json!({"num_replicas_in_sync": count}))
        }
        other => Err(format!("unknown op {other:?}").into()),
    }
}

/// Regroups the results of replicas, and writes them as JSON.
fn merged(values: PerReplica<Tree<Leaf>>, leaf: impl Fn(&Leaf) -> Value) -> distribute::Result<Value> {
    let merged = values.regroup()?;
    Ok(nest_json(&merged, &|parts| json!({"per_replica": parts.iter().map(&leaf).collect::<Vec<_>>()})))
}

/// Regroups the objects of a case, each of which is represented by a tensor with its name.
fn regroup(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let name = |value: &Value| match value.get("obj").and_then(Value::as_str) {
        Some(name) => Ok(Leaf::Host(HostTensor::scalar(name.as_bytes().to_vec()))),
        None => Err(format!("{value} is no object")),
    };
    let values = each(inputs.list("values")?, case.replicas, |value| nest(value, &name))?;
    // Ours always wraps: equal objects are never merged.
    inputs.flag("always_wrap")?;
    let result = merged(PerReplica::from_values(values), |leaf| match leaf {
        Leaf::Host(name) => json!(String::from_utf8_lossy(&name.item::<Vec<u8>>().unwrap())),
        other => json!(other.kind()),
    })?;
    Ok(json!({"result": result}))
}

type Function = Box<
    dyn Fn(&ReplicaContext, Vec<Tree<Leaf>>, BTreeMap<String, Tree<Leaf>>) -> distribute::Result<Tree<Leaf>>
        + Sync,
>;

fn run(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    let arguments = inputs.list("args")?.iter().map(argument).collect::<Result<Vec<_>, _>>()?;
    let named =
        inputs.get("kwargs")?.as_object().ok_or_else(|| Stop::Runner("kwargs are no object".into()))?;
    let named = named
        .iter()
        .map(|(key, value)| Ok((key.clone(), argument(value)?)))
        .collect::<Result<_, String>>()?;
    let constant = inputs.optional("const").map(leaf).transpose()?;
    let function = function(inputs.text("fn")?, constant)?;

    let results =
        strategy.run((arguments, Tree::<Argument>::Dict(named)), |ctx, (arguments, named)| match named {
            Tree::Dict(named) => function(ctx, arguments, named),
            _ => Err(raise("AssertionError")),
        })?;
    Ok(json!({"result": merged(results, leaf_json)?}))
}

fn function(name: &str, constant: Option<Leaf>) -> Result<Function, String> {
    fn one(args: Vec<Tree<Leaf>>, named: BTreeMap<String, Tree<Leaf>>) -> distribute::Result<Leaf> {
        let mut all = args.into_iter().chain(named.into_values());
        match (all.next(), all.next()) {
            (Some(Tree::Leaf(x)), None) => Ok(x),
            _ => Err(distribute::Error::other("this fn takes one tensor")),
        }
    }
    fn two(
        args: Vec<Tree<Leaf>>,
        mut named: BTreeMap<String, Tree<Leaf>>,
    ) -> distribute::Result<(Leaf, Leaf)> {
        let mut args = args.into_iter();
        match (args.next().or_else(|| named.remove("x")), args.next().or_else(|| named.remove("y"))) {
            (Some(Tree::Leaf(x)), Some(Tree::Leaf(y))) => Ok((x, y)),
            _ => Err(distribute::Error::other("this fn takes x and y")),
        }
    }
    let scalar = |value: usize| Tree::Leaf(Leaf::Host(HostTensor::scalar(value as i32)));
    let constant = || constant.clone().ok_or_else(|| format!("{name} needs a const"));
    Ok(match name {
        "identity" => Box::new(|_, args, named| {
            let mut all: Vec<_> = args.into_iter().chain(named.into_values()).collect();
            Ok(if all.len() == 1 { all.remove(0) } else { Tree::Tuple(all) })
        }),
        "double" => Box::new(|_, args, named| {
            let mut all = args.into_iter().chain(named.into_values());
            let only = all.next().filter(|_| all.next().is_none());
            let tree = only.ok_or_else(|| distribute::Error::other("double takes one argument"))?;
            tree.try_map(&mut |leaf| times(&leaf, 2))
        }),
        "add" => Box::new(|_, args, named| two(args, named).and_then(|(x, y)| Ok(Tree::Leaf(add(&x, &y)?)))),
        "sub_kwargs" => {
            Box::new(|_, args, named| two(args, named).and_then(|(x, y)| Ok(Tree::Leaf(subtract(&x, &y)?))))
        }
        "replica_id" => Box::new(move |ctx, _, _| Ok(scalar(ctx.replica_id_in_sync_group()))),
        "num_replicas" => Box::new(move |ctx, _, _| Ok(scalar(ctx.num_replicas_in_sync()))),
        "scale_by_id" => Box::new(|ctx, args, named| {
            Ok(Tree::Leaf(times(&one(args, named)?, ctx.replica_id_in_sync_group() + 1)?))
        }),
        "nest_out" => Box::new(move |ctx, args, named| {
            let x = one(args, named)?;
            let id = Tree::List(vec![scalar(ctx.replica_id_in_sync_group())]);
            let b = Tree::Tuple(vec![Tree::Leaf(times(&x, 2)?), id]);
            Ok(Tree::Dict(BTreeMap::from([("a".into(), Tree::Leaf(x)), ("b".into(), b)])))
        }),
        "branch" => Box::new(|ctx, args, named| {
            let x = one(args, named)?;
            Ok(Tree::Leaf(if ctx.replica_id_in_sync_group() == 0 { x } else { times(&x, 10)? }))
        }),
        "const" => {
            let constant = constant()?;
            Box::new(move |_, _, _| Ok(Tree::Leaf(constant.clone())))
        }
        "const_and_arg" => {
            let constant = constant()?;
            Box::new(move |_, args, named| {
                let x = times(&one(args, named)?, 3)?;
                Ok(Tree::Tuple(vec![Tree::Leaf(constant.clone()), Tree::Leaf(x)]))
            })
        }
        "none" => Box::new(|_, _, _| Ok(Tree::None)),
        "struct_differs" => Box::new(|ctx, args, named| {
            let x = Tree::Leaf(one(args, named)?);
            Ok(Tree::List(vec![x; if ctx.replica_id_in_sync_group() == 0 { 1 } else { 2 }]))
        }),
        "fail0" | "fail_last" => {
            let last = name == "fail_last";
            Box::new(move |ctx, args, named| {
                let failing = if last { ctx.num_replicas_in_sync() - 1 } else { 0 };
                if ctx.replica_id_in_sync_group() == failing {
                    Err(raise("ValueError"))
                } else {
                    Ok(Tree::Leaf(one(args, named)?))
                }
            })
        }
        other => return Err(format!("unknown fn {other:?}")),
    })
}

fn run_variable(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    let initial = tensor(inputs.get("initial")?)?.to_candle(&Device::Cpu)?;
    let (shape, dtype) = (initial.shape().clone(), initial.dtype());
    let model = strategy.replicate(move |vb: VarBuilder| {
        vb.get_with_hints_dtype(shape.clone(), "v", Init::Const(0.), dtype)
    })?;
    model.variables.set("v", &initial)?;
    let variable = model.variables.trainable()?.remove(0).1;
    let host = |tensor: &Tensor| HostTensor::from_candle(tensor).map(|tensor| Tree::Leaf(Leaf::Host(tensor)));
    let all_are_the_variable = |tensors: PerReplica<Tensor>| json!({"components_are_the_variable": tensors.iter().all(|tensor| tensor.id() == variable.id())});
    // Where a device has memory of its own, its replica's is a copy of it.
    let models: Vec<_> = model.models().iter().map(Tensor::id).collect();
    let each_is_its_own = |tensors: PerReplica<Tensor>| json!({"components_are_the_variable": tensors.iter().map(Tensor::id).eq(models)});
    Ok(match inputs.text("how")? {
        "return_variable" => {
            all_are_the_variable(strategy.run((), |_, ()| Ok(variable.as_tensor().clone()))?)
        }
        "return_arg_variable" => each_is_its_own(strategy.run(&model, |_, v| Ok(v.clone()))?),
        "return_read" => {
            let results = strategy.run(&model, |_, v| Ok(host(v)?))?;
            json!({"result": merged(results, leaf_json)?})
        }
        "return_times_id" => {
            let results =
                strategy.run(&model, |ctx, v| Ok(host(&(v * ctx.replica_id_in_sync_group() as f64)?)?))?;
            json!({"result": merged(results, leaf_json)?})
        }
        "local_results" => {
            let copies: Vec<_> =
                strategy.local_results(&model)?.into_iter().map(host).collect::<Result<_, _>>()?;
            json!({"local_results": all_json(&copies)})
        }
        other => return Err(format!("unknown how {other:?}").into()),
    })
}

fn merge_call(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    let values = PerReplica::from_values(each(inputs.list("values")?, case.replicas, leaf)?);
    let merge_fn = inputs.text("merge_fn")?;
    // Rust has no keyword arguments: both forms are the same call.
    inputs.flag("via_kwargs")?;
    let calls = AtomicUsize::new(0);
    let counted = || calls.fetch_add(1, Ordering::Relaxed);
    let sum = |strategy: &Strategy, values: &PerReplica<Leaf>| strategy.reduce(ReduceOp::Sum, values, None);
    let results = strategy.run(values, |ctx, value| {
        Ok(match merge_fn {
            "reduce_sum" => Tree::Leaf(ctx.merge_call(value, |strategy, values| {
                counted();
                sum(strategy, &values)
            })?),
            "reduce_mean" => Tree::Leaf(ctx.merge_call(value, |strategy, values| {
                counted();
                strategy.reduce(ReduceOp::Mean, values, None)
            })?),
            "identity" => Tree::Leaf(ctx.merge_call(value, |_, values| {
                counted();
                Ok(values)
            })?),
            "local_results" => {
                let all = ctx.merge_call(value, |strategy, values| {
                    counted();
                    strategy.local_results(values)
                })?;
                Tree::List(all.into_iter().map(Tree::Leaf).collect())
            }
            "gather0" => Tree::Leaf(ctx.merge_call(value, |strategy, values| {
                counted();
                strategy.gather(values, 0)
            })?),
            "tuple_id_sum" => {
                let (own, sum) = ctx.merge_call(value, |strategy, values| {
                    counted();
                    let sum = sum(strategy, &values)?;
                    Ok((values, sum))
                })?;
                Tree::Tuple(vec![Tree::Leaf(own), Tree::Leaf(sum)])
            }
            "num_replicas" => {
                let count = ctx.merge_call(value, |strategy, _| {
                    counted();
                    Ok(strategy.num_replicas_in_sync() as i32)
                })?;
                Tree::Leaf(Leaf::Host(HostTensor::scalar(count)))
            }
            other => return Err(distribute::Error::other(format!("unknown merge_fn {other:?}"))),
        })
    })?;
    let per_replica: Value = results.iter().map(leaves_json).collect();
    Ok(json!({"merge_fn_calls": calls.into_inner(), "per_replica": per_replica}))
}

fn probe() -> Value {
    let context = get_replica_context();
    json!({
        "in_cross_replica_context": in_cross_replica_context(),
        "has_replica_context": context.is_some(),
        "replica_id": context.map(|context| context.replica_id_in_sync_group()),
        "num_replicas_in_sync": get_strategy().num_replicas_in_sync(),
        "has_strategy": has_strategy(),
    })
}

fn context_probe(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    let seen = Mutex::new(Vec::new());
    let see = || seen.lock().unwrap().push(probe());
    let probes: Vec<Value> = match inputs.text("where")? {
        "outside" => vec![probe()],
        "scope" => vec![strategy.scope(|| Ok(probe()))?],
        "after_scope" => {
            strategy.scope(|| Ok(()))?;
            vec![probe()]
        }
        "run" => strategy.run((), |_, ()| Ok(probe()))?.into_values(),
        "run_in_scope" => strategy.scope(|| strategy.run((), |_, ()| Ok(probe())))?.into_values(),
        "merge_call" => {
            strategy.run((), |ctx, ()| {
                ctx.merge_call(0i32, |_, _| {
                    see();
                    Ok(0i32)
                })
            })?;
            seen.into_inner().unwrap()
        }
        "after_merge_call" => {
            let probes = strategy.run((), |ctx, ()| {
                ctx.merge_call(0i32, |_, _| Ok(0i32))?;
                Ok(probe())
            })?;
            probes.into_values()
        }
        "values_from_function" => {
            strategy.distribute_values_from_function(|_| {
                see();
                Ok(0i32)
            })?;
            seen.into_inner().unwrap()
        }
        "default_merge_call" => {
            let context =
                get_replica_context().ok_or_else(|| Stop::Runner("no default replica context".into()))?;
            context.merge_call(0i32, |_, _| {
                see();
                Ok(0i32)
            })?;
            seen.into_inner().unwrap()
        }
        other => return Err(format!("unknown where {other:?}").into()),
    };
    Ok(json!({"probes": probes}))
}
