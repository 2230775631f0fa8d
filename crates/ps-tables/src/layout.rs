//! The layout of a training run: the record of its servers that each of them stores. The layout prevents resuming a run
//! with only some of its servers, or with other servers.

// - INV-73: each server keeps a number of the training, the number of servers and its own. Tests:
//   `ps-tables/src/layout.rs`, `ps-client/src/layout.rs`, `ps-client/src/sharded/create.rs`,
//   `parameter_servers/processes.rs`.

use crate::{LAYOUT_TABLE, TableSpec};
use distribute_tensor::HostTensor;

/// A server's record of the training run to which its tables belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// A random number that identifies the training run. It is the same on all of the run's servers.
    pub training: u64,
    /// The number of servers of the training run.
    pub servers: usize,
    /// The index of this server.
    pub server: usize,
}

/// The state that a server reports when a training run begins or resumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerState {
    /// The layout that the server has stored; `None` if it has none.
    pub layout: Option<Layout>,
    /// The number of the server's tables, without the one that stores the layout.
    pub tables: usize,
    /// Whether the server stores its tables in a folder.
    pub has_folder: bool,
}

/// The decision whether a training run begins or resumes, from the states of all servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutDecision {
    /// All servers belong to the same training run, at the same indices as before. It is resumed.
    Resume,
    /// A new training run begins, because no server has a table, or because no server has a layout and those with
    /// tables have no folder. All servers get a layout with a new random number.
    Begin,
    /// Some servers without a folder have restarted and lost their tables. They get the layout of this training run
    /// again.
    Lost {
        /// The number that identifies the training run.
        training: u64,
        /// The indices of the servers that have lost their tables.
        servers: Vec<usize>,
    },
    /// The training run cannot resume on these servers. The text contains the cause and a remedy.
    Refused(String),
}

impl Layout {
    /// Returns the table that stores this layout.
    pub fn table(&self) -> TableSpec {
        let numbers = [self.training, self.servers as u64, self.server as u64].map(u64::cast_signed);
        TableSpec::values(LAYOUT_TABLE, HostTensor::vector(numbers.to_vec()))
    }

    /// Returns the layout that a table stores, given the values of the table; `None` if they are invalid.
    pub fn of_table(values: &HostTensor) -> Option<Self> {
        let &[training, servers, server] = values.as_slice::<i64>()? else { return None };
        let (servers, server) = (usize::try_from(servers).ok()?, usize::try_from(server).ok()?);
        Some(Self { training: training.cast_unsigned(), servers, server })
    }
}

// INV-73
/// Decides from the states of all servers, by index, whether a training run begins or resumes.
///
/// ```
/// use distribute_ps_tables::{Layout, LayoutDecision, ServerState, decide_layout};
///
/// let layout = |server| Some(Layout { training: 7, servers: 2, server });
/// let of = |layout| ServerState { layout, tables: 1, has_folder: true };
/// assert_eq!(decide_layout(&[of(layout(0)), of(layout(1))]), LayoutDecision::Resume);
/// // The folder of one was emptied.
/// let empty = ServerState { has_folder: true, ..ServerState::default() };
/// assert!(matches!(decide_layout(&[of(layout(0)), empty]), LayoutDecision::Refused(_)));
/// ```
pub fn decide_layout(found: &[ServerState]) -> LayoutDecision {
    let layouts = || found.iter().enumerate().filter_map(|(i, state)| Some((i, state.layout?)));
    let all = "Start the servers with the folders of one training; or, to begin again or from a checkpoint, empty the folders of all \
               servers (without folders: start all servers again)";
    let refused = |reason: String| LayoutDecision::Refused(format!("{reason}. {all}"));
    let without = || found.iter().enumerate().filter(|(_, state)| state.layout.is_none());
    let names =
        |servers: Vec<usize>| servers.iter().map(|i| format!("ps {i}")).collect::<Vec<_>>().join(", ");
    let kept = |has_tables: bool| -> Vec<usize> {
        let of = |(_, state): &(usize, &ServerState)| state.has_folder && (state.tables > 0) == has_tables;
        without().filter(of).map(|(i, _)| i).collect()
    };
    let unknown = kept(true);
    let have = if unknown.len() == 1 { "has" } else { "have" };
    // After an interrupted attempt to begin, some servers may have a layout, but none has a table.
    let Some((first, layout)) = layouts().next().filter(|_| found.iter().any(|state| state.tables > 0))
    else {
        if unknown.is_empty() {
            return LayoutDecision::Begin;
        }
        return refused(format!(
            "{} {have} tables and no record of their training: the record was removed by the repair of a damaged \
             log, or the folder is another one",
            names(unknown)
        ));
    };
    let name = |layout: &Layout| format!("{:016x}", layout.training);
    if let Some((other, another)) = layouts().find(|(_, other)| other.training != layout.training) {
        return refused(format!(
            "ps {first} has tables of training {}, and ps {other} those of training {}",
            name(&layout),
            name(&another)
        ));
    }
    if layout.servers != found.len() {
        return refused(format!(
            "the tables of training {} are on {} servers, and this cluster has {}; start the same number \
             of servers as it had",
            name(&layout),
            layout.servers,
            found.len()
        ));
    }
    if let Some((place, layout)) = layouts().find(|(place, layout)| *place != layout.server) {
        return refused(format!(
            "ps {place} has the tables of ps {} of training {}",
            layout.server,
            name(&layout)
        ));
    }
    if !unknown.is_empty() {
        return refused(format!(
            "{} {have} tables and no record of their training, but {} has those of training {}: the record was \
             removed by the repair of a damaged log, or the folder is another one",
            names(unknown),
            names(layouts().map(|(i, _)| i).collect()),
            name(&layout)
        ));
    }
    let emptied = kept(false);
    if !emptied.is_empty() {
        return refused(format!(
            "{} without any table of training {}, which {} has: the folder of each was emptied, or is another one",
            if emptied.len() == 1 {
                format!("{} is", names(emptied))
            } else {
                format!("{} are", names(emptied))
            },
            name(&layout),
            names(layouts().map(|(i, _)| i).collect())
        ));
    }
    match without().map(|(i, _)| i).collect::<Vec<_>>() {
        none if none.is_empty() => LayoutDecision::Resume,
        servers => LayoutDecision::Lost { training: layout.training, servers },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(training: u64, (server, servers): (usize, usize)) -> ServerState {
        ServerState { layout: Some(Layout { training, servers, server }), tables: 3, has_folder: true }
    }

    const NEW: ServerState = ServerState { layout: None, tables: 0, has_folder: true };

    #[test]
    fn a_layout_comes_back_from_its_table() {
        let layout = Layout { training: u64::MAX, servers: 3, server: 2 };
        let crate::Contents::Values(values) = layout.table().contents else { panic!("it has values") };
        assert_eq!(Layout::of_table(&values), Some(layout));
        assert_eq!(Layout::of_table(&HostTensor::vector(vec![1i64, 2, -1])), None);
        assert_eq!(Layout::of_table(&HostTensor::vector(vec![1i64])), None);
        assert_eq!(Layout::of_table(&HostTensor::vector(vec![1f32; 3])), None);
    }

    // INV-73
    #[test]
    fn a_training_begins_where_there_is_none_and_is_resumed_where_all_of_it_is() {
        use LayoutDecision::{Begin, Lost, Resume};
        let [a, b] = [0, 1].map(|server| state(7, (server, 2)));
        let memory = ServerState { has_folder: false, ..NEW };
        let begun = |state: ServerState| ServerState { tables: 0, ..state };
        for (found, decision) in [
            (vec![NEW, NEW], Begin),
            (vec![memory, NEW], Begin),
            // Interrupted before all servers had their layout, with another number of servers.
            (vec![begun(a), NEW, NEW], Begin),
            (vec![begun(a), begun(state(8, (1, 2)))], Begin),
            // Tables that another program has made, in memory.
            (vec![ServerState { layout: None, has_folder: false, ..a }, NEW], Begin),
            (vec![a, b], Resume),
            // A server that has none of the variables.
            (vec![a, begun(b)], Resume),
            (vec![a, memory], Lost { training: 7, servers: vec![1] }),
        ] {
            assert_eq!(decide_layout(&found), decision, "{found:?}");
        }
    }

    // INV-73
    #[test]
    fn a_training_is_not_resumed_on_other_servers_than_it_had() {
        let [a, b, c] = [0, 1, 2].map(|server| state(0x1f, (server, 3)));
        for (found, says) in [
            (vec![a, NEW, c], "ps 1 is without any table of training 000000000000001f, which ps 0, ps 2 has"),
            (vec![NEW, b, NEW], "ps 0, ps 2 are without any table"),
            // A log that was repaired without its first record.
            (
                vec![a, ServerState { layout: None, ..b }, c],
                "ps 1 has tables and no record of their training",
            ),
            // No other server has a record.
            (vec![ServerState { layout: None, ..a }], "ps 0 has tables and no record of their training: the"),
            (
                vec![ServerState { layout: None, ..a }, NEW, ServerState { layout: None, ..c }],
                "ps 0, ps 2 have tables and no record of their training: the record was removed",
            ),
            (vec![a, b], "on 3 servers, and this cluster has 2; start the same number"),
            (vec![a, b, c, NEW], "on 3 servers, and this cluster has 4"),
            (
                vec![a, state(5, (1, 3)), c],
                "ps 0 has tables of training 000000000000001f, and ps 1 those of training 0000000000000005",
            ),
            (vec![a, c, b], "ps 1 has the tables of ps 2"),
        ] {
            match decide_layout(&found) {
                LayoutDecision::Refused(text) => {
                    assert!(
                        text.contains(says) && text.contains("empty the folders of all servers"),
                        "{text}"
                    );
                }
                other => panic!("{other:?} of {found:?}"),
            }
        }
    }
}
