//! The rules that there are: one file for each.

mod adagrad;
mod adam;
mod adamw;
mod ftrl;
mod momentum;
mod rmsprop;
mod sgd;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamw::AdamW;
pub use ftrl::Ftrl;
pub use momentum::Momentum;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;
