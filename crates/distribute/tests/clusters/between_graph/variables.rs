//! Variables that all workers share: created by the chief, found by name.

use crate::between_graph::support::{PATIENCE, all, settings, worker};
use candle_core::{Device, Tensor};
use distribute::between_graph::AsyncWorkerStrategy;
use distribute::strategy::DeviceName;
use distribute::{Error, LocalCluster, prelude::*};
use distribute_testing::watched;
use std::time::Duration;

// PSV1-3
#[test]
fn psv1_3_all_workers_see_the_same_variables() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let [chief, other] = [0, 1].map(|number| worker(&cluster, number, 1));
        let make = |strategy: &Strategy| {
            strategy.scope(|| Variable::new("shared", HostTensor::vector(vec![1f32, 2.])))
        };
        let (mine, theirs) = (make(&chief).unwrap(), make(&other).unwrap());
        mine.assign_add(HostTensor::vector(vec![10f32, 10.])).unwrap();
        assert_eq!(theirs.read::<HostTensor>().unwrap(), HostTensor::vector(vec![11f32, 12.]));
        // Both workers agree on the server that has the variable.
        assert_eq!(
            chief.placement().unwrap().of("shared").unwrap(),
            other.placement().unwrap().of("shared").unwrap()
        );
        assert_eq!(mine.devices(), theirs.devices());
    });
}

// INV-63
#[test]
fn others_wait_for_the_chiefs_variables_and_name_them_on_timeout() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let short = settings(&cluster, 1).join_timeout(Duration::from_millis(30));
        let other = AsyncWorkerStrategy::of(short).unwrap();
        let error = other.scope(|| Variable::new("late", 1f32)).unwrap_err().to_string();
        for part in ["variable late", "ps 0", "the chief creates variables", "30ms"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        // Other workers find a variable after the chief has created it.
        let made = all(2, 1, |strategy| {
            let variable = strategy.scope(|| Variable::new("v", 5i64))?;
            strategy.finish(PATIENCE)?;
            variable.read::<i64>()
        });
        assert_eq!(made, [5, 5]);
    });
}

// PSV1-10
#[test]
fn psv1_10_one_name_is_one_variable_in_all_replicas_and_requests() {
    watched(|| {
        let cluster = LocalCluster::new(1, 2).unwrap();
        let strategy = worker(&cluster, 0, 3);
        let get = || Variable::builder("weight", 1f32).get_or_create();
        let of_replicas = strategy.run((), |_, ()| get()).unwrap();
        let again = strategy.run((), |_, ()| get()).unwrap();
        let first = of_replicas.values()[0].clone();
        assert!(of_replicas.iter().chain(again.iter()).all(|variable| *variable == first));
        assert_eq!(strategy.scope(get).unwrap(), first);
        assert_eq!(strategy.placement().unwrap().placed().len(), 1);
        // After all handles are dropped, the value is still on the server.
        first.assign(4f32).unwrap();
        drop((of_replicas, again, first));
        assert_eq!(strategy.scope(get).unwrap().read::<f32>().unwrap(), 4.);
    });
}

#[test]
fn psv1_10_another_variable_of_an_existing_name_is_refused() {
    let strategy = MirroredStrategy::cpus(2).unwrap();
    let known = strategy.scope(|| Variable::new("v", HostTensor::vector(vec![1f32, 2.]))).unwrap();
    let get = |value: HostTensor| strategy.scope(|| Variable::builder("v", value).get_or_create());
    assert_eq!(get(HostTensor::vector(vec![0f32, 0.])).unwrap(), known);
    for other in [HostTensor::vector(vec![0f32]), HostTensor::vector(vec![0i64, 0])] {
        let error = get(other).unwrap_err();
        assert!(
            matches!(&error, Error::InvalidArgument { .. }) && error.to_string().contains("variable v"),
            "{error}"
        );
    }
    // A new variable of the same name is another one, and does not change the first one.
    let new = strategy.scope(|| Variable::new("v", HostTensor::vector(vec![1f32, 2.]))).unwrap();
    assert!(new != known && get(HostTensor::vector(vec![0f32, 0.])).unwrap() == known);
    drop(known);
    assert!(
        get(HostTensor::vector(vec![0f32, 0.])).unwrap() != new,
        "the first of that name is gone, and the second was not asked for"
    );
}

// PSV1-10
#[test]
fn psv1_10_a_device_moves_no_variable() {
    watched(|| {
        let cluster = LocalCluster::new(1, 2).unwrap();
        let strategy = worker(&cluster, 0, 2);
        let on_server = |variable: &Variable| variable.devices().iter().all(|device| device.server.is_some());
        // A value on a device, used in a replica on a device.
        let value = Tensor::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let made = strategy.run((), |_, ()| Variable::builder("v", value.clone()).get_or_create()).unwrap();
        assert!(on_server(&made.values()[0]));
        // A builder with a device.
        let model = strategy.replicate(|vb| vb.set_device(Device::Cpu).get(3, "w")).unwrap();
        assert!(on_server(&model.variables.variable("w").unwrap()));
        // A variable that is created beside another one, which is the way to choose a server.
        let beside = strategy
            .scope(|| strategy.colocate_vars_with(&made.values()[0], || Variable::new("beside", 1f32)));
        assert_eq!(beside.unwrap().devices(), made.values()[0].devices());
        assert_eq!(made.values()[0].devices(), [DeviceName::of_server(0)]);
    });
}

#[test]
fn a_restarted_chief_finds_its_variables() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let make = |strategy: &Strategy| -> distribute::Result<Vec<Variable>> {
            strategy.scope(|| ["a", "b", "c"].into_iter().map(|name| Variable::new(name, 1f32)).collect())
        };
        let first = worker(&cluster, 0, 1);
        make(&first).unwrap()[2].assign(7f32).unwrap();
        let before = first.placement().unwrap().to_string();
        drop(first);
        let second = worker(&cluster, 0, 1);
        assert_eq!(make(&second).unwrap()[2].read::<f32>().unwrap(), 7.);
        assert_eq!(second.placement().unwrap().to_string(), before);
    });
}

// PSV1-10, VAR-5
#[test]
fn psv1_10_all_replicas_that_create_a_variable_get_the_same_one() {
    watched(|| {
        let cluster = LocalCluster::new(1, 1).unwrap();
        let strategy = worker(&cluster, 0, 3);
        let made = strategy
            .run((), |ctx, ()| Variable::new("plain", ctx.replica_id_in_sync_group() as i64))
            .unwrap();
        assert!(made.iter().all(|variable| *variable == made.values()[0]));
        assert_eq!(made.values()[0].read::<i64>().unwrap(), 0, "the first replica's value");
    });
}
