//! How good the links between the tasks of a cluster are: what `distribute doctor` does.
//!
//! | module | what it is |
//! |---|---|
//! | `examine` | [`examine`]: measures all of them |
//! | `together` | [`together`]: each task listens, one of them measures |
//! | `link` | [`Link`]: what is known of one, [`State`] |
//! | `judge` | [`findings`]: what is wrong with them, a pure function |
//! | `report` | [`Report`]: both, as a table and as JSON |
//! | `measure`, `service` | measures one link; the service of every server by which that is done |

mod examine;
mod judge;
mod link;
mod measure;
mod report;
mod service;
mod together;

pub use examine::examine;
pub use judge::{Finding, findings};
pub use link::{Link, State};
pub use report::Report;
pub use together::together;

pub(crate) use measure::NAME;
pub(crate) use service::Examiner;

use distribute_net::Settings;
use std::time::Duration;

/// A connection that is only measured has no long farewell.
fn settings() -> Settings {
    Settings { farewell: Duration::from_millis(500), silence: Duration::from_secs(10), ..Settings::default() }
}
