//! Checks of the links between the tasks of a cluster, for `distribute doctor`.
//!
//! | module | contents |
//! |---|---|
//! | `examine` | [`examine`]: measures all links |
//! | `participate` | [`participate`]: each task listens, and one of them measures |
//! | `link` | [`Link`] and its [`State`]: the result for one link |
//! | `findings` | [`findings`]: the problems of links, a pure function |
//! | `report` | [`Report`]: links and problems, as a table and as JSON |
//! | `measure`, `service` | the measurement of one link, and the service of every server that answers it |

mod examine;
mod findings;
mod link;
mod measure;
mod participate;
mod report;
mod service;

pub use examine::examine;
pub use findings::{Finding, findings};
pub use link::{Link, State};
pub use participate::participate;
pub use report::Report;

pub(crate) use measure::NAME;
pub(crate) use service::Examiner;

use distribute_net::Settings;
use std::time::Duration;

/// Returns the settings of connections for measurements. They close quickly, and tolerate a longer silence than usual.
fn settings() -> Settings {
    Settings {
        shutdown_idle_timeout: Duration::from_millis(500),
        silence: Duration::from_secs(10),
        ..Settings::default()
    }
}
