//! Pooling, upsampling and scattering: candle's values, and gradients compared with finite differences and with known
//! values, also with candle's own backward pass.

use super::{assert_close, by_differences, flat, numbers, var};
use candle_core::{DType, Device, Result, Tensor, Var};
use distribute::nn;

/// Compares the gradients of all variables with finite differences, and gradients in f32 with those in f64.
fn assert_gradients(what: &str, of: &[&Var], function: &dyn Fn(&[Tensor]) -> Result<Tensor>) {
    let arguments = || of.iter().map(|var| var.as_tensor().clone()).collect::<Vec<_>>();
    let weighed = |arguments: &[Tensor]| {
        let y = function(arguments)?;
        let weights = (numbers(y.dims(), DType::F64) - 4.5)?.to_dtype(y.dtype())?;
        (y * weights)?.sum_all()
    };
    let loss = || weighed(&arguments());
    let store = loss().unwrap().backward().unwrap();
    let narrow: Vec<Var> =
        of.iter().map(|var| Var::from_tensor(&var.to_dtype(DType::F32).unwrap()).unwrap()).collect();
    let arguments: Vec<Tensor> = narrow.iter().map(|var| var.as_tensor().clone()).collect();
    let narrow_store = weighed(&arguments).unwrap().backward().unwrap();
    for (number, (of, narrow)) in of.iter().zip(&narrow).enumerate() {
        let found = store.get(of).unwrap();
        for (found, expected) in flat(found).into_iter().zip(by_differences(of, &loss)) {
            assert!((found - expected).abs() < 1e-6, "{what}, {number}: {found}, not {expected}");
        }
        assert_close(narrow_store.get(narrow).unwrap(), found, 1e-5, what);
    }
}

#[test]
fn pools_of_any_window_have_candles_values_and_gradients_of_differences() {
    let x = var(&[2, 3, 7, 6]);
    for (kernel, stride) in [((2, 2), (2, 2)), ((3, 2), (2, 1)), ((1, 4), (3, 3)), ((7, 6), (1, 1))] {
        let what = format!("{kernel:?} {stride:?}");
        let stock = x.max_pool2d_with_stride(kernel, stride).unwrap();
        assert_close(&nn::max_pool2d_with_stride(&x, kernel, stride).unwrap(), &stock, 0., &what);
        let stock = x.avg_pool2d_with_stride(kernel, stride).unwrap();
        assert_close(&nn::avg_pool2d_with_stride(&x, kernel, stride).unwrap(), &stock, 0., &what);
        assert_gradients(&what, &[&x], &|x| nn::max_pool2d_with_stride(&x[0], kernel, stride));
        assert_gradients(&what, &[&x], &|x| nn::avg_pool2d_with_stride(&x[0], kernel, stride));
    }
    let line = var(&[2, 3, 7]);
    assert_eq!(nn::max_pool1d(&line, 3, 2).unwrap().dims(), [2, 3, 3]);
    assert_gradients("max_pool1d", &[&line], &|x| nn::max_pool1d(&x[0], 3, 2));
    assert_gradients("avg_pool1d", &[&line], &|x| nn::avg_pool1d(&x[0], 3, 2));
    // Of another layout than its shape's.
    assert_gradients("turned", &[&x], &|x| nn::max_pool2d(&x[0].transpose(2, 3)?, 2));
}

#[test]
fn adaptive_and_global_pools_cover_the_image() {
    let x = var(&[2, 3, 7, 6]);
    for size in [(3, 4), (7, 6), (1, 2), (9, 5)] {
        let what = format!("{size:?}");
        assert_gradients(&what, &[&x], &|x| nn::adaptive_avg_pool2d(&x[0], size));
        assert_gradients(&what, &[&x], &|x| nn::adaptive_max_pool2d(&x[0], size));
    }
    let row = Tensor::new(&[[[[1f32, 2., 3., 4., 5.]]]], &Device::Cpu).unwrap();
    // Windows 0..2, 1..4 and 3..5.
    assert_eq!(flat(&nn::adaptive_avg_pool2d(&row, (1, 3)).unwrap()), [1.5, 3., 4.5]);
    assert_eq!(flat(&nn::adaptive_max_pool2d(&row, (1, 3)).unwrap()), [2., 4., 5.]);
    assert_eq!(nn::global_max_pool2d(&row).unwrap().to_vec2::<f32>().unwrap(), [[5.]]);
    assert_eq!(nn::global_avg_pool2d(&row).unwrap().to_vec2::<f32>().unwrap(), [[3.]]);
    assert_close(&nn::global_avg_pool2d(&x).unwrap(), &x.mean((2, 3)).unwrap(), 1e-12, "global");
}

#[test]
fn the_first_of_several_largest_elements_has_the_gradient_of_its_window() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = Tensor::new(&[[[[2f32, 2., 1.], [2., 2., 1.], [0., 3., 3.]]]], &Device::Cpu).unwrap();
        let x = Var::from_tensor(&x.to_dtype(dtype).unwrap()).unwrap();
        let store = nn::max_pool2d_with_stride(&x, 2, 1).unwrap().sum_all().unwrap().backward().unwrap();
        let gradient = store.get(&x).unwrap();
        assert_eq!(gradient.dtype(), dtype);
        assert_eq!(flat(gradient), [1., 1., 0., 0., 0., 0., 0., 2., 0.], "{dtype:?}");
    }
}

#[test]
fn upsampling_has_candles_values_and_gradients_of_differences() {
    let (line, x) = (var(&[2, 2, 3]), var(&[2, 2, 3, 4]));
    for size in [6, 7, 2] {
        let stock = line.upsample_nearest1d(size).unwrap();
        assert_close(&nn::upsample_nearest1d(&line, size).unwrap(), &stock, 0., "1d");
        // What is upsampled is used elsewhere, too.
        for first in [true, false] {
            let both = |x: &[Tensor]| {
                let y = x[0].affine(2., 1.)?;
                let (all, up) = (y.sqr()?.sum(2)?, nn::upsample_nearest1d(&y, size)?.sqr()?.sum(2)?);
                if first { all + up } else { up + all }
            };
            assert_gradients("1d", &[&line], &both);
        }
    }
    for (height, width) in [(6, 8), (7, 9), (2, 3), (6, 4)] {
        let stock = x.upsample_nearest2d(height, width).unwrap();
        assert_close(&nn::upsample_nearest2d(&x, height, width).unwrap(), &stock, 0., "2d");
        assert_gradients("2d", &[&x], &|x| nn::upsample_nearest2d(&x[0], height, width));
        for align in [false, true] {
            let stock = x.upsample_bilinear2d(height, width, align).unwrap();
            assert_close(&nn::upsample_bilinear2d(&x, height, width, align).unwrap(), &stock, 0., "bilinear");
            assert_gradients("bilinear", &[&x], &|x| nn::upsample_bilinear2d(&x[0], height, width, align));
        }
    }
}

#[test]
fn scattered_tensors_have_gradients_outside_the_written_rows() {
    let ids = |dims: &[usize], below: u32| {
        let all: Vec<u32> =
            (0..dims.iter().product::<usize>() as u32).map(|i| (i * i * 5 + 3) % below).collect();
        Tensor::from_vec(all, dims, &Device::Cpu).unwrap()
    };
    for (dims, dim) in [([2, 3, 4], 1), ([2, 5, 4], 1), ([2, 5, 4], 2), ([3, 2, 4], 0)] {
        let mut of_source = dims;
        of_source[dim] = 3;
        let (x, source, ids) = (var(&dims), var(&of_source), ids(&of_source, dims[dim] as u32));
        let what = format!("{dims:?} {dim}");
        let stock = x.scatter(&ids, &source, dim).unwrap();
        assert_close(&nn::scatter(&x, &ids, &source, dim).unwrap(), &stock, 0., &what);
        assert_gradients(&what, &[&x, &source], &|x| nn::scatter(&x[0], &ids, &x[1], dim));
        assert_gradients(&what, &[&x, &source], &|x| nn::scatter_add(&x[0], &ids, &x[1], dim));
    }
    // Computed by hand: the second of two values for one position is kept.
    let (x, source) =
        (Var::new(&[1f32, 2., 3.], &Device::Cpu).unwrap(), Var::new(&[4f32, 5.], &Device::Cpu).unwrap());
    let ids = Tensor::new(&[1u32, 1], &Device::Cpu).unwrap();
    let y = nn::scatter(&x, &ids, &source, 0).unwrap();
    assert_eq!(flat(&y), [1., 5., 3.]);
    let store = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(
        (flat(store.get(&x).unwrap()), flat(store.get(&source).unwrap())),
        (vec![1., 0., 1.], vec![0., 1.])
    );
    let y = nn::scatter_add(&x, &ids, &source, 0).unwrap();
    assert_eq!(flat(&y), [1., 11., 3.]);
    let store = y.sum_all().unwrap().backward().unwrap();
    assert_eq!((flat(store.get(&x).unwrap()), flat(store.get(&source).unwrap())), (vec![1.; 3], vec![1.; 2]));
}

#[test]
fn zero_images_give_zero_images_and_windows_that_do_not_fit_are_refused() {
    let none = Tensor::zeros((0, 3, 6, 5), DType::F32, &Device::Cpu).unwrap();
    // Also if the empty tensor is a part of another one.
    for none in [none, numbers(&[2, 3, 6, 5], DType::F32).narrow(0, 1, 0).unwrap()] {
        assert_eq!(nn::max_pool2d(&none, 2).unwrap().dims(), [0, 3, 3, 2]);
        assert_eq!(nn::avg_pool2d_with_stride(&none, 3, 1).unwrap().dims(), [0, 3, 4, 3]);
        assert_eq!(nn::adaptive_avg_pool2d(&none, (2, 4)).unwrap().dims(), [0, 3, 2, 4]);
        assert_eq!(nn::global_max_pool2d(&none).unwrap().dims(), [0, 3]);
        assert_eq!(nn::upsample_nearest2d(&none, 12, 7).unwrap().dims(), [0, 3, 12, 7]);
        assert_eq!(nn::upsample_bilinear2d(&none, 12, 7, true).unwrap().dims(), [0, 3, 12, 7]);
        let line = none.narrow(3, 0, 1).unwrap().squeeze(3).unwrap();
        assert_eq!(nn::max_pool1d(&line, 2, 2).unwrap().dims(), [0, 3, 3]);
        assert_eq!(nn::upsample_nearest1d(&line, 12).unwrap().dims(), [0, 3, 12]);
    }
    let x = numbers(&[1, 1, 2, 3], DType::F32);
    for error in [
        nn::max_pool2d(&x, 3).unwrap_err(),
        nn::avg_pool2d_with_stride(&x, 2, 0).unwrap_err(),
        nn::max_pool2d(&x, 0).unwrap_err(),
    ] {
        assert!(error.to_string().contains("does not fit images of 2 x 3"), "{error}");
    }
    let error = nn::adaptive_max_pool2d(&x, 0).unwrap_err().to_string();
    assert!(error.contains("cannot be pooled to (0, 0)"), "{error}");
    for error in [
        nn::adaptive_avg_pool2d(&x, (1 << 40, 1 << 40)).unwrap_err().to_string(),
        nn::upsample_bilinear2d(&x, usize::MAX, 2, false).unwrap_err().to_string(),
    ] {
        assert!(error.contains("more elements than memory has addresses"), "{error}");
    }
    let error = nn::upsample_nearest2d(&x, 0, 2).unwrap_err().to_string();
    assert!(error.contains("cannot become 0 x 2"), "{error}");
}
