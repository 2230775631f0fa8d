//! Embeddings and embedding bags: equal to candle_nn's layer, inside and outside `minimize`, on any number of replicas.

use crate::support::{assert_close, flat, mirrored};
use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::{Init, VarBuilder};
use distribute::data::Dataset;
use distribute::nn::{BagMode, Embedding, EmbeddingBag, loss};
use distribute::optimizer::rules::{Adam, Rule, Sgd};
use distribute::{Optimizer, Replicated};
use distribute_testing::watched;

const HEIGHT: usize = 40;
const WIDTH: usize = 5;

/// Returns ids with many duplicates. The same arguments result in the same ids.
fn ids(shape: &[usize], below: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let ids: Vec<u32> = (0..count).map(|i| ((i * i * 31 + 7 * i + 3) % below) as u32).collect();
    Tensor::from_vec(ids, shape, &Device::Cpu).unwrap()
}

fn numbers(shape: &[usize], dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..count).map(|i| ((i * i * 7 + 3 * i) as f64 * 0.37).sin()).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    flat(tensor).into_iter().map(f64::to_bits).collect()
}

/// Returns the result of a layer, and the gradient of its table.
fn both(table: &Var, forward: impl Fn(Tensor) -> Result<Tensor>) -> (Tensor, Tensor) {
    let out = forward(table.as_tensor().clone()).unwrap();
    let weights = numbers(out.dims(), out.dtype());
    let gradients = (&out * weights).unwrap().sum_all().unwrap().backward().unwrap();
    (out, gradients.get(table).unwrap().clone())
}

#[test]
fn outside_minimize_rows_and_gradients_are_candle_nns() {
    for dtype in [DType::F32, DType::F64] {
        let table = Var::from_tensor(&numbers(&[HEIGHT, WIDTH], dtype)).unwrap();
        for shape in [&[][..], &[1], &[300], &[6, 8], &[2, 3, 4]] {
            for ids in [DType::U8, DType::U32, DType::I64].map(|d| ids(shape, HEIGHT).to_dtype(d).unwrap()) {
                let (rows, gradient) = both(&table, |table| Embedding::new(table, WIDTH).forward(&ids));
                let stock = both(&table, |table| candle_nn::Embedding::new(table, WIDTH).forward(&ids));
                assert_eq!(rows.dims(), stock.0.dims());
                assert_eq!((bits(&rows), bits(&gradient)), (bits(&stock.0), bits(&stock.1)));
            }
        }
        let strided = ids(&[6, 8], HEIGHT).t().unwrap();
        let (rows, gradient) = both(&table, |table| Embedding::new(table, WIDTH).forward(&strided));
        let stock =
            both(&table, |table| candle_nn::Embedding::new(table, WIDTH).forward(&strided.contiguous()?));
        assert_eq!((bits(&rows), bits(&gradient)), (bits(&stock.0), bits(&stock.1)));
    }
}

#[test]
fn rows_in_one_batch_equal_forward_flattened() {
    for dtype in [DType::F32, DType::F64, DType::F16] {
        let table = Var::from_tensor(&numbers(&[HEIGHT, WIDTH], dtype)).unwrap();
        for shape in [&[1][..], &[300], &[6, 8], &[2, 3, 4]] {
            let ids = ids(shape, HEIGHT);
            let layer = |table| Embedding::new(table, WIDTH);
            let fast = both(&table, |table| layer(table).side_by_side(&ids));
            let flattened = both(&table, |table| layer(table).forward(&ids)?.flatten_from(D::Minus2));
            assert_eq!(fast.0.dims(), flattened.0.dims());
            assert_eq!((bits(&fast.0), bits(&fast.1)), (bits(&flattened.0), bits(&flattened.1)));
        }
        assert!(Embedding::new(table.as_tensor().clone(), WIDTH).side_by_side(&ids(&[], HEIGHT)).is_err());
    }
}

#[test]
fn other_tables_use_candle_nns_lookup() {
    let half = numbers(&[HEIGHT, WIDTH], DType::F16);
    let rows = Embedding::new(half.clone(), WIDTH).forward(&ids(&[9], HEIGHT)).unwrap();
    assert_eq!((rows.dtype(), rows.dims()), (DType::F16, &[9, WIDTH][..]));
    let error = EmbeddingBag::new(half, BagMode::Sum).forward(&ids(&[9], HEIGHT)).unwrap_err().to_string();
    assert!(error.contains("not [40, 5] of F16"), "{error}");
}

#[test]
fn zero_ids_give_zero_rows() {
    let table = numbers(&[HEIGHT, WIDTH], DType::F32);
    let none = Tensor::zeros((0, 3), DType::U32, &Device::Cpu).unwrap();
    assert_eq!(Embedding::new(table.clone(), WIDTH).forward(&none).unwrap().dims(), [0, 3, WIDTH]);
    let bag = EmbeddingBag::new(table, BagMode::Mean);
    assert_eq!(bag.forward(&none).unwrap().dims(), [0, WIDTH]);
    // Three bags without ids.
    assert_eq!(flat(&bag.forward(&none.t().unwrap()).unwrap()), [0.; 3 * WIDTH]);
}

#[test]
fn an_id_that_is_no_row_is_named() {
    let table = numbers(&[HEIGHT, WIDTH], DType::F32);
    let embedding = Embedding::new(table.clone(), WIDTH);
    let error = |ids: &[i64]| {
        let ids = Tensor::from_slice(ids, (2, ids.len() / 2), &Device::Cpu).unwrap();
        embedding.forward(&ids).unwrap_err().to_string()
    };
    let text = error(&[0, 39, 40, 1]);
    assert!(
        text.contains(
            "embedding: id 40 at position 2 of ids [2, 2] is not a row: the table has 40, counted from 0"
        ),
        "{text}"
    );
    assert!(error(&[0, -1]).contains("id -1 at position 1"));
    let floats = embedding.forward(&numbers(&[2], DType::F32)).unwrap_err().to_string();
    assert!(floats.contains("u8, u32 or i64, not F32"), "{floats}");

    let bag = EmbeddingBag::new(table, BagMode::Sum).with_padding(40);
    let text =
        bag.forward(&Tensor::new(&[[1u32, 40], [40, 41]], &Device::Cpu).unwrap()).unwrap_err().to_string();
    assert!(text.contains("bag of embeddings: id 41 at position 3 of ids [2, 2] is not a row"), "{text}");
    let text = bag.forward(&Tensor::new(1u32, &Device::Cpu).unwrap()).unwrap_err().to_string();
    assert!(text.contains("[..., length]"), "{text}");
}

#[test]
fn a_bag_is_an_embedding_and_a_sum_or_mean_after_it() {
    for (dtype, limit) in [(DType::F32, 1e-6), (DType::F64, 1e-12)] {
        let table = Var::from_tensor(&numbers(&[HEIGHT, WIDTH], dtype)).unwrap();
        for shape in [&[1, 1][..], &[6, 8], &[2, 3, 4], &[5]] {
            let ids = ids(shape, HEIGHT);
            for mode in [BagMode::Sum, BagMode::Mean, BagMode::SqrtN] {
                let bag = both(&table, |table| EmbeddingBag::new(table, mode).forward(&ids));
                let stock = both(&table, |table| {
                    let rows = candle_nn::Embedding::new(table, WIDTH).forward(&ids)?;
                    let axis = shape.len() - 1;
                    match mode {
                        BagMode::Sum => rows.sum(axis),
                        BagMode::Mean => rows.mean(axis),
                        BagMode::SqrtN => rows.sum(axis)? / (shape[axis] as f64).sqrt(),
                    }
                });
                assert_close(&bag.0, &stock.0, limit, "the output");
                assert_close(&bag.1, &stock.1, limit, "the gradient");
            }
        }
    }
}

#[test]
fn padding_counts_for_nothing() {
    let table = Var::from_tensor(&numbers(&[HEIGHT, WIDTH], DType::F64)).unwrap();
    let bags: [&[u32]; 5] = [&[3, 3, 7], &[], &[39], &[1, 0, 3, 2], &[]];
    // An id of the table may stand for padding as well as one beyond it.
    for padding in [5u32, 40, u32::MAX] {
        let mut padded = Vec::new();
        for (i, bag) in bags.iter().enumerate() {
            let mut row = vec![padding; 4];
            // Wherever padding stands.
            row[(4 - bag.len()) * (i % 2)..][..bag.len()].copy_from_slice(bag);
            padded.extend(row);
        }
        let padded = Tensor::from_vec(padded, (5, 4), &Device::Cpu).unwrap();
        for mode in [BagMode::Sum, BagMode::Mean, BagMode::SqrtN] {
            let (out, gradient) = both(&table, |table| {
                EmbeddingBag::new(table, mode).with_padding(padding as usize).forward(&padded)
            });
            let mut expected = Tensor::zeros((HEIGHT, WIDTH), DType::F64, &Device::Cpu).unwrap();
            let weights = numbers(&[5, WIDTH], DType::F64);
            for (i, bag) in bags.iter().enumerate() {
                let one = out.get(i).unwrap();
                if bag.is_empty() {
                    assert_eq!(flat(&one), [0.; WIDTH]);
                    continue;
                }
                let ids = Tensor::new(*bag, &Device::Cpu).unwrap();
                let alone = EmbeddingBag::new(table.as_tensor().clone(), mode).forward(&ids).unwrap();
                assert_eq!(bits(&one), bits(&alone));
                let of_one =
                    (alone * weights.get(i).unwrap()).unwrap().sum_all().unwrap().backward().unwrap();
                expected = (expected + of_one.get(&table).unwrap()).unwrap();
            }
            assert_close(&gradient, &expected, 1e-12, "the gradient");
        }
    }
}

/// The kind of layer that a model has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layer {
    Ours,
    Stock,
    Bag,
    /// An embedding, followed by a sum.
    Summed,
}

/// Computes a model. If `tied` is `true`, the table is also the weight of a product, and both gradients are added.
fn forward(layer: Layer, tied: bool, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let rows = match layer {
        Layer::Ours | Layer::Summed => Embedding::new(table.clone(), WIDTH).forward(ids)?,
        Layer::Stock => candle_nn::Embedding::new(table.clone(), WIDTH).forward(ids)?,
        Layer::Bag => EmbeddingBag::new(table.clone(), BagMode::Sum).forward(ids)?,
    };
    let pooled = if layer == Layer::Bag { rows } else { rows.sum(1)? };
    if tied { pooled.matmul(&table.t()?)?.tanh() } else { pooled.tanh() }
}

/// Trains on batches, the last of which is smaller than the number of replicas.
fn train<R: Rule + Clone>(layer: Layer, tied: bool, rule: &R, n: usize, ids: &Tensor) -> Tensor {
    let strategy = mirrored(n);
    let model: Replicated<Tensor> = strategy
        .replicate_seeded(3, |vb: VarBuilder| {
            vb.get_with_hints((HEIGHT, WIDTH), "table", Init::Uniform { lo: -1., up: 1. })
        })
        .unwrap();
    let optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.1).unwrap();
    let examples = ids.dim(0).unwrap();
    let targets = numbers(&[examples, if tied { HEIGHT } else { WIDTH }], DType::F32);
    let data = Dataset::from_slices((ids.clone(), targets)).unwrap().batch(7);
    for _ in 0..3 {
        for batch in &strategy.distribute_dataset(data.clone()).unwrap() {
            let step = strategy.run((&model, batch.unwrap()), |ctx, (table, (ids, targets))| {
                if layer == Layer::Stock && ids.dim(0)? == 0 {
                    return optimizer.skip(ctx);
                }
                let loss = loss::mse(&forward(layer, tied, table, &ids)?, &targets)?;
                optimizer.minimize(ctx, loss, ids.dim(0)?)
            });
            step.unwrap();
        }
    }
    model.variables.get("table").unwrap()
}

// INV-7, INV-9
#[test]
fn a_training_is_bit_identical_to_dense_gradients() {
    watched(|| {
        let ids = ids(&[23, 4], HEIGHT);
        for n in 1..=3 {
            let both = |tied| {
                let sgd = [Layer::Ours, Layer::Stock].map(|layer| train(layer, tied, &Sgd, n, &ids));
                [sgd, [Layer::Ours, Layer::Stock].map(|layer| train(layer, tied, &Adam::default(), n, &ids))]
            };
            for [ours, stock] in both(false) {
                assert_eq!(bits(&ours), bits(&stock), "{n} replicas");
            }
            // candle adds each row to the product's gradient, but the layer adds the sum of the rows.
            for [ours, stock] in both(true) {
                assert_close(&ours, &stock, 1e-4, "the table");
            }
            let (bag, summed) =
                (train(Layer::Bag, false, &Sgd, n, &ids), train(Layer::Summed, false, &Sgd, n, &ids));
            assert_eq!(bits(&bag), bits(&summed), "bag, {n} replicas");
        }
    });
}

#[test]
fn a_lazy_rule_leaves_rows_without_lookups_unchanged() {
    watched(|| {
        let looked_up = HEIGHT / 2;
        let ids = ids(&[23, 4], looked_up);
        let lazy = Adam::lazy();
        let one = train(Layer::Ours, false, &lazy, 1, &ids);
        let start = train(Layer::Ours, false, &lazy, 1, &ids.narrow(0, 0, 1).unwrap().zeros_like().unwrap());
        let rest = |table: &Tensor| bits(&table.narrow(0, looked_up, HEIGHT - looked_up).unwrap());
        assert_eq!(rest(&one), rest(&start));
        assert_ne!(bits(&one.get(3).unwrap()), bits(&start.get(3).unwrap()));
        for n in 2..=3 {
            for layer in [Layer::Ours, Layer::Bag] {
                assert_close(&train(layer, false, &lazy, n, &ids), &one, 1e-4, "the table");
            }
        }
    });
}
