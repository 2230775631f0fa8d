//! Metrics: equal to hand-computed values, and the same for any number of replicas.

use crate::everywhere::everywhere;
use crate::support::mirrored;
use candle_core::{DType, Device, Tensor};
use distribute::data::Dataset;
use distribute::metrics::{Accuracy, Auc, ConfusionMatrix, Mean, Precision, Recall, TopKAccuracy};
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{Error, OneDeviceStrategy, Result, Strategy};
use distribute_testing::watched;

fn tensor<T: candle_core::WithDType>(values: &[T]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

struct Metrics {
    mean: Mean,
    weighted: Mean,
    accuracy: Accuracy,
    auc: Auc,
    precision: Precision,
    recall: Recall,
    top: TopKAccuracy,
    matrix: ConfusionMatrix,
}

impl Metrics {
    fn new(strategy: &Strategy) -> Self {
        Self {
            mean: Mean::new(strategy, "mean").unwrap(),
            weighted: Mean::new(strategy, "weighted").unwrap(),
            accuracy: Accuracy::new(strategy, "accuracy").unwrap(),
            auc: Auc::new(strategy, "auc").unwrap(),
            precision: Precision::with_threshold(strategy, "precision", 0.3).unwrap(),
            recall: Recall::new(strategy, "recall").unwrap(),
            top: TopKAccuracy::new(strategy, "top", 1).unwrap(),
            matrix: ConfusionMatrix::new(strategy, "matrix", 2).unwrap(),
        }
    }

    /// Updates the metrics with probabilities of class 1 and with labels.
    fn update(&self, p: &Tensor, labels: &Tensor) -> Result<()> {
        self.mean.update(p)?;
        self.weighted.update_weighted(p, labels)?;
        let both = Tensor::stack(&[p.affine(-1., 1.)?, p.clone()], 1)?;
        self.accuracy.update(&both, labels)?;
        self.top.update(&both, labels)?;
        self.auc.update(p, labels)?;
        self.precision.update(p, labels)?;
        self.recall.update(p, labels)?;
        self.matrix.update(&p.ge(0.5)?, labels)
    }

    fn results(&self) -> (Vec<f64>, Vec<Vec<i64>>) {
        let numbers = [
            self.mean.result(),
            self.weighted.result(),
            self.accuracy.result(),
            self.auc.result(),
            self.precision.result(),
            self.recall.result(),
            self.top.result(),
        ];
        (numbers.map(Result::unwrap).to_vec(), self.matrix.result().unwrap().to_vec2().unwrap())
    }

    fn reset(&self) -> Result<()> {
        self.mean.reset()?;
        self.weighted.reset()?;
        self.accuracy.reset()?;
        self.auc.reset()?;
        self.precision.reset()?;
        self.recall.reset()?;
        self.top.reset()?;
        self.matrix.reset()
    }
}

/// Returns five examples in batches of 3. With 2 or more replicas, the last batch leaves some of them empty.
fn data() -> Dataset<(Tensor, Tensor)> {
    let p = tensor(&[0.1f32, 0.4, 0.35, 0.8, 0.6]);
    Dataset::from_slices((p, tensor(&[0u32, 0, 1, 1, 0]))).unwrap().batch(3)
}

#[test]
fn any_number_of_replicas_gives_the_values_computed_by_hand() {
    watched(|| {
        let strategies: Vec<Strategy> = (1..=4).map(mirrored).collect();
        for strategy in strategies.into_iter().chain([OneDeviceStrategy::new("cpu:0").unwrap()]) {
            let metrics = Metrics::new(&strategy);
            for round in 0..2 {
                for batch in &strategy.distribute_dataset(data()).unwrap() {
                    strategy.run(batch.unwrap(), |_, (p, y)| metrics.update(&p, &y)).unwrap();
                }
                let (numbers, matrix) = metrics.results();
                // 0.1, 0.4 and 0.8 are right. Of 6 pairs, the positive is larger in (0.35, 0.1) and the 3 of 0.8.
                // 0.4, 0.35, 0.8 and 0.6 are above 0.3; of the positive ones, only 0.8 is above 0.5.
                let expected = [2.25 / 5., 1.15 / 2., 3. / 5., 4. / 6., 2. / 4., 1. / 2., 3. / 5.];
                for (a, b) in numbers.iter().zip(expected) {
                    assert!((a - b).abs() < 1e-7, "{strategy}, round {round}: {numbers:?}");
                }
                assert_eq!(matrix, [[2, 1], [1, 1]]);
                metrics.reset().unwrap();
                assert_eq!(metrics.results(), (vec![0.; 7], vec![vec![0, 0], vec![0, 0]]), "of nothing");
            }
        }
    });
}

#[test]
fn the_metrics_are_the_same_under_all_strategies() {
    watched(|| {
        let every = everywhere(|strategy| {
            let metrics = Metrics::new(strategy);
            for batch in &strategy.distribute_dataset(data()).unwrap() {
                strategy.run(batch.unwrap(), |_, (p, y)| metrics.update(&p, &y)).unwrap();
            }
            metrics.results()
        });
        let (numbers, matrix) = every[0].1[0].clone();
        assert_eq!(numbers[4..], [0.5, 0.5, 0.6]);
        for (strategy, workers) in every {
            for (found, of_matrix) in workers {
                assert!(
                    found.iter().zip(&numbers).all(|(a, b)| (a - b).abs() < 1e-12),
                    "{strategy}: {found:?}"
                );
                assert_eq!(of_matrix, matrix, "{strategy}");
            }
        }
    });
}

#[test]
fn wrong_arguments_of_metrics_are_refused_and_nothing_is_counted() {
    watched(|| {
        let strategy = mirrored(1);
        let of = |threshold| Precision::with_threshold(&strategy, "refused", threshold);
        assert!(of(1.5).unwrap_err().to_string().contains("threshold of 1.5"));
        assert!(of(f64::NAN).is_err() && TopKAccuracy::new(&strategy, "refused", 0).is_err());
        let metrics = Metrics::new(&strategy);
        let refused = |update: &(dyn Fn() -> Result<()> + Sync)| {
            strategy.run((), |_, ()| update()).unwrap_err().root_cause().to_string()
        };
        let one = tensor(&[1u32]);
        let text = refused(&|| metrics.recall.update(&tensor(&[1.5f32]), &one));
        assert!(text.contains("prediction 0 is 1.5"), "{text}");
        let text = refused(&|| metrics.precision.update(&tensor(&[0.5f32, 0.5]), &one));
        assert!(text.contains("have shape [2]"), "{text}");
        let scores = Tensor::new(&[[0.5f32, 0.5]], &Device::Cpu).unwrap();
        let text = refused(&|| metrics.top.update(&scores, &tensor(&[2u32])));
        assert!(text.contains("row 0 has the label 2, which is not one of 2 classes"), "{text}");
        let text = refused(&|| metrics.top.update(&scores, &tensor(&[0u32, 1])));
        assert!(text.contains("pass [n, classes] and [n]"), "{text}");
        assert_eq!(metrics.results().0, [0.; 7]);
    });
}

#[test]
fn metrics_are_on_read_variables_that_are_not_trained() {
    let metrics = Metrics::new(&mirrored(2));
    for variable in [metrics.mean.variable(), metrics.auc.variable(), metrics.matrix.variable()] {
        assert_eq!(variable.synchronization(), VariableSynchronization::OnRead);
        assert_eq!(variable.aggregation(), VariableAggregation::Sum);
        assert!(!variable.is_trainable() && variable.devices().len() == 2);
    }
    assert_eq!(
        (metrics.accuracy.variable().name(), metrics.auc.variable().dims()),
        ("accuracy", &[2, 200][..])
    );
}

#[test]
fn replicas_update_any_number_of_times_without_waiting() {
    watched(|| {
        let strategy = mirrored(3);
        let mean = Mean::new(&strategy, "ids").unwrap();
        strategy
            .run((), |ctx, ()| {
                let id = ctx.replica_id_in_sync_group();
                (0..id).try_for_each(|_| mean.update(&tensor(&[id as f64])))
            })
            .unwrap();
        // The value 1 counts once, and 2 twice.
        assert_eq!(mean.result().unwrap(), 5. / 3.);
    });
}

#[test]
fn losses_without_weight_do_not_count_even_if_nan() {
    watched(|| {
        let strategy = mirrored(2);
        let mean = Mean::new(&strategy, "loss").unwrap();
        strategy
            .run((), |_, ()| mean.update_weighted(&tensor(&[f32::NAN, 3.]), &tensor(&[0f32, 2.])))
            .unwrap();
        assert_eq!(mean.result().unwrap(), 3.);
        strategy.run((), |_, ()| mean.update(&tensor(&[f32::NAN]))).unwrap();
        assert!(mean.result().unwrap().is_nan(), "a NaN that counts is told");
    });
}

#[test]
fn auc_is_that_of_pairs_where_thresholds_separate_them() {
    watched(|| {
        let strategy = mirrored(2);
        let auc = Auc::new(&strategy, "auc").unwrap();
        let coarse = Auc::with_thresholds(&strategy, "coarse", 3).unwrap();
        let p: Vec<f32> = (0..40).map(|i| ((i * 29) % 41) as f32 / 41.).collect();
        let y: Vec<u8> = (0..40).map(|i| u8::from((i * i) % 7 > 2)).collect();
        strategy
            .run((), |ctx, ()| {
                let half = 20 * ctx.replica_id_in_sync_group()..20 * (1 + ctx.replica_id_in_sync_group());
                coarse.update(&tensor(&p[half.clone()]), &tensor(&y[half.clone()]))?;
                auc.update(&tensor(&p[half.clone()]), &tensor(&y[half]))
            })
            .unwrap();
        let area = |p: &dyn Fn(usize) -> f32| {
            let (mut wins, mut pairs) = (0., 0.);
            for (i, j) in (0..40).flat_map(|i| (0..40).map(move |j| (i, j))) {
                if y[i] == 1 && y[j] == 0 {
                    pairs += 1.;
                    wins += if p(i) > p(j) {
                        1.
                    } else if p(i) == p(j) {
                        0.5
                    } else {
                        0.
                    };
                }
            }
            wins / pairs
        };
        assert!((auc.result().unwrap() - area(&|i| p[i])).abs() < 1e-12);
        // With one threshold between, at a half, predictions are as good as two numbers.
        assert!((coarse.result().unwrap() - area(&|i| f32::from(u8::from(p[i] > 0.5)))).abs() < 1e-12);
        // The ends of the range are in it, and a prediction that equals a threshold is not above it.
        auc.reset().unwrap();
        strategy.run((), |_, ()| auc.update(&tensor(&[0f32, 1.]), &tensor(&[0u8, 1]))).unwrap();
        assert_eq!(auc.result().unwrap(), 1.);
    });
}

#[test]
fn result_and_reset_in_a_replica_and_update_outside_are_errors_with_advice() {
    watched(|| {
        let strategy = mirrored(2);
        let metrics = Metrics::new(&strategy);
        for call in [
            (|metrics: &Metrics| metrics.mean.result().map(drop)) as fn(&Metrics) -> Result<()>,
            |metrics| metrics.accuracy.result().map(drop),
            |metrics| metrics.auc.result().map(drop),
            |metrics| metrics.matrix.result().map(drop),
            Metrics::reset,
        ] {
            let error = strategy.run((), |_, ()| call(&metrics)).unwrap_err();
            assert!(matches!(error.root_cause(), Error::WrongContext { .. }), "{error}");
            assert!(error.to_string().contains("after run"), "{error}");
        }
        // In a merge function, the call is permitted.
        let inside = strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| metrics.mean.result())).unwrap();
        assert_eq!(inside.values(), [0., 0.]);
        let error = metrics.mean.update(&tensor(&[1f32])).unwrap_err();
        assert!(matches!(error, Error::WrongContext { .. }), "{error}");
        let says = error.to_string();
        assert!(
            says.contains("update of a metric") && says.contains("call it in the closure passed to run"),
            "{says}"
        );
    });
}

#[test]
fn arguments_that_do_not_fit_are_errors_and_count_nothing() {
    watched(|| {
        let strategy = mirrored(1);
        let metrics = Metrics::new(&strategy);
        let update = |call: &(dyn Fn() -> Result<()> + Sync)| {
            strategy.run((), |_, ()| call()).unwrap_err().to_string()
        };
        let text = update(&|| metrics.auc.update(&tensor(&[0.5f32, 1.5]), &tensor(&[1u8, 0])));
        assert!(text.contains("prediction 1 is 1.5"), "{text}");
        let text = update(&|| metrics.auc.update(&tensor(&[f32::NAN]), &tensor(&[1u8])));
        assert!(text.contains("prediction 0 is NaN"), "{text}");
        let text = update(&|| metrics.matrix.update(&tensor(&[0u32, 2]), &tensor(&[0u32, 1])));
        assert!(text.contains("prediction 1 is 2") && text.contains("0 to 1"), "{text}");
        let text = update(&|| metrics.matrix.update(&tensor(&[0u32]), &tensor(&[-1i64])));
        assert!(text.contains("label 0 is -1"), "{text}");
        let text = update(&|| metrics.mean.update_weighted(&tensor(&[1f32, 2.]), &tensor(&[1f32])));
        assert!(text.contains("[2]") && text.contains("[1]"), "{text}");
        update(&|| metrics.accuracy.update(&tensor(&[1f32, 2.]).reshape((1, 2))?, &tensor(&[0u32, 1])));
        let empty = Tensor::zeros((0, 2), DType::F32, &Device::Cpu).unwrap();
        let text = update(&|| metrics.accuracy.update(&empty, &tensor(&[0u32, 1])));
        assert!(text.contains("[0, 2]") && text.contains("[n, classes]"), "{text}");
        assert_eq!(metrics.results().0, [0.; 7]);
        assert!(ConfusionMatrix::new(&strategy, "none", 0).unwrap_err().to_string().contains("no classes"));
        assert!(Auc::with_thresholds(&strategy, "one", 1).unwrap_err().to_string().contains("at least 2"));
        // Of any dtype and shape.
        let numbers = tensor(&[1u8, 2, 3, 6]).reshape((2, 2)).unwrap();
        strategy.run((), |_, ()| metrics.mean.update(&numbers)).unwrap();
        assert_eq!(metrics.mean.result().unwrap(), 3.);
        strategy
            .run((), |_, ()| metrics.mean.update(&Tensor::zeros((0, 3), DType::F32, &Device::Cpu)?))
            .unwrap();
        assert_eq!(metrics.mean.result().unwrap(), 3.);
    });
}
