//! [`MixedPrecision`]: the dtype in which layers compute.

use candle_core::DType;
use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

thread_local! {
    static CURRENT: Cell<MixedPrecision> = const { Cell::new(MixedPrecision::Off) };
}

/// The precision in which the layers of `nn` compute. Variables, their gradients and the optimizer's slots are f32 in
/// each case.
///
/// With mixed precision, layers with weights convert their input and their weights to bf16 or f16, and return the
/// result in this dtype, so activations take half the memory. Norms, softmax and losses compute in f32; norms and
/// softmax return the dtype of their input, and losses return f32. f64 tensors are not converted.
///
/// bf16 has the range of f32 and 8 significant bits. f16 has 11 significant bits, but its largest number is 65,504 and
/// gradients below 3e-8 become 0. An optimizer therefore multiplies the loss by a scale if the strategy's precision is
/// [`F16`](MixedPrecision::F16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "tf.keras.mixed_precision.Policy")]
#[doc(alias = "set_global_policy")]
#[doc(alias = "autocast")]
pub enum MixedPrecision {
    /// Layers compute in the dtype of their input, which must be that of their weights.
    #[default]
    Off,
    /// Layers with f32 weights compute in bf16.
    #[doc(alias = "mixed_bfloat16")]
    Bf16,
    /// Layers with f32 weights compute in f16.
    #[doc(alias = "mixed_float16")]
    F16,
}

impl MixedPrecision {
    /// Calls `body`, in which layers on this thread compute with this precision. `Strategy::run` does this for its
    /// replicas, with the precision of the strategy. Use this outside `run`, for example to evaluate a model.
    pub fn scope<R>(self, body: impl FnOnce() -> R) -> R {
        let _entered = self.enter();
        body()
    }

    /// Returns the dtype of activations with mixed precision; `None` if it is off.
    pub fn compute_dtype(self) -> Option<DType> {
        match self {
            MixedPrecision::Off => None,
            MixedPrecision::Bf16 => Some(DType::BF16),
            MixedPrecision::F16 => Some(DType::F16),
        }
    }

    /// Makes this the precision of the current thread until the guard is dropped.
    #[doc(hidden)]
    pub fn enter(self) -> EnteredPrecision {
        EnteredPrecision(CURRENT.replace(self))
    }

    /// Returns the precision of the current thread.
    #[doc(hidden)]
    pub fn current() -> Self {
        CURRENT.get()
    }
}

/// Prints the name of the option of a command line: `off`, `bf16` or `f16`.
impl fmt::Display for MixedPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MixedPrecision::Off => "off",
            MixedPrecision::Bf16 => "bf16",
            MixedPrecision::F16 => "f16",
        })
    }
}

/// Parses the names that [`Display`](fmt::Display) prints.
impl FromStr for MixedPrecision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [MixedPrecision::Off, MixedPrecision::Bf16, MixedPrecision::F16];
        let found = all.into_iter().find(|one| one.to_string() == name);
        found.ok_or_else(|| format!("{name:?} is no precision; use off, bf16 or f16"))
    }
}

/// A guard that restores the previous precision of the thread when it is dropped.
#[must_use = "the precision is restored when the guard is dropped"]
#[derive(Debug)]
pub struct EnteredPrecision(MixedPrecision);

impl Drop for EnteredPrecision {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;

    #[test]
    fn a_scope_ends_with_its_closure_even_if_it_panics() {
        let inside = || {
            MixedPrecision::F16
                .scope(|| (MixedPrecision::current(), MixedPrecision::Off.scope(MixedPrecision::current)))
        };
        assert_eq!(inside(), (MixedPrecision::F16, MixedPrecision::Off));
        assert_eq!(MixedPrecision::current(), MixedPrecision::Off);
        let panicked = std::panic::catch_unwind(|| {
            MixedPrecision::Bf16.scope(|| std::panic::resume_unwind(Box::new(())))
        });
        assert!(panicked.is_err());
        assert_eq!(MixedPrecision::current(), MixedPrecision::Off);
    }

    #[test]
    fn names_are_parsed() {
        for one in [MixedPrecision::Off, MixedPrecision::Bf16, MixedPrecision::F16] {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        let error = "half".parse::<MixedPrecision>().unwrap_err();
        assert_eq!(error, "\"half\" is no precision; use off, bf16 or f16");
    }

    #[test]
    fn a_precision_belongs_to_one_thread() {
        MixedPrecision::Bf16.scope(|| {
            // On a separate thread.
            watched(|| assert_eq!(MixedPrecision::current(), MixedPrecision::Off));
            assert_eq!(MixedPrecision::current(), MixedPrecision::Bf16);
        });
    }
}
