//! The axes of images that are pooled or upsampled. For each output element, they define the input elements that
//! contribute to it.

use candle_core::{DType, Device, Result, Tensor};
use distribute_base::internal::{Number, accumulation_dtype, attach, is_native, to_device, with_elements};
use distribute_tensor::without_elements;
use std::ops::Range;

/// An axis of images. For each output position, it contains a range of input positions (a window) and their weights.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    input: usize,
    windows: Vec<Range<usize>>,
    /// The weights of all windows, one after another.
    weights: Vec<f64>,
}

impl Axis {
    fn new(input: usize, windows: impl Iterator<Item = (usize, Vec<f64>)>) -> Self {
        let mut axis = Self { input, windows: Vec::new(), weights: Vec::new() };
        for (start, weights) in windows {
            axis.windows.push(start..start + weights.len());
            axis.weights.extend(weights);
        }
        axis
    }

    /// Creates the axis of windows of `kernel` adjacent positions, which begin `stride` positions apart. The weights
    /// are those of a mean. The kernel must fit into the input.
    pub(super) fn pooled(input: usize, kernel: usize, stride: usize) -> Self {
        let outputs = 0..(input - kernel) / stride + 1;
        Self::new(input, outputs.map(|output| (output * stride, vec![1. / kernel as f64; kernel])))
    }

    /// Creates the axis of windows that cover the input and have almost equal sizes, as in PyTorch's adaptive pooling.
    /// The weights are those of a mean.
    pub(super) fn adaptive(input: usize, output: usize) -> Self {
        Self::new(
            input,
            (0..output).map(|place| {
                let (start, end) = (place * input / output, ((place + 1) * input).div_ceil(output));
                (start, vec![1. / (end - start) as f64; end - start])
            }),
        )
    }

    /// Creates the axis for the nearest input position of each output position, chosen as in candle.
    pub(super) fn nearest(input: usize, output: usize) -> Self {
        let scale = input as f64 / output as f64;
        let nearest = move |place: usize| ((place as f64 * scale) as usize).min(input - 1);
        Self::new(input, (0..output).map(|place| (nearest(place), vec![1.])))
    }

    /// Creates the axis for the two nearest input positions of each output position, weighted by distance.
    pub(super) fn bilinear(input: usize, output: usize, align_corners: bool) -> Self {
        let at = move |place: usize| {
            if !align_corners {
                return (input as f64 / output as f64 * (place as f64 + 0.5) - 0.5).max(0.);
            }
            // A single position is the first.
            (input - 1) as f64 / (output - 1).max(1) as f64 * place as f64
        };
        Self::new(
            input,
            (0..output).map(|place| {
                let at = at(place);
                let first = (at.floor() as usize).min(input - 1);
                match (at - first as f64).clamp(0., 1.) {
                    _ if first + 1 == input => (first, vec![1.]),
                    second => (first, vec![1. - second, second]),
                }
            }),
        )
    }

    pub(super) fn output(&self) -> usize {
        self.windows.len()
    }

    fn each(&self) -> impl Iterator<Item = (Range<usize>, &[f64])> {
        let mut weights = &self.weights[..];
        self.windows.iter().map(move |window| {
            let (mine, rest) = weights.split_at(window.len());
            weights = rest;
            (window.clone(), mine)
        })
    }

    /// Returns a matrix with one row per output position. The row contains the weights of all input positions.
    fn matrix(&self, like: &Tensor) -> Result<Tensor> {
        let mut all = vec![0.; self.input * self.output()];
        for (row, (window, weights)) in all.chunks_exact_mut(self.input.max(1)).zip(self.each()) {
            row[window].copy_from_slice(weights);
        }
        // Created on the CPU, because some devices have no f64.
        let all = Tensor::from_vec(all, (self.output(), self.input), &Device::Cpu)?;
        to_device(&all.to_dtype(like.dtype())?, like.device())
    }

    /// Returns position `number` of each window. If a window has fewer positions, returns its last position.
    fn positions(&self, number: usize, device: &Device) -> Result<Tensor> {
        let place = |window: &Range<usize>| (window.start + number).min(window.end - 1) as u32;
        Tensor::from_iter(self.windows.iter().map(place), device)
    }

    fn longest(&self) -> usize {
        self.windows.iter().map(Range::len).max().unwrap_or(0)
    }
}

/// The axis of the height and the axis of the width.
pub(super) type Axes = [Axis; 2];

/// A function that computes an output plane from an input plane along the given axes.
type Plane<T> = fn(&Axes, &[T], &mut [T]);

/// Computes `forward` and adds the result to the graph of `x`, which has shape `[n, channels, height, width]`.
///
/// `gradient` computes the gradient of `x`, given `x` and the gradient of the result.
pub(super) fn applied(
    name: &'static str,
    x: &Tensor,
    axes: Axes,
    forward: impl FnOnce(&Tensor, &Axes) -> Result<Tensor>,
    gradient: impl Fn(&Tensor, &Tensor, &Axes) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let (images, channels, ..) = x.dims4()?;
    if images * channels == 0 {
        let dims = [images, channels, axes[0].output(), axes[1].output()];
        return without_elements(&dims, x.dtype(), x.device());
    }
    let result = forward(&x.detach(), &axes)?;
    attach(name, x, result, move |x, up| gradient(x, up, &axes))
}

/// Computes the weighted sum over each window of `x`, which has shape `[n, channels, height, width]`.
pub(super) fn combined(x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let size = [axes[0].output(), axes[1].output()];
    computed(x, |x| match native(x, axes, size, (combine, combine))? {
        Some(y) => Ok(y),
        None => by_matrices(x, &axes[0].matrix(x)?, &axes[1].matrix(x)?),
    })
}

/// Computes the gradient of the argument `x` of [`combined`] from the gradient of its result.
pub(super) fn combined_gradient(up: &Tensor, axes: &Axes) -> Result<Tensor> {
    let size = [axes[0].input, axes[1].input];
    computed(up, |up| match native(up, axes, size, (spread, spread))? {
        Some(gradient) => Ok(gradient),
        None => by_matrices(up, &axes[0].matrix(up)?.t()?, &axes[1].matrix(up)?.t()?),
    })
}

/// Returns the largest element of each window of `x`, which has shape `[n, channels, height, width]`.
pub(super) fn largest(x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let size = [axes[0].output(), axes[1].output()];
    computed(x, |x| match native(x, axes, size, (maximum, maximum))? {
        Some(y) => Ok(y),
        None => {
            let mut all = offsets(axes).map(|offset| taken(x, axes, offset));
            let first = all.next().unwrap_or_else(|| Ok(x.clone()))?;
            all.try_fold(first, |largest, next| largest.maximum(&next?))
        }
    })
}

/// Computes the gradient of the argument `x` of [`largest`] from the gradient of its result. The gradient goes to
/// the first of the largest elements of each window.
pub(super) fn largest_gradient(x: &Tensor, up: &Tensor, axes: &Axes) -> Result<Tensor> {
    let up = prepared(up)?;
    computed(x, |x| match x.dtype() {
        DType::F32 if is_native(x) => native_largest_gradient::<f32>(x, &up, axes),
        DType::F64 if is_native(x) => native_largest_gradient::<f64>(x, &up, axes),
        _ => composed_largest_gradient(x, &up, axes),
    })
}

/// Returns a contiguous tensor without a graph, in the dtype in which `x` is accumulated.
fn prepared(x: &Tensor) -> Result<Tensor> {
    x.detach().to_dtype(accumulation_dtype(x.dtype()))?.contiguous()
}

/// Calls `function` with the [`prepared`] `x`. Returns the result in the dtype of `x`.
fn computed(x: &Tensor, function: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    function(&prepared(x)?)?.to_dtype(x.dtype())
}

/// Applies a function to each plane of `x`: the one in `plane` for the dtype of `x`, which writes a plane of the given
/// `size`. Returns `None` if this crate's loops do not support `x`.
fn native(
    x: &Tensor,
    axes: &Axes,
    size: [usize; 2],
    plane: (Plane<f32>, Plane<f64>),
) -> Result<Option<Tensor>> {
    if !is_native(x) {
        return Ok(None);
    }
    match x.dtype() {
        DType::F32 => native_gradient(x, axes, size, plane.0).map(Some),
        DType::F64 => native_gradient(x, axes, size, plane.1).map(Some),
        _ => Ok(None),
    }
}

fn native_gradient<T: Number>(
    x: &Tensor,
    axes: &Axes,
    [height, width]: [usize; 2],
    plane: Plane<T>,
) -> Result<Tensor> {
    let (images, channels, x_height, x_width) = x.dims4()?;
    let mut y = vec![T::of(0.); images * channels * height * width];
    if !y.is_empty() {
        with_elements(x, |x: &[T]| {
            let planes = x.chunks_exact(x_height * x_width).zip(y.chunks_exact_mut(height * width));
            planes.for_each(|(x, y)| plane(axes, x, y));
        })?;
    }
    Tensor::from_vec(y, (images, channels, height, width), x.device())
}

fn combine<T: Number>([rows, columns]: &Axes, x: &[T], y: &mut [T]) {
    let outputs = y.chunks_exact_mut(columns.output());
    for ((row, weights), y) in rows.each().zip(outputs) {
        for ((column, column_weights), y) in columns.each().zip(y) {
            for (x, weight) in x.chunks_exact(columns.input).skip(row.start).zip(weights) {
                let line = x[column.clone()].iter().zip(column_weights);
                let sum = line.fold(T::of(0.), |sum, (x, weight)| sum + *x * T::of(*weight));
                *y += sum * T::of(*weight);
            }
        }
    }
}

fn spread<T: Number>([rows, columns]: &Axes, up: &[T], gradient: &mut [T]) {
    for ((row, weights), up) in rows.each().zip(up.chunks_exact(columns.output())) {
        for ((column, column_weights), up) in columns.each().zip(up) {
            for (line, weight) in gradient.chunks_exact_mut(columns.input).skip(row.start).zip(weights) {
                let up = *up * T::of(*weight);
                let positions = line[column.clone()].iter_mut().zip(column_weights);
                positions.for_each(|(to, weight)| *to += up * T::of(*weight));
            }
        }
    }
}

fn maximum<T: Number>(axes: &Axes, x: &[T], y: &mut [T]) {
    each_first(axes, x, |window, place| y[window] = x[place]);
}

/// Calls `then` with the index of each window, and the position of the first of its largest elements. A NaN at the
/// start of a window is treated as the largest element, as in candle.
fn each_first<T: Number>([rows, columns]: &Axes, x: &[T], mut then: impl FnMut(usize, usize)) {
    for (y, row) in rows.windows.iter().enumerate() {
        for (column, window) in columns.windows.iter().enumerate() {
            let mut first = row.start * columns.input + window.start;
            for line in row.clone() {
                for place in window.clone().map(|column| line * columns.input + column) {
                    if x[first] < x[place] {
                        first = place;
                    }
                }
            }
            then(y * columns.output() + column, first);
        }
    }
}

fn native_largest_gradient<T: Number>(x: &Tensor, up: &Tensor, axes: &Axes) -> Result<Tensor> {
    let plane = axes[0].input * axes[1].input;
    let windows = axes[0].output() * axes[1].output();
    let mut gradient = vec![T::of(0.); x.elem_count()];
    if !gradient.is_empty() && windows > 0 {
        with_elements(x, |x: &[T]| {
            with_elements(up, |up: &[T]| {
                let planes = x.chunks_exact(plane).zip(up.chunks_exact(windows));
                for ((x, up), gradient) in planes.zip(gradient.chunks_exact_mut(plane)) {
                    each_first(axes, x, |window, place| gradient[place] += up[window]);
                }
            })
        })??;
    }
    Tensor::from_vec(gradient, x.shape(), x.device())
}

/// Computes `rows · x · columnsᵀ` for each plane of `x`.
fn by_matrices(x: &Tensor, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
    let (images, channels, height, width) = x.dims4()?;
    let wide = x.reshape((images * channels * height, width))?.matmul(&columns.t()?)?;
    let (height_out, width_out) = (rows.dim(0)?, columns.dim(0)?);
    let turned = wide.reshape((images, channels, height, width_out))?.transpose(2, 3)?.contiguous()?;
    let high = turned.reshape((images * channels * width_out, height))?.matmul(&rows.t()?)?;
    high.reshape((images, channels, width_out, height_out))?.transpose(2, 3)?.contiguous()
}

/// Returns the row and column offsets of all elements in the longest window.
fn offsets([rows, columns]: &Axes) -> impl Iterator<Item = [usize; 2]> {
    let width = columns.longest();
    (0..rows.longest()).flat_map(move |row| (0..width).map(move |column| [row, column]))
}

/// Returns, for each window, its element at the given offset. Along an axis on which the window is shorter, its last
/// position is used.
fn taken(x: &Tensor, [rows, columns]: &Axes, [row, column]: [usize; 2]) -> Result<Tensor> {
    let rows = x.index_select(&rows.positions(row, x.device())?, 2)?;
    rows.index_select(&columns.positions(column, x.device())?, 3)
}

/// Computes [`largest_gradient`] with candle's operations, one offset after another.
fn composed_largest_gradient(x: &Tensor, up: &Tensor, axes: &Axes) -> Result<Tensor> {
    let largest = largest(x, axes)?;
    let (images, channels, _, width) = x.dims4()?;
    let zeros = up.zeros_like()?;
    let (mut left, mut gradient) = (up.clone(), x.zeros_like()?);
    for offset in offsets(axes) {
        let hit = taken(x, axes, offset)?.eq(&largest)?;
        let here = hit.where_cond(&left, &zeros)?;
        left = hit.where_cond(&zeros, &left)?;
        let lines = Tensor::zeros((images, channels, axes[0].output(), width), x.dtype(), x.device())?;
        let lines = lines.index_add(&axes[1].positions(offset[1], x.device())?, &here, 3)?;
        gradient = gradient.index_add(&axes[0].positions(offset[0], x.device())?, &lines, 2)?;
    }
    Ok(gradient)
}
