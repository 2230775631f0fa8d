//! Servers that fail, and requests that servers reject.

use crate::parameter_servers::channels::{channels, logged};
use crate::parameter_servers::support::{Net, servers, train};
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::{Error, HostTensor, LocalCluster, ParameterServerStrategy, Sgd, Variable};
use distribute_ps_tables::{ChannelError, Request, TableSpec};
use distribute_testing::{Port, watched};
use std::time::Duration;

#[test]
fn a_server_that_does_not_answer_is_named_and_the_step_can_be_made_again() {
    watched(|| {
        let (builder, log) = logged(3);
        let strategy = builder.partitioner(FixedShardsPartitioner::new(3).unwrap()).build().unwrap();
        let model = strategy.replicate(Net::new).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        train(&strategy, &model, &optimizer, 0..1);
        *log.down.lock().unwrap() = Some("ps 1".into());
        let step = |_: &distribute::ReplicaContext, model: &Net| Ok(model.loss(3, 0)?.to_scalar::<f32>()?);
        let error = strategy.run(&model, step).unwrap_err();
        let Error::Server { operation, source } = &error else { panic!("{error}") };
        assert!(*operation == "run" && matches!(**source, ChannelError::TimedOut { .. }), "{error}");
        let text = error.to_string();
        for part in ["run", "ps 1", "start it again", "no answer"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(matches!(model.variables.get("out.weight"), Err(Error::Server { operation: "read", .. })));
        *log.down.lock().unwrap() = None;
        strategy.run(&model, step).unwrap();
        assert_eq!(train(&strategy, &model, &optimizer, 1..3).len(), 2);
    });
}

#[test]
fn a_server_that_is_lost_in_a_step_fails_it_on_all_replicas() {
    watched(|| {
        let (builder, log) = logged(2);
        let strategy = builder
            .partitioner(FixedShardsPartitioner::new(2).unwrap())
            .devices(["cpu:0", "cpu:1"])
            .build()
            .unwrap();
        let model = strategy.replicate(Net::new).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        let run = strategy.run(&model, |ctx, model| {
            let loss = model.loss(4, 0)?;
            ctx.all_reduce(distribute::ReduceOp::Sum, 1f32)?;
            *log.down.lock().unwrap() = Some("ps 0".into());
            optimizer.minimize(ctx, loss, 4)
        });
        let error = run.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error.root_cause(), Error::Server { .. }), "{text}");
        for part in ["replica 0", "step 1", "ps 0", "optimizer step"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(optimizer.finished_steps(), 0);
    });
}

#[test]
fn servers_restarted_without_tables_or_rules_are_repaired_or_named() {
    watched(|| {
        for staleness in 0..2 {
            let (channels, _log) = channels(1);
            let cluster = LocalCluster::new(1, 1).unwrap();
            let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
            let strategy = builder.channels(channels.clone()).staleness(staleness).build().unwrap();
            let model =
                strategy.replicate(|vb| vb.get_with_hints(2, "w", candle_nn::Init::Const(1.))).unwrap();
            let optimizer = Sgd::new(&model.variables, 1.).unwrap();
            let step = || strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1));
            let ask = |request| channels[0].start(request, Duration::from_secs(60)).unwrap().wait().unwrap();
            step().unwrap();
            model.variables.get("w").unwrap();
            // Another chief has created the table again.
            ask(Request::Remove { table: "w".into() });
            ask(Request::Create(TableSpec::values("w", HostTensor::vector(vec![5f32, 5.]))));
            // During the step, the new table receives the rule, and the gradient once more.
            step().unwrap();
            assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [4., 4.]);
            ask(Request::Remove { table: "w".into() });
            ask(Request::Create(TableSpec::values("w", HostTensor::vector(vec![5f32, 5.]))));
            let behind = strategy.run(&model, |ctx, w| {
                optimizer.minimize(ctx, w.sum_all()?, 1)?;
                Ok(w.to_vec1::<f32>()?[0])
            });
            let lacking = if staleness == 0 { [4.] } else { [5.] };
            assert_eq!(behind.unwrap().into_values(), lacking);
            assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [4., 4.]);
            ask(Request::Remove { table: "w".into() });
            let gone = model.variables.get("w").unwrap_err().to_string();
            for part in ["w", "restarted without its tables", "folder", "from a checkpoint"] {
                assert!(gone.contains(part), "{gone}");
            }
        }
    });
}

// INV-55
#[test]
fn two_runs_at_once_are_refused() {
    watched(|| {
        let strategy = servers(1, 1);
        let model = strategy.replicate(Net::new).unwrap();
        let run = strategy.run(&model, |_, _| {
            let other =
                std::thread::scope(|scope| scope.spawn(|| strategy.run((), |_, ()| Ok(()))).join().unwrap());
            Ok(other.unwrap_err().to_string())
        });
        let text = run.unwrap().into_values().remove(0);
        assert!(text.contains("in progress on another thread"), "{text}");
        // A run in a merge function uses the values of its step.
        let run = strategy.run(&model, |ctx, _| {
            ctx.merge_call((), |strategy, _| strategy.run((), |_, ()| Ok(5)).map(|five| five.values()[0]))
        });
        assert_eq!(run.unwrap().values(), [5]);
        strategy.run((), |_, ()| Ok(())).unwrap();
    });
}

#[test]
fn mismatched_values_are_refused_and_change_nothing() {
    let strategy = servers(2, 2);
    let table = strategy.scope(|| Variable::new("t", HostTensor::new(vec![1i32, 2, 3, 4], [4, 1])?)).unwrap();
    let ten = |rows: usize| HostTensor::new(vec![10i32; rows], [rows, 1]).unwrap();
    // SV-4: TensorFlow writes what fits, and leaves out what is too much.
    assert!(table.assign(ten(3)).is_err() && table.assign_add(ten(5)).is_err());
    assert!(table.assign(10i32).is_err());
    assert!(table.assign(HostTensor::new(vec![1f32; 4], [4, 1]).unwrap()).is_err());
    // SV-8
    let Err(Error::Params(outside)) = table.gather(&[0, 4]) else { panic!("4 is not a row") };
    assert!(matches!(*outside, distribute_ps_tables::Error::Id { id: 4, position: 1, rows: 4, .. }));
    assert_eq!(table.read::<HostTensor>().unwrap().to_vec::<i32>().unwrap(), [1, 2, 3, 4]);
    let scalar = strategy.scope(|| Variable::new("s", 1f32)).unwrap();
    assert!(scalar.gather(&[0]).unwrap_err().to_string().contains("scalar"));
}

// T3: the constructor names all servers that it cannot reach.
#[test]
fn missing_servers_are_named() {
    watched(|| {
        let absent = [Port::reserve(), Port::reserve()];
        let [a, b] = absent.each_ref().map(|port| port.address().to_string());
        let spec =
            format!(r#"{{"chief": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"], "ps": ["{a}", "{b}"]}}"#);
        let resolver = distribute::cluster::resolver::SimpleClusterResolver::new(spec.parse().unwrap());
        let builder = ParameterServerStrategy::builder()
            .cluster_resolver(resolver.with_task(distribute::cluster::Job::Chief.task(0)))
            .join_timeout(std::time::Duration::from_millis(300));
        let error = builder.build().map(drop).unwrap_err().to_string();
        for part in ["2 of 2", "ps 0", "ps 1", a.as_str(), b.as_str(), "start them"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    });
}
