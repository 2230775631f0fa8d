//! Update rules of optimizers on plain slices, for dense gradients and gradients by row.
//!
//! A rule defines how a gradient changes a variable and its slots (momentum, second moments, …). It does not depend
//! on where the slices are: a replica applies it to its range of a variable, a parameter server to the rows of its
//! shard. Most formulas are applied element by element, so the results are bit-identical for any partition of a
//! variable. Others need complete rows or variables: see [`Rule::unit`].
//!
//! ```
//! use distribute_optim::{Adam, RuleExt, Rule, Step, merge_rows};
//!
//! let rule: Box<dyn Rule> = Box::new(Adam { lazy: true, ..Adam::default() });
//! rule.validate()?;
//!
//! // A table of 3 rows of 2, and its slots, as the rule lays them out.
//! let mut table = vec![1.0f32; 6];
//! let mut slots: Vec<Vec<f32>> = rule.slots().iter().map(|slot| vec![slot.initial as f32; 6]).collect();
//! let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
//!
//! // Row 2 has two gradients: they are summed first. Rows 0 and 1 have none.
//! let (rows, grads) = merge_rows(&[2, 2], &[1.0, -1.0, 2.0, -3.0], 2)?;
//! assert_eq!((&rows[..], &grads[..]), (&[2][..], &[3.0, -4.0][..]));
//!
//! // The first step, thus after 0 others, with a learning rate of 0.1.
//! rule.update_rows(Step::after(0, 0.1), &mut table, 2, &rows, &grads, &mut slots)?;
//! assert_eq!(table[..4], [1.0; 4]);
//! assert!((table[4] - 0.9).abs() < 1e-6 && (table[5] - 1.1).abs() < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `rule` | [`Rule`], the trait for code that applies rules, and [`Step`] |
//! | `formula` | [`Formula`], the trait for code that defines rules; every `Formula` is a [`Rule`] |
//! | `spec` | the hyper-parameters of each rule as data, such as [`Adam`], and [`RuleSpec`] for any rule |
//! | `rules` | the formula of each rule, in one file each |
//! | `slot` | [`SlotSpec`], a rule's slots with their [shapes](SlotShape), and [`Unit`], what a rule needs at once |
//! | `shaped` | rules that need complete rows or variables |
//! | `averaged` | [`Averaged`]: any rule, with a moving average of the weights |
//! | `rounding` | [`StochasticRounding`] of updated values to bf16 |
//! | `rows` | [`merge_rows`], and the ranges of a table that an update by row visits |
//! | `sweep` | the loop over elements that all formulas share, for each number of slots |
//! | `program`, `traced` | [`Program`]: a rule's step as operations on tensors, recorded from a formula |
//! | `kernel` | [`Kernel`]: a program as the source code of a GPU function |
//! | `float` | [`Float`]: `f32` and `f64` |
//! | `error` | [`UpdateError`] and [`InvalidHyperparameter`] |
//! | [`schedules`] | [`Schedule`]: the learning rate as a function of the step |
//!
//! Each [`Step`] contains its learning rate, which can be computed by [`schedules`]. Convert half precision to f32
//! before applying a rule.

#![forbid(unsafe_code)]

mod averaged;
mod error;
mod float;
mod formula;
mod kernel;
mod program;
mod rounding;
mod rows;
mod rule;
mod rules;
pub mod schedules;
mod shaped;
mod slot;
mod spec;
mod sweep;
mod traced;

#[doc(alias = "tf.train.ExponentialMovingAverage")]
pub use averaged::Averaged;
pub use error::{InvalidHyperparameter, UpdateError};
pub use float::Float;
pub use formula::Formula;
pub use kernel::Kernel;
pub use program::{Operation, Precision, Program};
#[doc(alias = "stochastic_rounding")]
pub use rounding::{StepRounding, StochasticRounding};
#[doc(alias = "tf.IndexedSlices")]
#[doc(alias = "IndexedSlices")]
pub use rows::merge_rows;
#[doc(alias = "tf.keras.optimizers.Optimizer")]
#[doc(alias = "Optimizer")]
pub use rule::Rule;
pub use rule::{RuleExt, Step};
pub use schedules::Schedule;
pub use slot::{SlotShape, SlotSpec, Unit};
#[doc(alias = "tf.keras.optimizers.Adafactor")]
pub use spec::Adafactor;
#[doc(alias = "tf.keras.optimizers.Adagrad")]
pub use spec::Adagrad;
#[doc(alias = "tf.keras.optimizers.Adam")]
#[doc(alias = "LazyAdam")]
pub use spec::Adam;
#[doc(alias = "tf.keras.optimizers.AdamW")]
pub use spec::AdamW;
#[doc(alias = "tf.keras.optimizers.Ftrl")]
pub use spec::Ftrl;
#[doc(alias = "tf.keras.optimizers.Lamb")]
pub use spec::Lamb;
#[doc(alias = "tf.keras.optimizers.Lion")]
pub use spec::Lion;
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "SGD")]
#[doc(alias = "tf.compat.v1.train.MomentumOptimizer")]
#[doc(alias = "MomentumOptimizer")]
pub use spec::Momentum;
#[doc(alias = "tf.keras.optimizers.Nadam")]
pub use spec::NAdam;
#[doc(alias = "tf.keras.optimizers.RMSprop")]
pub use spec::RmsProp;
#[doc(alias = "EXACT_ROWWISE_ADAGRAD")]
pub use spec::RowAdagrad;
pub use spec::RuleSpec;
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "SGD")]
pub use spec::Sgd;
pub use sweep::Slots;
