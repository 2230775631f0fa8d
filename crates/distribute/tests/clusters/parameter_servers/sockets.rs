//! Training over sockets, with servers at ports of this machine.

use crate::parameter_servers::support::{Net, state, train};
use candle_core::{Device, Module, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::net::{Credentials, Identity, Secret};
use distribute::nn::embedding_init;
use distribute::optimizer::rules::{Adagrad, Adam, Ftrl, Momentum, Rule, Sgd};
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::strategy::Wire;
use distribute::{
    Error, LocalCluster, OneDeviceStrategy, Optimizer, ParameterServerStrategy, Result, Strategy,
};
use distribute_ps_server::{ParameterServer, SERVICE, ServerOptions};
use distribute_rpc::Server;
use distribute_testing::watched;
use std::time::Duration;

const SERVERS: usize = 2;

/// Starts servers, which stop when they are dropped. Returns them with the cluster as its coordinator sees it.
fn started(count: usize) -> (Vec<Server>, SimpleClusterResolver) {
    let at = |count| vec!["127.0.0.1:0".to_string(); count];
    let cluster = |ps| ClusterSpec::from_lists([("chief", at(1)), ("worker", at(1)), ("ps", ps)]).unwrap();
    let start = |number| {
        let builder =
            Server::builder(cluster(at(count))).task(Job::Ps.task(number)).credentials(Identity::None);
        builder.service(SERVICE, ParameterServer::new()).start().unwrap()
    };
    let servers: Vec<_> = (0..count).map(start).collect();
    let address = |(number, server): (usize, &Server)| {
        server.cluster().task_address(&Job::Ps, number).unwrap().to_string()
    };
    let cluster = cluster(servers.iter().enumerate().map(address).collect());
    (servers, SimpleClusterResolver::new(cluster).with_task(Job::Chief.task(0)))
}

fn trained<R: Rule>(strategy: &Strategy, rule: R) -> (Vec<f32>, Vec<(String, Vec<u32>)>) {
    let model = strategy.replicate_seeded(7, Net::new).unwrap();
    let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
    let losses = train(strategy, &model, &optimizer, 0..4);
    (losses, state(&model, &optimizer))
}

/// Trains on new servers, over sockets or in this process. Returns the losses and the bits of the state.
fn on_servers<R: Rule>(
    sockets: bool,
    shards: usize,
    staleness: usize,
    rule: R,
) -> (Vec<f32>, Vec<(String, Vec<u32>)>) {
    let (servers, resolver) = started(SERVERS);
    let cluster = LocalCluster::new(1, SERVERS).unwrap();
    let builder = ParameterServerStrategy::builder();
    let builder = if sockets {
        builder.cluster_resolver(resolver)
    } else {
        builder.cluster_resolver(cluster.resolver())
    };
    let builder = builder.partitioner(FixedShardsPartitioner::new(shards).unwrap()).staleness(staleness);
    let strategy = builder.build().unwrap();
    let trained = trained(&strategy, rule);
    drop((strategy, servers));
    trained
}

// INV-56
#[test]
fn over_sockets_weights_and_slots_are_bit_identical_to_one_device() {
    fn check<R: Rule + Clone>(rule: R) {
        let one = trained(&OneDeviceStrategy::new("cpu:0").unwrap(), rule.clone());
        for shards in [1, 2, 3, 5] {
            assert_eq!(on_servers(true, shards, 0, rule.clone()), one, "{} in {shards} shards", rule.name());
        }
    }
    watched(|| {
        check(Sgd);
        check(Momentum::new(0.9));
        check(Adam::default());
        check(Adagrad::default());
        check(Ftrl { l1: 0.01, ..Ftrl::default() });
    });
}

#[test]
fn stale_values_are_the_same_over_sockets() {
    watched(|| {
        for staleness in [1, 2] {
            // For tables whose rows are requested when they are looked up, all updates have been made.
            let (over, here) = (on_servers(true, 2, staleness, Sgd), on_servers(false, 2, staleness, Sgd));
            assert_eq!(over, here, "staleness {staleness}");
        }
    });
}

/// A model of variables of 1.1 MiB, which are sent in separate messages, and tiny ones.
struct Many(Vec<Tensor>);

impl Many {
    fn new(large: usize, tiny: usize, vb: VarBuilder) -> candle_core::Result<Self> {
        let large = (0..large).map(|number| vb.get((288, 1001), &format!("large-{number}")));
        let tiny = (0..tiny).map(|number| vb.get(2, &format!("tiny-{number}")));
        Ok(Self(large.chain(tiny).collect::<candle_core::Result<_>>()?))
    }

    /// Returns a loss whose gradients do not depend on the variables, so that results are the same with stale values.
    fn loss(&self, step: usize) -> Result<Tensor> {
        let sums = self.0.iter().map(Tensor::sum_all).collect::<candle_core::Result<Vec<_>>>()?;
        Ok((Tensor::stack(&sums, 0)?.sum_all()? * (step + 1) as f64)?)
    }
}

/// Returns a digest of all bits after some steps.
fn many(strategy: &Strategy, large: usize, tiny: usize) -> String {
    let model = strategy.replicate_seeded(7, move |vb| Many::new(large, tiny, vb)).unwrap();
    let optimizer = Optimizer::with_rule(Sgd, &model.variables, 0.05).unwrap();
    for step in 0..3 {
        let run = strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.loss(step)?, 1).map(drop));
        run.unwrap_or_else(|error| panic!("{}", error.root_cause()));
    }
    model.variables.sha256().unwrap()
}

/// Checks that variables on a server are bit-identical to those of one device in the end, with updates of a single step
/// and of several steps in flight.
fn check_many(large: usize, tiny: usize) {
    watched(move || {
        let one = many(&OneDeviceStrategy::new("cpu:0").unwrap(), large, tiny);
        for staleness in [0, 2] {
            let (_servers, resolver) = started(1);
            let builder = ParameterServerStrategy::builder().cluster_resolver(resolver);
            let strategy = builder.staleness(staleness).build().unwrap();
            let found = many(&strategy, large, tiny);
            assert!(found == one, "{large} and {tiny}, staleness {staleness}");
        }
    });
}

// INV-56: more messages and bytes than one connection has room for at once.
#[test]
fn a_step_may_be_larger_than_one_write_of_a_connection() {
    check_many(70, 0);
}

// INV-56: more changes than one connection has room for at once.
#[test]
fn a_step_may_have_more_changes_than_a_server_remembers() {
    check_many(0, 1100);
}

/// Checks that a training survives the restart of a server. TensorFlow's job ends with its server, and the values are
/// lost.
#[test]
fn a_training_continues_after_a_server_restarts() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let tables = || ParameterServer::open(ServerOptions::new(folder.path().join("ps-0"))).unwrap();
        let start = |cluster: ClusterSpec| {
            let builder = Server::builder(cluster).task(Job::Ps.task(0)).credentials(Identity::None);
            builder.service(SERVICE, tables()).start().unwrap()
        };
        let at = || vec!["127.0.0.1:0"];
        let cluster = ClusterSpec::from_lists([("chief", at()), ("worker", at()), ("ps", at())]).unwrap();
        let server = start(cluster);
        let cluster = server.cluster().clone();
        let resolver = SimpleClusterResolver::new(cluster.clone()).with_task(Job::Chief.task(0));
        let strategy =
            ParameterServerStrategy::new(resolver, FixedShardsPartitioner::new(2).unwrap()).unwrap();
        let train = |strategy: &Strategy, between: &mut dyn FnMut()| {
            let model = strategy.replicate_seeded(7, Net::new).unwrap();
            let optimizer = Optimizer::with_rule(Adam::default(), &model.variables, 0.05).unwrap();
            let mut losses = train(strategy, &model, &optimizer, 0..3);
            between();
            losses.extend(train(strategy, &model, &optimizer, 3..6));
            (losses, state(&model, &optimizer))
        };
        let mut server = Some(server);
        let found = train(&strategy, &mut || {
            drop(server.take());
            server = Some(start(cluster.clone()));
        });
        assert_eq!(found, train(&OneDeviceStrategy::new("cpu:0").unwrap(), &mut || ()));
    });
}

#[test]
fn a_server_and_a_strategy_share_one_configuration_value() {
    watched(|| {
        let job = Credentials::new().secret(Secret::random().unwrap());
        let at = || vec!["127.0.0.1:0"];
        let cluster = ClusterSpec::from_lists([("chief", at()), ("worker", at()), ("ps", at())]).unwrap();
        let builder = Server::builder(cluster).task(Job::Ps.task(0)).credentials(job.clone());
        let server = builder.service(SERVICE, ParameterServer::new()).start().unwrap();
        let strategy = |credentials| {
            let cluster = server.cluster().clone();
            ParameterServerStrategy::builder()
                .cluster_resolver(SimpleClusterResolver::new(cluster).with_task(Job::Chief.task(0)))
                .credentials(credentials)
                .join_timeout(Duration::from_secs(50))
                .build()
        };
        assert!(strategy(job).is_ok());
        let stranger = Credentials::new().secret(Secret::random().unwrap());
        let text = strategy(stranger).unwrap_err().to_string();
        assert!(
            text.contains("1 of 1 parameter servers cannot be reached") && text.contains("secret"),
            "{text}"
        );
    });
}

#[test]
fn values_rows_and_gradients_are_sent_in_halves_and_servers_keep_all_bits() {
    watched(|| {
        let (_servers, resolver) = started(SERVERS);
        let builder = ParameterServerStrategy::builder().cluster_resolver(resolver).wire(Wire::Bf16);
        let strategy = builder.build().unwrap();
        let (third, rounded, init) = (1f32 / 3., 0.333_984_38f32, Init::Const(1. / 3.));
        let model = strategy
            .replicate(move |vb: VarBuilder| {
                Ok::<_, Error>((
                    vb.get_with_hints(1, "w", init)?,
                    embedding_init(3, 1, init, vb.pp("table"))?,
                ))
            })
            .unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let ids = Tensor::new(&[1u32], &Device::Cpu).unwrap();
        let seen = strategy.run(&model, |ctx, (w, table)| {
            let row = table.forward(&ids)?.flatten_all()?;
            let seen = [w, &row].map(|values| values.to_vec1::<f32>().unwrap()[0]);
            optimizer.minimize(ctx, ((w + row)?.sum_all()? / 3.)?, 1)?;
            Ok(seen)
        });
        assert_eq!(seen.unwrap().values(), [[rounded; 2]]);
        for (name, at) in [("w", 0), ("table.weight", 1)] {
            let values = model.variables.get(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(values[at], third - rounded, "{name}");
        }
    });
}
