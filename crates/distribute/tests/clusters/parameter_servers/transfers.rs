//! The number of messages to servers, and messages that are avoided.

use crate::parameter_servers::channels::{Log, logged};
use crate::parameter_servers::support::{Net, train};
use candle_core::{Device, Module, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::nn::{self, BagMode};
use distribute::parameter_server::{DynamicOptions, FixedShardsPartitioner};
use distribute::{OneDeviceStrategy, Sgd, Variables};
use distribute_ps_tables::{Request, Response};
use distribute_testing::watched;
use std::sync::Arc;

fn rows(log: &Log) -> Vec<(String, Vec<i64>)> {
    let rows = |(server, request)| match request {
        Request::ReadRows { rows, .. } => Some((server, rows)),
        _ => None,
    };
    log.take().into_iter().filter_map(rows).collect()
}

#[test]
fn only_the_rows_of_the_batch_are_fetched_from_a_table_and_each_once() {
    watched(|| {
        let (builder, log) = logged(2);
        let strategy = builder.partitioner(FixedShardsPartitioner::new(2).unwrap()).build().unwrap();
        let model = strategy.replicate(|vb| nn::embedding(1000, 4, vb)).unwrap();
        let optimizer = Sgd::new(&model.variables, 1.).unwrap();
        assert!(log.take().iter().all(|(_, request)| matches!(request, Request::Create(_) | Request::List)));
        let ids = Tensor::new(&[[7u32, 999], [7, 8]], &Device::Cpu).unwrap();
        let step =
            || strategy.run(&model, |ctx, table| optimizer.minimize(ctx, table.forward(&ids)?.sum_all()?, 2));
        step().unwrap();
        let asked = log.take();
        assert!(!asked.iter().any(|(_, request)| matches!(request, Request::Read { .. })), "{asked:?}");
        let found = |wanted: &str| {
            asked.iter().filter(|(_, request)| request.operation() == wanted).collect::<Vec<_>>()
        };
        let read = found("read_rows");
        let of = |(server, request): &&(String, Request)| match request {
            Request::ReadRows { table, rows } => (server.clone(), table.clone(), rows.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            read.iter().map(of).collect::<Vec<_>>(),
            [
                ("ps 0".to_string(), "weight/part_0".to_string(), vec![7, 8]),
                ("ps 1".to_string(), "weight/part_1".to_string(), vec![499]),
            ]
        );
        let pushed: Vec<_> = found("push_rows")
            .into_iter()
            .map(|(server, request)| match request {
                Request::PushRows { rows, .. } => (server.as_str(), rows.as_slice()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(pushed, [("ps 0", &[7i64, 8][..]), ("ps 1", &[499][..])]);
        // Outside of a run, too, rows are those of the servers.
        let row = model.models().values()[0].forward(&Tensor::new(&[7u32], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(
            row.to_vec2::<f32>().unwrap()[0],
            model.variables.get("weight").unwrap().to_vec2::<f32>().unwrap()[7]
        );
        assert_eq!(rows(&log), [("ps 0".to_string(), vec![7])]);
    });
}

#[test]
fn layers_that_share_a_table_fetch_its_rows_with_the_requested_initial_values() {
    watched(|| {
        let (builder, log) = logged(2);
        let strategy = builder.partitioner(FixedShardsPartitioner::new(2).unwrap()).build().unwrap();
        let init = Init::Randn { mean: 1., stdev: 0.03 };
        let layers = move |vb: VarBuilder| {
            let one = nn::embedding_init(1000, 4, init, vb.pp("table"))?;
            let bag = nn::embedding_bag_init(1000, 4, BagMode::Mean, init, vb.pp("table"))?;
            Ok::<_, distribute::Error>((one, bag))
        };
        let model = strategy.replicate_seeded(7, layers).unwrap();
        let optimizer = Sgd::new(&model.variables, 1.).unwrap();
        let tensor = OneDeviceStrategy::new("cpu:0")
            .unwrap()
            .replicate_seeded(7, move |vb| vb.pp("table").get_with_hints((1000, 4), "weight", init))
            .unwrap();
        let values = |variables: &Variables| variables.get("table.weight").unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(values(&model.variables), values(&tensor.variables));
        log.take();
        let ids = Tensor::new(&[[7u32, 999], [7, 8]], &Device::Cpu).unwrap();
        let step = |ctx: &distribute::ReplicaContext, (one, bag): &(nn::Embedding, nn::EmbeddingBag)| {
            let sum = (one.forward(&ids)?.sum_all()? + bag.forward(&ids)?.sum_all()?)?;
            optimizer.minimize(ctx, sum, 1)
        };
        strategy.run(&model, step).unwrap();
        let asked = log.take();
        let of = |wanted: &str| asked.iter().filter(|(_, request)| request.operation() == wanted).count();
        assert_eq!((of("read"), of("push_rows")), (0, 2), "{asked:?}");
        // Row 7 has the gradients of both layers, each of two examples.
        let moved = values(&tensor.variables)[7][0] - values(&model.variables)[7][0];
        assert!((moved - 3.).abs() < 1e-5, "{moved}");
    });
}

#[test]
fn values_that_have_not_changed_are_not_sent_again() {
    watched(|| {
        let (builder, log) = logged(2);
        let strategy = builder.build().unwrap();
        let model = strategy.replicate(Net::new).unwrap();
        let sent =
            |log: &Log| log.answers().iter().filter(|answer| matches!(answer, Response::Value(_))).count();
        // Values were received at creation, except those of the two tables whose rows are requested.
        assert_eq!(sent(&log), 5);
        strategy.run(&model, |_, model| Ok(model.loss(4, 0)?.to_scalar::<f32>()?)).unwrap();
        assert_eq!(sent(&log), 0);
        let optimizer =
            Sgd::new(&model.variables, 0.1).unwrap().freeze(|name| name == "stock.weight").unwrap();
        train(&strategy, &model, &optimizer, 0..1);
        assert_eq!(sent(&log), 4);
        log.take();
        strategy.run(&model, |_, model| Ok(model.loss(4, 0)?.to_scalar::<f32>()?)).unwrap();
        assert_eq!(sent(&log), 0);
        // Small requests share a message.
        let messages = log
            .asked
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, request)| matches!(request, Request::Batch(_)))
            .count();
        assert_eq!(messages, 2);
    });
}

/// Checks staleness with the loss `w²/2`, whose gradient is `w`. With the rate 0.5, each update subtracts half of the
/// value that its step began with.
#[test]
fn a_step_computes_with_values_of_bounded_staleness() {
    watched(|| {
        for staleness in 0..4 {
            let (builder, log) = logged(1);
            let strategy = builder.staleness(staleness).build().unwrap();
            let model =
                strategy.replicate(|vb| vb.get_with_hints(1, "w", candle_nn::Init::Const(64.))).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
            let (mut values, mut seen) = (vec![64f32], Vec::new());
            for step in 0..8usize {
                let run = strategy.run(&model, |ctx, w| {
                    let began_with = w.to_vec1::<f32>()?[0];
                    optimizer.minimize(ctx, (w.sqr()?.sum_all()? * 0.5)?, 1)?;
                    Ok(began_with)
                });
                seen.extend(run.unwrap().into_values());
                let stale = values[step.saturating_sub(staleness)];
                assert_eq!(seen[step], stale, "staleness {staleness}, step {step}");
                values.push(values[step] - 0.5 * stale);
            }
            // A read waits for all of them.
            assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), values[8..]);
            // Requests in flight keep neither the strategy nor its channels alive.
            strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
            let channels = Arc::downgrade(&log);
            drop((strategy, model, optimizer, log));
            assert_eq!(channels.strong_count(), 0, "staleness {staleness}");
        }
    });
}

#[test]
fn a_step_does_not_wait_for_the_previous_gradients_and_reports_their_failure() {
    watched(|| {
        let (builder, log) = logged(2);
        let strategy = builder.staleness(1).build().unwrap();
        let model = strategy.replicate(Net::new).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        train(&strategy, &model, &optimizer, 0..1);
        *log.down.lock().unwrap() = Some("ps 0".into());
        let step = || strategy.run(&model, |_, model| Ok(model.loss(3, 0)?.to_scalar::<f32>()?));
        // The rows of tables are fetched when they are looked up.
        assert!(step().is_err());
        *log.down.lock().unwrap() = None;
        step().unwrap();
        let dense = strategy.replicate(|vb| nn::linear(4, 2, vb)).unwrap();
        let optimizer = Sgd::new(&dense.variables, 0.1).unwrap();
        let x = Tensor::ones((3, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
        let step = || {
            strategy.run(&dense, |ctx, out| optimizer.minimize(ctx, out.forward(&x)?.sqr()?.mean_all()?, 3))
        };
        step().unwrap();
        step().unwrap();
        *log.down.lock().unwrap() = Some("ps 1".into());
        // The gradients of this step are lost, but no call waits for them yet.
        step().unwrap();
        let error = step().unwrap_err();
        assert!(error.to_string().contains("ps 1") && error.to_string().contains("push"), "{error}");
        *log.down.lock().unwrap() = None;
        // This is the error of the last step, whose gradients were sent to only one of the two servers.
        assert!(dense.variables.get("weight").unwrap_err().to_string().contains("ps 1"));
        dense.variables.get("weight").unwrap();
        step().unwrap();
    });
}

#[test]
fn rows_of_several_tables_are_fetched_with_one_message_to_each_server() {
    watched(|| {
        let train = |together: bool| {
            let (builder, log) = logged(2);
            let strategy = builder.partitioner(FixedShardsPartitioner::new(2).unwrap()).build().unwrap();
            let build = |vb: VarBuilder| {
                Ok::<_, distribute::Error>((
                    nn::embedding(100, 4, vb.pp("users"))?,
                    nn::embedding_bag(50, 4, BagMode::Mean, vb.pp("words"))?.with_padding(50),
                    nn::dynamic_embedding(4, DynamicOptions::default(), vb.pp("hashes"))?,
                    nn::linear(4, 1, vb.pp("out"))?,
                ))
            };
            let model = strategy.replicate_seeded(3, build).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let ids = |ids: &[i64], shape: &[usize]| Tensor::from_slice(ids, shape, &Device::Cpu).unwrap();
            let users = ids(&[7, 99, 7, 8], &[4]);
            let words = ids(&[0, 49, 1, 50, 50, 50, 2, 2], &[4, 2]);
            let hashes = ids(&[-5, 1 << 40, 3, -5], &[4]);
            let mut messages = 0;
            for _ in 0..3 {
                log.asked.lock().unwrap().clear();
                strategy
                    .run(&model, |ctx, (of_users, of_words, of_hashes, out)| {
                        let rows = if together {
                            nn::look_up_together(&[
                                (of_users, &users),
                                (of_words, &words),
                                (of_hashes, &hashes),
                            ])?
                        } else {
                            vec![
                                of_users.forward(&users)?,
                                of_words.forward(&words)?,
                                of_hashes.forward(&hashes)?,
                            ]
                        };
                        let sum = rows[1..].iter().try_fold(rows[0].clone(), |sum, rows| sum + rows)?;
                        optimizer.minimize(ctx, out.forward(&sum)?.sqr()?.mean_all()?, 4)
                    })
                    .unwrap();
                let reads_rows = |request: &Request| match request {
                    Request::Batch(all) => all.iter().any(|one| matches!(one, Request::ReadRows { .. })),
                    one => matches!(one, Request::ReadRows { .. }),
                };
                messages = log.asked.lock().unwrap().iter().filter(|(_, asked)| reads_rows(asked)).count();
            }
            let rows = model.variables.variable("hashes.weight").unwrap().dynamic_rows().unwrap();
            let weights = ["users.weight", "words.weight", "out.weight"].map(|name| {
                model.variables.get(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
            });
            (messages, (weights, rows))
        };
        let ((apart, one), (together, other)) = (train(false), train(true));
        assert_eq!(one, other);
        assert_eq!(together, 2, "one to each server");
        assert!(apart > 2 * 2, "{apart} for three tables on two servers");
    });
}

#[test]
fn tables_in_memory_and_layers_without_a_variable_are_looked_up_together_as_well() {
    let table = Tensor::arange(0f32, 12., &Device::Cpu).unwrap().reshape((6, 2)).unwrap();
    let (one, bag) =
        (nn::Embedding::new(table.clone(), 2), nn::EmbeddingBag::new(table.clone(), BagMode::Sum));
    let half = nn::Embedding::new(table.to_dtype(candle_core::DType::F16).unwrap(), 2);
    let ids = Tensor::new(&[[0u32, 5], [3, 3]], &Device::Cpu).unwrap();
    let all = nn::look_up_together(&[(&one, &ids), (&bag, &ids), (&half, &ids)]).unwrap();
    let layers: [&dyn Module; 3] = [&one, &bag, &half];
    for (layer, found) in layers.into_iter().zip(&all) {
        let expected = layer.forward(&ids).unwrap();
        assert_eq!((found.dims(), found.to_string()), (expected.dims(), expected.to_string()));
    }
    assert!(nn::look_up_together(&[]).unwrap().is_empty());
    let error = nn::look_up_together(&[(&one, &ids), (&one, &Tensor::new(6u32, &Device::Cpu).unwrap())]);
    assert!(error.unwrap_err().to_string().contains("id 6"));
}
