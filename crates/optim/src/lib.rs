//! Update rules of optimizers on plain slices, dense and by row.
//!
//! A rule says how a variable and its slots (momentum, second moments…) change for a gradient. It doesn't know
//! where the slices live: a replica applies it to the range that it owns, a parameter server to the rows of its
//! shard. Every formula works element by element, so any cut of a variable into ranges gives the same bits.
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
//! # The way through
//!
//! | module | what it holds |
//! |---|---|
//! | `rule` | [`Rule`], what callers use, and [`Step`]; [`Formula`], what authors of rules write |
//! | `rows` | [`merge_rows`], and which stretches of a table a row update visits |
//! | `sweep` | the one loop that all rules run in, for each number of slots |
//! | `spec` | [`RuleSpec`]: a rule as data |
//! | `program`, `traced` | [`Program`]: a rule's step as operations on whole tensors, and how a formula tells it |
//! | `kernel` | [`Kernel`]: the same as the text of one function for a GPU |
//! | `float` | [`Float`]: `f32` and `f64` |
//! | `error` | [`UpdateError`] and [`InvalidHyperparameter`] |
//! | [`schedules`] | [`Schedule`]: the learning rate as a function of the step |
//! | one for each rule | [`Sgd`], [`Momentum`], [`Adam`], [`AdamW`], [`Adagrad`], [`RmsProp`], [`Ftrl`] |
//!
//! The learning rate comes with each [`Step`]; [`schedules`] are functions that give one. Half-precision callers widen first.

#![forbid(unsafe_code)]

mod error;
mod float;
mod kernel;
mod program;
mod rows;
mod rule;
mod rules;
pub mod schedules;
mod spec;
mod sweep;
mod traced;

pub use error::{InvalidHyperparameter, UpdateError};
pub use float::Float;
pub use kernel::Kernel;
pub use program::{Operation, Precision, Program};
#[doc(alias = "tf.IndexedSlices")]
#[doc(alias = "IndexedSlices")]
pub use rows::merge_rows;
#[doc(alias = "tf.keras.optimizers.Optimizer")]
#[doc(alias = "Optimizer")]
pub use rule::Rule;
pub use rule::{Formula, RuleExt, SlotSpec, Step};
#[doc(alias = "tf.keras.optimizers.Adagrad")]
pub use rules::Adagrad;
#[doc(alias = "tf.keras.optimizers.Adam")]
#[doc(alias = "LazyAdam")]
pub use rules::Adam;
#[doc(alias = "tf.keras.optimizers.AdamW")]
pub use rules::AdamW;
#[doc(alias = "tf.keras.optimizers.Ftrl")]
pub use rules::Ftrl;
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "SGD")]
#[doc(alias = "tf.compat.v1.train.MomentumOptimizer")]
#[doc(alias = "MomentumOptimizer")]
pub use rules::Momentum;
#[doc(alias = "tf.keras.optimizers.RMSprop")]
pub use rules::RmsProp;
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "SGD")]
pub use rules::Sgd;
pub use schedules::Schedule;
pub use spec::RuleSpec;
pub use sweep::Slots;
