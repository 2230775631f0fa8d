//! Models that are created inside `colocate_vars_with`, which the documentation of StrategyExtended describes for
//! variables.

use crate::contexts::{bits, everywhere, mirrored, on_one, tensor};
use candle_core::{Device, Module, ModuleT, Tensor};
use candle_nn::{VarBuilder, linear};
use distribute::optimizer::rules::Sgd;
use distribute::parameter_server::{DynamicOptions, FixedShardsPartitioner};
use distribute::strategy::DeviceName;
use distribute::{
    Checkpoint, Error, LocalCluster, Optimizer, ParameterServerStrategy, Strategy, Variable, nn,
};
use distribute_testing::watched;

// INV-20
/// Checks that a model is placed with the given variable, unsharded like a variable, and trains like any other (COLO-2,
/// COLO-4).
#[test]
fn colo_2_a_model_colocated_with_a_variable_has_its_devices_and_is_unsharded() {
    let check = |strategy: &Strategy| {
        let build = |vb: VarBuilder| linear(3, 2, vb);
        let primary = strategy.scope(|| Variable::new("primary", tensor(&[1., 2., 3., 4.]))).unwrap();
        let beside =
            strategy.scope(|| strategy.colocate_vars_with(&primary, || strategy.replicate(build))).unwrap();
        let outside = strategy.replicate(build).unwrap();
        let mut losses = Vec::new();
        for model in [&beside, &outside] {
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 0.1).unwrap();
            for step in 0..3 {
                let loss = strategy.run(model, |ctx, layer| {
                    let x = tensor(&[1., step as f32, ctx.replica_id_in_sync_group() as f32]).unsqueeze(0)?;
                    optimizer.minimize(ctx, layer.forward(&x)?.sqr()?.sum_all()?, 1)
                });
                losses.push(loss.unwrap().values()[0].to_scalar::<f32>().unwrap().to_bits());
            }
        }
        let (of_beside, of_outside) = losses.split_at(3);
        assert_eq!(of_beside, of_outside, "{strategy}");
        assert_eq!(beside.variables.sha256().unwrap(), outside.variables.sha256().unwrap(), "{strategy}");
        for name in ["weight", "bias"] {
            let v = beside.variables.variable(name).unwrap();
            assert_eq!(v.devices(), primary.devices(), "{strategy}");
            assert!(!v.is_sharded() && v.copies_agree().unwrap(), "{strategy}");
            let trained = bits(&beside.variables.get(name).unwrap().flatten_all().unwrap());
            for copy in v.copies::<Tensor>().unwrap() {
                assert_eq!(bits(&copy.flatten_all().unwrap()), trained, "{strategy}");
            }
        }
        // A function that updates the variable can write the model on each device of the update.
        let bias = beside.variables.variable("bias").unwrap();
        strategy.update(&primary, (), |_, ()| bias.assign(tensor(&[7., 8.]))).unwrap();
        assert!(bias.copies::<Tensor>().unwrap().iter().all(|copy| bits(copy) == bits(&tensor(&[7., 8.]))));
        let seen = strategy.run(&beside, |_, layer| Ok(bits(layer.bias().unwrap()))).unwrap();
        assert!(seen.iter().all(|seen| *seen == bits(&tensor(&[7., 8.]))), "{strategy}");
        // What is written from outside reaches all copies, and the next step all of them again.
        beside.variables.set("bias", &tensor(&[1., 2.])).unwrap();
        assert!(bias.copies::<Tensor>().unwrap().iter().all(|copy| bits(copy) == bits(&tensor(&[1., 2.]))));
        // The value that a replica reads has a gradient.
        let optimizer = Optimizer::with_rule(Sgd, &beside.variables, 1.).unwrap();
        let step = |ctx: &distribute::ReplicaContext| {
            let loss = (bias.as_tensor()?.sum_all()? + beside.models().values()[0].weight().sum_all()?)?;
            optimizer.minimize(ctx, loss, 1)
        };
        strategy.run((), |ctx, ()| step(ctx)).unwrap();
        let copies: Vec<Tensor> = bias.copies().unwrap();
        assert!(copies.iter().all(|copy| bits(copy) == bits(&tensor(&[0., 1.]))), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks that a model is on the server of the other variable, including its layers and a table of ids. There are 3
/// servers, and variables have 5 shards.
#[test]
fn colo_4_a_model_colocated_with_a_variable_on_servers_is_on_its_server() {
    watched(|| {
        let cluster = LocalCluster::new(1, 3).unwrap();
        let partitioner = FixedShardsPartitioner::new(5).unwrap();
        let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
        let build = |vb: VarBuilder| {
            let words = nn::embedding(7, 4, vb.pp("words"))?;
            let ids = nn::dynamic_embedding(4, DynamicOptions::default(), vb.pp("ids"))?;
            candle_core::Result::Ok((
                words,
                ids,
                nn::linear(4, 5, vb.pp("out"))?,
                nn::batch_norm(5, 1e-5, vb.pp("norm"))?,
            ))
        };
        let primary = strategy.scope(|| Variable::new("primary", tensor(&[1.; 5]))).unwrap();
        let [server] = primary.devices()[..] else { panic!("{:?}", primary.devices()) };
        let model =
            strategy.scope(|| strategy.colocate_vars_with(&primary, || strategy.replicate(build))).unwrap();
        let names = ["words.weight", "out.weight", "out.bias", "norm.weight", "norm.bias"];
        for name in names {
            let v = model.variables.variable(name).unwrap();
            assert_eq!((v.devices(), v.shards().len()), (vec![server], 1), "{name}");
            let placed = strategy.placement();
            assert_eq!(placed.of(name).unwrap()[0].server, server.server.unwrap(), "{name}");
        }
        let tables = strategy.placement();
        let tables = tables.of("ids.weight").unwrap();
        assert_eq!(tables.iter().map(|table| table.server).collect::<Vec<_>>(), [server.server.unwrap()]);
        // Each replica's own statistics stay with it.
        let statistics = model.variables.variable("norm.running_mean").unwrap();
        assert_eq!(statistics.devices(), strategy.extended().worker_devices());
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 0.1).unwrap();
        let train = || {
            strategy.run(&model, |ctx, (words, ids, out, norm)| {
                let rows = Tensor::new(&[6u32, 0], &Device::Cpu)?;
                let wide = Tensor::new(&[i64::MAX - 1, -7], &Device::Cpu)?;
                let hidden = (words.forward(&rows)? + ids.forward(&wide)?)?;
                let loss = norm.forward_t(&out.forward(&hidden)?, true)?.sqr()?.sum_all()?;
                optimizer.minimize(ctx, loss, 2)
            })
        };
        train().unwrap();
        let rows = model.variables.variable("ids.weight").unwrap().dynamic_rows().unwrap();
        assert_eq!(rows.ids, [-7, i64::MAX - 1]);

        // What was saved there is restored by a model that is spread, and back.
        let folder = tempfile::tempdir().unwrap();
        let spread = strategy.replicate_seeded(3, build).unwrap();
        assert_eq!(spread.variables.variable("words.weight").unwrap().shards().len(), 5);
        Checkpoint::new().part("model", &model.variables).save(folder.path().join("whole")).unwrap();
        Checkpoint::new().part("model", &spread.variables).restore(folder.path().join("whole")).unwrap();
        for name in names {
            let [of_spread, of_whole] = [&spread, &model]
                .map(|model| bits(&model.variables.get(name).unwrap().flatten_all().unwrap()));
            assert_eq!(of_spread, of_whole, "{name}");
        }
        let restored = spread.variables.variable("ids.weight").unwrap().dynamic_rows().unwrap();
        assert_eq!(restored.ids, rows.ids);

        // A model that is trained must be on servers completely.
        let here = || strategy.colocate_vars_with("cpu:0", || strategy.replicate(build));
        let error = strategy.scope(here).unwrap_err();
        assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("colocate the model with a variable on a server"), "{error}");
    });
}

#[test]
fn colo_2_a_model_colocated_with_a_variable_of_one_copy_has_one_copy_there() {
    watched(|| {
        let strategy = mirrored(2);
        let one = on_one(&strategy, "cpu:1", "one").unwrap();
        let build = |vb: VarBuilder| linear(2, 1, vb);
        let make = |with: &Variable| {
            strategy.scope(|| strategy.colocate_vars_with(with, || strategy.replicate(build))).unwrap()
        };
        let weight = make(&one).variables.variable("weight").unwrap();
        assert_eq!(
            (weight.devices(), weight.copies::<Tensor>().unwrap().len()),
            (vec![DeviceName::cpu(1)], 1)
        );
        // Of several copies candle's own optimizers would write one.
        let both = strategy.scope(|| Variable::new("both", 1f32)).unwrap();
        let error = make(&both).variables.trainable().unwrap_err();
        assert!(matches!(error, Error::NotSupported { .. }), "{error}");
        assert!(make(&one).variables.trainable().is_ok());
        // Afterwards all is as before.
        let model = strategy.replicate(build).unwrap();
        assert_eq!(model.variables.variable("weight").unwrap().devices(), [DeviceName::cpu(0)]);
    });
}
