//! Checks of the links between the tasks of a cluster, for `distribute doctor`.
//!
//! | module | contents |
//! |---|---|
//! | `examine` | [`examine`]: measures all links |
//! | `together` | [`together`]: each task listens, and one of them measures |
//! | `link` | [`Link`] and its [`State`]: the result for one link |
//! | `judge` | [`findings`]: the problems of links, a pure function |
//! | `report` | [`Report`]: links and problems, as a table and as JSON |
//! | `measure`, `service` | the measurement of one link, and the service of every server that it uses |

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

/// Returns the settings of connections that are only measured, with a short farewell.
fn settings() -> Settings {
    Settings { farewell: Duration::from_millis(500), silence: Duration::from_secs(10), ..Settings::default() }
}
