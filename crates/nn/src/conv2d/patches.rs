//! The patches of an image under a kernel, as a matrix with one column per position of the kernel and one row per
//! weight.

use crate::gemm::Matrix;
use crate::operation;
use candle_core::Result;
use candle_nn::Conv2dConfig;
use distribute_base::internal::Number;

/// The sizes of a convolution, from which its patches are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patches {
    pub(super) images: usize,
    pub(super) groups: usize,
    /// The number of channels in the result.
    pub(super) outputs: usize,
    /// The number of input channels in a group.
    channels: usize,
    /// The height and the width of the input. The next two fields contain those of the kernel and of the result.
    input: [usize; 2],
    kernel: [usize; 2],
    output: [usize; 2],
    stride: usize,
    padding: usize,
    dilation: usize,
}

/// Returns the number of positions of a kernel along an axis of the image. Returns `None` if the kernel does not fit or
/// has size 0, if the stride is 0, and on overflow.
pub(super) fn positions(input: usize, kernel: usize, config: &Conv2dConfig) -> Option<usize> {
    let padded = config.padding.checked_mul(2)?.checked_add(input)?;
    Some(padded.checked_sub(covered(1, kernel, config)?)?.checked_div(config.stride)? + 1)
}

/// Returns the number of elements along an axis that a kernel covers at the given number of positions.
///
/// This is the inverse of [`positions`] without padding. Returns `None` if `positions` or `kernel` is 0, and on
/// overflow.
pub(crate) fn covered(positions: usize, kernel: usize, config: &Conv2dConfig) -> Option<usize> {
    let steps = config.stride.checked_mul(positions.checked_sub(1)?)?;
    config.dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?.checked_add(steps)
}

impl Patches {
    /// Computes the sizes of a convolution. Returns `None` if the shapes do not match, if the kernel does not fit into
    /// the image, or if a size other than that of the image, the batch or the padding is 0.
    pub(super) fn new(x: &[usize], weight: &[usize], config: &Conv2dConfig) -> Option<Self> {
        let ([images, all, height, width], [outputs, channels, k_height, k_width]) = (x, weight) else {
            return None;
        };
        let &Conv2dConfig { padding, stride, dilation, groups, .. } = config;
        let positive = [*outputs, *channels, *k_height, *k_width, stride, dilation, groups];
        let grouped = !positive.contains(&0) && *all == channels * groups && outputs % groups == 0;
        let patches = |height_out, width_out| Self {
            images: *images,
            groups,
            outputs: *outputs,
            channels: *channels,
            input: [*height, *width],
            kernel: [*k_height, *k_width],
            output: [height_out, width_out],
            stride,
            padding,
            dilation,
        };
        let output = |input, kernel| positions(input, kernel, config);
        grouped.then(|| Some(patches(output(*height, *k_height)?, output(*width, *k_width)?))).flatten()
    }

    /// Returns an error if the result, or the patches of one image, would have more elements than memory can address. A
    /// large padding may cause this.
    pub(super) fn require_size(&self) -> Result<()> {
        let [height, width] = self.output;
        operation::require_size("conv2d", &self.output_dims())?;
        operation::require_size("conv2d", &[self.channels, self.kernel[0], self.kernel[1], height, width])
    }

    /// Returns the number of positions of the kernel.
    pub(super) fn positions(&self) -> usize {
        self.output.iter().product()
    }

    /// Returns the number of weights for one output channel.
    pub(super) fn patch(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    pub(super) fn output_dims(&self) -> [usize; 4] {
        [self.images, self.outputs, self.output[0], self.output[1]]
    }

    /// Returns the number of elements of an image that belong to one group.
    pub(super) fn group_input(&self) -> usize {
        self.channels * self.input[0] * self.input[1]
    }

    pub(super) fn group_output(&self) -> usize {
        self.outputs / self.groups * self.positions()
    }

    pub(super) fn group_weight(&self) -> usize {
        self.outputs / self.groups * self.patch()
    }

    /// Returns the weight of a group as a matrix with one row per output channel.
    pub(super) fn weight<'a, T: Copy>(&self, weight: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(weight, self.outputs / self.groups, self.patch())
    }

    /// Returns a group's slice of the result as a matrix with one row per output channel.
    pub(super) fn output<'a, T: Copy>(&self, output: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(output, self.outputs / self.groups, self.positions())
    }

    /// Returns whether the matrix of patches is identical to the image.
    pub(super) fn is_whole(&self) -> bool {
        (self.kernel, self.stride, self.padding) == ([1, 1], 1, 0)
    }

    /// Returns the matrix of patches of an image. Writes them to `buffer`, unless they are identical to the image.
    /// `buffer` must be empty or come from an earlier call of the same sizes, because the elements for padding are not
    /// written.
    pub(super) fn gather<'a, T: Number>(&self, image: &'a [T], buffer: &'a mut Vec<T>) -> Matrix<'a, T> {
        let patches = if self.is_whole() {
            image
        } else {
            // Padding stays zero from image to image.
            buffer.resize(self.patch() * self.positions(), T::of(0.));
            self.each_line(|line, image_at, buffer_at| {
                let to = &mut buffer[buffer_at..][..line];
                match self.stride {
                    1 => to.copy_from_slice(&image[image_at..][..line]),
                    stride => {
                        let from = image[image_at..].iter().step_by(stride);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                    }
                }
            });
            buffer
        };
        Matrix::new(patches, self.patch(), self.positions())
    }

    /// Adds each element of the patches to the element of the image from which it was read.
    pub(super) fn scatter<T: Number>(&self, patches: &[T], image: &mut [T]) {
        self.each_line(|line, image_at, patches_at| {
            let from = &patches[patches_at..][..line];
            match self.stride {
                1 => {
                    let to = &mut image[image_at..][..line];
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = to.plus(*from));
                }
                stride => {
                    let to = image[image_at..].iter_mut().step_by(stride);
                    to.zip(from).for_each(|(to, from)| *to = to.plus(*from));
                }
            }
        });
    }

    /// Calls `line` for each weight of the kernel and each row of the result, unless the weight is only over padding.
    ///
    /// The arguments of `line` are the number of positions in the row at which the weight is inside the image, the
    /// index of the first element in the image, and the index of the first element in the patches. Elements in the
    /// image are `stride` apart.
    fn each_line(&self, mut line: impl FnMut(usize, usize, usize)) {
        let [height, width] = self.input;
        let mut row = 0;
        for channel in 0..self.channels {
            for k_y in 0..self.kernel[0] {
                for k_x in 0..self.kernel[1] {
                    let columns = self.inside(k_x * self.dilation, width, self.output[1]);
                    for y in self.inside(k_y * self.dilation, height, self.output[0]) {
                        let image_y = y * self.stride + k_y * self.dilation - self.padding;
                        let image_x = columns.start * self.stride + k_x * self.dilation;
                        if !columns.is_empty() {
                            line(
                                columns.len(),
                                (channel * height + image_y) * width + (image_x - self.padding),
                                row * self.positions() + y * self.output[1] + columns.start,
                            );
                        }
                    }
                    row += 1;
                }
            }
        }
    }

    /// Returns the positions along an axis at which the element at `offset` in the patch is inside the image.
    fn inside(&self, offset: usize, input: usize, output: usize) -> std::ops::Range<usize> {
        let first = self.padding.saturating_sub(offset).div_ceil(self.stride);
        let end = (input + self.padding).saturating_sub(offset).div_ceil(self.stride).min(output);
        first.min(end)..end
    }
}
