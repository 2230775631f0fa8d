//! The layout of a training run: the record on each server that determines whether the run can resume.

use crate::connect::OPERATION;
use distribute_base::{Error, Result};
use distribute_log::warn_or_stderr;
use distribute_ps_tables::{
    Channel, ChannelError, LAYOUT_TABLE, Layout, LayoutDecision, Request, Response, ServerState,
    VersionedValue, decide_layout,
};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Returns the request for the state of a server. [`parse_state`] reads its response.
pub(crate) fn state_request() -> Request {
    Request::Batch(vec![
        Request::List,
        Request::Usage,
        Request::Read { table: LAYOUT_TABLE.to_owned(), known: None, may_round: false },
    ])
}

/// Reads the state of a server from its response to [`state_request`]. Fields for which the response contains no data
/// keep their default values.
pub(crate) fn parse_state(answer: &Response) -> ServerState {
    let mut state = ServerState::default();
    let Response::Batch(answers) = answer else { return state };
    for answer in answers.iter().flatten() {
        match answer {
            Response::Tables(tables) => {
                state.tables = tables.iter().filter(|table| table.name != LAYOUT_TABLE).count();
            }
            Response::Usage(usage) => state.has_folder = usage.has_folder,
            Response::Value(VersionedValue { value, .. }) => state.layout = Layout::of_table(value),
            _ => {}
        }
    }
    state
}

// INV-73
/// Makes all servers store the layout of a new training run, or checks that they belong to the same one. `found` is the
/// state of each server. Servers that have lost their tables store the layout again, and a warning is logged.
///
/// # Errors
/// - [`Error::InvalidArgument`]: servers have tables of a different training run, or of one with another number of
///   servers; or a server has tables but no layout.
/// - [`Error::Server`]: a server did not answer or cannot store the layout.
pub(crate) fn ensure_layout(
    channels: &[Arc<dyn Channel>],
    found: &[ServerState],
    patience: Duration,
) -> Result<()> {
    let (training, servers): (u64, Vec<usize>) = match decide_layout(found) {
        LayoutDecision::Resume => return Ok(()),
        LayoutDecision::Refused(reason) => return Err(Error::invalid(OPERATION, reason)),
        LayoutDecision::Begin => (RandomState::new().hash_one(found.len()), (0..found.len()).collect()),
        LayoutDecision::Lost { training, servers } => {
            let names = servers.iter().map(|i| format!("ps {i}")).collect::<Vec<_>>().join(", ");
            warn_or_stderr(|| {
                tracing::warn!(
                    "{names} restarted without tables, which the other servers have, and began with initial values; \
                     restore a checkpoint, and set a folder for each server"
                );
            });
            (training, servers)
        }
    };
    let make = |server: usize| {
        let layout = Layout { training, servers: found.len(), server };
        // A previous attempt that was interrupted may have left a layout, which is removed first. If there was
        // none and another chief begins at the same time, the servers refuse one of the two.
        let before = found.get(server).and_then(|state| state.layout);
        let remove = before.map(|_| Request::Remove { table: LAYOUT_TABLE.to_owned() });
        let asks = remove.into_iter().chain([Request::Create(layout.table())]).collect();
        let made = channels.get(server).map(|channel| channel.start(Request::Batch(asks), patience));
        (server, made)
    };
    for (server, made) in servers.into_iter().map(make).collect::<Vec<_>>() {
        let answer = made.map(|made| made.and_then(|call| call.wait())).transpose();
        let failed = |source| Error::Server { operation: OPERATION, source: Box::new(source) };
        let refusal = match answer.map_err(failed)? {
            Some(Response::Batch(answers)) => answers.into_iter().find_map(std::result::Result::err),
            _ => None,
        };
        if let Some(refusal) = refusal {
            return Err(failed(ChannelError::Refused { server: format!("ps {server}"), refusal }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_tables::{LocalChannel, TableSpec, Tables};
    use distribute_tensor::HostTensor;

    const MINUTE: Duration = Duration::from_secs(60);

    // INV-73
    #[test]
    fn servers_keep_which_training_they_are_of_and_others_are_refused() {
        let servers: Vec<Arc<Tables>> = (0..3).map(|_| Arc::new(Tables::new())).collect();
        let ask = |servers: &[Arc<Tables>]| {
            let channels: Vec<Arc<dyn Channel>> = (0..)
                .zip(servers)
                .map(|(i, tables)| Arc::new(LocalChannel::new(i, tables.clone())) as Arc<dyn Channel>)
                .collect();
            let answer = |channel: &Arc<dyn Channel>| channel.call(state_request(), MINUTE).unwrap();
            let states: Vec<_> = channels.iter().map(answer).map(|answer| parse_state(&answer)).collect();
            (ensure_layout(&channels, &states, MINUTE), states)
        };
        let (begun, states) = ask(&servers);
        begun.unwrap();
        assert_eq!(states, [ServerState::default(); 3]);
        let table = |name| Request::Create(TableSpec::values(name, HostTensor::scalar(1f32)));
        servers[0].handle(&table("w")).unwrap();
        let (resumed, states) = ask(&servers);
        resumed.unwrap();
        let layouts: Vec<Layout> = states.iter().map(|state| state.layout.unwrap()).collect();
        assert!(layouts.iter().enumerate().all(|(i, layout)| (layout.servers, layout.server) == (3, i)));
        assert_eq!(states[0].tables, 1);
        let fewer = ask(&servers[..2]).0.unwrap_err().to_string();
        assert!(fewer.contains("are on 3 servers, and this cluster has 2"), "{fewer}");
        // Without a folder, the server that came back starts again, with the same training.
        let mut some = servers.clone();
        some[1] = Arc::new(Tables::new());
        ask(&some).0.unwrap();
        assert_eq!(ask(&some).1[1].layout, Some(layouts[1]));
    }
}
