//! Variables on servers: created, read, written, colocated, looked up.

use crate::parameter_servers::support::servers;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::lookup::{Lookup, embedding_lookup};
use distribute::parameter_server::{FixedShardsPartitioner, PartitionStrategy};
use distribute::strategy::DeviceName;
use distribute::tensor::{IndexedSlices, Leaf};
use distribute::variables::{Shard, VariableAggregation, VariableSynchronization};
use distribute::{
    Error, HostTensor, LocalCluster, OneDeviceStrategy, ParameterServerStrategy, Strategy, Variable,
};
use distribute_testing::watched;

fn numbers(rows: usize) -> HostTensor {
    HostTensor::new((0..rows as i64 * 2).collect::<Vec<_>>(), [rows, 2]).unwrap()
}

// SHARD-3, SHARD-4
#[test]
fn shard_4_shards_have_separate_names_rows_and_devices() {
    let strategy = servers(2, 2);
    let table = strategy.scope(|| Variable::new("t", numbers(5))).unwrap();
    let shard = |number, rows: std::ops::Range<usize>| Shard {
        name: format!("t/part_{number}"),
        dims: vec![rows.len(), 2],
        rows,
        device: DeviceName::of_server(number),
    };
    assert_eq!(table.shards(), [shard(0, 0..3), shard(1, 3..5)]);
    assert_eq!((table.name(), table.dims(), table.is_sharded()), ("t", &[5, 2][..], true));
    assert_eq!(table.shards()[1].device.to_string(), "/job:ps/replica:0/task:1/device:CPU:0");
    assert_eq!(table.read::<HostTensor>().unwrap(), numbers(5));
    // SHARD-1: of a scalar, and of one row, there is one part.
    for value in [HostTensor::scalar(1i64), numbers(1)] {
        let whole = strategy.scope(|| Variable::new("w", value.clone())).unwrap();
        assert!(!whole.is_sharded());
        assert_eq!(whole.read::<HostTensor>().unwrap(), value);
    }
    // Each of several variables of one name has its own tables.
    let again = strategy.scope(|| Variable::new("t", numbers(5))).unwrap();
    again.assign_add(numbers(5)).unwrap();
    assert_eq!(table.read::<HostTensor>().unwrap(), numbers(5));
    assert_eq!(again.name(), "t");
}

// SHARD-5
#[test]
fn shard_5_first_values_do_not_depend_on_the_number_of_shards() {
    let values = |strategy: Strategy| {
        let build = |vb: VarBuilder| -> candle_core::Result<Vec<Tensor>> {
            let mut all = Vec::new();
            for (name, init) in [
                ("uniform", Init::Uniform { lo: -1., up: 2. }),
                ("normal", Init::Randn { mean: 1., stdev: 3. }),
                ("kaiming", candle_nn::init::DEFAULT_KAIMING_NORMAL),
                ("constant", Init::Const(0.1)),
            ] {
                all.push(vb.get_with_hints((13, 3), name, init)?);
                all.push(vb.to_dtype(DType::F64).get_with_hints((13, 3), &format!("{name}64"), init)?);
                all.push(vb.to_dtype(DType::BF16).get_with_hints((13, 3), &format!("{name}16"), init)?);
            }
            all.push(vb.get_with_hints((), "scalar", Init::Uniform { lo: 0., up: 1. })?);
            Ok(all)
        };
        let model = strategy.replicate_seeded(3, build).unwrap();
        // The model has been built with what is on the servers.
        let built = model.models().values()[0][0].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let kept = model.variables.get("uniform").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(built, kept);
        model.variables.sha256().unwrap()
    };
    let one = values(OneDeviceStrategy::new("cpu:0").unwrap());
    for shards in [1, 2, 3, 5, 20] {
        assert_eq!(values(servers(3, shards).into()), one, "{shards} shards");
    }
}

// PSV-1, PSV-2
#[test]
fn psv_2_values_of_replicas_are_aggregated_and_written_once() {
    watched(|| {
        let builder =
            ParameterServerStrategy::builder().cluster_resolver(LocalCluster::new(1, 2).unwrap().resolver());
        let strategy = builder.devices(["cpu:0", "cpu:1"]).build().unwrap();
        let ten = |aggregation| {
            strategy.scope(|| Variable::builder("v", 10f32).aggregation(aggregation).create()).unwrap()
        };
        use VariableAggregation::{Mean, OnlyFirstReplica, Sum};
        for (aggregation, expected) in [(Sum, 13.), (Mean, 11.5), (OnlyFirstReplica, 11.)] {
            let v = ten(aggregation);
            strategy.run((), |ctx, ()| v.assign_add(1. + ctx.replica_id_in_sync_group() as f32)).unwrap();
            assert_eq!(v.read::<f32>().unwrap(), expected, "{aggregation}");
        }
        let v = ten(VariableAggregation::None);
        let refused = strategy.run((), |_, ()| v.assign_add(1f32)).unwrap_err();
        assert!(matches!(refused.root_cause(), Error::VariableAccess { .. }), "{refused}");
        // PSV-3: the variable has one value, although ON_READ requests one for each replica.
        let v = strategy.scope(|| {
            Variable::builder("v", 10f32)
                .synchronization(VariableSynchronization::OnRead)
                .aggregation(Sum)
                .create()
        });
        let v = v.unwrap();
        strategy.run((), |_, ()| v.assign_add(1f32)).unwrap();
        assert_eq!((v.read::<f32>().unwrap(), v.copies::<f32>().unwrap().len()), (12., 1));
    });
}

// PSV2-8
#[test]
fn psv2_8_additions_of_several_workers_are_all_applied() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let strategy = |task| {
            ParameterServerStrategy::new(cluster.resolver_of(task), FixedShardsPartitioner::new(2).unwrap())
                .unwrap()
        };
        let each = |value: i64| HostTensor::vector(vec![value; 4]);
        let make = |strategy: &Strategy| strategy.scope(|| Variable::new("count", each(0))).unwrap();
        let whole = make(&strategy(distribute::cluster::Job::Chief.task(0)));
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let strategy = strategy(distribute::cluster::Job::Worker.task(worker));
                scope.spawn(move || {
                    let count = make(&strategy);
                    for _ in 0..150 {
                        strategy.run((), |_, ()| count.assign_add(each(1))).unwrap();
                    }
                });
            }
        });
        assert_eq!(whole.read::<HostTensor>().unwrap(), each(300));
    });
}

// COLO-4
#[test]
fn colo_4_a_colocated_variable_is_unsharded_and_on_the_same_server() {
    let strategy = servers(3, 3);
    let made = strategy.scope(|| {
        let table = Variable::new("t", numbers(5))?;
        let slot = strategy.colocate_vars_with(&table, || Variable::new("slot", numbers(5)))?;
        let shard = strategy.colocate_vars_with(table.shards()[1].device, || Variable::new("other", 1f32))?;
        Ok((table, slot, shard))
    });
    let (table, slot, shard) = made.unwrap();
    assert_eq!((slot.is_sharded(), slot.devices()), (false, vec![table.shards()[2].device]));
    assert_eq!(shard.devices(), [DeviceName::of_server(1)]);
    // PLACE-1: variables beside others do not count for the order of servers.
    let next = strategy.scope(|| Variable::new("next", 0f32)).unwrap();
    assert_eq!(next.devices(), [DeviceName::of_server(0)]);
    // UPD-8, SV-10: an update is one of all of it.
    strategy.update(&table, (), |table, ()| table.assign_add(numbers(5))).unwrap();
    let devices = strategy.non_slot_devices(&[&table, &next]).unwrap();
    assert_eq!(devices, next.devices());
    strategy.update_non_slot(&devices, (), |()| next.assign(2f32)).unwrap();
    assert_eq!(
        (table.gather(&[4]).unwrap(), next.read::<f32>().unwrap()),
        (HostTensor::new(vec![16i64, 18], [1, 2]).unwrap(), 2.)
    );
}

#[test]
fn values_of_any_dtype_are_kept() {
    let strategy = servers(2, 2);
    for dtype in distribute::tensor::DType::ALL {
        let value = HostTensor::zeros(dtype, [3, 2]).unwrap();
        let v = strategy.scope(|| Variable::new("v", value.clone())).unwrap();
        v.assign(value.clone()).unwrap();
        assert!(v.read::<HostTensor>().unwrap().same_bits(&value), "{dtype}");
        assert_eq!(v.gather(&[2, 2]).unwrap().dims(), [2, 2]);
    }
    let strings = HostTensor::vector(["a", "bc", "d"].map(|text| text.as_bytes().to_vec()).to_vec());
    let v = strategy.scope(|| Variable::new("s", strings.clone())).unwrap();
    assert_eq!(v.gather(&[2, 0]).unwrap(), strings.take_rows(&[2, 0]).unwrap());
    let copy = v.deep_copy().unwrap();
    assert_eq!((copy.read::<HostTensor>().unwrap(), copy == v), (strings, false));
    // SHARD-4: a copy is cut as the original is.
    let rows = |v: &Variable| v.shards().into_iter().map(|shard| shard.rows).collect::<Vec<_>>();
    assert_eq!((rows(&copy), rows(&v)), (vec![0..2, 2..3], vec![0..2, 2..3]));
    let parts = [copy.shards()[0].name.clone(), v.shards()[0].name.clone()];
    assert_ne!(parts[0], parts[1]);
}

// INV-55
#[test]
fn a_candle_variable_is_computed_with_as_it_is_on_the_servers() {
    watched(|| {
        let strategy = servers(2, 2);
        let start = Tensor::new(&[1f32, 2., 3.], &Device::Cpu).unwrap();
        let v = strategy.scope(|| Variable::new("v", start)).unwrap();
        assert!(matches!(v.read::<Leaf>(), Ok(Leaf::Candle(_))));
        v.assign_add(Tensor::new(&[10f32, 20., 30.], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(v.as_tensor().unwrap().to_vec1::<f32>().unwrap(), [11., 22., 33.]);
        let rows = IndexedSlices::new(HostTensor::vector(vec![-1f32]), HostTensor::vector(vec![2i64]), None)
            .unwrap();
        v.scatter_update(rows).unwrap();
        // A run begins with the current values, and keeps them until it ends.
        let run = strategy.run((), |_, ()| {
            let before = v.as_tensor()?.to_vec1::<f32>()?;
            v.assign(Tensor::zeros(3, DType::F32, &Device::Cpu)?)?;
            Ok((before, v.as_tensor()?.to_vec1::<f32>()?, v.read::<Tensor>()?.to_vec1::<f32>()?))
        });
        let expected = (vec![11., 22., -1.], vec![11., 22., -1.], vec![0.; 3]);
        assert_eq!(run.unwrap().into_values(), [expected]);
    });
}

// SV-7
#[test]
fn sv_7_rows_sharded_differently_from_the_request_are_refused() {
    let strategy = servers(2, 2);
    let ids = HostTensor::vector((0..5).collect::<Vec<i32>>());
    let asked = |partition_strategy| Lookup { partition_strategy, ..Default::default() };
    let by = |table: &Variable, dealt| embedding_lookup(table, &ids, asked(Some(dealt)));
    let div = strategy.scope(|| Variable::new("t", numbers(5))).unwrap();
    assert_eq!(by(&div, PartitionStrategy::Div).unwrap(), numbers(5));
    assert!(by(&div, PartitionStrategy::Mod).unwrap_err().to_string().contains("are partitioned by Div"));
    // Rows 0, 2, 4 and 1, 3, in turn.
    let whole = ParameterServerStrategy::builder()
        .cluster_resolver(LocalCluster::new(1, 2).unwrap().resolver())
        .build()
        .unwrap();
    let part = |name: &str, rows: &[usize]| Variable::new(name, numbers(5).take_rows(rows)?);
    let parts = whole.scope(|| Ok([part("a", &[0, 2, 4])?, part("b", &[1, 3])?])).unwrap();
    let by_turns = Variable::of_shards("m", &parts, PartitionStrategy::Mod).unwrap();
    assert_eq!(by(&by_turns, PartitionStrategy::Mod).unwrap(), numbers(5));
    assert!(by(&by_turns, PartitionStrategy::Div).is_err());
    assert_eq!(by_turns.read::<HostTensor>().unwrap(), numbers(5));
    by_turns.assign_add(numbers(5)).unwrap();
    assert_eq!(parts[1].read::<HostTensor>().unwrap().to_vec::<i64>().unwrap(), [4, 6, 12, 14]);
    by_turns
        .scatter_update(IndexedSlices::new(numbers(1), HostTensor::vector(vec![3i64]), None).unwrap())
        .unwrap();
    assert_eq!(parts[1].read::<HostTensor>().unwrap().to_vec::<i64>().unwrap(), [4, 6, 0, 1]);
}

// CACHE-1
#[test]
fn cache_1_in_a_scope_each_variable_is_read_once() {
    watched(|| {
        let strategy = servers(2, 2);
        let pair = |a: f32, b: f32| HostTensor::vector(vec![a, b]);
        let v = strategy.scope(|| Variable::new("v", pair(1., 2.))).unwrap();
        let cached = strategy.cache_variable_reads(|| {
            let before = v.read::<HostTensor>()?;
            v.assign(pair(7., 8.))?;
            let in_run = strategy.run((), |_, ()| v.read::<HostTensor>())?;
            assert!(strategy.cache_variable_reads(|| Ok(())).is_err());
            // Rows are read where they are.
            Ok((before, in_run.into_values(), v.gather(&[1])?))
        });
        assert_eq!(cached.unwrap(), (pair(1., 2.), vec![pair(1., 2.)], HostTensor::vector(vec![8f32])));
        assert_eq!(v.read::<HostTensor>().unwrap(), pair(7., 8.));
        let anew = strategy.cache_variable_reads(|| v.read::<HostTensor>());
        assert_eq!(anew.unwrap(), pair(7., 8.));
    });
}

#[test]
fn a_variable_is_on_servers_until_it_is_removed() {
    let strategy = servers(2, 2);
    let make = || strategy.scope(|| Variable::new("w", HostTensor::vector(vec![1f32; 4]))).unwrap();
    let first = make();
    let (other, kept) = (first.clone(), make());
    drop(first);
    assert_eq!(other.read::<HostTensor>().unwrap(), HostTensor::vector(vec![1f32; 4]));
    other.remove_from_servers().unwrap();
    let text = other.read::<HostTensor>().unwrap_err().to_string();
    assert!(text.contains("there is no table w/part_0"), "{text}");
    assert_eq!(kept.read::<HostTensor>().unwrap(), HostTensor::vector(vec![1f32; 4]));
    let here = Variable::new("here", 1f32).unwrap();
    assert!(here.remove_from_servers().unwrap_err().to_string().contains("not on parameter servers"));
}
