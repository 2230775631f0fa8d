//! Checks that generated kernels, compiled by a C compiler and run thread after thread, are bit-identical to rules on
//! slices.

// clippy's allow-unwrap-in-tests doesn't see helpers outside of #[test] functions.

use distribute_optim::{
    Adagrad, Adam, AdamW, Averaged, Float, Formula, Ftrl, Kernel, Lion, Momentum, NAdam, Precision, RmsProp,
    Rule, RuleExt, Sgd, SlotSpec, Step,
};
use distribute_testing::{SplitMix, child, watched_for};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// The functions that a GPU has and C does not, and the reading of files.
const PRELUDE: &str = r#"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned x, y, z; } dim3;
static dim3 blockIdx, threadIdx, gridDim, blockDim;
#define __global__ static
static void* take(FILE* file, size_t bytes) {
    void* memory = malloc(bytes + 1);
    if (!memory || fread(memory, 1, bytes, file) != bytes) exit(3);
    return memory;
}
"#;

/// The main function. Its arguments are the kernel, the number of elements, the grid, and the input and output files.
const MAIN: &str = r#"
int main(int count, char** arguments) {
    if (count != 7) return 2;
    gridDim.x = atoi(arguments[3]);
    blockDim.x = atoi(arguments[4]);
    FILE* from = fopen(arguments[5], "rb");
    FILE* to = fopen(arguments[6], "wb");
    if (!from || !to) return 4;
    int kernel = atoi(arguments[1]);
    unsigned long long elements = strtoull(arguments[2], 0, 10);
    DISPATCH
    return fclose(to) ? 5 : 0;
}
"#;

trait Bits: Float {
    const PRECISION: Precision;
    fn bytes(self) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Vec<Self>;
    fn same(self, other: Self) -> bool;
}

macro_rules! bits {
    ($($float:ident $precision:ident,)*) => {$(
        impl Bits for $float {
            const PRECISION: Precision = Precision::$precision;
            fn bytes(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
            fn read(bytes: &[u8]) -> Vec<Self> {
                bytes.chunks(size_of::<Self>()).map(|bytes| Self::from_ne_bytes(bytes.try_into().unwrap())).collect()
            }
            /// Returns whether two results have the same bits or are both NaN. No standard defines the bits of a NaN.
            fn same(self, other: Self) -> bool {
                self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
            }
        }
    )*};
}
bits! { f32 F32, f64 F64, }

/// A rule with the operations that the rules of this crate do not use.
#[derive(Debug)]
struct Rest;

impl Formula for Rest {
    type Slots<T: Copy> = [T; 3];
    fn label(&self) -> &'static str {
        "rest"
    }
    fn layout(&self) -> [SlotSpec; 3] {
        [SlotSpec::zeros("sign"), SlotSpec::zeros("gradient"), SlotSpec::zeros("number")]
    }
    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 3]) -> (F, [F; 3]) {
        let rate = F::from_f64(at.learning_rate());
        move |var, grad, [sign, _, number]| {
            let third = F::from_f64(1.) / F::from_f64(3.) + F::from_f64(2.).sqrt().powf(rate).abs();
            let less = sign.select_at_most(grad, number, third);
            (var - rate / (grad.abs() + third) / less, [rate.copysign(var), grad, third + number - number])
        }
    }
}

fn rules() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(Sgd),
        Box::new(Momentum::new(0.9)),
        Box::new(Momentum::nesterov(0.9)),
        Box::new(Adagrad::default()),
        Box::new(Adam::default()),
        Box::new(Adam { beta1: 0., ..Adam::lazy() }),
        Box::new(AdamW::default()),
        Box::new(AdamW { lazy: true, ..AdamW::default() }),
        Box::new(RmsProp::default()),
        Box::new(RmsProp { momentum: 0.5, ..RmsProp::default() }),
        Box::new(Ftrl { l1: 0.1, l2: 0.2, l2_shrinkage: 0.3, ..Ftrl::default() }),
        Box::new(Ftrl { lr_power: -0.7, beta: 0.5, ..Ftrl::default() }),
        Box::new(NAdam::default()),
        Box::new(Lion { weight_decay: 0.1, ..Lion::default() }),
        Box::new(Averaged { rule: Arc::new(Adam::default()), momentum: 0.9 }),
        Box::new(Rest),
    ]
}

fn kernel(rule: &dyn Rule, at: Step, precision: Precision) -> Kernel {
    Kernel::new(&rule.program(at).unwrap().unwrap(), precision).unwrap()
}

/// Compiles all kernels into one program. Returns `None` without a compiler. CI has one.
fn compiled(folder: &Path, kernels: &[Kernel]) -> Option<PathBuf> {
    let (mut text, mut dispatch) = (PRELUDE.to_owned(), String::new());
    for (number, kernel) in kernels.iter().enumerate() {
        let name = format!("kernel{number}");
        // The one word that is C++.
        text.push_str(&kernel.source.replace("extern \"C\" ", "").replace(Kernel::NAME, &name));
        let float = if kernel.precision == Precision::F32 { "float" } else { "double" };
        let mut call = vec!["elements".to_owned()];
        write!(dispatch, "if (kernel == {number}) {{\nsize_t bytes = elements * sizeof({float});\n").unwrap();
        for input in &kernel.inputs {
            writeln!(dispatch, "const {float}* in{input} = take(from, bytes);").unwrap();
            call.push(format!("in{input}"));
        }
        for output in 0..kernel.outputs {
            writeln!(dispatch, "{float}* out{output} = malloc(bytes + 1);").unwrap();
            call.push(format!("out{output}"));
        }
        writeln!(dispatch, "const {float}* c = take(from, {} * sizeof({float}));", kernel.constants.len())
            .unwrap();
        call.extend((0..kernel.constants.len()).map(|number| format!("c[{number}]")));
        writeln!(
            dispatch,
            "for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)\n\
             for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) {name}({});",
            call.join(", ")
        )
        .unwrap();
        for output in 0..kernel.outputs {
            writeln!(dispatch, "if (fwrite(out{output}, 1, bytes, to) != bytes) return 6;").unwrap();
        }
        dispatch.push_str("}\n");
    }
    text.push_str(&MAIN.replace("DISPATCH", &dispatch));
    let (source, program) = (folder.join("kernels.c"), folder.join("kernels"));
    std::fs::write(&source, text).unwrap();
    let mut compile = Command::new("cc");
    // As on a GPU, products and sums are rounded separately.
    compile
        .args(["-std=gnu11", "-O2", "-ffp-contract=off", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-lm");
    if Command::new("cc").arg("--version").output().is_err() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "there is no C compiler, `cc`");
        println!("skipped: there is no C compiler, `cc`, for the texts of kernels");
        return None;
    }
    child::output(compile, Duration::from_secs(60));
    Some(program)
}

/// Returns random numbers, among them special values such as NaN and the smallest subnormal number.
fn numbers<F: Float>(random: &mut SplitMix, precision: Precision, count: usize) -> Vec<F> {
    let (least, most) = match precision {
        Precision::F32 => (f64::from(f32::from_bits(1)), f64::from(f32::MAX)),
        Precision::F64 => (f64::from_bits(1), f64::MAX),
    };
    let special =
        [0., -0., 1., least, -least, 1000. * least, most, -most, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let number = |_| {
        let everyday = random.bits() as f64 / 2f64.powi(62) - 2.;
        F::from_f64(match random.below(32) {
            kind @ 0..11 => special[kind],
            11..16 => everyday * 1e-20f64,
            16..20 => everyday * 1e15f64,
            _ => everyday,
        })
    };
    (0..count).map(number).collect()
}

fn run<F: Bits>(
    program: &Path,
    number: usize,
    kernel: &Kernel,
    (blocks, threads): (usize, usize),
    inputs: &[Vec<F>],
) -> Vec<Vec<F>> {
    let folder = program.parent().unwrap();
    let (from, to) = (folder.join("in"), folder.join("out"));
    let count = inputs[0].len();
    let read = kernel.inputs.iter().flat_map(|input| inputs[*input].clone());
    let constants = kernel.constants.iter().map(|number| F::from_f64(*number));
    std::fs::write(&from, read.chain(constants).flat_map(F::bytes).collect::<Vec<u8>>()).unwrap();
    let mut command = Command::new(program);
    command.args([number, count, blocks, threads].map(|number| number.to_string())).arg(&from).arg(&to);
    child::output(command, Duration::from_secs(20));
    let all = F::read(&std::fs::read(&to).unwrap());
    assert_eq!(all.len(), count * kernel.outputs);
    (0..kernel.outputs).map(|output| all[output * count..][..count].to_vec()).collect()
}

fn same_as_on_slices<F: Bits>(program: &Path, number: usize, rule: &dyn Rule) {
    let mut random = SplitMix(number as u64);
    // In the last case but one, some threads have no element; in the last, threads have several.
    for (count, grid) in [(0, (1, 256)), (1, (1, 256)), (1023, (4, 256)), (1025, (5, 256)), (1025, (2, 96))] {
        let slots = rule.slots().len();
        let mut all: Vec<Vec<F>> =
            (0..2 + slots).map(|_| numbers(&mut random, F::PRECISION, count)).collect();
        for finished in [0, 1, 999] {
            let at = Step::after(finished, if finished == 1 { 1. } else { 0.013 });
            let kernel = kernel(rule, at, F::PRECISION);
            let made = run(program, number, &kernel, grid, &all);
            let (var, rest) = all.split_at_mut(1);
            let (grad, slots) = rest.split_at_mut(1);
            let mut slots: Vec<&mut [F]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
            rule.update(at, &mut var[0], &grad[0], &mut slots).unwrap();
            for (result, (made, expected)) in made.iter().zip(all.iter().take(1).chain(&all[2..])).enumerate()
            {
                for (at, (made, expected)) in made.iter().zip(expected).enumerate() {
                    assert!(
                        made.same(*expected),
                        "{rule:?} after {finished} steps, result {result}, element {at} of {count}: {made:?}, not {expected:?}\n{}",
                        kernel.source
                    );
                }
            }
            all[1] = numbers(&mut random, F::PRECISION, count);
        }
    }
}

#[test]
fn generated_kernels_are_bit_identical_to_rules_on_slices() {
    watched_for(Duration::from_secs(240), || {
        let folder = tempfile::tempdir().unwrap();
        let precisions = [Precision::F32, Precision::F64];
        let rules = rules();
        let at = Step::after(0, 0.1);
        let kernels: Vec<Kernel> = rules
            .iter()
            .flat_map(|rule| precisions.map(|precision| kernel(&**rule, at, precision)))
            .collect();
        let Some(program) = compiled(folder.path(), &kernels) else { return };
        for (number, rule) in rules.iter().enumerate() {
            same_as_on_slices::<f32>(&program, 2 * number, &**rule);
            same_as_on_slices::<f64>(&program, 2 * number + 1, &**rule);
        }
    });
}
